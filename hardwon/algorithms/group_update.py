"""From groups to one policy update: advantages, rows, mini-batches, loss.

Shapes: `P` groups, `G` rollouts per group, `B` rows of a micro-batch, `T` response tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hardwon.algorithms.group_recipes import Recipe
from hardwon.data import Group, Rollout, TokenBatch
from hardwon.functional import masked
from hardwon.functional.advantages import per_token
from hardwon.functional.amplification import amplify
from hardwon.functional.objectives import kl_k1, kl_k3, truncated_importance_weights
from hardwon.models.parallel import all_reduce_sum
from hardwon.models.policy import Policy
from hardwon.models.tokens import collate, pad_id
from hardwon.optimization import Optimizer, accumulate, add_stats, cpu_workers, pack_share
from hardwon.scoring import Span, score_spans

if TYPE_CHECKING:
    from hardwon.algorithms.group_policy import Config


@dataclass(frozen=True)
class Row:
    """One response on its way into the loss; every array has one value per response token."""

    prompt_ids: tuple[int, ...]
    response_ids: np.ndarray
    sampled_log_probs: np.ndarray
    old_log_probs: np.ndarray
    advantages: np.ndarray
    reference_log_probs: np.ndarray | None = None

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


def rewards_of(groups: Sequence[Group]) -> Tensor:
    """Rewards (P, G), NaN where the verifier failed; float64, so that equal rewards stay equal."""
    return torch.tensor([[r.reward for r in g.rollouts] for g in groups], dtype=torch.float64)


def group_advantages(
    groups: Sequence[Group], recipe: Recipe, config: Config, kl_PGT: Tensor | None = None
) -> Tensor:
    """Advantages (P, G), or (P, G, T) where the recipe puts the KL `kl_PGT` in the reward."""
    rewards_PG = rewards_of(groups)
    correct_PG = torch.tensor([[r.verdict.correct for r in g.rollouts] for g in groups])
    lengths_PG = torch.tensor([[r.length for r in g.rollouts] for g in groups])
    if kl_PGT is not None:
        return recipe.advantages(rewards_PG, correct_PG, lengths_PG, kl_PGT=kl_PGT, kl_coef=config.kl_coef)
    advantages_PG = recipe.advantages(rewards_PG, correct_PG, lengths_PG)
    positive_PG = correct_PG if config.amplify_by == "verdict" else rewards_PG > 0
    success_rate_P = torch.tensor([g.success_rate for g in groups], dtype=torch.float64)
    return amplify(
        advantages_PG,
        positive_PG,
        success_rate_P,
        mode=config.amplification,
        factor=config.amplification_factor,
        threshold=config.amplification_threshold,
        num_judged_P=torch.tensor([len(g.judged) for g in groups]),
    )


def has_loss(rollout: Rollout, config: Config) -> bool:
    """False for a row that is masked out: its verifier failed, or overlong filtering takes it."""
    return not rollout.verdict.is_error and not (config.overlong == "filter" and rollout.truncated)


def make_rows(
    groups: Sequence[Group], recipe: Recipe, config: Config, policy: Policy, reference: Policy | None
) -> tuple[list[list[Row]], Tensor]:
    """Rows of each group, and the advantages (P, G) that are recorded beside its rollouts.

    Advantages come first and masks after: a row without a loss (`has_loss`) has already counted in its
    group's statistics where it should.
    """
    if not groups:
        return [], torch.empty(0, config.group_size)
    flat = [
        Row(g.prompt_ids, r.sample.ids, r.sample.log_probs, r.sample.log_probs, np.zeros(r.length))
        for g in groups
        for r in g.rollouts
    ]
    if config.mismatch_cap is not None:
        scores = score(policy, flat, config)
        flat = [replace(row, old_log_probs=s) for row, s in zip(flat, scores, strict=True)]
    if reference is not None:
        scores = score(reference, flat, config)
        flat = [replace(row, reference_log_probs=s) for row, s in zip(flat, scores, strict=True)]
    kl_PGT = _kl(flat, len(groups)) if recipe.kl_in_reward and reference is not None else None
    advantages = group_advantages(groups, recipe, config, kl_PGT)
    lengths_PG = torch.tensor([[r.length for r in g.rollouts] for g in groups])
    advantages_PGT = advantages if advantages.ndim == 3 else per_token(advantages, lengths_PG)
    size = len(groups[0].rollouts)
    rows = []
    for p, group in enumerate(groups):
        rows.append(
            [
                replace(flat[p * size + g], advantages=advantages_PGT[p, g, : r.length].numpy())
                for g, r in enumerate(group.rollouts)
                if has_loss(r, config)
            ]
        )
    return rows, advantages_PGT[:, :, 0]


def _kl(rows: Sequence[Row], num_groups: int) -> Tensor:
    """The k1 estimate of the KL to the reference a token (P, G, T), 0 after a response's end."""
    kl = [kl_k1(torch.from_numpy(r.old_log_probs), torch.from_numpy(r.reference_log_probs)) for r in rows]
    padded = torch.nn.utils.rnn.pad_sequence(kl, batch_first=True)
    return padded.double().view(num_groups, -1, padded.shape[1])


