from __future__ import annotations

import numpy as np
import torch

from hardwon.data import Sampling
from hardwon.models.sampler import philox, sample, uniforms


def test_a_uniform_number_picks_the_token_whose_share_it_falls_into():
    # Probabilities 0.5, 0.25, 0.25: [0, 0.5) is token 0, [0.5, 0.75) token 1, [0.75, 1) token 2.
    logits_NV = torch.tensor([0.5, 0.25, 0.25]).log().expand(6, 3)
    numbers = torch.tensor([0.0, 0.499, 0.5, 0.749, 0.75, 0.999])
    tokens_N, log_probs_N = sample(logits_NV, numbers, Sampling(1))
    assert tokens_N.tolist() == [0, 0, 1, 1, 2, 2]
    torch.testing.assert_close(log_probs_N.exp(), torch.tensor([0.5, 0.5, 0.25, 0.25, 0.25, 0.25]))


def test_filtered_tokens_are_never_drawn_even_at_the_largest_number():
    # top-k 2 leaves tokens 0 and 1; the largest float32 below 1 must not fall through to token 2.
    logits_NV = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    largest = torch.tensor([np.nextafter(np.float32(1), np.float32(0))])
    tokens_N, log_probs_N = sample(logits_NV, largest, Sampling(1, top_k=2))
    assert tokens_N.tolist() == [1]
    torch.testing.assert_close(log_probs_N, torch.tensor([-1.3133]), atol=1e-4, rtol=0)  # -log(1 + e)


def test_frequencies_follow_the_temperature():
    # Logits 0 and 1 at temperature 0.5 are 0 and 2: token 1 has probability 1/(1 + e^-2) = 0.8808.
    numbers = torch.from_numpy(uniforms([7], 20_000)[0])
    tokens_N, _ = sample(torch.tensor([[0.0, 1.0]]).expand(20_000, 2), numbers, Sampling(1, temperature=0.5))
    assert abs(tokens_N.float().mean().item() - 0.8808) < 0.01


def test_each_row_of_uniforms_is_its_seeds_own_stream():
    table = uniforms([3, 4, 2**64 - 1], 5)
    assert np.array_equal(table[1], uniforms([4], 5)[0])
    assert np.array_equal(table[:, :3], uniforms([3, 4, 2**64 - 1], 3))
    assert len(np.unique(table)) == 15 and table.min() >= 0 and table.max() < 1


def test_philox_gives_the_published_numbers():
    # Known answers of the authors' Random123 library for philox4x32-10: key and counter all zeros.
    words = philox(np.uint64([0]), np.uint64([0]))[0]
    assert [f"{word:08x}" for word in words] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
