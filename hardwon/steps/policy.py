"""Stage 5 of direct advantage: the squared loss between A / beta and a step's log-ratio.

All candidate steps of a state are in one optimizer step. Reference log-probs come from the file of pairs.

Shapes: `B` pairs, `T` tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardwon.data import Sampling
from hardwon.functional.objectives import direct_advantage
from hardwon.models.parallel import add_up, all_reduce_sum
from hardwon.models.policy import Policy
from hardwon.models.tokens import pad_id
from hardwon.offline.fitting import Fit
from hardwon.offline.setup import Offline
from hardwon.scoring import Span, micro_batches, score_spans


def spans_of(rows: Sequence[dict[str, Any]], offline: Offline) -> list[Span]:
    """Each pair as tokens: the step after its state, with the reference's log-probs where they are known."""
    problems, encode, spans = offline.by_id, offline.bench.sampler.encode, []
    for row in rows:
        prefix_ids = encode(problems[row["problem_id"]]) + tuple(row["prefix_ids"])
        known = row.get("reference_log_probs")
        log_probs = None if known is None else np.array(known, np.float32)
        spans.append(Span(prefix_ids, tuple(row["action_ids"]), log_probs))
    return spans


def add_reference_log_probs(rows: Sequence[dict[str, Any]], offline: Offline) -> list[dict[str, Any]]:
    """The rows with the policy's log-prob, as it is before the fit, of each token of the kept pairs."""
    policy, config = offline.bench.policy, offline.config
    spans = spans_of([row for row in rows if row["kept"]], offline)
    scores = iter(
        score_spans(policy, spans, config.sampling, pad_id(policy.tokenizer), config.micro_batch_tokens)
    )
    return [row | {"reference_log_probs": next(scores).tolist() if row["kept"] else None} for row in rows]


def policy_fit(
    name: str, rows: Sequence[dict[str, Any]], offline: Offline, *, beta: float, batch_size: int
) -> Fit:
    """The fit of the policy to the kept pairs; an item is a state with all its steps."""
    policy, config = offline.bench.policy, offline.config
    states: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        states.setdefault(row["state"], []).append(index)
    items = list(states.values())
    spans = spans_of(rows, offline)
    advantages = torch.tensor([row["advantage"] for row in rows])

    def step(chosen: Sequence[int]) -> dict[str, float]:
        indices = [i for item in chosen for i in items[item]]
        return accumulate(
            policy,
            [spans[i] for i in indices],
            advantages[indices],
            config.sampling,
            beta,
            config.micro_batch_tokens,
        )

    return offline.policy_fit(name, [len(item) for item in items], batch_size, step)


def accumulate(
    policy: Policy,
    spans: Sequence[Span],
    advantages: Tensor,
    sampling: Sampling,
    beta: float,
    max_tokens: int,
) -> dict[str, float]:
    """Gradients of the mean loss over all pairs of the step, whatever the micro-batches; and its metrics."""
    log_ratios = torch.zeros(len(spans))
    total = 0.0
    for indices, batch in micro_batches(spans, pad_id(policy.tokenizer), max_tokens):
        log_probs_BT, _ = policy.log_probs(batch, sampling)
        mask_BT = batch.response_mask_BT.to(log_probs_BT.device)
        reference_BT = batch.old_log_probs_BT.to(log_probs_BT.device)
        advantages_B = advantages[indices].to(log_probs_BT.device)
        losses_B, _ = direct_advantage(log_probs_BT, reference_BT, advantages_B, mask_BT, beta=beta)
        loss = losses_B.sum() / len(spans)
        loss.backward()
        total += float(loss.detach())
        log_ratio_B = ((log_probs_BT.detach() - reference_BT) * mask_BT).sum(dim=1)
        log_ratios[indices] = log_ratio_B.float().cpu()
    tokens = sum(len(span.response_ids) for span in spans)
    metrics = all_reduce_sum({"loss": total}) | {"tokens": float(tokens), "pairs": float(len(spans))}
    return metrics | pair_metrics(add_up(log_ratios), advantages / beta)


def pair_metrics(log_ratios_B: Tensor, targets_B: Tensor) -> dict[str, float]:
    """How well log-ratios follow their targets A / beta, and how far the policy is from the reference.

    sign_agreement       share of pairs whose log-ratio has the sign of its target (not 0)
    explained_variance   1 - sum (target - log-ratio)^2 / sum target^2: 0 at the reference, 1 at the optimum
    kl                   of the reference to the policy in nats a step, estimated by r - 1 - log r
    """
    known = targets_B != 0
    agree = (log_ratios_B.sign() == targets_B.sign())[known]
    residual, variance = (targets_B - log_ratios_B).square().sum(), targets_B.square().sum()
    # A ratio beyond e^20 would say nothing but infinity.
    kl_B = log_ratios_B.clamp(max=20).exp() - 1 - log_ratios_B
    return {
        "sign_agreement": float(agree.float().mean()) if known.any() else 0.0,
        "explained_variance": float(1 - residual / variance) if variance > 0 else 0.0,
        "kl": float(kl_B.mean()),
        "log_ratio_std": float(log_ratios_B.std(unbiased=False)),
    }
