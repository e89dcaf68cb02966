"""How often the math verifier is wrong, and how long it takes: pairs of answers whose verdict is known.

    python benchmarks/verdicts.py --pairs 100000 --alone 20000

Per kind, for hardwon's `grade` and for math-verify alone (parse and verify, both answers in a box): false
right, false wrong, and the slowest pair in milliseconds of CPU after a warm-up. `--examples` prints some of
the pairs on which hardwon is wrong. tests/verifiers/answer_pairs.py makes the pairs.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from math_verify import parse, verify

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "verifiers"))
from answer_pairs import KINDS, Pair, pairs

from hardwon.verifiers.math import grade

WARM_UP = 20 * len(KINDS)


@dataclass
class Count:
    """Of one judge and one kind."""

    equal: int = 0
    different: int = 0
    false_right: int = 0
    false_wrong: int = 0
    slowest_ms: float = 0.0
    total_ms: float = 0.0
    wrong: list[Pair] = field(default_factory=list)

    @property
    def pairs(self) -> int:
        return self.equal + self.different

    def add(self, pair: Pair, found: bool, ms: float) -> None:
        self.equal += pair.right
        self.different += not pair.right
        self.false_right += found and not pair.right
        self.false_wrong += pair.right and not found
        self.slowest_ms = max(self.slowest_ms, ms)
        self.total_ms += ms
        if found != pair.right:
            self.wrong.append(pair)


def ours(pair: Pair) -> bool:
    return bool(grade(pair.gold, f"\\boxed{{{pair.answer}}}")["correct"])


def math_verify_alone(pair: Pair) -> bool:
    gold, answer = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (pair.gold, pair.answer))
    return bool(verify(gold, answer, timeout_seconds=None))


def measure(judge: Callable[[Pair], bool], number: int, seed: int) -> dict[str, Count]:
    for pair in itertools.islice(pairs(seed + 1), WARM_UP):
        judge(pair)
    counts: dict[str, Count] = defaultdict(Count)
    for pair in itertools.islice(pairs(seed), number):
        started = time.process_time()
        found = judge(pair)
        counts[pair.kind].add(pair, found, 1000 * (time.process_time() - started))
    return counts


def print_table(title: str, counts: dict[str, Count], examples: int) -> None:
    """A table in Markdown, and some of the pairs on which the judge is wrong."""
    print(f"\n{title}, {total(counts).pairs:,} pairs\n")
    print("| kind | equal | different | false right | false wrong | mean ms | slowest ms |")
    print("|---|---|---|---|---|---|---|")
    for name, c in [*((kind, counts[kind]) for kind in KINDS), ("all", total(counts))]:
        print(f"| {name} | {c.equal:,} | {c.different:,} | {c.false_right:,} | {c.false_wrong:,} "
              f"| {c.total_ms / max(1, c.pairs):.1f} | {c.slowest_ms:.0f} |")  # fmt: skip
    for kind in KINDS:
        for pair in counts[kind].wrong[:examples]:
            print(kind, "|", pair.gold, "|", pair.answer, "|", "equal" if pair.right else "different")
    sys.stdout.flush()


def total(counts: dict[str, Count]) -> Count:
    found = Count()
    for count in counts.values():
        found.equal += count.equal
        found.different += count.different
        found.false_right += count.false_right
        found.false_wrong += count.false_wrong
        found.slowest_ms = max(found.slowest_ms, count.slowest_ms)
        found.total_ms += count.total_ms
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=0)
    parser.add_argument("--alone", type=int, help="so many of the pairs for math-verify alone (default: all)")
    options = parser.parse_args()
    alone = options.pairs if options.alone is None else options.alone
    for judge, number in ((ours, options.pairs), (math_verify_alone, alone)):
        if number:
            counts = measure(judge, number, options.seed)
            print_table(judge.__name__.replace("_", " "), counts, options.examples)


if __name__ == "__main__":
    main()
