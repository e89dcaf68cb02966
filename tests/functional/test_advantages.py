import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardwon.functional.advantages import (
    batch_normalized,
    centered,
    degenerate,
    gpg,
    group_then_batch_normalized,
    leave_one_out,
    length_weighted,
    max_rl,
    pass_at_k,
    per_token,
    standardized,
)

NAN = math.nan
GROUP_BASELINE = {
    "standardized": standardized,
    "standardized_sample": partial(standardized, std="sample"),
    "centered": centered,
    "leave_one_out": leave_one_out,
    "length_weighted": length_weighted,
    "group_then_batch_normalized": group_then_batch_normalized,
    "max_rl": max_rl,
    "pass_at_k": partial(pass_at_k, k=2),
    "gpg": gpg,
}


def run(estimator, rewards, correct=None, lengths=None):
    rewards_PG = torch.tensor(rewards, dtype=torch.float32)
    correct_PG = rewards_PG > 0 if correct is None else torch.tensor(correct, dtype=torch.bool)
    lengths_PG = torch.ones_like(rewards_PG).long() if lengths is None else torch.tensor(lengths)
    return estimator(rewards_PG, correct_PG, lengths_PG)


def group(num_correct, size, wrong=0.0):
    return [[1.0] * num_correct + [wrong] * (size - num_correct)]


@pytest.mark.parametrize("wrong", [0.0, -1.0])  # scale and shift of the reward do not matter
@pytest.mark.parametrize(
    ("size", "num_correct", "population", "sample"),
    # k of G correct: population A+ = sqrt((G-k)/k), A- = -sqrt(k/(G-k)); sample = times sqrt((G-1)/G)
    [
        (16, 1, (3.872983, -0.258199), (3.75, -0.25)),
        (16, 2, (2.645751, -0.377964), (2.561738, -0.365963)),
        (16, 4, (1.732051, -0.577350), (1.677051, -0.559017)),
        (16, 7, (1.133893, -0.881917), (1.097888, -0.853913)),
        (16, 8, (1.0, -1.0), (0.968246, -0.968246)),
        (8, 1, (2.645751, -0.377964), (2.474874, -0.353553)),
    ],
)
def test_standardized_anchors(size, num_correct, population, sample, wrong):
    rewards = group(num_correct, size, wrong)
    for std, (positive, negative) in (("population", population), ("sample", sample)):
        advantages_G = run(partial(standardized, std=std), rewards)[0]
        expected = [positive] * num_correct + [negative] * (size - num_correct)
        torch.testing.assert_close(advantages_G, torch.tensor(expected), rtol=0, atol=1e-6)


def test_centered_and_leave_one_out():
    # Mean 1/4; leave-one-out: 1 - 0 and 0 - 1/3.
    torch.testing.assert_close(run(centered, [[1, 0, 0, 0]]), torch.tensor([[0.75, -0.25, -0.25, -0.25]]))
    torch.testing.assert_close(
        run(leave_one_out, [[1, 0, 0, 0]]), torch.tensor([[1, -1 / 3, -1 / 3, -1 / 3]])
    )


def test_leave_one_out_stays_of_order_one():
    """Known fault: a leave-one-out *std* of the rounding residue scaled some rows about 4000 times."""
    advantages_PG = run(leave_one_out, [[0.35] + [0.95] * 7])
    # 0.35 - 0.95 and 0.95 - (0.35 + 6 * 0.95) / 7 = 0.6 / 7
    torch.testing.assert_close(advantages_PG, torch.tensor([[-0.6] + [0.6 / 7] * 7]))


def test_length_weighted_baseline():
    # Baseline (1 * 1 + 3 * 0) / 4 = 1/4, where the plain mean is 1/2.
    torch.testing.assert_close(
        run(length_weighted, [[1, 0]], lengths=[[1, 3]]), torch.tensor([[0.75, -0.25]])
    )


def test_length_weighted_is_centered_when_lengths_are_equal():
    rewards = [[1, 0, 0.5, 0], [1, 1, 0, -1]]
    torch.testing.assert_close(run(length_weighted, rewards, lengths=[[7] * 4] * 2), run(centered, rewards))


def test_max_rl_reads_verdicts():
    # One of four correct: (1 - 1/4) / (1/4) = 3 and -1, also with rewards +1 / -1 whose mean is negative.
    for wrong in (0.0, -1.0):
        torch.testing.assert_close(run(max_rl, group(1, 4, wrong)), torch.tensor([[3.0, -1, -1, -1]]))


