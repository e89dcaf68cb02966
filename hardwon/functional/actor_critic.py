"""What PPO adds to the clipped loss: advantages from token values, and the loss of those values.

Shapes: `B` responses, `T` tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards_BT: Tensor, values_BT: Tensor, response_mask_BT: Tensor, *, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438): `(advantages_BT, returns_BT)`, 0 where masked.

    delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lam A_{t+1}, t + 1 being the response's
    next unmasked token; after the last one V and A are 0. The returns are A + V. Nothing is normalised.
    """
    mask_BT = response_mask_BT.bool()
    advantages_BT = torch.zeros_like(values_BT)
    next_value_B = next_advantage_B = torch.zeros_like(values_BT[:, 0])
    for t in range(values_BT.shape[1] - 1, -1, -1):
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        advantage_B = delta_B + gamma * lam * next_advantage_B
        next_value_B = torch.where(mask_BT[:, t], values_BT[:, t], next_value_B)
        next_advantage_B = torch.where(mask_BT[:, t], advantage_B, next_advantage_B)
        advantages_BT[:, t] = torch.where(mask_BT[:, t], advantage_B, 0.0)
    return advantages_BT, torch.where(mask_BT, advantages_BT + values_BT, 0.0)


def value_loss(
    values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, *, clip: float | None = None
) -> Tensor:
    """`losses_BT`: 1/2 (V - return)^2; with `clip`, the larger of that and the loss of V kept within
    `clip` of its old value (the value clipping of common PPO implementations)."""
    losses_BT = (values_BT - returns_BT).square()
    if clip is not None:
        near_BT = old_values_BT + (values_BT - old_values_BT).clamp(-clip, clip)
        losses_BT = torch.maximum(losses_BT, (near_BT - returns_BT).square())
    return losses_BT / 2
