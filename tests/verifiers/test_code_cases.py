"""Rows of public data sets and programs whose verdict is known, run in each layer that holds.

code_cases.jsonl has what users reported; beside it stand neighbours of each kind, and programs that must
stay wrong though the comparison is lenient.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hardwon.tasks.layouts.reader import Reader, code_problem
from hardwon.verifiers.code import CallTests, CheckerTests, StdinTests, changed_argument, verify
from hardwon.verifiers.sandbox import Sandbox
from hardwon.verifiers.sandbox_layers import Limits, package_origin, usual_packages
from hardwon.verifiers.sandbox_probe import layers, open_sandbox

LIMITS = Limits(wall_seconds=15.0, cpu_seconds=5, memory_bytes=1 << 30)
REPORTED = [
    json.loads(line) for line in Path(__file__).with_name("code_cases.jsonl").read_text().splitlines()
]
needs_numpy = pytest.mark.skipif("numpy" not in usual_packages(), reason="numpy is not installed")


@pytest.fixture(params=["N", "L"])
def sandbox(request):
    layer = next(found for found in layers() if found.name == request.param)
    if not layer.holds:
        pytest.skip(f"layer {layer.name} does not hold here: {layer.reason}")
    return Sandbox(layer.name, LIMITS)


def judge(sandbox, pairs):
    """Verdicts on pairs of tests and program, a few at a time: most of the time is waiting."""
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda pair: verify(sandbox, *pair), pairs))


def test_every_reported_case_has_its_verdict(sandbox):
    assert len(REPORTED) == 26
    pairs = [(Reader(code_problem)(case["row"], "x").info["tests"], case["program"]) for case in REPORTED]
    found = {c["name"]: (c["verdict"], v) for c, v in zip(REPORTED, judge(sandbox, pairs), strict=True)}
    assert {name: v for name, (wanted, v) in found.items() if v.outcome != wanted} == {}


def printing(expected, program, given="1\n"):
    return StdinTests((given,), (expected,)), program


def calling(expected, program, given=1, **more):
    return CallTests("f", ([given],), (expected,), **more), program


LONG = 10**5000 + 7
PUT_OUT = "import sys\nsys.stdout.write('1\\n' * 2_500_000)"
RIGHT = {
    "5 MB of output": printing("1\n" * 2_500_000, PUT_OUT),
    "half a megabyte of a result": calling([7] * 250_000, "def f(n): return [7] * 250_000"),
    "more digits than were expected": printing("0.3 " * 400_000, "print('0.3000000000 ' * 400_000)"),
    "a number of 5,001 digits printed": printing(str(10**4000) + "0" * 1000, "print(10 ** 5000)"),
    "a number of 5,001 digits read": printing("7", "print(int(input()) % 10)", "1" + "0" * 4999 + "7\n"),
    "a number of 5,001 digits returned": calling(LONG, "def f(n): return 10 ** 5000 + 7"),
    "a number of 5,001 digits given": calling(7, "def f(n): return n % 10", LONG),
    "recursion through lru_cache": printing(
        "20000",
        "import sys, functools\nsys.setrecursionlimit(10**6)\n@functools.lru_cache(None)\n"
        "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(20000))",
    ),
    "deep recursion as LeetCode allows it": calling(
        20_000, "@cache\ndef g(n): return n and 1 + g(n - 1)\ndef f(n): return g(20_000)"
    ),
    "a generator's list of floats": calling([0.1, 0.2], "def f(n): return [x / 10 for x in (1, 2)]"),
    "tuples at any depth": calling([[1, [2]], "a"], "def f(n): return ((1, (2,)), 'a')"),
    "floats in a dict": calling({"a": [0.3]}, "def f(n): return {'a': (0.1 + 0.2,)}"),
    "a whole float for an integer": calling(3, "def f(n): return 3.0"),
    "class Solution with a helper": calling(
        6, "class Solution:\n    def g(self): return 6\n    def f(self, n): return self.g()"
    ),
    "changed in place, returned as well": calling(
        [1, 3], "def f(n):\n    n.sort()\n    return n", [3, 1], changed=0
    ),
    "a nested list changed in place": calling(
        [[3, 1], [4, 2]],
        "class Solution:\n    def f(self, m: List[List[int]]) -> None:\n        m[:] = zip(*m[::-1])",
        [[1, 2], [3, 4]],
        changed=0,
    ),
}


def test_neighbours_that_are_right(sandbox):
    found = dict(zip(RIGHT, judge(sandbox, RIGHT.values()), strict=True))
    assert {name: verdict for name, verdict in found.items() if not verdict.correct} == {}


SQUARES = StdinTests(("1\n", "2\n", "3\n"), ("1\n", "4\n", "9\n"))
HALVES = StdinTests(("1\n", "3\n"), ("0.500000\n", "1.500000\n"))
LINES = StdinTests(("3\n",), ("1\n2\n3\n",))
MEAN = CallTests("mean", ([[1, 2]], [[1, 1, 2]]), (1.5, 4 / 3))
BIG = StdinTests(("1000000000001\n",), ("1000000000002000000000001\n",))
SORTED = CallTests("f", ([[3, 1]],), ([1, 3],), changed=0)
WRONG = {
    "prints the sample only": (SQUARES, "print(1)"),
    "off by one": (SQUARES, "n = int(input())\nprint(n * n - 1)"),
    "right on two of three": (SQUARES, "n = int(input())\nprint(n * n if n < 3 else 8)"),
    "a whole number missed by a little": (SQUARES, "n = int(input())\nprint(n * n + 0.00001)"),
    "a range of numbers": (SQUARES, "n = int(input())\nprint(*range(10))"),
    "nan": (HALVES, "print(float('nan'))"),
    "inf": (HALVES, "print(float('inf'))"),
    "halves to whole numbers": (HALVES, "print(int(input()) // 2)"),
    "a little more than the tolerance": (HALVES, "print(int(input()) / 2 + 2e-6)"),
    "two answers": (HALVES, "print(int(input()) / 2, 0.5)"),
    "complex": (HALVES, "print(complex(int(input()) / 2))"),
    "a fraction": (HALVES, "print(input().strip() + '/2')"),
    "an extra line": (LINES, "print(1, 2, 3, 4, sep='\\n')"),
    "a missing line": (LINES, "print(1, 2, sep='\\n')"),
    "all in one line": (LINES, "print(1, 2, 3)"),
    "all in one line with other line ends": (LINES, "print(1, 2, 3, sep='\\r')"),
    "lines in another order": (LINES, "print(3, 2, 1, sep='\\n')"),
    "words beside the answer": (LINES, "print('Answer:')\nprint(1, 2, 3, sep='\\n')"),
    "a float instead of a long integer": (BIG, "print(float(input()) ** 2)"),
    "one more than a long integer": (BIG, "print(int(input()) ** 2 + 1)"),
    "never answers but ends well": (LINES, "import sys\nsys.exit(0)"),
    "right, and then fails": (LINES, "print(1, 2, 3, sep='\\n')\n1 / 0"),
    "a mean without the last": (MEAN, "def mean(x): return sum(x[:-1]) / (len(x) - 1)"),
    "a mean rounded to two digits": (MEAN, "def mean(x): return round(sum(x) / len(x), 2)"),
    "a mean that is nan": (MEAN, "def mean(x): return nan"),
    "a mean as text": (MEAN, "def mean(x): return str(sum(x) / len(x))"),
    "a mean in a list": (MEAN, "def mean(x): return [sum(x) / len(x)]"),
    "a number that is close to everything": (
        MEAN,
        "class N(float):\n    __sub__ = __rsub__ = lambda s, o: 0.0\n    __abs__ = lambda s: 0.0\n"
        "def mean(x): return N(1.0)",
    ),
    "returned where it is to be changed": (SORTED, "def f(n): return sorted(n)"),
    "another list bound to the name": (SORTED, "def f(n): n = sorted(n)"),
    "not changed": (SORTED, "def f(n): pass"),
    "changed where it is to be returned": calling([1, 3], "def f(n): n.sort()", [3, 1]),
    "True for 1": calling(1, "def f(n): return True"),
    "1 for True": calling(True, "def f(n): return 1"),
    "None for False": calling(False, "def f(n): pass"),
    "a set": calling([1], "def f(n): return {1}"),
    "a name of LeetCode in a program that reads stdin": printing("1", "print(gcd(1, 1))"),
    "a name that nobody gives": calling(1, "def f(n): return Countr([n])[n]"),
}  # fmt: skip


def test_programs_that_stay_wrong(sandbox):
    found = dict(zip(WRONG, judge(sandbox, WRONG.values()), strict=True))
    assert {name: verdict for name, verdict in found.items() if verdict.outcome != "wrong"} == {}


PROVIDED = """
class Solution:
    def f(self, n: Optional[List[int]]) -> Dict[str, Tuple[int, ...]]:
        heap = []
        heappush(heap, 1); heapq.heappop(heap)
        assert bisect_left([1, 2], 2) == 1 == bisect.bisect([1], 1)
        assert inf > 5 and -math.inf < 0 and isqrt(10) == 3 and gcd(4, 6) == 2 and comb(4, 2) == 6
        assert list(accumulate([1, 2])) == [1, 3] and list(pairwise([1, 2])) == [(1, 2)]
        assert list(chain([1], [2])) == [1, 2] and list(product([1], [2])) == [(1, 2)]
        assert reduce(xor, [1, 2]) == 3 and itemgetter(0)([5]) == 5 and functools.reduce(max, [1, 3]) == 3
        assert Counter("aa")["a"] == 2 and Counter.fromkeys is not None and OrderedDict() == {}
        assert defaultdict(int)[0] == 0 and deque([1]).popleft() == 1 and isinstance(Counter(), Counter)
        assert ascii_lowercase[0] == "a" and string.digits[1] == "1" and copy.copy([1]) == deepcopy([1])
        assert pow(2, 5, 7) == 4 and re.sub("a", "b", "a") == "b" and json.dumps([1]) == "[1]"
        assert cmp_to_key(lambda a, b: 0) and random.random() < 1 and datetime.timedelta(1) and maxsize > 9
        assert max([1, 2], key=lambda x: -x) == 1 and floor(1.5) == 1 and sqrt(4) == 2 == log2(4)
        @lru_cache(None)
        def g(x): return x and g(x - 1)
        @cache
        def h(x): return x
        return [g(3000), h(1)]
