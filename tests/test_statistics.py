"""Estimators against values derived by hand or by enumeration, and intervals against simulation."""

from itertools import combinations

import numpy as np
import pytest

from hardwon.statistics import (
    compare_paired,
    compare_recipes,
    count_votes,
    effective_problems,
    estimate,
    estimate_ratio,
    majority_at_k,
    mean_at_k,
    pass_at_k,
    t_quantile,
    t_tail,
    wilson_interval,
)


def test_a_ratio_is_of_sums_and_leaves_out_what_has_no_whole():
    result = estimate_ratio([1, 3, 0], [4, 4, 0])
    assert (result.value, result.num_problems) == (0.5, 2)
    # The linear parts are -1/4 and 1/4: variance 1/8, of their mean 1/16, and 1/4 over 1/16 is 4 trials.
    assert (result.low, result.high) == pytest.approx(wilson_interval(0.5, 4))
    # 1 of 1 and 1 of 3: 2/4, where the mean of ratios would be 2/3.
    assert estimate_ratio([1, 1], [1, 3]).value == 0.5
    assert np.isnan(estimate_ratio([0], [0]).value)


def test_a_ratio_that_all_problems_share_has_an_interval():
    result = estimate_ratio([2] * 20, [2] * 20)
    assert (result.low, result.high) == wilson_interval(1.0, 20)


def test_a_ratio_of_equal_wholes_is_the_mean():
    """With the same number of responses each, the interval is nearly that of the mean."""
    correct = np.random.default_rng(0).integers(0, 5, 60)
    ratio, mean = estimate_ratio(correct, [4] * 60), estimate(correct / 4)
    assert ratio.value == pytest.approx(mean.value)
    assert (ratio.low, ratio.high) == pytest.approx((mean.low, mean.high), abs=0.01)


def test_mean_at_k():
    np.testing.assert_array_equal(mean_at_k([3, 0, 0], [8, 8, 0]), [3 / 8, 0, np.nan])


def test_pass_at_k_of_one_in_four_is_one_for_k_four():
    # Whoever draws all four responses has the correct one. With replacement: 1 - (3/4)^4 = 0.684.
    assert pass_at_k([1], [4], k=4) == [1.0]
    # k = 2: 1 - C(3,2)/C(4,2) = 1 - 3/6.
    np.testing.assert_allclose(pass_at_k([1], [4], k=2), [0.5])


def test_pass_at_k_equals_the_average_over_all_subsets():
    for n, c, k in [(6, 2, 3), (7, 5, 3), (5, 0, 2), (5, 5, 5), (6, 1, 1)]:
        responses = [1] * c + [0] * (n - c)
        expected = np.mean([max(subset) for subset in combinations(responses, k)])
        np.testing.assert_allclose(pass_at_k([c], [n], k), [expected])


def test_pass_at_k_with_large_counts_and_missing_responses():
    values = pass_at_k([1, 1, 500], [1000, 3, 1000], k=512)
    # One of 1000 is in a draw of 512 with probability 0.512; 3 responses cannot tell about 512.
    np.testing.assert_allclose(values, [0.512, np.nan, 1.0])


def test_pass_at_k_refuses_more_than_there_are():
    with pytest.raises(ValueError, match=r"k=8: it must lie between 1 and the number of responses.*, 4"):
        pass_at_k([1], [4], k=8)
    with pytest.raises(ValueError, match="number between 0 and the number of responses"):
        pass_at_k([5], [4], k=1)


def vote(subset):
    """Share of the correct answer "c" in an even draw among the answers with most votes; "" is silent."""
    votes = {answer: subset.count(answer) for answer in subset if answer}
    top = [answer for answer, count in votes.items() if count == max(votes.values())]
    return ("c" in top) / max(1, len(top))


@pytest.mark.parametrize(
    ("correct", "wrong", "silent"), [(3, [2, 2], 1), (2, [3, 1], 0), (1, [1, 1, 1], 3), (0, [4], 2)]
)
def test_majority_equals_the_average_over_all_subsets(correct, wrong, silent):
    answers = ["c"] * correct + [f"w{i}" for i, n in enumerate(wrong) for _ in range(n)] + [""] * silent
    for k in range(1, len(answers) + 1):
        expected = np.mean([vote(subset) for subset in combinations(answers, k)])
        assert majority_at_k(correct, wrong, silent, k) == pytest.approx(expected), k


