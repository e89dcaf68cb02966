"""Rejection sampling and supervised fine-tuning: the policy is fitted to its own right responses.

A baseline of direct advantage: the same collected solutions, without any use of the wrong ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from hardwon.functional.masked import token_mean
from hardwon.models.parallel import all_reduce_sum
from hardwon.models.tokens import pad_id
from hardwon.offline.setup import Offline, OfflineSettings, open_offline
from hardwon.offline.solutions import Collected, keep_right
from hardwon.progress import Display
from hardwon.run import Run
from hardwon.scoring import Span, micro_batches


class Config(OfflineSettings):
    """Settings of rejection sampling. The values are ours: there is no one paper."""

    algorithm: str = "sft"
    kept_solutions: int = Field(4, gt=0, description="right and distinct, of each problem")
    batch_size: int = Field(128, gt=0, description="responses")
    learning_rate: float = Field(1e-5, gt=0)


# Settings of ours for the packaged models, at the budget of sampled tokens of direct advantage.
EMBEDDED: Mapping[str, Any] = {
    "num_problems": 2700,
    "micro_batch_tokens": 2048,
    "epochs": 2,
    "learning_rate": 2e-4,
    "learning_rate_schedule": "linear",
    "warmup_iterations": 5,
    "eval_problems": 512,
}


def train(config: Config, run: Run, display: Display) -> Path:
    """Collect, keep what is right, fit. Returns the directory of the trained model.

    Resumes where the run directory is. ValueError if no response was right.
    """
    offline = open_offline(config, run, display)
    collected = offline.collect(run.path, partial(keep_right, keep=config.kept_solutions))
    spans = right_spans(collected, offline)
    if not spans:
        raise ValueError(
            f"none of {sum(c.num_sampled for c in collected)} responses was right: nothing to fit; "
            "raise num_problems or solutions_per_problem, or begin with a better model"
        )

    def step(chosen: Sequence[int]) -> dict[str, float]:
        return accumulate([spans[i] for i in chosen], offline)

    return offline.fit_once(offline.policy_fit("sft", [1] * len(spans), config.batch_size, step), collected)


def right_spans(collected: Sequence[Collected], offline: Offline) -> list[Span]:
    """The kept responses of the problems to train on."""
    return [
        Span(offline.bench.sampler.encode(entry.problem), solution.ids)
        for entry in collected
        if entry.problem.id not in offline.validation_ids
        for solution in entry.solutions
        if solution.correct
    ]


def accumulate(spans: Sequence[Span], offline: Offline) -> dict[str, float]:
    """Gradients of the mean loss over all tokens of the step, whatever the micro-batches."""
    policy, config = offline.bench.policy, offline.config
    num_tokens, total = sum(len(span.response_ids) for span in spans), 0.0
    for _, batch in micro_batches(spans, pad_id(policy.tokenizer), config.micro_batch_tokens):
        log_probs_BT, _ = policy.log_probs(batch, config.sampling)
        mask_BT = batch.response_mask_BT.to(log_probs_BT.device)
        loss = token_mean(-log_probs_BT, mask_BT, num_tokens)
        loss.backward()
        total += float(loss.detach())
    return all_reduce_sum({"loss": total}) | {"tokens": float(num_tokens)}