"""


def test_names_that_leetcode_gives(sandbox):
    assert verify(sandbox, *calling([0, 1], PROVIDED)).correct
    own = "def inf(): return 7\nfrom itertools import count as gcd\ndef f(n): return inf() * bool(gcd)"
    assert verify(sandbox, *calling(7, own)).correct  # what the program defines itself comes first
    given = StdinTests(("1\n",), ("1\n",), provided=True)
    assert verify(sandbox, given, "print(gcd(int(input()), 2))").correct


def test_rows_whose_entry_point_is_a_method(sandbox):
    row = {
        "prompt": "from typing import *\n\n",
        "entry_point": "Solution().twoSum",
        "test": "def check(candidate):\n    assert candidate(nums=[3, 3], target=6) == [0, 1]\n"
        "    assert candidate([2, 7, 11], 18) == [1, 2]\n",
        "canonical_solution": "class Solution:\n    def twoSum(self, nums: List[int], target: int):\n"
        "        seen = Counter()\n        for i, n in enumerate(nums):\n            if target - n in seen:\n"
        "                return [seen[target - n], i]\n            seen[n] = i\n",
    }
    problem = Reader(code_problem)(row, "x")
    tests = problem.info["tests"]
    assert verify(sandbox, tests, problem.answer).correct
    wrong = (
        problem.answer.replace("target - n]", "target - n] + 1"),
        "def twoSum(nums, target): return [0, 1]",
        "",
    )
    for program in wrong:
        assert verify(sandbox, tests, program).outcome == "wrong", program


@needs_numpy
def test_numpy(sandbox):
    array = """