def test_gpg_makes_up_for_groups_without_gradient():
    # 4 of 8 rows are in degenerate groups: alpha = 8 / (8 - 4) = 2; A = 2 (R - 1/2) = +-1.
    expected = torch.tensor([[1.0, -1, 1, -1], [0, 0, 0, 0]])
    torch.testing.assert_close(run(gpg, [[1, 0, 1, 0], [1, 1, 1, 1]]), expected)
    torch.testing.assert_close(run(partial(gpg, scale=2.0), [[1, 0, 1, 0], [1, 1, 1, 1]]), expected / 2)


def test_batch_normalized_has_no_group_baseline():
    # Mean 3/4, std sqrt(3)/4: 1 -> 1/sqrt(3), 0 -> -sqrt(3). The all-correct group keeps its signal.
    expected = torch.tensor([[1, -3], [1, 1]]) / math.sqrt(3)
    torch.testing.assert_close(run(batch_normalized, [[1, 0], [1, 1]]), expected)


def test_batch_normalized_weighs_tokens():
    # Over tokens 1, 0, 0, 0 the mean is 1/4 and the std sqrt(3)/4.
    advantages_PG = run(batch_normalized, [[1, 0]], lengths=[[1, 3]])
    torch.testing.assert_close(advantages_PG, torch.tensor([[3.0, -1.0]]) / math.sqrt(3))


def test_batch_normalized_without_kl_is_the_constant_case_of_per_token():
    rewards, lengths = [[1.0, 0.0], [0.5, 1.0]], [[2, 3], [1, 2]]
    estimator = partial(batch_normalized, kl_PGT=torch.zeros(2, 2, 3), kl_coef=0.1)
    expected = per_token(run(batch_normalized, rewards, lengths=lengths), torch.tensor(lengths))
    torch.testing.assert_close(run(estimator, rewards, lengths=lengths), expected)


def test_batch_normalized_subtracts_the_kl_still_to_come():
    # kl_coef 1/2; response 0: R = 1, KL 2, 2 -> to go 4, 2 -> -1, 0. Response 1, one token: R = 1, KL 0
    # -> 1; the 9 after its end is padding. Values -1, 0, 1 over three tokens: mean 0, std sqrt(2/3).
    kl_PGT = torch.tensor([[[2.0, 2.0], [0.0, 9.0]]])
    estimator = partial(batch_normalized, kl_PGT=kl_PGT, kl_coef=0.5)
    advantages_PGT = run(estimator, [[1, 1]], lengths=[[2, 1]])
    torch.testing.assert_close(advantages_PGT, torch.tensor([[[-1.0, 0], [1, 0]]]) * math.sqrt(1.5))


def test_batch_of_equal_rewards_gives_zeros():
    assert run(batch_normalized, [[0.1] * 4] * 3).tolist() == [[0.0] * 4] * 3


def test_group_then_batch_normalized():
    advantages_PG = run(group_then_batch_normalized, [[1, 0, 1, 0], [1, 0, 0, 0]])
    # Centered: mean 0 and squares 4 * 1/4 + 9/16 + 3 * 1/16 = 7/4 over 8 rows -> std sqrt(7/32)
    expected = torch.tensor([[0.5, -0.5, 0.5, -0.5], [0.75, -0.25, -0.25, -0.25]]) / math.sqrt(7 / 32)
    torch.testing.assert_close(advantages_PG, expected)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("num_correct", [1, 2, 4])
def test_pass_at_k_against_every_subset(num_correct, k):
    """Enumerate the k-subsets of 6 responses: standardise their rewards and average them by member."""
    size = 6
    success = [1.0] * num_correct + [0.0] * (size - num_correct)
    subsets = list(itertools.combinations(range(size), k))
    rewards = [max(success[i] for i in subset) for subset in subsets]
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
    expected = []
    for i in range(size):
        mine = [
            (r - mean) / std if std else 0.0
            for r, subset in zip(rewards, subsets, strict=True)
            if i in subset
        ]
        expected.append(sum(mine) / len(mine))
    torch.testing.assert_close(run(partial(pass_at_k, k=k), [success]), torch.tensor([expected]))


