"""What an iteration of the group-relative family reports, under the names that users of TRL know."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np

from hardwon.algorithms.group_update import rewards_of
from hardwon.data import Group
from hardwon.dynamic_sampling import Fill
from hardwon.functional.advantages import degenerate


class Clock:
    """Seconds of the parts of an iteration."""

    def __init__(self) -> None:
        self.started = self._last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self._last = now - self._last, now


def describe(
    fill: Fill, groups: Sequence[Group], steps: Sequence[Mapping[str, float]], clock: Clock
) -> dict[str, float]:
    """Metrics of one iteration: of all that was sampled, of the updates, and of the clock.

    `reward` and `success_rate` are over every rollout sampled now, kept or dropped: over the kept
    ones alone they would sit near one half whatever the policy does.
    """
    return {
        **sampled_metrics(fill.sampled or fill.groups),
        **source_metrics(fill.sampled or fill.groups),
        **fill.metrics,
        "groups_trained": float(len(groups)),
        **update_metrics(steps),
        **clock_metrics(fill, clock),
    }


def sampled_metrics(groups: Sequence[Group]) -> dict[str, float]:
    rollouts = [r for g in groups for r in g.rollouts]
    judged = [r for r in rollouts if not r.verdict.is_error]
    rewards = np.array([r.reward for r in judged]) if judged else np.array([math.nan])
    lengths = np.array([r.length for r in rollouts])
    return {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "success_rate": sum(r.verdict.correct for r in judged) / len(judged) if judged else math.nan,
        "frac_reward_zero_std": float(degenerate(rewards_of(groups)).double().mean()),
        "completions/mean_length": float(lengths.mean()),
        "completions/max_length": float(lengths.max()),
        "completions/clipped_ratio": float(np.mean([r.truncated for r in rollouts])),
        "verifier/errors": float(len(rollouts) - len(judged)),
        "verifier/timeouts": float(sum(r.verdict.outcome == "timeout" for r in rollouts)),
    }


def source_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Reward, success rate and number of groups of each source of a mixture."""
    metrics = {}
    for name in sorted({g.state.problem.source for g in groups} - {""}):
        own = [g for g in groups if g.state.problem.source == name]
        judged = [r for g in own for r in g.judged]
        if judged:
            metrics[f"reward/{name}"] = float(np.mean([r.reward for r in judged]))
            metrics[f"success_rate/{name}"] = float(np.mean([r.verdict.correct for r in judged]))
        metrics[f"groups_sampled/{name}"] = float(len(own))
    return metrics


def update_metrics(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Token sums of all updates over their token count; the mean loss and gradient norm."""
    tokens = sum(step["tokens"] for step in steps)
    if not tokens:
        return {"loss": 0.0, "grad_norm": 0.0, "updates": 0.0}
    names = {name for step in steps for name in step} - {"tokens", "loss", "grad_norm"}
    means = {name: sum(step.get(name, 0.0) for step in steps) / tokens for name in sorted(names)}
    return means | {
        "loss": float(np.mean([step["loss"] for step in steps])),
        "grad_norm": float(np.mean([step["grad_norm"] for step in steps])),
        "updates": float(len(steps)),
    }


def clock_metrics(fill: Fill, clock: Clock) -> dict[str, float]:
    sampled = sum(r.length for g in fill.sampled for r in g.rollouts)
    return {
        "tokens_sampled": float(sampled),
        "tokens_per_second": sampled / clock.seconds["rollout"],
        "iteration_seconds": sum(clock.seconds.values()),
        **{f"{name}_seconds": value for name, value in clock.seconds.items()},
    }


def figures(metrics: Mapping[str, float]) -> dict[str, str]:
    """The few numbers of the live line."""
    shown = {
        "success": f"{metrics['success_rate']:.3f}",
        "reward": f"{metrics['reward']:+.2f}",
        "entropy": f"{metrics.get('entropy', math.nan):.2f}",
        "kept": f"{metrics['dynamic_sampling/kept']:.0f}",
        "dropped": f"{metrics['dynamic_sampling/dropped']:.0f}",
        "tok/s": f"{metrics['tokens_per_second']:,.0f}",
    }
    if "eval/mean@1" in metrics:
        shown["held-out"] = f"{metrics['eval/mean@1']:.3f}"
    return shown
