"""Tiny programs prove themselves in the sandbox, keep the splits apart, and pay for meaning, not for form."""

import pytest

from hardwon.tasks import load_task, tiny_programs
from hardwon.tasks.chain_arithmetic import split_of
from hardwon.tasks.tiny_programs import INPUTS, OPERATIONS, problem_of, run, write_lines, write_program

ADD, SQUARE, MOD = OPERATIONS[0], OPERATIONS[5], OPERATIONS[4]
# x -> (x+3)^2 mod 7: 1 -> 16 mod 7 = 2, and -9 -> 36 mod 7 = 1.
STEPS = [(ADD, 3), (SQUARE, 0), (MOD, 7)]
PROBLEM = problem_of(STEPS)


@pytest.fixture(scope="module")
def task():
    task = load_task("tiny_programs", seed=1, train_size=400, sandbox="auto")
    yield task
    task.close()


def test_a_problem_by_hand():
    assert PROBLEM.prompt == "add 3, square, mod 7"
    assert PROBLEM.answer == "def f(x):\n x=x+3\n x=x**2\n return x%7\n"
    assert [run(STEPS, x) for x in (1, -9)] == [2, 1]


def test_what_is_right_is_what_computes_the_same(task):
    rows = {
        PROBLEM.answer: "correct",
        "def f(x):\n return (x+3)**2%7\n": "correct",
        "Let me see.\n```python\ndef f(y): return (y + 3) * (y + 3) % 7\n```": "correct",
        # Precedence: 3**2%7 = 2, so this is x+2.
        "def f(x):\n return x+3**2%7\n": "wrong",
        "def f(x):\n x=x+3\n x=x**2\n": "wrong",  # returns nothing
        "def g(x):\n return (x+3)**2%7\n": "wrong",  # another name
        "def f(x):\n return x x\n": "wrong",
        "def f(x):\n while 1: pass\n": "timeout",
        "import os\nos._exit(0)\n": "wrong",
        "": "wrong",
    }
    verdicts = task.verify([(PROBLEM, text) for text in rows])
    assert {text: v.outcome for text, v in zip(rows, verdicts, strict=True)} == rows


def test_equal_answers_of_one_problem_run_once_and_those_of_two_problems_twice(task):
    other = problem_of([(ADD, 3), (SQUARE, 0)])
    pairs = [(PROBLEM, PROBLEM.answer), (other, PROBLEM.answer), (PROBLEM, PROBLEM.answer)]
    first, second, third = task.verify(pairs)
    assert first.correct and first is third
    assert second.outcome == "wrong"


def test_gold_answers_earn_full_reward(task):
    problems = task.problems("test")[:30] + task.problems("train")[:30]
    verdicts = task.verify([(problem, task.gold(problem)) for problem in problems])
    assert [v.outcome for v in verdicts] == ["correct"] * 60


def test_python_computes_what_the_problem_says():
    """All operations, without a sandbox: the tests' expected values are those of the gold program."""
    for problem in tiny_programs.load(train_size=300, unsafe_no_isolation=True).problems("train"):
        namespace: dict = {}
        exec(problem.answer, namespace)  # our own text
        assert tuple(namespace["f"](x) for x in INPUTS) == problem.info["tests"].outputs


def test_the_splits_share_no_problem_and_the_test_set_has_no_seed(task):
    other = tiny_programs.load(seed=2, train_size=400)
    assert task.problems("test") == other.problems("test")
    assert task.problems("train") != other.problems("train")
    assert all(split_of(p.prompt) == "train" for p in task.problems("train"))
    assert all(split_of(p.prompt) == "test" for p in task.problems("test"))
    # Levels alternate: 2, 3, 4, 5 and 6 operations are in each block of five.
    assert sorted(p.info["operations"] for p in task.problems("test")[:5]) == [2, 3, 4, 5, 6]
    other.close()


def test_a_constant_program_is_never_right():
    for problem in tiny_programs.load(train_size=300).problems("train"):
        assert len(set(problem.info["tests"].outputs)) >= 4


def test_steps_are_lines(task):
    assert task.split_steps(PROBLEM.answer) == ["def f(x):\n", " x=x+3\n", " x=x**2\n", " return x%7\n"]


def test_one_operation_needs_no_assignment():
    assert write_program(write_lines([(ADD, 3)])) == "def f(x):\n return x+3\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_operations": 1}, "min_operations=1 is outside 2..6: nearest is 2"),
        ({"min_operations": 4, "max_operations": 3}, "max_operations=3 is outside 4..6: nearest is 4"),
        ({"train_size": 10**6}, "train_size=1000000 is outside 1..5000: nearest is 5000"),
    ],
)
def test_options_out_of_range_name_the_nearest(options, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        tiny_programs.load(**options)
