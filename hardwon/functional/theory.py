"""Exact expectations: what the filter of dynamic sampling does to advantages, and amplification to gradients.

Derived here, not from a paper; used by tests, reports and documentation. Binary rewards; `G` is the
group size, `A` the number of arms. Estimators are functions of hardwon.functional.advantages.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Estimator = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class FilterEffect:
    """Expected advantages of correct and incorrect responses, over all groups and over kept ones."""

    kept_probability: float
    correct: float
    correct_kept: float
    incorrect: float
    incorrect_kept: float


def filter_effect(success_probability: float, group_size: int, estimator: Estimator) -> FilterEffect:
    """Exact expectations under independent responses that are each correct with `success_probability`.

    A group is kept if it is neither all correct nor all wrong. The estimator must be 0 on uniform groups.
    """
    p, others = success_probability, group_size - 1
    num_correct = torch.arange(group_size + 1)
    success_KG = torch.arange(group_size) < num_correct[:, None]
    rewards_KG = success_KG.double()
    advantages_KG = estimator(rewards_KG, success_KG, torch.ones_like(rewards_KG).long())
    # Given one response, the number of correct ones among the others is binomial.
    binomial = [math.comb(others, j) * p**j * (1 - p) ** (others - j) for j in range(group_size)]
    correct = sum(binomial[j] * advantages_KG[j + 1, 0].item() for j in range(group_size))
    incorrect = sum(binomial[j] * advantages_KG[j, -1].item() for j in range(group_size))
    correct_factor, incorrect_factor = filter_factors(p, group_size)
    return FilterEffect(
        kept_probability=1 - p**group_size - (1 - p) ** group_size,
        correct=correct,
        correct_kept=correct * correct_factor,
        incorrect=incorrect,
        incorrect_kept=incorrect * incorrect_factor,
    )


def filter_factors(success_probability: float, group_size: int) -> tuple[float, float]:
    """How much the filter multiplies E[A | correct] and E[A | incorrect], for 0 < p < 1.

    1 / (1 - p^(G-1)) and 1 / (1 - (1-p)^(G-1)): a correct response's group is dropped exactly if the
    other G - 1 are correct too, and a dropped group contributes advantage 0 to the unfiltered mean.
    """
    if not 0 < success_probability < 1:
        raise ValueError(f"success_probability={success_probability}: the filter keeps no group at 0 or 1")
    others = group_size - 1
    return 1 / (1 - success_probability**others), 1 / (1 - (1 - success_probability) ** others)


def expected_gradient(logits_A: Tensor, correct_A: Tensor, group_size: int, estimator: Estimator) -> Tensor:
    """Expected on-policy policy gradient of a softmax bandit over kept groups, by enumerating every group.

    Returns E[ 1/G sum_i A_i grad log pi(a_i) | kept ], `(A,)`, where `correct_A` (bool) are the arms
    that earn reward 1. There are A^G groups.
    """
    num_arms = len(logits_A)
    arms_KG = torch.tensor(list(itertools.product(range(num_arms), repeat=group_size)))
    probs_A = logits_A.softmax(0)
    success_KG = correct_A[arms_KG]
    kept_K = success_KG.any(1) & ~success_KG.all(1)
    weights_K = probs_A[arms_KG].prod(1) * kept_K
    advantages_KG = estimator(success_KG.to(logits_A.dtype), success_KG, torch.ones_like(arms_KG))
    # grad log pi(a) = onehot(a) - pi
    scores_KGA = torch.eye(num_arms, dtype=logits_A.dtype)[arms_KG] - probs_A
    gradients_KA = (advantages_KG[:, :, None] * scores_KGA).mean(1)
    return (weights_K[:, None] * gradients_KA).sum(0) / weights_K.sum()
