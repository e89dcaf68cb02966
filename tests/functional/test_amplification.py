import math

import pytest
import torch

from hardwon.functional.advantages import standardized
from hardwon.functional.amplification import MODES, amplify


def amplified(num_correct, group_size=16, std="population", **kwargs):
    """(advantage of a correct response, advantage of a wrong one) after amplification."""
    correct_PG = torch.arange(group_size)[None] < num_correct
    rewards_PG = correct_PG.float()
    advantages_PG = standardized(rewards_PG, correct_PG, torch.ones_like(correct_PG).long(), std=std)
    out_PG = amplify(advantages_PG, correct_PG, correct_PG.float().mean(1), **kwargs)
    return out_PG[0, 0].item(), out_PG[0, -1].item()


def test_hard_group_gets_twice_the_positive_advantage():
    # k = 1 of 16, sample std: 2 * 3.75 and -0.25 as before.
    assert amplified(1, std="sample") == pytest.approx((7.5, -0.25))


@pytest.mark.parametrize("num_correct", [8, 9, 15])
def test_threshold_is_strict(num_correct):
    """p = 8/16 = 0.5 is not below 0.5."""
    assert amplified(num_correct) == amplified(num_correct, mode="none")


@pytest.mark.parametrize("num_correct", range(1, 16))
def test_wrong_responses_never_change(num_correct):
    assert amplified(num_correct)[1] == amplified(num_correct, mode="none")[1]


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "exact"])
@pytest.mark.parametrize("num_correct", [1, 3, 7, 8, 12])
def test_factor_one_returns_the_same_bits(mode, num_correct):
    assert amplified(num_correct, mode=mode, factor=1.0) == amplified(num_correct, mode="none")


@pytest.mark.parametrize("num_correct", range(1, 8))
def test_sum_over_the_group(num_correct):
    """0 before; amplification adds (lambda - 1) k sqrt((G - k) / k) = (lambda - 1) sqrt(k (G - k))."""
    positive, negative = amplified(num_correct, factor=3.0)
    total = num_correct * positive + (16 - num_correct) * negative
    assert total == pytest.approx(2 * math.sqrt(num_correct * (16 - num_correct)), rel=1e-5)


# k of 16 correct; (times correct, times wrong), by the definition of each mode with lambda 2, tau 1/2.
@pytest.mark.parametrize(
    ("mode", "num_correct", "correct_factor", "wrong_factor"),
    [
        ("daa", 4, 2, 1),
        ("symmetric", 4, 1.75, 1.75),  # 1 + (2 - 1)(1 - 4/16)
        ("symmetric", 8, 1, 1),
        ("ungated", 4, 2, 1),
        ("ungated", 12, 2, 1),
        ("shrink_incorrect", 4, 1, 0.5),
        ("shrink_incorrect", 8, 1, 1),
        ("mirrored", 4, 1, 1),
        ("mirrored", 8, 1, 1),
        ("mirrored", 12, 1, 2),
        ("exact", 8, 1, 1),
        ("exact", 12, 1, 1),
        ("none", 4, 1, 1),
    ],
)
def test_modes(mode, num_correct, correct_factor, wrong_factor):
    before = amplified(num_correct, mode="none")
    expected = (before[0] * correct_factor, before[1] * wrong_factor)
    assert amplified(num_correct, mode=mode) == pytest.approx(expected)


def test_exact_factors():
    """(1 - p^15) / (1 - (1-p)^15) at p = k/16; e.g. k = 1: 1 / (1 - (15/16)^15) = 1 / (1 - 0.37981)."""
    expected = [1.6124, 1.1560, 1.0465, 1.0135, 1.0036, 1.0009, 1.0002]
    factors = [amplified(k, mode="exact")[0] / amplified(k, mode="none")[0] for k in range(1, 8)]
    assert factors == pytest.approx(expected, abs=5e-5)


def test_exact_counts_the_responses_that_were_judged():
    """Of 16 a verifier failed on 12: the filter saw 4, and 1 of 4 gives (1 - (1/4)^3) / (1 - (3/4)^3)."""
    positive_PG = torch.arange(16)[None] == 0
    rate_P, judged_P = torch.tensor([0.25], dtype=torch.float64), torch.tensor([4])
    out_PG = amplify(torch.ones(1, 16), positive_PG, rate_P, mode="exact", num_judged_P=judged_P)
    assert out_PG[0, :2].tolist() == pytest.approx([(1 - 1 / 64) / (1 - 27 / 64), 1.0])


def test_threshold_and_positive_are_the_callers():
    # Rate 1/2 below 0.6; the caller counts only the first response as positive.
    advantages_PG = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    positive_PG = torch.tensor([[True, False, False, False]])
    out_PG = amplify(advantages_PG, positive_PG, torch.tensor([0.5]), threshold=0.6, factor=4.0)
    assert out_PG.tolist() == [[4.0, 1.0, -1.0, -1.0]]


@pytest.mark.parametrize("mode", MODES)
def test_groups_without_signal_stay_zero(mode):
    """All wrong, all correct, and none judged (rate NaN): zero advantages in, zeros out, no NaN."""
    positive_PG = torch.tensor([[False] * 4, [True] * 4, [False] * 4])
    out_PG = amplify(torch.zeros(3, 4), positive_PG, torch.tensor([0.0, 1.0, math.nan]), mode=mode)
    assert torch.equal(out_PG, torch.zeros(3, 4))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"mode": "simmetric"}, "did you mean 'symmetric'"),
        ({"factor": 0}, "factor=0"),
        ({"threshold": 2}, "threshold=2"),
    ],
)
def test_bad_settings_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        amplified(1, **kwargs)
