from __future__ import annotations

import copy
from itertools import chain

import numpy as np
import pytest
import torch
from tiny_models import CONFIGS, make_policy, make_tokenizer
from transformers import AutoModelForCausalLM

from hardwon.data import Request, Sampling
from hardwon.models.generator_hf import HFGenerator, plan
from hardwon.models.policy import Policy
from hardwon.models.tokens import collate

PREFIXES = [(1, 8, 9, 10), (1, 11), (1, 12, 13, 14, 15, 16, 17, 18, 19), (1,)]


def make_requests(samples: int = 3, prefixes=PREFIXES) -> list[Request]:
    return [Request(p, tuple(1000 * i + g for g in range(samples))) for i, p in enumerate(prefixes)]


def as_lists(results) -> list[list[list[int]]]:
    return [[sample.ids.tolist() for sample in group] for group in results]


def assert_scored_alike(policy, requests, results, sampling, atol=2e-5) -> None:
    """Sampled log-probs are those that `Policy.log_probs` finds, so the loop needs no second pass."""
    rows = [
        (request.prefix_ids, sample.ids, sample.log_probs, np.zeros(len(sample.ids)))
        for request, group in zip(requests, results, strict=True)
        for sample in group
    ]
    batch = collate(rows, pad_id=0)
    with torch.no_grad():
        log_probs_BT, _ = policy.log_probs(batch, sampling)
    torch.testing.assert_close(log_probs_BT, batch.old_log_probs_BT, atol=atol, rtol=0)


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


def test_results_do_not_depend_on_batch_size_order_or_workers():
    """More requests than rows, refills, compaction and shifts of the cache: each sample stays the same."""
    policy = make_policy()
    rng = np.random.default_rng(0)
    prefixes = [
        tuple(rng.integers(5, 31, length).tolist()) for length in (3, 40, 1, 90, 12, 12, 5, 60, 2, 30)
    ]
    requests = make_requests(4, prefixes)
    sampling = Sampling(max_new_tokens=50)
    expected = as_lists(HFGenerator(policy, workers=1).generate(requests, sampling))
    assert len({len(ids) for group in expected for ids in group}) > 5  # rows end at many different times
    for rows, workers in ((3, 1), (7, 2), (512, 3)):
        generator = HFGenerator(policy, max_batch_rows=rows, workers=workers)
        results = generator.generate(requests, sampling)
        assert as_lists(results) == expected
        assert_scored_alike(policy, requests, results, sampling)
    backwards = HFGenerator(policy, max_batch_rows=6).generate(requests[::-1], sampling)
    assert as_lists(backwards)[::-1] == expected


def test_the_same_call_gives_the_same_bits():
    policy, requests = make_policy(), make_requests(6)
    generator = HFGenerator(policy, max_batch_rows=8, workers=2)
    first, second = (generator.generate(requests, Sampling(30)) for _ in range(2))
    for a, b in zip(chain(*first), chain(*second), strict=True):
        assert np.array_equal(a.ids, b.ids) and np.array_equal(a.log_probs, b.log_probs)


@pytest.mark.parametrize("name", ["llama", "mistral_sliding"])
def test_bfloat16_generates_what_bfloat16_scores(name):
    policy, requests = make_policy(name, dtype="bfloat16"), make_requests(4)
    results = HFGenerator(policy, max_batch_rows=6, workers=1).generate(requests, Sampling(20))
    # Scores in bfloat16 differ by its rounding (2^-8 of a logit of order 10), not by more.
    assert_scored_alike(policy, requests, results, Sampling(20), atol=0.3)


def test_what_an_earlier_call_left_in_the_cache_changes_no_bit():
    policy, requests = make_policy(), make_requests(6)
    fresh = HFGenerator(policy, max_batch_rows=8, workers=2).generate(requests, Sampling(30))
    used = HFGenerator(policy, max_batch_rows=8, workers=2)
    used.generate(make_requests(6, [(8,) * 100, (9,) * 70]), Sampling(50))
    for cache in used.kept:
        for buffer in cache.buffers():
            with torch.inference_mode():
                buffer.fill_(torch.nan)
    again = used.generate(requests, Sampling(30))
    for a, b in zip(chain(*fresh), chain(*again), strict=True):
        assert np.array_equal(a.ids, b.ids) and np.array_equal(a.log_probs, b.log_probs)


def test_seeds_decide_and_rollouts_of_a_request_differ():
    # Fault 22: a reused seed makes every member of a group identical.
    policy = make_policy()
    generate = HFGenerator(policy).generate
    (group,) = generate([Request((1, 8), tuple(range(8)))], Sampling(20))
    assert len({tuple(sample.ids) for sample in group}) == 8
    (again, other) = generate([Request((1, 8), (3, 3)), Request((1, 8), (99,))], Sampling(20))
    assert again[0].ids.tolist() == again[1].ids.tolist() == group[3].ids.tolist()
    assert other[0].ids.tolist() not in [sample.ids.tolist() for sample in group]


