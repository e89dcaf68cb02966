"""A sample of what benchmarks/verdicts.py measures: no equal pair is wrong and no other one right."""

import itertools
import time
from collections import Counter

import pytest
from answer_pairs import KINDS, pairs

from hardwon.verifiers.math import canonical_answer, grade

NUMBER = 100 * len(KINDS)


@pytest.fixture(scope="module")
def sample():
    return list(itertools.islice(pairs(seed=1), NUMBER))


def test_every_kind_has_equal_and_different_pairs(sample):
    counts = Counter((pair.kind, pair.right) for pair in sample)
    assert all(counts[kind, right] > 20 for kind in KINDS for right in (True, False))
    assert sum(pair.gold != pair.answer for pair in sample if pair.right) > NUMBER / 4
    assert list(itertools.islice(pairs(seed=1), 9)) == sample[:9]


def test_no_wrong_verdict(sample):
    wrong = [p for p in sample if grade(p.gold, f"\\boxed{{{p.answer}}}")["correct"] != p.right]
    assert not wrong


def test_no_pair_takes_long(sample):
    def seconds(pair):
        started = time.process_time()
        grade(pair.gold, f"\\boxed{{{pair.answer}}}")
        return time.process_time() - started

    assert min(max(map(seconds, sample[::8])) for _ in range(2)) < 0.1


EXACT = (
    "integers",
    "decimals",
    "scientific",
    "fractions",
    "mixed numbers",
    "complex numbers",
    "roots",
    "sets",
    "lists",
    "words",
)


def test_equal_answers_of_a_kind_vote_together(sample):
    for pair in sample:
        if pair.kind in EXACT:
            together = canonical_answer(pair.gold) == canonical_answer(pair.answer)
            assert together == pair.right, pair
