"""Direct preference optimization (arXiv 2305.18290) on pairs of a right and a wrong response to one problem.

A baseline of direct advantage: the same collected solutions, judged as wholes.

Shapes: `B` pairs, `T` tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from hardwon.functional.preference import dpo
from hardwon.models.policy import Policy
from hardwon.models.tokens import pad_id
from hardwon.offline.fitting import Fit
from hardwon.offline.setup import Offline, OfflineSettings, open_offline
from hardwon.offline.solutions import Collected, keep_balanced
from hardwon.optimization import pack
from hardwon.progress import Display
from hardwon.run import Run
from hardwon.scoring import Span, micro_batches, score_spans


class Config(OfflineSettings):
    """Settings of DPO. Those of the loss are the paper's; those of collecting are direct advantage's."""

    algorithm: str = "dpo"
    kept_solutions: int = Field(6, gt=1, description="of each problem, right and wrong as balanced as can be")
    beta: float = Field(0.1, gt=0)
    batch_size: int = Field(64, gt=0, description="pairs")


# Settings of ours for the packaged models, at the budget of sampled tokens of direct advantage.
EMBEDDED: Mapping[str, Any] = {
    "num_problems": 2700,
    "micro_batch_tokens": 2048,
    "learning_rate": 1e-4,
    "learning_rate_schedule": "linear",
    "warmup_iterations": 5,
    "eval_problems": 512,
}


def train(config: Config, run: Run, display: Display) -> Path:
    """Collect, pair, fit. Returns the directory of the trained model.

    Resumes where the run directory is. ValueError if no problem has both right and wrong responses.
    """
    offline = open_offline(config, run, display)
    collected = offline.collect(run.path, partial(keep_balanced, keep=config.kept_solutions))
    pairs = preference_pairs(collected, offline)
    if not pairs:
        raise ValueError(
            f"no problem of {len(collected)} has right and wrong responses, so there are no pairs: raise "
            "num_problems or solutions_per_problem"
        )
    return offline.fit_once(dpo_fit(pairs, offline, config), collected)


def preference_pairs(collected: Sequence[Collected], offline: Offline) -> list[tuple[Span, Span]]:
    """(right, wrong) responses of the problems to train on, each response in one pair at most."""
    pairs = []
    for entry in collected:
        if entry.problem.id in offline.validation_ids:
            continue
        prompt_ids = offline.bench.sampler.encode(entry.problem)
        right = [Span(prompt_ids, s.ids) for s in entry.solutions if s.correct]
        wrong = [Span(prompt_ids, s.ids) for s in entry.solutions if not s.correct]
        pairs += list(zip(right, wrong, strict=False))
    return pairs


def dpo_fit(pairs: Sequence[tuple[Span, Span]], offline: Offline, config: Config) -> Fit:
    """The fit of the policy to pairs; the reference is the policy as it is now, scored once."""
    policy = offline.bench.policy
    flat = [span for pair in pairs for span in pair]
    scores = score_spans(policy, flat, config.sampling, pad_id(policy.tokenizer), config.micro_batch_tokens)
    reference_P2 = torch.tensor([float(s.sum()) for s in scores]).view(-1, 2)

    def step(chosen: Sequence[int]) -> dict[str, float]:
        return accumulate(policy, [pairs[i] for i in chosen], reference_P2[list(chosen)], config)

    return offline.policy_fit("dpo", [1] * len(pairs), config.batch_size, step)


def accumulate(
    policy: Policy, pairs: Sequence[tuple[Span, Span]], reference_B2: Tensor, config: Config
) -> dict[str, float]:
    """Gradients of the mean loss over the pairs of the step; a pair is never split."""
    total, right = 0.0, 0
    lengths = [2 * max(chosen.length, rejected.length) for chosen, rejected in pairs]
    for indices in pack(lengths, config.micro_batch_tokens):
        chosen_B, rejected_B = summed_log_probs(policy, [pairs[i] for i in indices], config)
        known_B2 = reference_B2[indices].to(chosen_B.device)
        losses_B = dpo(chosen_B, rejected_B, known_B2[:, 0], known_B2[:, 1], beta=config.beta)
        loss = losses_B.sum() / len(pairs)
        loss.backward()
        total += float(loss.detach())
        right += int((chosen_B - known_B2[:, 0] > rejected_B - known_B2[:, 1]).sum())
    tokens = sum(len(span.response_ids) for pair in pairs for span in pair)
    return {"loss": total, "accuracies": right / len(pairs), "tokens": float(tokens)}


def summed_log_probs(
    policy: Policy, pairs: Sequence[tuple[Span, Span]], config: Config
) -> tuple[Tensor, Tensor]:
    """Log-probs of the right and of the wrong responses (B,), summed over tokens, in one forward pass."""
    spans = [span for pair in pairs for span in pair]
    everything = sum(span.length for span in spans) * len(spans)
    ((order, batch),) = micro_batches(spans, pad_id(policy.tokenizer), everything)
    log_probs_BT, _ = policy.log_probs(batch, config.sampling)
    sums = log_probs_BT.sum(dim=1)[torch.tensor(order).argsort().to(log_probs_BT.device)].view(-1, 2)
    return sums[:, 0], sums[:, 1]
