from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import CONFIGS, make_policy

from hardwon.data import Request, Sampling
from hardwon.models.generator_hf import HFGenerator
from hardwon.models.tokens import collate

PREFIXES = [(1, 8, 9, 10), (1, 11), (1, 12, 13, 14, 15, 16, 17, 18, 19), (1,)]


def make_requests(samples: int = 3, prefixes=PREFIXES) -> list[Request]:
    return [Request(p, tuple(1000 * i + g for g in range(samples))) for i, p in enumerate(prefixes)]


def as_lists(results) -> list[list[list[int]]]:
    return [[sample.ids.tolist() for sample in group] for group in results]


def assert_scored_alike(policy, requests, results, sampling) -> None:
    """Sampled log-probs are those that `Policy.log_probs` finds, so the loop needs no second pass."""
    rows = [
        (request.prefix_ids, sample.ids, sample.log_probs, np.zeros(len(sample.ids)))
        for request, group in zip(requests, results, strict=True)
        for sample in group
    ]
    batch = collate(rows, pad_id=0)
    with torch.no_grad():
        log_probs_BT, _ = policy.log_probs(batch, sampling)
    torch.testing.assert_close(log_probs_BT, batch.old_log_probs_BT, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_is_what_transformers_generates(name):
    policy = make_policy(name)
    results = HFGenerator(policy).generate(make_requests(1), Sampling(max_new_tokens=20, temperature=0.0))
    for prefix, (sample,) in zip(PREFIXES, results, strict=True):
        expected = policy.model.generate(
            torch.tensor([prefix]),
            attention_mask=torch.ones(1, len(prefix), dtype=torch.long),
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=sorted(policy.eos_ids),
            pad_token_id=0,
        )
        assert sample.ids.tolist() == expected[0, len(prefix) :].tolist()
        assert (sample.log_probs == 0).all()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("sampling", [Sampling(24), Sampling(24, temperature=0.7, top_p=0.9, top_k=12)])
def test_sampled_log_probs_equal_scored_ones(name, sampling):
    policy = make_policy(name)
    requests = make_requests()
    results = HFGenerator(policy, max_batch_rows=5).generate(requests, sampling)
    assert_scored_alike(policy, requests, results, sampling)