def test_any_of_several_eos_ids_ends_a_response_and_is_kept():
    # Fault 20: with only the first EOS counted, nearly everything looks truncated.
    policy = make_policy()
    policy.eos_ids = frozenset({2, 4, 9, 14, 20, 21, 22})
    (group,) = HFGenerator(policy).generate([Request((1, 8), tuple(range(64)))], Sampling(40))
    finished = [sample for sample in group if sample.finished]
    assert len({sample.ids[-1] for sample in finished}) > 2
    for sample in group:
        assert sample.finished == (sample.ids[-1] in policy.eos_ids)
        assert not policy.eos_ids & set(sample.ids[:-1].tolist())
        assert len(sample.ids) == len(sample.log_probs) <= 40


def test_length_limit_and_context_cut_a_response():
    policy = make_policy()
    policy.eos_ids = frozenset({30})
    (cut,) = HFGenerator(policy).generate([Request((1, 8), tuple(range(9)))], Sampling(1))
    assert all(len(sample.ids) == 1 for sample in cut)
    # The context holds 256 tokens: 250 of prefix leave room for 6.
    (group,) = HFGenerator(policy).generate([Request((8,) * 250, tuple(range(9)))], Sampling(40))
    assert max(len(sample.ids) for sample in group) == 6
    assert not all(sample.finished for sample in group)


@pytest.mark.parametrize("rope_type", ["longrope", "dynamic"])
def test_positions_that_would_change_with_the_longest_neighbour_end_the_context(rope_type):
    """longrope takes other frequencies beyond the first 24 positions, dynamic beyond max_position_embeddings.

    Threads share them, keys in the cache keep the old ones, and scoring would see the new ones.
    """
    rope = {"rope_type": rope_type, "rope_theta": 1e4, "factor": 4.0}
    extra = {"original_max_position_embeddings": 24, "short_factor": [1.0] * 4, "long_factor": [9.0] * 4}
    config = copy.deepcopy(CONFIGS["llama"])
    config.rope_parameters = {**rope, **(extra if rope_type == "longrope" else {})}
    config.max_position_embeddings = 24 if rope_type == "dynamic" else 96
    torch.manual_seed(0)
    policy = Policy(AutoModelForCausalLM.from_config(config), make_tokenizer())
    policy.eos_ids = frozenset()
    assert policy.context_length == 24
    results = HFGenerator(policy, workers=2).generate(make_requests(), Sampling(30))
    for prefix, group in zip(PREFIXES, results, strict=True):
        assert all(len(prefix) + len(sample.ids) == 24 for sample in group)
    assert_scored_alike(policy, make_requests(), results, Sampling(30))


def test_nothing_asked_is_nothing_given():
    generator = HFGenerator(make_policy())
    assert generator.generate([], Sampling(5)) == []
    assert generator.generate([Request((1, 8), ())], Sampling(5)) == [[]]


def test_bad_input_is_named():
    policy = make_policy()
    generator = HFGenerator(policy)
    with pytest.raises(ValueError, match="256 tokens, but needs 1 to 255"):
        generator.generate([Request((8,) * 256, (0,))], Sampling(5))
    with pytest.raises(ValueError, match="0 tokens"):
        generator.generate([Request((), (0,))], Sampling(5))
    with pytest.raises(ValueError, match="max_new_tokens=0"):
        generator.generate([Request((8,), (0,))], Sampling(0))
    with pytest.raises(ValueError, match="max_batch_rows=0"):
        HFGenerator(policy, max_batch_rows=0)
    with pytest.raises(
        ValueError, match=r"may take 0\.00 GiB here and one response of 11 tokens.*lower max_new_tokens"
    ):
        HFGenerator(policy, kv_gib=1e-9).generate([Request((8,), (0,))], Sampling(5))


def test_models_without_a_plain_cache_are_refused():
    policy = make_policy()
    policy.model.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ValueError, match="linear_attention"):
        HFGenerator(policy)


def test_new_weights_are_sampled_from_at_once_and_no_gradients_are_kept():
    policy, requests = make_policy(), make_requests()
    generator = HFGenerator(policy)
    before = as_lists(generator.generate(requests, Sampling(20)))
    with torch.no_grad():
        policy.model.model.layers[0].mlp.up_proj.weight.mul_(-1)
    after = generator.generate(requests, Sampling(20))
    assert as_lists(after) != before
    assert_scored_alike(policy, requests, after, Sampling(20))
    generator.load_weights(make_policy())
    assert as_lists(generator.generate(requests, Sampling(20))) == before


def test_workers_leave_the_trainers_threads_alone():
    threads = torch.get_num_threads()
    HFGenerator(make_policy(), workers=2).generate(make_requests(), Sampling(5))
    assert torch.get_num_threads() == threads


def test_equal_prefixes_share_a_prefill_and_large_groups_are_split():
    requests = [Request((1, 8), (5, 6, 7)), Request((1, 8, 9), (8,)), Request((1, 8), (9,))]
    entries = plan(requests, max_rows=3)
    assert [(entry.prefix_ids, entry.slots, entry.seeds) for entry in entries] == [
        ((1, 8, 9), (3,), (8,)),
        ((1, 8), (0, 1, 2), (5, 6, 7)),
        ((1, 8), (4,), (9,)),
    ]