def test_pass_at_1_is_standardized():
    rewards = group(3, 8)
    torch.testing.assert_close(run(partial(pass_at_k, k=1), rewards), run(standardized, rewards))


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_names_the_group_size(k):
    with pytest.raises(ValueError, match=f"k={k} .* 4"):
        run(partial(pass_at_k, k=k), group(1, 4))


@pytest.mark.parametrize("estimator", GROUP_BASELINE.values(), ids=GROUP_BASELINE)
@pytest.mark.parametrize("reward", [0.1, 0.3, 0.5, 1.0, 0.0, -1.0])
@pytest.mark.parametrize("size", [8, 16])
def test_constant_groups_get_exactly_zero(estimator, reward, size):
    """Known fault: the float32 std of [0.1] * 8 is 8e-9, and std + 1e-9 gives |A| = 0.83."""
    live = [1.0] + [0.0] * (size - 1)
    assert run(estimator, [[reward] * size, live])[0].tolist() == [0.0] * size


@pytest.mark.parametrize("estimator", GROUP_BASELINE.values(), ids=GROUP_BASELINE)
def test_missing_reward_is_left_out(estimator):
    """[1, 0, NaN, 0] is the group [1, 0, 0] plus a row of advantage 0."""
    with_gap = run(estimator, [[1, 0, NAN, 0], [NAN, NAN, NAN, 1], [NAN] * 4], lengths=[[3, 2, 9, 4]] * 3)
    without = run(estimator, [[1, 0, 0]], lengths=[[3, 2, 4]])
    if estimator is gpg:  # the second group's lone row is a judged row without gradient: alpha = 4/3
        without = without * 4 / 3
    if estimator is group_then_batch_normalized:  # and here one more row of 0 over which to normalise
        without = run(estimator, [[1, 0, 0], [1, 1, 1]], lengths=[[3, 2, 4], [1, 1, 2]])[:1]
    torch.testing.assert_close(with_gap[0, [0, 1, 3]], without[0])
    assert with_gap[0, 2] == 0
    assert with_gap[1:].abs().sum() == 0
    assert with_gap.isfinite().all()


def test_batch_normalized_leaves_missing_rewards_out():
    with_gap = run(batch_normalized, [[1, NAN], [0, 0]])
    torch.testing.assert_close(with_gap, torch.tensor([[math.sqrt(2), 0], [-1 / math.sqrt(2)] * 2]))


@pytest.mark.parametrize("estimator", GROUP_BASELINE.values(), ids=GROUP_BASELINE)
def test_group_of_one_is_an_error_that_names_the_setting(estimator):
    with pytest.raises(ValueError, match="group_size=1"):
        run(estimator, [[1.0]])


def test_unknown_std_is_named():
    with pytest.raises(ValueError, match="std='biased'"):
        run(partial(standardized, std="biased"), group(1, 4))


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 1, 1, 1], True),
        ([0.5] * 4, True),  # a mean strictly inside (0, 1) is no sign of signal
        ([0.1, 0.1 + 1e-8, 0.1, 0.1], True),
        ([1, 0, 0, 0], False),
        ([1, NAN, 1, 1], True),
        ([1, NAN, 0, 1], False),
        ([NAN, NAN, NAN, 1], True),
        ([NAN] * 4, True),
    ],
)
def test_degenerate(rewards, expected):
    assert degenerate(torch.tensor([rewards], dtype=torch.float32)).tolist() == [expected]


def test_per_token():
    advantages_PGT = per_token(torch.tensor([[2.0, -1.0]]), torch.tensor([[1, 3]]))
    assert advantages_PGT.tolist() == [[[2, 0, 0], [-1, -1, -1]]]


REWARDS = st.lists(st.sampled_from([0.0, 0.25, 1.0, -1.0]), min_size=5, max_size=5)


@settings(max_examples=25)
@given(rewards=REWARDS, order=st.permutations(range(5)))
@pytest.mark.parametrize("estimator", GROUP_BASELINE.values(), ids=GROUP_BASELINE)
def test_order_in_a_group_does_not_matter(estimator, rewards, order):
    straight = run(estimator, [rewards], lengths=[[1, 2, 3, 4, 5]])
    shuffled = run(estimator, [[rewards[i] for i in order]], lengths=[[1 + i for i in order]])
    torch.testing.assert_close(shuffled, straight[:, list(order)])
