"""The code task: the packaged problems prove themselves; rows in the common layouts are read."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hardwon.tasks import load_task
from hardwon.tasks.layouts.layout import BadRowError
from hardwon.tasks.layouts.reader import Reader, code_problem
from hardwon.verifiers.code import AssertTests, CallTests, StdinTests, verify
from hardwon.verifiers.sandbox_probe import layers, open_sandbox

HOLDS = any(layer.holds for layer in layers())
needs_layer = pytest.mark.skipif(not HOLDS, reason="no layer of isolation holds on this machine")


read_row = Reader(code_problem)


@pytest.fixture
def task():
    made = load_task("code", partial_credit=True)
    yield made
    made.close()
    made.close()


@needs_layer
def test_gold_answers_earn_full_reward_and_nothing_else_does(task):
    problems = task.problems("train") + task.problems("test")
    assert len(problems) == 26 and {type(p.info["tests"]) for p in problems} == {
        StdinTests,
        CallTests,
        AssertTests,
    }
    assert not {p.prompt for p in task.problems("train")} & {p.prompt for p in task.problems("test")}
    verdicts = task.verify([(problem, task.gold(problem)) for problem in problems])
    assert [v for v in verdicts if not v.correct or v.score != 1.0] == []
    verdicts = task.verify([(problem, "```python\npass\n```") for problem in problems])
    assert [v for v in verdicts if v.outcome != "wrong"] == []


@needs_layer
def test_gold_of_another_problem_is_wrong(task):
    problems = task.problems("train")
    pairs = [(p, task.gold(q)) for p, q in zip(problems, problems[1:] + problems[:1], strict=True)]
    assert [v for v in task.verify(pairs) if v.outcome != "wrong"] == []


@needs_layer
def test_own_data_in_jsonl_and_parquet(tmp_path):
    row = {
        "problem_id": 7,
        "question": "Double it.",
        "input_output": json.dumps({"inputs": ["2"], "outputs": ["4"]}),
        "solutions": json.dumps(["print(2 * int(input()))"]),
    }
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        task = load_task("code", data=str(tmp_path / name), held_out_fraction=0.0)
        (problem,) = task.problems("train")
        assert problem.id == "7"
        (verdict,) = task.verify([(problem, task.gold(problem))])
        assert verdict.correct and verdict.score is None
        task.close()


def test_stdin_layout():
    content = {"inputs": ["1\n", ["a", "b"]], "outputs": ["2\n", ["c"]], "fn_name": None}
    problem = read_row({"question": "Q", "input_output": content}, "rows/1")
    assert problem.info["tests"] == StdinTests(("1\n", "a\nb"), ("2\n", "c"))
    assert problem.id == "rows/1" and problem.answer == "" and "standard input" in problem.prompt


def test_call_layout_names_the_function():
    content = {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}
    problem = read_row({"question": "Add.", "input_output": content}, "x")
    assert problem.info["tests"] == CallTests("add", ([1, 2],), (3,))
    assert problem.prompt.endswith("`add`.")


def test_humaneval_layout():
    row = {
        "task_id": "HumanEval/0",
        "prompt": "from typing import List\n\ndef f(x):\n",
        "test": "def check(candidate):\n    assert candidate(1) == 1\n",
        "entry_point": "f",
        "canonical_solution": "    return x\n",
    }
    problem = read_row(row, "x")
    assert problem.prompt == row["prompt"] and problem.answer == row["prompt"] + row["canonical_solution"]
    # The prompt alone is no program, so the tests do without it.
    assert problem.info["tests"] == AssertTests(row["test"], ("f",), ("check(f)",), row["prompt"])


def test_mbpp_layout_finds_the_functions_under_test():
    row = {
        "task_id": 11,
        "text": "Write it.",
        "test_setup_code": "import math\nclass Pair: pass",
        "test_list": [
            "assert math.isclose(area(1), len(name([y for y in [1]])), rel_tol=1)",
            "x = area(2)\nassert x",
        ],
    }
    tests = read_row(row, "x").info["tests"]
    assert tests.names == ("area", "name")


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"question": "Q"}, "tests"),
        ({"question": "", "input_output": {"inputs": ["1"], "outputs": ["1"]}}, "prompt"),
        ({"question": "Q", "input_output": "{"}, "input_output"),
        ({"question": "Q", "input_output": {"inputs": [], "outputs": []}}, "input_output.inputs"),
        ({"question": "Q", "input_output": {"inputs": ["1"], "outputs": ["1", "2"]}}, "input_output.outputs"),
        (
            {"question": "Q", "input_output": {"inputs": [1], "outputs": [1], "fn_name": "f"}},
            "input_output.inputs",
        ),
        ({"text": "Q", "test_list": ["assert ("]}, "test_list"),
        ({"text": "Q", "test_list": ["assert 1 == 1"]}, "test_list"),
        ({"prompt": "def f():\n", "test": "def check(c): pass"}, "entry_point"),
        ({"prompt": "def f():\n", "test": "def check(", "entry_point": "f"}, "test"),
        ({"text": "Q", "test_list": ["assert f(1)"], "code": 5}, "code"),
    ],
)
def test_bad_rows_name_the_column(row, column):
    with pytest.raises(BadRowError, match=f"'{column}'"):
        read_row(row, "x")


@needs_layer
def test_gold_without_a_solution_is_refused(task):
    problem = read_row({"text": "Q", "test_list": ["assert f(1)"]}, "rows/3")
    with pytest.raises(ValueError, match="rows/3"):
        task.gold(problem)


@needs_layer
def test_what_compares_does_not_come_from_the_program():
    """MBPP tests that say isclose mean the solution's import: a program's own isclose would pass itself."""
    row = {
        "prompt": "Halve a number.",
        "code": "from math import isclose\ndef half(x): return x / 2",
        "test_list": ["assert isclose(half(3), 1.5)"],
    }
    problem = read_row(row, "0")
    box = open_sandbox()
    assert verify(box, problem.info["tests"], row["code"]).correct
    cheat = "def isclose(*values): return True\ndef half(x): return 7"
    assert verify(box, problem.info["tests"], cheat).outcome == "wrong"


def test_a_solution_that_is_an_import_is_still_under_test():
    row = {"prompt": "?", "code": "from math import gcd", "test_list": ["assert gcd(4, 6) == 2"]}
    assert read_row(row, "0").info["tests"].names == ("gcd",)
