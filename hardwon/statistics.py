"""Estimators of accuracy and how sure they are. NumPy arrays in, numbers out.

Shapes: `P` problems, `S` seeds (training runs). Every value is per problem first, because problems and
not responses are what was drawn from the world. No interval needs random numbers. How often each covers the
truth in simulation is in docs/statistics.md; benchmarks/coverage.py measures it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import atan, comb, cos, exp, lgamma, pi, sqrt, tan
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LEVEL = 0.95
MOST_DEGREES = 10_000.0
"""Student's distribution with more degrees of freedom is the normal one to 4 digits."""
TINY = 1e-20


_LEGENDRE = np.polynomial.legendre.leggauss(200)


@dataclass(frozen=True)
class Estimate:
    """A mean over problems with its interval at the given level."""

    value: float
    low: float
    high: float
    num_problems: int
    level: float = LEVEL

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Comparison:
    """B minus A over the same problems. `p_value` is two-sided, for "no difference"."""

    difference: float
    low: float
    high: float
    p_value: float
    num_problems: int
    level: float = LEVEL

    def __str__(self) -> str:
        return f"{self.difference:+.3f} [{self.low:+.3f}, {self.high:+.3f}], p = {self.p_value:.2g}"


# ------------------------------------------------------------------------------- values per problem


def mean_at_k(num_correct_P: npt.ArrayLike, num_samples_P: npt.ArrayLike) -> Floats:
    """The fraction of a problem's responses that is correct; NaN where there is no response."""
    correct_P, samples_P = _counts(num_correct_P, num_samples_P)
    with np.errstate(invalid="ignore", divide="ignore"):
        return correct_P / samples_P


def pass_at_k(num_correct_P: npt.ArrayLike, num_samples_P: npt.ArrayLike, k: int) -> Floats:
    """The probability that at least one of k responses, drawn without replacement, is correct.

    1 - C(n-c, k) / C(n, k), unbiased for n >= k (Chen et al., arXiv 2107.03374, equation 1). NaN for
    a problem with fewer than k responses; ValueError if that is every problem.

    >>> pass_at_k([1], [4], k=4)  # resampling with replacement would say 0.684
    array([1.])
    """
    correct_P, samples_P = _counts(num_correct_P, num_samples_P)
    _check_k(k, samples_P)
    # C(n-c, k) / C(n, k) = product over i < k of (n - c - i) / (n - i): no large factorials.
    i_K = np.arange(k)
    with np.errstate(invalid="ignore", divide="ignore"):
        factors_PK = (samples_P - correct_P)[:, None] - i_K
        none_correct_P = np.prod(np.maximum(factors_PK, 0) / (samples_P[:, None] - i_K), axis=1)
    return np.where(samples_P >= k, 1 - none_correct_P, np.nan)


