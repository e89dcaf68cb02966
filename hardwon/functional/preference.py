"""Losses on pairs of responses. Shapes: `B` pairs; log-probs are summed over a response's tokens."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid


def dpo(
    chosen_B: Tensor,
    rejected_B: Tensor,
    reference_chosen_B: Tensor,
    reference_rejected_B: Tensor,
    *,
    beta: float,
) -> Tensor:
    """`losses_B`: -log sigmoid(beta (log-ratio of chosen - log-ratio of rejected)) (arXiv 2305.18290)."""
    if not beta > 0:
        raise ValueError(f"beta={beta} must be positive, e.g. 0.1")
    margin_B = (chosen_B - reference_chosen_B) - (rejected_B - reference_rejected_B)
    return -logsigmoid(beta * margin_B)
