"""Estimators against values derived by hand or by enumeration, and intervals against simulation."""

from itertools import combinations

import numpy as np
import pytest

from hardwon.statistics import (
    bootstrap_means,
    compare_paired,
    compare_recipes,
    count_votes,
    estimate,
    estimate_ratio,
    majority_at_k,
    mean_at_k,
    pass_at_k,
    sign_flip_test,
    wilson_interval,
)


def test_a_ratio_is_of_sums_and_leaves_out_what_has_no_whole():
    result = estimate_ratio([1, 3, 0], [4, 4, 0])
    assert (result.value, result.num_problems) == (0.5, 2)
    # Two problems of two: with chance 1/4 both draws are the first, so that 1/4 and 3/4 are the ends.
    assert (result.low, result.high) == (0.25, 0.75)
    # 1 of 1 and 1 of 3: 2/4, where the mean of ratios would be 2/3.
    assert estimate_ratio([1, 1], [1, 3]).value == 0.5
    assert np.isnan(estimate_ratio([0], [0]).value)


def test_a_ratio_that_all_problems_share_has_an_interval():
    result = estimate_ratio([2] * 20, [2] * 20)
    assert (result.low, result.high) == wilson_interval(1.0, 20)


def test_a_ratio_of_equal_wholes_is_the_mean():
    """With the same number of responses each, the interval is the bootstrap's of the mean, up to its luck."""
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


def test_estimate_leaves_nan_out_and_is_the_same_for_the_same_seed():
    values = np.random.default_rng(0).integers(0, 9, 100) / 8
    assert estimate(np.r_[values, np.nan]) == estimate(values)
    assert estimate(values).num_problems == 100
    assert estimate(values, seed=1) != estimate(values)
    assert np.isnan(estimate([np.nan]).value)


def test_bootstrap_over_distinct_values_is_the_bootstrap():
    values = np.random.default_rng(0).integers(0, 9, 50) / 8
    means = bootstrap_means(values, resamples=20_000)
    # Exactly: the mean of the values, and their (population) variance / P.
    assert means.mean() == pytest.approx(values.mean(), abs=1e-3)
    assert means.std() == pytest.approx(values.std() / np.sqrt(50), rel=0.02)


@pytest.mark.parametrize("samples", [1, 8])
def test_the_interval_covers_the_truth_about_95_times_in_100(samples):
    rng = np.random.default_rng(0)
    truth, hits = 0.4, 0
    for _ in range(400):
        rates_P = rng.beta(0.8, 1.2, size=100)  # many hard, some easy problems, with mean 0.4
        result = estimate(rng.binomial(samples, rates_P) / samples, seed=int(rng.integers(2**31)))
        hits += result.low <= truth <= result.high
    # The standard error of the coverage is sqrt(.95 * .05 / 400) = 0.011.
    assert 0.92 <= hits / 400 <= 0.98


# -------------------------------------------------------------------------------- comparisons


def test_sign_flip_test_by_hand():
    # Four equal differences: 2 of 16 sign patterns (all +, all -) are as extreme.
    assert sign_flip_test([0.5, 0.5, 0.5, 0.5, 0.0]) == 2 / 16
    assert sign_flip_test([0.0, 0.0]) == 1.0
    # (1, 1, -1): sums of |3| in 2 patterns and |1| in 6; all are at least 1.
    assert sign_flip_test([1.0, 1.0, -1.0]) == 1.0


def test_random_and_exact_sign_flips_agree():
    differences = np.random.default_rng(3).normal(0.3, 0.6, 13)
    exact = sign_flip_test(differences)
    # A difference of next to nothing makes it 14, which are flipped at random.
    assert sign_flip_test(np.r_[differences, 1e-15]) == pytest.approx(exact, abs=0.01)


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
    # Nothing differed in 100 problems: a share of up to 3.7 % that would is not excluded.
    assert (result.low, result.high) == pytest.approx((-0.037, 0.037), abs=1e-3)


def test_comparison_needs_the_same_problems():
    with pytest.raises(ValueError, match="same problems: 3 and 2"):
        compare_paired([0, 1, 1], [0, 1])
    with pytest.raises(ValueError, match="at least one problem"):
        compare_paired([np.nan], [1.0])
    assert compare_paired([np.nan, 0.0, 0.5], [1.0, 1.0, 0.5]).num_problems == 2


def test_p_values_are_uniform_when_nothing_differs():
    rng = np.random.default_rng(0)
    p_values = []
    for _ in range(200):
        rates_P = rng.beta(1, 1, 40)
        a_P, b_P = (rng.binomial(4, rates_P) / 4 for _ in range(2))
        differences = b_P - a_P
        p_values.append(sign_flip_test(differences, flips=500))
    # One in twenty is below 0.05, within three standard errors (0.015 each).
    assert 0.01 <= np.mean(np.array(p_values) < 0.05) <= 0.1


def simulate_recipes(rng, num_seeds, luck, gain, num_problems=60):
    """Runs whose overall level varies by `luck` with the seed, on problems of varying difficulty."""
    base_P = rng.uniform(0.2, 0.6, num_problems)

    def recipe(level):
        rates_SP = base_P + level + rng.normal(0, luck, (num_seeds, 1))
        return rng.binomial(8, np.clip(rates_SP, 0, 1)) / 8

    return recipe(0.0), recipe(gain)


def test_luck_of_the_seed_widens_the_interval():
    rng = np.random.default_rng(0)
    steady = compare_recipes(*simulate_recipes(rng, 5, luck=0.0, gain=0.1))
    lucky = compare_recipes(*simulate_recipes(rng, 5, luck=0.1, gain=0.1))
    assert steady.low > 0 and steady.p_value < 0.01
    assert lucky.high - lucky.low > 2 * (steady.high - steady.low)
    # Pooling all responses as if seeds did not exist would be as narrow as the steady case.


def test_recipes_interval_covers_the_true_gain():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        a_SP, b_SP = simulate_recipes(rng, 5, luck=0.05, gain=0.1)
        result = compare_recipes(a_SP, b_SP, seed=int(rng.integers(2**31)), resamples=1000)
        hits += result.low <= 0.1 <= result.high
    assert hits / 200 >= 0.9


def test_one_seed_tells_nothing_about_recipes():
    with pytest.raises(ValueError, match="1 and 3 seeds"):
        compare_recipes(np.zeros((1, 5)), np.zeros((3, 5)))
    with pytest.raises(ValueError, match="share their problems: 5 and 4"):
        compare_recipes(np.zeros((2, 5)), np.zeros((2, 4)))