def test_majority_of_one_is_the_mean_and_of_too_many_is_unknown():
    assert majority_at_k(3, [4, 1], 0, k=1) == pytest.approx(3 / 8)
    assert np.isnan(majority_at_k(3, [4, 1], 0, k=9))


def test_votes_count_all_correct_as_one_answer_and_leave_the_silent_out():
    # "1/2" and "0.5" are both judged correct: one answer with two votes.
    counts = count_votes(["1/2", "7", "0.5", "", "7", "8"], [True, False, True, False, False, False])
    assert counts == (2, [2, 1], 1)


# ---------------------------------------------------------------------------------- intervals


def test_wilson_at_the_edges_is_not_empty():
    # At 0/n it is [0, z^2/(n + z^2)]: 3.8415 / 103.8415 = 0.03699.
    assert wilson_interval(0.0, 100) == pytest.approx((0.0, 0.03699), abs=1e-5)
    assert wilson_interval(1.0, 100) == pytest.approx((0.96301, 1.0), abs=1e-5)


@pytest.mark.parametrize("values", [np.zeros(64), np.ones(64), np.full(64, 0.25), np.r_[1.0, np.zeros(63)]])
def test_an_estimate_is_never_without_an_interval(values):
    result = estimate(values)
    assert 0 <= result.low <= result.value <= result.high <= 1
    assert result.high - result.low > 0.01


def test_estimate_leaves_nan_out():
    values = np.random.default_rng(0).integers(0, 9, 100) / 8
    assert estimate(np.r_[values, np.nan]) == estimate(values)
    assert estimate(values).num_problems == 100
    assert np.isnan(estimate([np.nan]).value)


def test_values_of_0_and_1_are_a_proportion():
    values = np.r_[np.ones(7), np.zeros(33)]
    result = estimate(values)
    assert (result.low, result.high) == pytest.approx(wilson_interval(7 / 40, 40))


def test_a_value_between_tells_more_than_one_of_0_or_1():
    # 40 values of 0.4 or 0.6: variance 0.01 * 40/39 of at most 0.25, a share of 0.041; with one problem
    # at which it is 1: (0.041 * 40 + 1) / 41 = 0.0644, so they tell as much as 40 / 0.0644 = 621.
    assert effective_problems(np.tile([0.4, 0.6], 20)) == pytest.approx(620.9, abs=0.1)
    # One 0.25 among 29 zeros has a share of 0.252, which would be 119 problems. But one value says little
    # about the share: (0.252 * 1 + 1) / 2 = 0.626, so 48.
    assert effective_problems(np.r_[0.25, np.zeros(29)]) == pytest.approx(47.9, abs=0.1)


def test_the_mirrored_values_have_the_mirrored_interval():
    values = np.random.default_rng(1).integers(0, 5, 23) / 4
    a, b = estimate(values), estimate(1 - values)
    assert (a.value, a.low, a.high) == pytest.approx((1 - b.value, 1 - b.high, 1 - b.low))


def covers(rng, num_problems, base, spread, samples, k, times=1000):
    """How often the interval holds the mean over all problems, whose rates are Beta with mean `base`."""
    a, b = base / spread, (1 - base) / spread
    truth = 1 - np.prod([(b + i) / (a + b + i) for i in range(k)])
    hits = 0
    for _ in range(times):
        correct_P = rng.binomial(samples, rng.beta(a, b, num_problems))
        result = estimate(pass_at_k(correct_P, np.full(num_problems, samples), k))
        hits += result.low <= truth <= result.high
    return hits / times


# spread 10: most problems are always or never solved; 0.2: all are about equally hard.
@pytest.mark.parametrize("spread", [10, 1, 0.2])
@pytest.mark.parametrize(
    ("num_problems", "base", "samples", "k"),
    [(30, 0.1, 1, 1), (30, 0.1, 9, 1), (30, 0.1, 8, 4), (30, 0.9, 4, 1), (100, 0.5, 8, 1), (200, 0.02, 9, 4)],
)  # fmt: skip
def test_the_interval_covers_the_truth_about_95_times_in_100(num_problems, base, samples, k, spread):
    # Three standard errors of 0.007. Too often is no harm where hardly any problem is solved (or failed).
    assert 0.91 <= covers(np.random.default_rng(0), num_problems, base, spread, samples, k) <= 0.99


