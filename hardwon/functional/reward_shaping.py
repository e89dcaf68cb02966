"""Terms added to a verdict's reward before advantages are taken."""

from __future__ import annotations

from torch import Tensor


def soft_overlong_punishment(lengths: Tensor, max_length: int, buffer: int) -> Tensor:
    """0 up to `max_length - buffer` tokens, then linearly down to -1 at `max_length`, and -1 beyond.

    `lengths` (any shape) counts response tokens; the result is float32 of that shape, to be added to
    the correctness reward (dapo, arXiv 2503.14476: max_length 20480, buffer 4096).
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"buffer={buffer} must be between 1 and max_length={max_length}")
    return (((max_length - buffer) - lengths) / buffer).clamp(min=-1.0, max=0.0).float()