import numpy as np
assert np.linalg.solve(np.eye(3) * 2, np.ones(3))[0] == 0.5 and np.random.default_rng(0).random() < 1
assert np.fft.fft(np.ones(4))[0] == 4 and (np.ones((300, 300)) @ np.ones((300, 300)))[0, 0] == 300
"""
    assert verify(sandbox, *printing("6", array + "print(np.arange(4).sum())")).correct
    for result in ("np.arange(3)", "[np.int64(0), np.int32(1), np.float64(2)]", "list(np.arange(3.0))"):
        assert verify(sandbox, *calling([0, 1, 2], f"{array}def f(n): return {result}")).correct, result
    assert verify(sandbox, *calling(True, f"{array}def f(n): return np.bool_(True)")).correct
    for result in ("np.arange(1, 4)", "np.array(0)", "np.full(3, np.nan)", "np.arange(3) * 1j"):
        assert verify(sandbox, *calling([0, 1, 2], f"{array}def f(n): return {result}")).outcome == "wrong"


@needs_numpy
def test_packages_open_nothing_else(sandbox):
    """Beside numpy lie all other packages, hardwon's own dependencies among them."""
    beside = Path(package_origin("numpy")).parent.parent
    others = [str(path) for path in beside.glob("*/__init__.py") if path.parent.name not in usual_packages()]
    assert others
    run = sandbox.run_program(f"""
import os, sys
sys.path.append({str(beside)!r})
for path in {others[:50]!r}:
    try: open(path).read(1); print("read", path)
    except OSError: pass
try: import torch
except ImportError: pass
else: print("imported")
try: open({str(beside / "numpy" / "own.py")!r}, "w"); print("written")
except OSError: pass
""")
    assert run.stdout == b"" and run.exit_code == 0, run


