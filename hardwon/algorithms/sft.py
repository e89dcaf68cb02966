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
from hardwon.offline.fitting import Fit
from hardwon.offline.scoring import Span, micro_batches
from hardwon.offline.setup import Offline, OfflineSettings, open_offline
from hardwon.offline.solutions import SOLUTIONS, Collected, collect, keep_right
from hardwon.optimization import Optimizer
from hardwon.progress import Display
from hardwon.records import read_metrics
from hardwon.run import Run


class Config(OfflineSettings):
    """Settings of rejection sampling. The values are ours: there is no one paper."""

    algorithm: str = "sft"
    iterations: int = Field(1, ge=1, le=1, description="collecting and fitting once")
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
    collected = collect(
        run.path / SOLUTIONS,
        offline.problems,
        sampler=offline.bench.sampler,
        sampling=config.sampling,
        num_samples=config.solutions_per_problem,
        choose=partial(keep_right, keep=config.kept_solutions),
        iteration=1,
        progress=offline.progress("collect"),
    )
    spans = right_spans(collected, offline)
    if not spans:
        raise ValueError(
            f"none of {sum(c.num_sampled for c in collected)} responses was right: nothing to fit; "
            "raise num_problems or solutions_per_problem, or begin with a better model"
        )
    offline.fit(sft_fit(spans, offline, config.batch_size), run.path / "model")
    offline.evaluate_model(
        run.path / "model",
        {
            "tokens/generated": float(sum(entry.num_tokens for entry in collected)),
            "tokens/trained": sum(m.get("sft/tokens") or 0.0 for m in read_metrics(run.path)),
        },
    )
    return run.path / "model"


def right_spans(collected: Sequence[Collected], offline: Offline) -> list[Span]:
    """The kept responses of the problems to train on."""
    return [
        Span(offline.bench.sampler.encode(entry.problem), solution.ids)
        for entry in collected
        if entry.problem.id not in offline.validation_ids
        for solution in entry.solutions
        if solution.correct
    ]


def sft_fit(spans: Sequence[Span], offline: Offline, batch_size: int) -> Fit:
    """The fit of the policy to responses, each token weighing the same."""
    policy, config = offline.bench.policy, offline.config
    optimizer = Optimizer(policy.model, config)

    def update(chosen: Sequence[int], learning_rate: float) -> dict[str, float]:
        rows = [spans[i] for i in chosen]
        num_tokens, total = sum(len(row.response_ids) for row in rows), 0.0
        for _, batch in micro_batches(rows, pad_id(policy.tokenizer), config.micro_batch_tokens):
            log_probs_BT, _ = policy.log_probs(batch, config.sampling)
            mask_BT = batch.response_mask_BT.to(log_probs_BT.device)
            loss = token_mean(-log_probs_BT, mask_BT, num_tokens)
            loss.backward()
            total += float(loss.detach())
        norm = optimizer.step(learning_rate)
        metrics = {"tokens": float(num_tokens), "grad_norm": norm, "learning_rate": learning_rate}
        return all_reduce_sum({"loss": total}) | metrics

    return Fit(
        "sft",
        policy.model,
        config,
        optimizer,
        sizes=[1] * len(spans),
        batch_size=batch_size,
        epochs=config.epochs,
        validations_per_epoch=config.validations_per_epoch,
        update=update,
        validate=offline.validate,
        save=policy.save,
    )