def batches_of(
    rows: Sequence[Row], policy: Policy, max_tokens: int
) -> Iterator[tuple[list[int], TokenBatch]]:
    """Micro-batches of similar length within the token budget, with the indices of their rows.

    Of several ranks each has its share; where the others have more batches, it gets empty ones.
    """
    for indices in pack_share([row.length for row in rows], max_tokens):
        chosen = [rows[i] for i in indices]
        fields = [(r.prompt_ids, r.response_ids, r.old_log_probs, r.advantages) for r in chosen]
        batch = collate(fields, pad_id(policy.tokenizer))
        if rows[0].reference_log_probs is not None:
            values = joined([r.reference_log_probs for r in chosen if r.reference_log_probs is not None])
            mask_BT = batch.response_mask_BT.bool()
            reference_BT = torch.zeros_like(batch.old_log_probs_BT).masked_scatter(mask_BT, values)
            batch = replace(batch, reference_log_probs_BT=reference_BT)
        yield indices, batch


def joined(arrays: Sequence[np.ndarray]) -> Tensor:
    """Values of all rows in one float32 tensor; there may be no rows."""
    return torch.from_numpy(np.concatenate([np.empty(0, np.float32), *arrays])).float()


def score(policy: Policy, rows: Sequence[Row], config: Config) -> list[np.ndarray]:
    """Log-probs of every response token under `policy`, a float32 array a row."""
    spans = [Span(row.prompt_ids, row.response_ids) for row in rows]
    return score_spans(policy, spans, config.sampling, pad_id(policy.tokenizer), config.micro_batch_tokens)


def update(
    policy: Policy,
    optimizer: Optimizer,
    rows: Sequence[Row],
    recipe: Recipe,
    config: Config,
    learning_rate: float,
) -> dict[str, float]:
    """One optimizer step on `rows`; returns sums over tokens, the token count, loss and gradient norm.

    Denominators are those of the whole step, whatever the micro-batches and ranks. A row whose advantages
    are all 0 has no gradient without a KL term: it counts in the denominators and is not computed.
    """
    num_tokens, num_sequences = sum(len(r.response_ids) for r in rows), len(rows)
    if recipe.kl_in_reward or config.kl_coef == 0:
        rows = [r for r in rows if r.advantages.any()]
    workers = 1 if config.gradient_checkpointing else cpu_workers(policy.device)

    def part(indices: list[int], batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
        losses_BT, stats = token_losses(policy, batch, recipe, config)
        if config.mismatch_cap is not None:
            sampled = joined([rows[i].sampled_log_probs for i in indices])
            weights_BT = _mismatch_weights(batch, sampled, config.mismatch_cap)
            losses_BT = losses_BT * weights_BT.to(losses_BT.device)
        loss = aggregate(losses_BT, batch.response_mask_BT, recipe, config, num_tokens, num_sequences)
        return loss, {**stats, "loss": loss.detach()}

    batches = batches_of(rows, policy, budget(rows, config.micro_batch_tokens, workers))
    parts = [partial(part, *batch) for batch in batches]
    totals = all_reduce_sum(add_stats(accumulate(optimizer.parameters, parts, workers)))
    return {
        "loss": 0.0,
        **totals,
        "tokens": sum(len(r.response_ids) for r in rows),
        "grad_norm": optimizer.step(learning_rate) if rows else 0.0,
    }


def budget(rows: Sequence[Row], max_tokens: int, workers: int) -> int:
    """Tokens of a micro-batch: at most `max_tokens`, and few enough that every worker has a share."""
    total = sum(row.length for row in rows)
    return max_tokens if workers == 1 else max(min(max_tokens, total // (2 * workers)), 1)


def _mismatch_weights(batch: TokenBatch, sampled: Tensor, cap: float) -> Tensor:
    """min(pi_trainer / pi_generator, cap) a token: what the generator's log-probs differ by."""
    mask_BT = batch.response_mask_BT.bool()
    sampled_BT = torch.zeros_like(batch.old_log_probs_BT).masked_scatter(mask_BT, sampled)
    return truncated_importance_weights(batch.old_log_probs_BT, sampled_BT, cap=cap)


def token_losses(
    policy: Policy, batch: TokenBatch, recipe: Recipe, config: Config
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss a token (B, T) with the KL term where there is one, and sums for the log."""
    log_probs_BT, entropy_BT = policy.log_probs(batch, config.sampling)
    batch = to_device(batch, log_probs_BT.device)
    mask_BT = batch.response_mask_BT
    bounds = {name: getattr(config, name) for name in ("clip_low", "clip_high", "dual_clip")}
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    losses_BT, stats = recipe.objective(
        log_probs_BT, batch.old_log_probs_BT, batch.advantages_BT, mask_BT, **given
    )
    stats = {**stats, "entropy": masked.masked_sum(entropy_BT, mask_BT)}
    if batch.reference_log_probs_BT is not None:
        kl_BT = kl_k3(log_probs_BT, batch.reference_log_probs_BT)
        stats["kl"] = masked.masked_sum(kl_BT.detach(), mask_BT)
        if not recipe.kl_in_reward:
            losses_BT = losses_BT + config.kl_coef * kl_BT
    return losses_BT, stats


def to_device(batch: TokenBatch, device: torch.device) -> TokenBatch:
    moved = {k: v.to(device) for k, v in vars(batch).items() if v is not None}
    return replace(batch, **moved)


def aggregate(
    losses_BT: Tensor, mask_BT: Tensor, recipe: Recipe, config: Config, num_tokens: int, num_sequences: int
) -> Tensor:
    """Token losses as one number, over the denominator of the whole optimizer step."""
    mask_BT = mask_BT.to(losses_BT.device)
    match recipe.aggregation:
        case "token_mean":
            return masked.token_mean(losses_BT, mask_BT, num_tokens)
        case "sequence_mean":
            return masked.sequence_mean(losses_BT, mask_BT, num_sequences)
        case "sequence_mean_token_sum":
            return masked.sequence_mean_token_sum(losses_BT, mask_BT, num_sequences, config.max_new_tokens)
