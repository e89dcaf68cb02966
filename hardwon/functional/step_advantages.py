"""Values and advantages of reasoning steps, for direct advantage (arXiv 2412.18279).

Shapes: `S` states, `M` unique candidate actions (next steps) of a state. States with fewer candidates are
padded; `counts_SM` says how often each was sampled, 0 being padding. Any shape does for the Monte-Carlo
functions.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

TOLERANCE = 1e-6  # ours: a gap of exactly the minimum, after float32 rounding, is still that gap


def monte_carlo_values(successes: Tensor, trials: Tensor) -> Tensor:
    """Successes / trials, float32: 3 of 8 is 0.375. The target of the critic."""
    _check_counts(successes, trials)
    return successes.float() / trials


def smoothed_rates(successes: Tensor, trials: Tensor) -> Tensor:
    """(successes + 1/2) / (trials + 1): strictly inside (0, 1), for where an error is needed."""
    _check_counts(successes, trials)
    return (successes.float() + 0.5) / (trials + 1)


def value_standard_errors(successes: Tensor, trials: Tensor) -> Tensor:
    """sqrt(r (1 - r) / trials) at the smoothed rate r, so that 0 of 16 does not claim to be certain."""
    rates = smoothed_rates(successes, trials)
    return (rates * (1 - rates) / trials).sqrt()


def action_values(next_values_SM: Tensor, rewards_SM: Tensor, terminal_SM: Tensor) -> Tensor:
    """The critic's value of the state after each action; a terminal action is worth its reward instead."""
    return torch.where(terminal_SM, rewards_SM.to(next_values_SM.dtype), next_values_SM)


def step_advantages(
    values_SM: Tensor, counts_SM: Tensor, *, baseline: Literal["unique", "all"] = "unique"
) -> Tensor:
    """A(s, a_i) = V(s + a_i) - mean_j V(s + a_j); 0 for padding (arXiv 2412.18279).

    `values_SM` come from `action_values`. The paper leaves open whether the mean runs over the `unique`
    actions or over `all` samples, in which an action counts as often as it was drawn.
    """
    if baseline not in ("unique", "all"):
        raise ValueError(f"baseline={baseline!r} is unknown; use 'unique' or 'all'")
    real_SM = counts_SM > 0
    weights_SM = (counts_SM if baseline == "all" else real_SM).to(values_SM.dtype)
    values_SM = values_SM.masked_fill(~real_SM, 0.0)
    total_S1 = weights_SM.sum(dim=1, keepdim=True).clamp(min=1)
    mean_S1 = (weights_SM * values_SM).sum(dim=1, keepdim=True) / total_S1
    return (values_SM - mean_S1).masked_fill(~real_SM, 0.0)


def advantage_gaps(values_SM: Tensor, counts_SM: Tensor) -> Tensor:
    """`(S,)`: largest minus smallest value (or advantage) of a state's actions; 0 with fewer than two."""
    real_SM = counts_SM > 0
    highest_S = values_SM.masked_fill(~real_SM, -torch.inf).amax(dim=1)
    lowest_S = values_SM.masked_fill(~real_SM, torch.inf).amin(dim=1)
    return (highest_S - lowest_S).clamp(min=0)


def select_states(values_SM: Tensor, counts_SM: Tensor, minimum_gap: float = 0.1) -> Tensor:
    """`bool_S`: states worth training on, whose actions differ by at least `minimum_gap` (paper: 0.1)."""
    return advantage_gaps(values_SM, counts_SM) >= minimum_gap - TOLERANCE


def _check_counts(successes: Tensor, trials: Tensor) -> None:
    if not bool(((successes >= 0) & (successes <= trials) & (trials > 0)).all()):
        raise ValueError("counts must satisfy 0 <= successes <= trials with at least one trial")