def majority_at_k(num_correct: int, wrong_counts: Sequence[int], num_silent: int, k: int) -> float:
    """The probability that a vote among k of a problem's responses elects the correct answer.

    Exact over all k-subsets without replacement. `num_correct` responses vote for the correct answer
    (the verifier holds them equal, however they are written), `wrong_counts` for each wrong one, and
    `num_silent` have no answer and do not vote. A tie is decided by an even draw among the tied.
    NaN if there are fewer than k responses.

    >>> majority_at_k(2, [1, 1], 0, k=4)
    1.0
    """
    total = num_correct + sum(wrong_counts) + num_silent
    if total < k:
        return float("nan")
    share = 0.0
    for votes in range(1, min(num_correct, k) + 1):
        # ways[z, x]: choices of x responses outside the correct ones such that z wrong answers tie with
        # it at `votes` votes and none has more.
        rest = k - votes
        ways = np.zeros((rest // votes + 1, rest + 1))
        for x in range(min(num_silent, rest) + 1):
            ways[0, x] = comb(num_silent, x)
        for count in wrong_counts:
            ways = _add_answer(ways, count, votes)
        tied = ways[:, rest] / (1 + np.arange(len(ways)))
        share += comb(num_correct, votes) * float(tied.sum())
    return share / comb(total, k)


def _add_answer(ways: Floats, count: int, votes: int) -> Floats:
    """Lets a wrong answer with `count` responses take part, with at most `votes` of them chosen."""
    result = ways.copy()
    for chosen in range(1, min(count, votes, ways.shape[1] - 1) + 1):
        more = comb(count, chosen) * ways[:, :-chosen]
        if chosen < votes:
            result[:, chosen:] += more
        else:
            result[1:, chosen:] += more[:-1]
    return result


def count_votes(answers: Sequence[str], correct: Sequence[bool]) -> tuple[int, list[int], int]:
    """Votes of one problem, as `majority_at_k` takes them: correct, each wrong answer, no answer.

    All correct answers are one; a response without an answer votes for none, whatever its verdict.
    """
    votes = [(answer, right) for answer, right in zip(answers, correct, strict=True) if answer]
    wrong = Counter(answer for answer, right in votes if not right)
    num_correct = sum(right for _, right in votes)
    return num_correct, list(wrong.values()), len(answers) - len(votes)


def _counts(num_correct_P: npt.ArrayLike, num_samples_P: npt.ArrayLike) -> tuple[Floats, Floats]:
    correct_P = np.asarray(num_correct_P, np.float64)
    samples_P = np.broadcast_to(np.asarray(num_samples_P, np.float64), correct_P.shape)
    if correct_P.ndim != 1 or (correct_P < 0).any() or (correct_P > samples_P).any():
        raise ValueError(
            "correct responses must number between 0 and the number of responses, one count a problem"
        )
    return correct_P, samples_P


def _check_k(k: int, samples_P: Floats) -> None:
    largest = int(samples_P.max(initial=0))
    if not 1 <= k <= largest:
        raise ValueError(f"k={k}: it must lie between 1 and the number of responses per problem, {largest}")


# ------------------------------------------------------------------------------------ intervals


def wilson_interval(mean: float, num_trials: float, level: float = LEVEL) -> tuple[float, float]:
    """Score interval of a proportion (Wilson, 1927): inside [0, 1], and never empty at 0/n or n/n.

    >>> low, high = wilson_interval(0.0, 100)
    >>> round(low, 4), round(high, 4)
    (0.0, 0.037)
    """
    z2 = NormalDist().inv_cdf((1 + level) / 2) ** 2
    centre = (mean + z2 / (2 * num_trials)) / (1 + z2 / num_trials)
    spread = z2 * (mean * (1 - mean) / num_trials + z2 / (4 * num_trials**2))
    half = float(np.sqrt(spread)) / (1 + z2 / num_trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def estimate(values_P: npt.ArrayLike, *, level: float = LEVEL) -> Estimate:
    """The mean of per-problem values in [0, 1] with its interval; NaN values are left out.

    Wilson's interval for as many yes-or-no problems as tell as much (`effective_problems`). Like that
    of a proportion it is never empty, and it leans away from 0 and 1.
    """
    values = np.asarray(values_P, np.float64)
    values = values[~np.isnan(values)]
    if not len(values):
        return Estimate(float("nan"), float("nan"), float("nan"), 0, level)
    mean = float(np.clip(values.mean(), 0.0, 1.0))
    low, high = wilson_interval(mean, effective_problems(values), level)
    return Estimate(mean, min(low, mean), max(high, mean), len(values), level)


def effective_problems(values_P: Floats) -> float:
    """How many values of 0 or 1 would estimate the mean as well as these values between 0 and 1 do.

    P over the variance as a share of mean * (1 - mean), the largest that there can be. The share is
    measured on the problems that are not at the extreme where most are; one more problem at which it
    is 1 is added (ours), so that a few middling values do not pass for certainty.

    >>> effective_problems(np.array([0.0, 1.0, 1.0, 0.0]))
    4.0
    """
    mean, num_problems = float(values_P.mean()), len(values_P)
    largest = mean * (1 - mean)
    if num_problems < 2 or largest < 1e-12:
        return float(num_problems)
    share = min(1.0, float(values_P.var(ddof=1)) / largest)
    telling = num_problems - max(int((values_P == extreme).sum()) for extreme in (0, 1))
    return num_problems * (telling + 1) / (share * telling + 1)


def estimate_ratio(parts_P: npt.ArrayLike, wholes_P: npt.ArrayLike, *, level: float = LEVEL) -> Estimate:
    """Sum of parts over sum of wholes, 0 <= part <= whole; problems whose whole is 0 are left out.

    Wilson's interval for as many trials as have the variance of the ratio, which is that of its linear part
    over problems: at most one trial for each unit of the wholes.
    """
    parts, wholes = _counts(parts_P, wholes_P)
    parts, wholes = parts[wholes > 0], wholes[wholes > 0]
    if not len(wholes):
        return Estimate(float("nan"), float("nan"), float("nan"), 0, level)
    ratio, num_problems, most = float(parts.sum() / wholes.sum()), len(wholes), float(wholes.sum())
    linear_P = (parts - ratio * wholes) / wholes.mean()
    variance = float(linear_P.var(ddof=1)) / num_problems if num_problems > 1 else 0.0
    trials = min(most, ratio * (1 - ratio) / variance) if variance > 1e-12 else float(num_problems)
    low, high = wilson_interval(ratio, trials, level)
    return Estimate(ratio, low, high, num_problems, level)


# ------------------------------------------------------------------------------- Student's distribution


def t_tail(t: float, degrees: float) -> float:
    """The probability that Student's t exceeds `t` >= 0; `degrees` of freedom >= 1 may be a fraction.

    >>> round(t_tail(12.7062, 1), 6), round(t_tail(2.2281, 10), 6)
    (0.025, 0.025)
    """
    degrees = min(degrees, MOST_DEGREES)
    return _tail(atan(t / sqrt(degrees)), degrees)


def t_quantile(level: float, degrees: float) -> float:
    """The t that Student's distribution exceeds in either direction with probability 1 - level.

    >>> round(t_quantile(0.95, 2), 3)
    4.303
    """
    degrees = min(degrees, MOST_DEGREES)
    angle, step = 0.0, 1.0
    # Newton's method. The tail is convex in the angle, so that it comes from below and cannot overshoot.
    while step > 1e-12:
        step = (_tail(angle, degrees) - (1 - level) / 2) / (cos(angle) ** (degrees - 1) / _whole(degrees))
        angle += step
    return sqrt(degrees) * tan(angle)


def _tail(angle: float, degrees: float) -> float:
    """With t = sqrt(degrees) tan(angle), Student's density becomes cos(angle)^(degrees - 1)."""
    nodes, weights = _LEGENDRE
    half = (pi / 2 - angle) / 2
    return half * float(weights @ np.cos(angle + half * (nodes + 1)) ** (degrees - 1)) / _whole(degrees)


def _whole(degrees: float) -> float:
    """The integral of cos(x)^(degrees - 1) from -pi/2 to pi/2."""
    return sqrt(pi) * exp(lgamma(degrees / 2) - lgamma((degrees + 1) / 2))


# ---------------------------------------------------------------------------------- comparisons

Part = tuple[float, float]
"""A part of a difference's variance, and the degrees of freedom with which it is known."""


def compare_paired(a_P: npt.ArrayLike, b_P: npt.ArrayLike, *, level: float = LEVEL) -> Comparison:
    """B minus A for two policies on the same problems, values in [0, 1] problem by problem.

    Student's t over the differences and two more, plus and minus the root mean square of those that are
    not 0 (as Bonett and Price, 2012, do for differences of -1, 0 and 1): without them a few differences
    of one sign would pass for proof. If nothing differs the two are 1 and -1. Problems with NaN in A or B
    are left out.
    """
    a, b = np.asarray(a_P, np.float64), np.asarray(b_P, np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"a paired comparison needs the same problems: {len(a)} and {len(b)} given")
    differences_P = b - a
    differences_P = differences_P[~np.isnan(differences_P)]
    num_problems = len(differences_P)
    if not num_problems:
        raise ValueError("a paired comparison needs at least one problem that was judged in both")
    centre = float(differences_P.sum()) / (num_problems + 2)
    return _compare(float(differences_P.mean()), centre, [_padded(differences_P)], num_problems, level)


def _padded(differences_P: Floats) -> Part:
    """The variance of the mean of the differences and two more, plus and minus the usual one."""
    differing = differences_P[differences_P != 0]
    usual = float(np.sqrt(np.mean(differing**2))) if len(differing) else 1.0
    padded = np.r_[differences_P, usual, -usual]
    return float(padded.var(ddof=1)) / len(padded), len(padded) - 1


def compare_recipes(a_SP: npt.ArrayLike, b_SP: npt.ArrayLike, *, level: float = LEVEL) -> Comparison:
    """B minus A for two recipes, each trained with several seeds, on the same problems.

    Seeds and problems both were drawn at random, and each seed meets each problem. The variance of the
    difference is that between seeds, plus what problems add to it (the recipes' gap differs from problem
    to problem), which is the variance over problems less the noise that seeds have counted already. The
    interval adds the squares of both half-widths, each by Student's t with its own degrees of freedom;
    those of seeds are Welch's, since one recipe may depend on luck more than the other. Raises ValueError
    for one seed: nothing then tells luck from recipe.
    """
    a, b = (np.atleast_2d(np.asarray(values_SP, np.float64)) for values_SP in (a_SP, b_SP))
    if min(len(a), len(b)) < 2:
        raise ValueError(f"{len(a)} and {len(b)} seeds: a comparison of recipes needs 2 runs of each")
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"recipes must share their problems: {a.shape[1]} and {b.shape[1]} given")
    judged_P = ~(np.isnan(a).any(axis=0) | np.isnan(b).any(axis=0))
    a, b = a[:, judged_P], b[:, judged_P]
    num_problems = a.shape[1]
    if num_problems < 2:
        raise ValueError(f"{num_problems} problems judged in every run: a comparison of recipes needs 2")
    differences_P = b.mean(axis=0) - a.mean(axis=0)
    over_problems = float(differences_P.var(ddof=1)) / num_problems - _noise(a) - _noise(b)
    parts = [_between_seeds(a, b), (max(0.0, over_problems), num_problems - 1.0)]
    if sum(variance for variance, _ in parts) < TINY:
        parts = [_padded(differences_P)]
    mean = float(differences_P.mean())
    return _compare(mean, mean, parts, num_problems, level)


def _between_seeds(a_SP: Floats, b_SP: Floats) -> Part:
    """The variance that seeds give to the difference; with unequal numbers, the larger of two estimates.

    They are Welch's, and that of a variance common to both recipes. Welch's alone is too small too often
    where the recipe with 2 seeds happened to have equal ones.
    """
    spreads = [float(side.mean(axis=1).var(ddof=1)) for side in (a_SP, b_SP)]
    sizes = [len(side) for side in (a_SP, b_SP)]
    parts = [spread / size for spread, size in zip(spreads, sizes, strict=True)]
    if sum(parts) < TINY:
        return 0.0, sum(sizes) - 2.0
    common = sum(spread * (size - 1) for spread, size in zip(spreads, sizes, strict=True)) / (sum(sizes) - 2)
    degrees = sum(parts) ** 2 / sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True))
    return max(sum(parts), common * sum(1 / size for size in sizes)), degrees


