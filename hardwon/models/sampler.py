"""Draw one token a row, each row from its own stream of random numbers.

Shapes: `N` rows, `V` vocabulary, `T` tokens of the longest response.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hardwon.data import Sampling
from hardwon.functional.log_probs import filter_logits


def uniforms(seeds: Sequence[int], length: int) -> np.ndarray:
    """float32 (N, length) in [0, 1): row n is a Philox stream keyed by seed n alone."""
    numbers = np.empty((len(seeds), length), dtype=np.float32)
    for row, seed in zip(numbers, seeds, strict=True):
        np.random.Generator(np.random.Philox(key=seed)).random(out=row, dtype=np.float32)
    return numbers


def sample(logits_NV: Tensor, uniforms_N: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """`(tokens_N, log_probs_N)` by inverting the cumulative distribution at `uniforms_N`.

    Log-probs are those of the distribution drawn from: after temperature, top-k and top-p. Greedy
    decoding (temperature 0) has one possible outcome, with log-prob 0.
    """
    if sampling.temperature == 0:
        tokens_N = logits_NV.argmax(dim=-1)
        return tokens_N, torch.zeros_like(tokens_N, dtype=torch.float32)
    filtered_NV = filter_logits(
        logits_NV.float(), temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p
    )
    log_probs_NV = filtered_NV.log_softmax(dim=-1)
    # In float64 a 24-bit uniform times the total stays below the total, so that the index found is
    # always a token of positive probability.
    cumulative_NV = log_probs_NV.exp().cumsum(dim=-1, dtype=torch.float64)
    target_N1 = uniforms_N[:, None] * cumulative_NV[:, -1:]
    tokens_N1 = torch.searchsorted(cumulative_NV, target_N1, right=True)
    return tokens_N1.squeeze(1), log_probs_NV.gather(1, tokens_N1).squeeze(1)
