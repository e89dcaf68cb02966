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

MASK32, SHIFT32 = np.uint64(0xFFFFFFFF), np.uint64(32)
PHILOX_M0, PHILOX_M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
PHILOX_W0, PHILOX_W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


def uniforms(seeds: Sequence[int], length: int) -> np.ndarray:
    """float32 (N, length) in [0, 1) with 24 random bits each: row n depends on seed n alone.

    Number t of a row is word t % 4 of Philox block t // 4 under the row's seed.
    """
    blocks_NK4 = philox(
        np.array(seeds, dtype=np.uint64)[:, None], np.arange(-(-length // 4), dtype=np.uint64)
    )
    words_NT = blocks_NK4.reshape(len(seeds), -1)[:, :length]
    return (words_NT >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)


def philox(keys: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """Four random 32-bit words for each 64-bit key and counter, which broadcast: uint64 (..., 4).

    Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). NumPy's
    own needs one generator object a key, which took longer than some decode steps.
    """
    keys, counters = np.broadcast_arrays(keys, counters)
    k0, k1 = keys & MASK32, keys >> SHIFT32
    x0, x1 = counters & MASK32, counters >> SHIFT32
    x2 = x3 = np.zeros_like(x0)
    for _ in range(10):
        product0, product2 = x0 * PHILOX_M0, x2 * PHILOX_M1
        x0, x1 = (product2 >> SHIFT32) ^ x1 ^ k0, product2 & MASK32
        x2, x3 = (product0 >> SHIFT32) ^ x3 ^ k1, product0 & MASK32
        k0, k1 = (k0 + PHILOX_W0) & MASK32, (k1 + PHILOX_W1) & MASK32
    return np.stack([x0, x1, x2, x3], axis=-1)


def sample(logits_NV: Tensor, uniforms_N: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """`(tokens_N, log_probs_N)` by inverting the cumulative distribution at `uniforms_N`.

    Log-probs are those of the distribution drawn from: after temperature, top-k and top-p. Greedy
    decoding (temperature 0) has one possible outcome, with log-prob 0. Where logits are not finite (NaN,
    or +inf, or nothing but -inf) the log-prob is NaN and the token means nothing.
    """
    if sampling.temperature == 0:
        largest_N, tokens_N = logits_NV.float().max(dim=-1)
        return tokens_N, largest_N - largest_N
    filtered_NV = filter_logits(
        logits_NV.float(), temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p
    )
    log_probs_NV = filtered_NV.log_softmax(dim=-1)
    # In float64 a 24-bit uniform times the total stays below the total, so that the index found is
    # always a token of positive probability.
    cumulative_NV = log_probs_NV.exp().cumsum(dim=-1, dtype=torch.float64)
    target_N1 = uniforms_N[:, None] * cumulative_NV[:, -1:]
    tokens_N1 = torch.searchsorted(cumulative_NV, target_N1, right=True)
    tokens_N1 = tokens_N1.clamp(max=logits_NV.shape[-1] - 1)  # NaN is found behind the last
    return tokens_N1.squeeze(1), log_probs_NV.gather(1, tokens_N1).squeeze(1)
