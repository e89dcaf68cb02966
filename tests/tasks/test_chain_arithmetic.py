"""The embedded task proves itself, keeps train and test apart, and judges only complete answers."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardwon.data import Problem
from hardwon.tasks import chain_arithmetic
from hardwon.tasks.chain_arithmetic import (
    count_expressions,
    draw_expression,
    gold,
    running_totals,
    split_of,
    terms_of,
    verify,
)

# 3 + 7 = 10, then 10 - 9 = 1.
PROBLEM = Problem("example", "3+7-9", "1")


def outcome(response: str) -> str:
    return verify([(PROBLEM, response)])[0].outcome


@pytest.fixture(scope="module")
def task():
    return chain_arithmetic.load(seed=1, train_size=3_000)


def test_gold_answers_earn_full_reward(task):
    for split in ("train", "test"):
        problems = task.problems(split)
        verdicts = task.verify([(problem, task.gold(problem)) for problem in problems])
        assert all(verdict.correct and verdict.score == 1.0 for verdict in verdicts)


def test_gold_is_one_running_total_a_line_and_then_the_answer(task):
    assert gold(PROBLEM) == "10\n=1."
    assert task.split_steps(gold(PROBLEM)) == ["10\n", "=1."]


def test_terms_and_totals_by_hand():
    # 9 - 8 = 1; 1 + 7 = 8; 8 - 8 = 0.
    assert terms_of("9-8+7-8") == [9, -8, 7, -8]
    assert running_totals([9, -8, 7, -8]) == [1, 8, 0]


def test_the_number_of_expressions_by_hand():
    # 9 first digits d; after d come 9 additions and d subtractions: sum of 9 + d = 81 + 45 = 126.
    assert [count_expressions(n) for n in (1, 2)] == [9, 126]


@given(st.integers(0, 2**32), st.integers(4, 12))
def test_expressions_are_sums_that_never_fall_below_zero(seed, num_terms):
    expression = draw_expression(random.Random(seed), num_terms)
    terms = terms_of(expression)
    assert len(terms) == num_terms
    assert all(1 <= abs(term) <= 9 for term in terms)
    assert sum(terms) == eval(expression)
    assert terms[0] > 0 and min(running_totals(terms)) >= 0


def test_train_and_test_are_disjoint_for_every_pair_of_seeds():
    test_prompts = {p.prompt for p in chain_arithmetic.load(seed=0, train_size=1).problems("test")}
    for seed in range(3):
        task = chain_arithmetic.load(seed=seed, train_size=2_000)
        assert {p.prompt for p in task.problems("test")} == test_prompts
        assert not test_prompts & {p.prompt for p in task.problems("train")}
        assert all(split_of(str(p.prompt)) == "train" for p in task.problems("train"))


def test_problems_follow_from_the_seed_and_ids_are_unique(task):
    again = chain_arithmetic.load(seed=1, train_size=3_000)
    other = chain_arithmetic.load(seed=2, train_size=3_000)
    assert task.problems("train") == again.problems("train")
    assert task.problems("train") != other.problems("train")
    ids = [problem.id for split in ("train", "test") for problem in task.problems(split)]
    assert len(set(ids)) == len(ids) == 3_000 + chain_arithmetic.TEST_SIZE


def test_a_longer_training_set_begins_with_the_shorter_one(task):
    assert chain_arithmetic.load(seed=1, train_size=500).problems("train") == task.problems("train")[:500]


def test_every_block_of_problems_holds_each_number_of_terms_once():
    task = chain_arithmetic.load(seed=0, min_terms=4, max_terms=6, train_size=9)
    counts = [problem.info["terms"] for problem in task.problems("train")]
    assert [sorted(counts[i : i + 3]) for i in (0, 3, 6)] == [[4, 5, 6]] * 3


def test_reasoning_above_the_answer_is_free():
    assert outcome("=1.") == "correct"
    assert outcome("10\n1\n=1.") == "correct"
    assert outcome("99\n\n=1.") == "correct"


@pytest.mark.parametrize(
    "response",
    [
        "",
        "1",
        "10\n1.",
        "=1",  # cut off: it may have become =12.
        "10\n=1",
        "10\n=",
        "=1.\n",  # the answer's line must be the last
        "=1.\n10",
        "=2.",
        "=01.",
        "=+1.",
        "=-1.",
        "= 1.",
        "=1..",
        "=1.0.",
        "=1. ",
        "=2.\n=1.",
        "=1.\n=1.",
        "=1.=1.",
        "==1.",
        "10=1.",
        "=0.=1.=2.",
    ],
)
def test_anything_but_one_complete_right_answer_is_wrong(response):
    assert outcome(response) == "wrong"


@given(st.text(alphabet="0123456789+-=.\n", max_size=12))
def test_the_verifier_never_raises_and_accepts_one_last_line_only(response):
    assert (outcome(response) == "correct") == (
        response.split("\n")[-1] == "=1." and response.count("=") == 1
    )


def test_a_verdict_says_why():
    several, unfinished, wrong = verify([(PROBLEM, "=1.\n=1."), (PROBLEM, "=1"), (PROBLEM, "=12.")])
    assert several.message == "more than one answer"
    assert "no complete last line" in unfinished.message
    assert wrong.message == "12 is not 1"


def test_it_verifies_more_than_100_000_responses_a_second(task):
    problems = (task.problems("train") * 7)[:20_000]
    pairs = [(p, gold(p) if i % 2 else "=1.") for i, p in enumerate(problems)]
    # The best of several: a busy machine slows single attempts, never speeds one up.
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        task.verify(pairs)
        seconds.append(time.perf_counter() - start)
    assert len(pairs) / min(seconds) > 100_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_terms": 2}, "min_terms=2 .*nearest is 4"),
        ({"min_terms": 5, "max_terms": 4}, "max_terms=4 .*nearest is 5"),
        ({"max_terms": 40}, "max_terms=40 .*nearest is 12"),
        ({"train_size": 0}, "train_size=0 .*nearest is 1"),
        # 30036 expressions of 4 terms, 7/8 of them for training, 3/4 of those: 19711.
        ({"max_terms": 4, "train_size": 10**6}, "train_size=1000000 .*nearest is 19711"),
    ],
)
def test_impossible_options_name_the_nearest_possible_one(options, message):
    with pytest.raises(ValueError, match=message):
        chain_arithmetic.load(seed=0, **options)


def test_an_unknown_split_is_named(task):
    with pytest.raises(ValueError, match="split='valid'"):
        task.problems("valid")


def test_the_verdict_carries_the_answer_of_a_complete_last_line_only():
    found = verify([(PROBLEM, text) for text in ("=12.", "=12", "12.", "=1.\n=1.", "=.")])
    assert [verdict.answer for verdict in found] == ["12", None, None, None, None]
    assert verify([(PROBLEM, gold(PROBLEM))])[0].answer == PROBLEM.answer
