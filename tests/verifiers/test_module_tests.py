"""Files of tests for pytest and unittest, judged without either's runner."""

from __future__ import annotations

import pytest

from hardwon.verifiers.code import AssertTests, verify
from hardwon.verifiers.module_tests import module_tests
from hardwon.verifiers.sandbox import Sandbox
from hardwon.verifiers.sandbox_layers import Limits
from hardwon.verifiers.sandbox_probe import open_sandbox

PLAIN = Sandbox("none", Limits(wall_seconds=8.0, cpu_seconds=4))  # only programs of this file

PYTEST = """
from solution import add, sub as minus
import solution

def helper(): return 2

def test_add():
    assert add(1, helper()) == 3

def test_sub():
    assert minus(1, 2) == -1
    assert solution.add(5, 5) == 10

class TestMore:
    def setup_method(self, method):
        self.one = 1

    def test_more(self):
        assert add(self.one, self.one) == 2
"""
UNITTEST = """
import unittest
from solution import *

class Cases(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.zero = 0
    def setUp(self):
        self.one = 1
    def test_add(self):
        self.assertEqual(add(self.one, self.zero), 1)
    def test_error(self):
        with self.assertRaises(TypeError):
            add(None, 1)
    def test_sub(self):
        self.assertEqual(sub(self.one, 2), -1)

if __name__ == "__main__":
    unittest.main()
"""
PARAMETRIZED = """
import pytest
@pytest.mark.parametrize("a", [1, 2])
@pytest.mark.parametrize(["b", "total"], [(0, 0), (5, 5)])
def test_add(a, b, total):
    assert add(a, b) == total + a

def test_error():
    with pytest.raises(TypeError):
        sub(None, 1)
    assert add(0.1, 0.2) == pytest.approx(0.3)
"""
RIGHT = "def add(a, b): return a + b\ndef sub(a, b): return a - b"
ADD_IS_WRONG = RIGHT.replace("a + b", "a + b + 1")
SUB_IS_WRONG = RIGHT.replace("a - b", "(a or 0) - b + 1")


@pytest.mark.parametrize(("source", "count", "right_without_sub"), [(PYTEST, 3, 2), (UNITTEST, 3, 2)])
def test_files_of_tests(source, count, right_without_sub):
    tests = module_tests(source)
    assert len(tests) == count
    assert verify(PLAIN, tests, RIGHT).correct
    assert verify(PLAIN, tests, ADD_IS_WRONG).outcome == "wrong"
    verdict = verify(PLAIN, tests, SUB_IS_WRONG, partial=True)
    assert verdict.outcome == "wrong" and verdict.score == right_without_sub / count
    assert verify(PLAIN, tests, "def add(a, b): return a + b").outcome == "wrong"
    assert verify(PLAIN, tests, "").outcome == "wrong"
    assert verify(PLAIN, tests, "import sys\nsys.exit(0)").outcome == "wrong"


def test_what_is_marked_to_be_skipped_is_no_test():
    source = """
import pytest
from solution import add
@pytest.mark.skip(reason="slow")
def test_never(): assert add(0, 0) == 1
@pytest.mark.slow
def test_marked(): assert add(1, 1) == 2
@pytest.mark.parametrize("a, b", [pytest.param(1, 2, id="x"), (3, 4)])
def test_rows(a, b): assert add(a, b) == a + b
"""
    tests = module_tests(source)
    assert len(tests) == 2 and tests.names == ("add",)
    assert verify(PLAIN, tests, RIGHT).correct and not verify(PLAIN, tests, ADD_IS_WRONG).correct


def test_functions_that_are_used_without_an_import():
    tests = module_tests("def test_add():\n    for x in range(3):\n        assert add(x, 1) == x + 1")
    assert tests.names == ("add",)
    assert verify(PLAIN, tests, RIGHT).correct and not verify(PLAIN, tests, ADD_IS_WRONG).correct


def test_parametrized_tests_in_a_sandbox_without_pytest():
    box = open_sandbox(limits=Limits())
    tests = module_tests(PARAMETRIZED)
    assert tests.tests[0].startswith(
        "for _value0 in [1, 2]:\n    for _value1 in [(0, 0), (5, 5)]:\n        test_add("
    )
    assert verify(box, tests, RIGHT).correct
    for program in (ADD_IS_WRONG, SUB_IS_WRONG):
        assert verify(box, tests, program).outcome == "wrong"


def test_a_program_cannot_replace_the_tests_tools():
    """Its own unittest and pytest live in another process."""
    program = """
import sys, types, unittest
unittest.TestCase.assertEqual = lambda *a: None
sys.modules["pytest"] = types.ModuleType("pytest")
class test_add: pass
def add(a, b): return 0
def sub(a, b): return 0
"""
    assert verify(PLAIN, module_tests(UNITTEST), program).outcome == "wrong"


def test_tests_of_a_method_without_check():
    tests = AssertTests(
        "", ("Solution().add",), ("assert Solution().add(1, b=2) == 3", "s = Solution()\ns.add(1, 1)")
    )
    assert verify(PLAIN, tests, "class Solution:\n    def add(self, a, b): return a + b").correct
    assert verify(PLAIN, tests, "class Solution:\n    def add(self, a, b): return a").outcome == "wrong"
    assert verify(PLAIN, tests, "def add(a, b): return a + b").outcome == "wrong"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def test_(:", "not Python"),
        ("def check(): pass", "no function"),
        ("def test_file(tmp_path): pass", "tmp_path"),
        ("import pytest as pt\ndef test_x():\n    with pt.warns(UserWarning): f()", "pytest.warns"),
        ("from pytest import fixture\ndef test_x(): pass", "pytest.fixture"),
        ("@pytest.mark.parametrize(NAMES, [1])\ndef test_x(a): pass", "test_x"),
    ],
)
def test_files_that_cannot_be_judged(source, message):
    with pytest.raises(ValueError, match=message):
        module_tests(source)
