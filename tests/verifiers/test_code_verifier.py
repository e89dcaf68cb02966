"""Extraction of programs, comparison, and verdicts, without caring how the program is run."""

from __future__ import annotations

import math

import pytest

from hardwon.verifiers import code
from hardwon.verifiers.code import (
    AssertTests,
    CallTests,
    StdinTests,
    as_json,
    verify,
)
from hardwon.verifiers.sandbox import Run, Sandbox, SandboxError
from hardwon.verifiers.sandbox_inside import plain
from hardwon.verifiers.sandbox_layers import Limits

PLAIN = Sandbox("none", Limits(wall_seconds=4.0, cpu_seconds=2))  # only programs of this file


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (Run("exited", 0, b"1", b"", 0.1), "correct"),
        (Run("exited", 1, b"1", b"", 0.1), "wrong"),
        (Run("timeout", -1, b"1", b"", 9.0), "timeout"),
        (Run("limit", -1, b"1", b"", 0.1), "wrong"),
        (Run("killed", -1, b"1", b"", 0.1), "wrong"),
    ],
)
def test_only_a_program_that_ended_by_itself_can_be_right(run, outcome):
    assert code.judge_run(run, "1").outcome == outcome


def test_results_as_json_data():
    def through(value):
        return as_json(plain.encode(value))

    assert through((1, [2.5, (True,)])) == [1, [2.5, [True]]]
    assert through({1: "a", "b": (2,)}) == {"1": "a", "b": [2]}
    assert through(1 << 100) == 1 << 100
    for value in ({1}, b"x", 1j):
        with pytest.raises(ValueError, match="not JSON data"):
            through(value)


def test_chosen_hashes_do_not_slow_the_parent_down():
    """All these integers have the same hash: as keys of one dict they would take minutes."""
    keys = [[i * (2**61 - 1), 0] for i in range(100_000)]
    assert len(as_json({"dict": keys})) == 100_000


def test_wrapped_outputs_are_accepted_only_if_all_are_wrapped():
    assert CallTests("f", ([1], [2]), ([5], [[6]])).accepted == [[[5], 5], [[[6]], [6]]]
    assert CallTests("f", ([1], [2]), ([5], [6, 7])).accepted == [[[5]], [[6, 7]]]


DOUBLE = StdinTests(("1", "2", "3", "4"), ("2", "4", "6", "8"))


def test_all_tests_or_the_passed_fraction():
    half = "x = int(input())\nprint(2 * x if x < 3 else 0)"
    verdict = verify(PLAIN, DOUBLE, half)
    assert (verdict.outcome, verdict.score) == ("wrong", None) and verdict.message.startswith("test 3 of 4")
    verdict = verify(PLAIN, DOUBLE, half, partial=True)
    assert (verdict.outcome, verdict.score) == ("wrong", 0.5)
    verdict = verify(PLAIN, DOUBLE, "print(2 * int(input()))", partial=True)
    assert (verdict.outcome, verdict.score) == ("correct", 1.0)


def test_fraction_of_assert_tests_and_of_calls():
    asserts = AssertTests("", ("f",), ("assert f(1) == 1", "assert f(2) == 4", "assert f(3) == 9"))
    assert math.isclose(verify(PLAIN, asserts, "def f(x): return 4", partial=True).score, 1 / 3)
    calls = CallTests("f", ([1], [2], [3]), (1, 4, 9))
    assert math.isclose(verify(PLAIN, calls, "def f(x): return 4", partial=True).score, 1 / 3)


def test_exceptions_cross_by_name():
    tests = AssertTests(
        "def raises(kind, *a):\n    try: f(*a)\n    except kind: return True",
        ("f",),
        ("assert raises(KeyError, 1)", "assert raises(Exception, 2) and not f(3)"),
    )
    program = (
        "class Own(Exception): pass\ndef f(x):\n    if x == 1: raise KeyError(x)\n    if x == 2: raise Own"
    )
    assert verify(PLAIN, tests, program).correct


@pytest.mark.parametrize(
    ("setup", "test"),
    [
        ("import absent_module", "assert f(1)"),
        ("", "assert undefined and f(1)"),
        ("", "assert f(lambda: 0)"),
        ("", "this is not Python"),
        ("import os; os._exit(0)", "assert f(1)"),
    ],
)
def test_broken_tests_are_an_error_not_a_wrong_answer(setup, test):
    verdict = verify(PLAIN, AssertTests(setup, ("f",), (test,)), "def f(x): return 1")
    assert verdict.outcome == "error" and "test" in verdict.message


class Scripted:
    """A sandbox that fails, or whose program is killed, a number of times before it works."""

    def __init__(self, *endings):
        self.endings = list(endings)

    def with_output(self, size):
        return self

    def run_program(self, source, stdin):
        ending = self.endings.pop(0)
        if ending == "broken":
            raise SandboxError("no process")
        return Run(ending, 0, b"1", b"", 0.1)


@pytest.mark.parametrize(
    ("endings", "outcome"),
    [
        (["broken", "exited"], "correct"),
        (["broken", "broken"], "error"),
        (["killed", "exited"], "correct"),
        (["killed", "killed"], "wrong"),  # never `error`: a program may have asked for it
        (["killed", "broken"], "error"),
    ],
)
def test_one_retry(endings, outcome):
    sandbox = Scripted(*endings)
    assert verify(sandbox, StdinTests(("",), ("1",)), "print(1)").outcome == outcome
    assert not sandbox.endings