def test_what_can_be_imported_is_a_setting():
    with pytest.raises(ValueError, match="numpi"):
        open_sandbox("auto", LIMITS, unsafe_no_isolation=True, packages=["numpi"])
    with pytest.raises(ValueError, match=r"os\.path"):
        open_sandbox("auto", LIMITS, unsafe_no_isolation=True, packages=["os.path"])
    none = open_sandbox("auto", LIMITS, packages=[])
    assert b"No module named 'numpy'" in none.run_program("import numpy").stderr
    one = open_sandbox("auto", LIMITS, packages="iniconfig")
    assert one.run_program("import iniconfig\nprint(iniconfig.IniConfig.__name__)").stdout == b"IniConfig\n"


@pytest.mark.parametrize(
    ("starter", "outputs", "index"),
    [
        ("def f(self, n: List[int]) -> None:", [[1]], 0),
        ("def f(self, n: List[int]) -> None:", [None], None),  # nothing is what it is to return
        ("def f(self, n: List[int]) -> int:", [1], None),
        ("def f(n, k):\n    # Do not return anything, modify n in-place instead.", [[1]], 0),
        (
            "def f(self, k: int, n: Dict[str, int]):\n    '''Do not return anything, modify n in place'''",
            [[1]],
            1,
        ),
        (
            "def f(self, k: Tuple[int, int], n):\n  '''Do not return anything, modify `n` in-place'''",
            [[1]],
            1,
        ),
        ("def f(self, n) -> None:\n    '''Do not return anything, modify board in-place'''", [[1]], 0),
        ("def g(self, n) -> None:", [[1]], None),  # of another function
        ("", [[1]], None),
    ],
)
def test_which_argument_is_changed(starter, outputs, index):
    assert changed_argument(starter, "f", outputs) == index


def test_rows_with_long_integers_are_read(sandbox):
    digits = "9" * 5000
    row = {
        "question": "f",
        "input_output": f'{{"fn_name": "f", "inputs": [[{digits}]], "outputs": [1{"0" * 5000}]}}',
    }
    tests = Reader(code_problem)(row, "x").info["tests"]
    assert tests.outputs == (10**5000,)
    assert verify(sandbox, tests, "def f(n): return n + 1").correct
    verdict = verify(sandbox, tests, "def f(n): return n")
    assert verdict.outcome == "wrong" and "expected" in verdict.message


FACTORS = """
def check(given, printed):
    a, b = map(int, printed.split())
    return a * b == int(given) and a > 1 and b > 1
"""
CLOSE = "def judge(given, printed, expected): return abs(float(printed) - float(expected)) < 0.1"


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("print(2, int(input()) // 2)", "correct"),
        ("print(int(input()) // 2, 2)", "correct"),
        ("print(3, 5)", "wrong"),
        ("print(1, input())", "wrong"),
        ("print('no numbers')", "wrong"),
        ("print(2, int(input()) // 2)\n1 / 0", "wrong"),
        ("while True: print(1)", "wrong"),
        ("", "wrong"),
    ],
)
def test_checkers(sandbox, program, outcome):
    assert verify(sandbox, CheckerTests(("6\n", "10\n"), FACTORS), program).outcome == outcome


def test_checkers_with_an_expected_output_and_broken_ones():
    box = Sandbox("none", LIMITS)
    tests = CheckerTests(("1\n",), CLOSE, ("0.5",), "judge")
    assert verify(box, tests, "print(0.45)").correct
    assert verify(box, tests, "print(0.7)").outcome == "wrong"
    assert verify(box, tests, "print('nan')").outcome == "wrong"
    assert verify(box, CheckerTests(("1\n",), "import absent"), "print(1)").outcome == "error"
    truthy = CheckerTests(("1\n",), "def check(given, printed): return 'yes'")
    assert verify(box, truthy, "print(1)").outcome == "wrong"