# -------------------------------------------------------------------------------- Student's distribution


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (5, 2.5706), (10, 2.2281), (30, 2.0423), (1e9, 1.9600)],
)  # fmt: skip
def test_t_as_in_the_tables(degrees, quantile):
    assert t_quantile(0.95, degrees) == pytest.approx(quantile, abs=3e-4)
    assert 2 * t_tail(t_quantile(0.95, degrees), degrees) == pytest.approx(0.05)


def test_t_of_fractional_and_extreme_arguments():
    assert t_quantile(0.95, 2) < t_quantile(0.95, 1.5) < t_quantile(0.95, 1)
    assert t_quantile(0.0, 3) == pytest.approx(0) and t_tail(0.0, 3.3) == pytest.approx(0.5)
    # With 1 degree the tail is atan(1/t) / pi, with 2 it is (1 - t / sqrt(2 + t^2)) / 2.
    assert t_tail(1e6, 1) == pytest.approx(np.arctan(1e-6) / np.pi)
    assert t_tail(3.0, 2) == pytest.approx((1 - 3 / np.sqrt(11)) / 2)


# -------------------------------------------------------------------------------- comparisons


def test_pairing_sees_what_two_intervals_cannot():
    rng = np.random.default_rng(0)
    rates_P = rng.beta(0.5, 0.5, 200)
    a_P, b_P = rates_P, np.minimum(1, rates_P + 0.05)
    result = compare_paired(a_P, b_P)
    assert estimate(a_P).high > estimate(b_P).low  # the intervals overlap
    assert result.low > 0 and result.p_value < 0.001


def test_comparison_of_a_thing_with_itself():
    values = np.random.default_rng(0).random(100)
    result = compare_paired(values, values)
    assert result.difference == 0 and result.p_value == 1.0
    # 100 zeros, 1 and -1: a standard error of sqrt(2 / 101 / 102) = 0.0139, times t = 1.98.
    assert (result.low, result.high) == pytest.approx((-0.0276, 0.0276), abs=1e-4)


@pytest.mark.parametrize(("better", "worse", "exact"), [(5, 0, 2 / 32), (6, 0, 2 / 64), (8, 1, 20 / 512)])
def test_few_differing_problems_are_judged_like_the_exact_sign_test(better, worse, exact):
    b_P = np.r_[np.ones(better), -np.ones(worse), np.zeros(100 - better - worse)]
    assert compare_paired(np.zeros(100), b_P).p_value == pytest.approx(exact, abs=0.008)


def test_a_p_value_below_5_percent_is_an_interval_without_0():
    rng = np.random.default_rng(0)
    found = []
    for shift in np.linspace(-0.3, 0.3, 61):
        a_SP, b_SP = rng.random((3, 40)), np.clip(rng.random((2, 40)) + shift, 0, 1)
        found += [compare_paired(a_SP[0], b_SP[0]), compare_recipes(a_SP, b_SP)]
    significant = [c.p_value < 0.05 for c in found]
    assert significant == [not c.low <= 0 <= c.high for c in found]
    assert 20 < sum(significant) < 100


def test_comparison_needs_the_same_problems():
    with pytest.raises(ValueError, match="same problems: 3 and 2"):
        compare_paired([0, 1, 1], [0, 1])
    with pytest.raises(ValueError, match="at least one problem"):
        compare_paired([np.nan], [1.0])
    assert compare_paired([np.nan, 0.0, 0.5], [1.0, 1.0, 0.5]).num_problems == 2


@pytest.mark.parametrize(("num_problems", "samples"), [(20, 1), (20, 16), (100, 4)])
def test_paired_comparisons_of_equals_and_of_a_gain(num_problems, samples):
    rng = np.random.default_rng(0)
    significant = hits = 0
    for _ in range(1000):
        rates_P = rng.beta(1, 1, num_problems)
        gain_P = 0.5 * (1 - rates_P) * rng.integers(0, 2, num_problems)  # 0.125 in the mean
        a_P, again_P, b_P = (rng.binomial(samples, r) / samples for r in (rates_P, rates_P, rates_P + gain_P))
        significant += compare_paired(a_P, again_P).p_value < 0.05
        result = compare_paired(a_P, b_P)
        hits += result.low <= 0.125 <= result.high
    assert significant <= 55 + 14  # two standard errors
    assert 925 <= hits <= 985


# ------------------------------------------------------------------------------------------- recipes


