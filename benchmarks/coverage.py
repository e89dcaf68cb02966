"""How often intervals hold the truth, and how often equal things differ "significantly", on simulated data.

    python benchmarks/coverage.py            # the tables of docs/statistics.md, 3 minutes on one core
    python benchmarks/coverage.py --times 200

Right intervals hold it in 95 of 100 cases, and p < 0.05 in 5 of 100 where nothing changed. With 2000 cases
a share of 0.95 has a standard error of 0.005.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

import numpy as np

from hardwon.statistics import compare_paired, compare_recipes, estimate, pass_at_k

BASES = (0.02, 0.1, 0.3, 0.5, 0.9, 0.98)
# Rates of problems are Beta(base / spread, (1 - base) / spread).
SPREADS = (10.0, 2.0, 0.5, 0.05)
MEASURES = ((1, 1), (4, 1), (16, 1), (4, 4), (16, 4))  # responses, k
LUCK = (0.0, 0.2, 0.6, 1.5)


def print_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def coverage(
    rng: np.random.Generator, num_problems: int, base: float, spread: float, samples: int, k: int, times: int
) -> tuple[float, float]:
    """(share of intervals of `estimate` that hold the mean over all problems, that mean)."""
    a, b = base / spread, (1 - base) / spread
    truth = float(1 - np.prod([(b + i) / (a + b + i) for i in range(k)]))
    hits = 0
    for _ in range(times):
        correct_P = rng.binomial(samples, rng.beta(a, b, num_problems))
        result = estimate(pass_at_k(correct_P, np.full(num_problems, samples), k))
        hits += result.low <= truth <= result.high
    return hits / times, truth


def estimates(rng: np.random.Generator, times: int) -> Iterable[Sequence[str]]:
    """Per number of problems: least, mean and most coverage, by how many problems tell of the rarer side."""
    for num_problems in (10, 30, 100, 500):
        found = [
            coverage(rng, num_problems, base, spread, *measure, times)
            for base in BASES for spread in SPREADS for measure in MEASURES
        ]  # fmt: skip
        for name, low, high in (("under 1", 0, 1), ("1 to 3", 1, 3), ("over 3", 3, np.inf)):
            shares = [share for share, truth in found if low <= num_problems * min(truth, 1 - truth) < high]
            inside = np.mean([0.93 <= share <= 0.97 for share in shares]) if shares else np.nan
            if shares:
                yield (
                    str(num_problems), name, str(len(shares)),
                    *(f"{f(shares):.3f}" for f in (np.min, np.mean, np.max)), f"{inside:.0%}",
                )  # fmt: skip


def pairs(rng: np.random.Generator, times: int) -> Iterable[Sequence[str]]:
    for num_problems in (10, 30, 100, 500):
        for base, spread in ((0.05, 2.0), (0.4, 2.0), (0.5, 0.2)):
            for samples in (1, 4, 16):
                significant = hits = 0
                for _ in range(times):
                    rates_P = rng.beta(base / spread, (1 - base) / spread, num_problems)
                    gain_P = 0.3 * (1 - rates_P) * rng.integers(0, 2, num_problems)
                    truth = 0.15 * (1 - base)
                    a_P, again_P, b_P = (
                        rng.binomial(samples, r) / samples for r in (rates_P, rates_P, rates_P + gain_P)
                    )
                    significant += compare_paired(a_P, again_P).p_value < 0.05
                    result = compare_paired(a_P, b_P)
                    hits += result.low <= truth <= result.high
                yield (
                    str(num_problems), f"{base:g}", f"{spread:g}", str(samples),
                    f"{significant / times:.3f}", f"{hits / times:.3f}",
                )  # fmt: skip


def equal_recipes(rng: np.random.Generator, sizes: Sequence[int], luck: float, change: float) -> bool:
    """Whether two recipes differ "significantly" that don't, over 60 problems of 8 responses each."""
    base_P = rng.normal(-0.4, 1.0, 60)
    sides = []
    for size in sizes:
        logits_SP = base_P + rng.normal(0, change, 60) + rng.normal(0, luck, (size, 1))
        sides.append(rng.binomial(8, 1 / (1 + np.exp(-logits_SP))) / 8)
    return compare_recipes(*sides).p_value < 0.05


def recipes(rng: np.random.Generator, times: int) -> Iterable[Sequence[str]]:
    for sizes in ((2, 2), (3, 3), (5, 5), (10, 10), (2, 3), (2, 6), (3, 10)):
        for change in (0.0, 1.0):
            shares = [
                np.mean([equal_recipes(rng, sizes, luck, change) for _ in range(times)]) for luck in LUCK
            ]
            yield f"{sizes[0]} and {sizes[1]}", f"{change:g}", *(f"{share:.3f}" for share in shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=1000, help="simulated data sets a cell")
    times, rng = parser.parse_args().times, np.random.default_rng(0)
    print_table(
        "estimate: coverage",
        ("problems", "of the rarer side", "cases", "least", "mean", "most", "from 0.93 to 0.97"),
        estimates(rng, times),
    )
    print_table(
        "compare_paired",
        ("problems", "base", "spread", "responses", "p < 0.05, nothing changed", "coverage of a gain"),
        pairs(rng, times),
    )
    print_table(
        "compare_recipes: p < 0.05 for equal recipes",
        ("seeds", "change", *(f"luck {luck:g}" for luck in LUCK)),
        recipes(rng, times),
    )


if __name__ == "__main__":
    main()
