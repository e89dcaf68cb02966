"""Masked sums over responses, divided by a denominator that the caller passes in.

Shapes: `B` responses, `T` tokens. A loss belongs to one optimizer step, which may be cut into
micro-batches and spread over ranks. So every function takes the total of the *whole step* as its
denominator, and the values of the parts add up to the value of the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

Count = int | float | Tensor


def masked_sum(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Sum of `x_BT` where `mask_BT` is not 0; whatever stands elsewhere, NaN included, is ignored."""
    return torch.where(mask_BT.bool(), x_BT, 0.0).sum()


def token_mean(x_BT: Tensor, mask_BT: Tensor, num_tokens: Count) -> Tensor:
    """Sum over unmasked tokens / `num_tokens`, the unmasked tokens of the whole optimizer step.

    Every token weighs the same, so a long response weighs more (arXiv 2503.14476, the `dapo`
    loss). With everything masked and `num_tokens` 0 the value is a finite 0 that still has a
    gradient path, so that each rank can call `backward`.
    """
    return masked_sum(x_BT, mask_BT) / _at_least_one(num_tokens)


def sequence_mean(x_BT: Tensor, mask_BT: Tensor, num_sequences: Count) -> Tensor:
    """Mean over each response's tokens, summed / `num_sequences` of the whole optimizer step.

    Every response weighs the same (GRPO, arXiv 2402.03300). A fully masked response adds 0;
    whether it counts in `num_sequences` is the caller's decision.
    """
    sums_B = torch.where(mask_BT.bool(), x_BT, 0.0).sum(dim=1)
    lengths_B = mask_BT.bool().sum(dim=1).clamp(min=1)
    return (sums_B / lengths_B).sum() / _at_least_one(num_sequences)


def sequence_mean_token_sum(x_BT: Tensor, mask_BT: Tensor, num_sequences: Count, constant: float) -> Tensor:
    """Sum over each response's tokens / `constant`, summed / `num_sequences` of the whole step.

    Dr. GRPO (arXiv 2503.20783) divides by a constant, the longest response allowed, so that
    a response's own length does not change the weight of its tokens.
    """
    if not constant > 0:
        raise ValueError(f"constant={constant} must be positive, e.g. the maximum response length")
    return masked_sum(x_BT, mask_BT) / (constant * _at_least_one(num_sequences))


def _at_least_one(count: Count) -> Count:
    """Counts are whole numbers, so this changes 0 only, for which the numerator is 0 as well."""
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)