def simulate_recipes(rng, sizes, luck, gain=0.0, change=0.0, num_problems=60):
    """Runs whose level varies by `luck` with the seed, and by `change` with recipe and problem (logits)."""
    base_P = rng.normal(-0.4, 1.0, num_problems)
    sides = []
    for size, level in zip(sizes, (0.0, gain), strict=True):
        own_P = base_P + level + rng.normal(0, change, num_problems)
        rates_SP = 1 / (1 + np.exp(-(own_P + rng.normal(0, luck, (size, 1)))))
        sides.append(rng.binomial(8, rates_SP) / 8)
    return sides


@pytest.mark.parametrize("luck", [0.0, 0.6])
@pytest.mark.parametrize("sizes", [(2, 2), (3, 3), (5, 5), (10, 10), (2, 6)])
def test_equal_recipes_differ_in_at_most_5_of_100_comparisons(sizes, luck):
    rng = np.random.default_rng(0)
    significant = []
    for _ in range(400):
        found = compare_recipes(*simulate_recipes(rng, sizes, luck))
        significant.append(found.p_value < 0.05)
    # One standard error is 0.011. From 5 seeds on it is not far below, whether seeds differ or not.
    assert np.mean(significant) <= 0.055 + 0.02
    assert min(sizes) < 5 or np.mean(significant) >= 0.015


@pytest.mark.parametrize(
    ("sizes", "luck", "change"), [((5, 5), 0.3, 0.0), ((5, 5), 0.0, 1.0), ((3, 8), 0.3, 0.5)]
)
def test_recipes_interval_covers_the_true_gain(sizes, luck, change):
    rng = np.random.default_rng(1)
    # The gain in the mean rate, over many problems and seeds.
    a, b = simulate_recipes(rng, (200, 200), luck, 0.5, change, num_problems=2000)
    truth, hits = b.mean() - a.mean(), 0
    for _ in range(400):
        result = compare_recipes(*simulate_recipes(rng, sizes, luck, 0.5, change))
        hits += result.low <= truth <= result.high
    assert 0.93 <= hits / 400 <= 0.99


def test_one_problem_decides_by_hand():
    # Seeds 0 and 0.2 against 0.6 and 0.8 on both of two problems: each side has variance 0.02, the
    # difference 0.02/2 + 0.02/2 = 0.02 with 2 degrees of freedom; nothing varies over problems.
    a_SP, b_SP = np.array([[0.0, 0.0], [0.2, 0.2]]), np.array([[0.6, 0.6], [0.8, 0.8]])
    result = compare_recipes(a_SP, b_SP)
    assert result.difference == pytest.approx(0.6)
    assert result.low == pytest.approx(0.6 - 4.3027 * np.sqrt(0.02), abs=1e-4)
    # t = 0.6 / 0.1414 = 4.243; with 2 degrees the two tails are 1 - t / sqrt(2 + t^2).
    assert result.p_value == pytest.approx(1 - 4.2426 / np.sqrt(2 + 18), abs=1e-5)


def test_luck_of_the_seed_widens_the_interval():
    rng = np.random.default_rng(0)
    steady = compare_recipes(*simulate_recipes(rng, (5, 5), luck=0.0, gain=0.6))
    lucky = compare_recipes(*simulate_recipes(rng, (5, 5), luck=0.6, gain=0.6))
    assert steady.low > 0 and steady.p_value < 0.01
    assert lucky.high - lucky.low > 2 * (steady.high - steady.low)


def test_recipes_without_any_spread_still_have_an_interval():
    none, all_ = np.zeros((3, 50)), np.ones((2, 50))
    same, better = compare_recipes(none, none[:2]), compare_recipes(none, all_)
    assert same.p_value == pytest.approx(1) and same.low < 0 < same.high
    assert better.difference == 1 and 0.8 < better.low < better.high == 1 and better.p_value < 0.001


def test_one_seed_tells_nothing_about_recipes():
    with pytest.raises(ValueError, match="1 and 3 seeds"):
        compare_recipes(np.zeros((1, 5)), np.zeros((3, 5)))
    with pytest.raises(ValueError, match="share their problems: 5 and 4"):
        compare_recipes(np.zeros((2, 5)), np.zeros((2, 4)))
    with pytest.raises(ValueError, match="1 problems judged in every run"):
        compare_recipes([[0.0, np.nan]] * 2, [[1.0, 1.0]] * 2)