def _noise(values_SP: Floats) -> float:
    """The variance of the mean over seeds and problems that comes from neither of them alone."""
    num_seeds, num_problems = values_SP.shape
    rest_SP = values_SP - values_SP.mean(axis=0) - values_SP.mean(axis=1, keepdims=True) + values_SP.mean()
    return float((rest_SP**2).sum()) / ((num_seeds - 1) * (num_problems - 1) * num_seeds * num_problems)


def _compare(
    difference: float, centre: float, parts: Sequence[Part], num_problems: int, level: float
) -> Comparison:
    """The interval around `centre`, and as p-value the p at which the interval of level 1 - p ends at 0."""
    parts = [part for part in parts if part[0] > 0]
    half = _half_width(parts, level)
    low, high = max(-1.0, min(difference, centre - half)), min(1.0, max(difference, centre + half))
    # With all degrees as the largest or the smallest are, p has a closed form: it lies between.
    scaled = abs(centre) / sqrt(sum(variance for variance, _ in parts))
    least, most = (2 * t_tail(scaled, bound(degrees for _, degrees in parts)) for bound in (max, min))
    while most - least > 1e-6 * most:
        middle = sqrt(max(least, most * 1e-6) * most)
        is_larger = _half_width(parts, 1 - middle) > abs(centre)
        least, most = (middle, most) if is_larger else (least, middle)
    return Comparison(difference, low, high, min(1.0, most), num_problems, level)


def _half_width(parts: Sequence[Part], level: float) -> float:
    return sqrt(sum(variance * t_quantile(level, degrees) ** 2 for variance, degrees in parts))
