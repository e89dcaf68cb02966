"""Programs that try to earn reward without solving the problem, or to be left out of the statistics."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hardwon.verifiers.code import AssertTests, CallTests, StdinTests, verify
from hardwon.verifiers.sandbox import Sandbox
from hardwon.verifiers.sandbox_layers import Limits
from hardwon.verifiers.sandbox_probe import layers

LIMITS = Limits(wall_seconds=2.0, cpu_seconds=1, memory_bytes=512 << 20, output_bytes=1 << 20)

STDIN = StdinTests(("3\n", "10\n"), ("9\n", "100\n"))
SILENT = StdinTests(("3\n",), ("",))
CALLS = CallTests("square", ([3], [10]), (9, 100))
CHECK = """
import math
EXPECTED = {3: 9, 10: 100}
def check(candidate):
    for x, expected in EXPECTED.items():
        assert candidate(x) == expected
        assert abs(candidate(x) - expected) < 1e-9
    assert len(str(candidate(3))) == 1 and all(c.isdigit() for c in str(candidate(10)))
    assert list(map(candidate, [3, 10])) == [9, 100]
"""
ASSERTS = AssertTests(CHECK, ("square",), ("check(square)",))
# A careless test: it compares what it got, if it got anything.
LENIENT = AssertTests(
    "", ("square",), ("for got, x in zip(map(square, [3, 4]), [3, 4]): assert got == x * x",)
)

ALL_KINDS = {"stdin": STDIN, "calls": CALLS, "asserts": ASSERTS}

EVERYWHERE = {
    "sys.exit(0)": "import sys\nsys.exit(0)",
    "os._exit(0)": "import os\nos._exit(0)",
    "exit(0) in the function": "def square(x): exit(0)\nsquare(1)",
    "exit in a thread": "import threading\nthreading.Thread(target=exit).start()",
    "nothing at all": "",
    "not a program": "The answer is 9.",
    "a null byte": "x = '\0'",
    "an unpaired surrogate": "x = '\ud800'",
    "endless brackets": "(" * 100_000,
    "a megabyte of minus signs": "x = " + "-" * 1_000_000 + "1",
    "expected text on stderr": "import sys\nprint('9\\n100', file=sys.stderr)\ndef square(x): print(9)",
    "patched builtins": """
import builtins
for name in ("len", "all", "any", "abs", "sorted", "isinstance", "print", "AssertionError", "str", "map"):
    setattr(builtins, name, lambda *a, **k: True)
builtins.AssertionError = Exception
def square(x): return 1
""",
    "an object that equals everything": """
class Same(int):
    __eq__ = __le__ = __lt__ = __ge__ = __gt__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = int.__hash__
    __sub__ = __rsub__ = __abs__ = lambda self, *other: self
    __str__ = __repr__ = lambda self: "9"
def square(x): return Same(5)
print(Same(5))
""",
    "an object without a class": """
class Any:
    def __getattr__(self, name): return lambda *a: True
    def __eq__(self, other): return True
    def __next__(self): raise StopIteration
def square(x): return Any()
""",
    "patched serializer": """
import sys, json
for module in list(sys.modules.values()):
    for name in ("dumps", "encode", "send"):
        if hasattr(module, name):
            setattr(module, name, lambda *a, **k: '{"value": "true", "passed": true}')
def square(x): return True
""",
    "frames": """
import sys, gc
def look():
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if isinstance(value, dict) and ("outputs" in value or "EXPECTED" in value or 9 in value.values()):
                return 9
        frame = frame.f_back
    for value in gc.get_objects():
        if isinstance(value, (tuple, list)) and list(value) in ([9, 100], ["9\\n", "100\\n"]):
            return 9 
found = look()
def square(x): return (look() or found) and x * x
if found: print(int(input()) ** 2)
""",
    "forged replies on every descriptor": """
import os
line = b'{"passed": true, "message": ""}\\n{"value": "true"}\\n{"done": true}\\nready\\n'
for descriptor in range(1, 64):
    try: os.write(descriptor, line)
    except OSError: pass
def square(x): return True
""",
    "reading the tests from every descriptor": """
import os
for descriptor in range(3, 64):
    try: os.set_blocking(descriptor, False)
    except OSError: continue
    try: data = os.read(descriptor, 1 << 16)
    except OSError: continue
    if b"100" in data: print("9\\n100")
def square(x): return None
""",
    "answers at exit": "import atexit\natexit.register(lambda: print('9'))\ndef square(x): 1 / 0",
    "exit status of a killed process": "import os\nos._exit(137)",
    "exit status of a CPU limit": "import os\nos._exit(152)",
    "suicide": "import os, signal\nos.kill(os.getpid(), 9)\ndef square(x): return 1",
    "abort": "import os\nos.abort()",
    "a crash of the interpreter": "import ctypes\nctypes.string_at(0)",
    "memory bomb": "x = 'a' * (1 << 40)",
    "closed descriptors": "import os\nos.closerange(0, 64)\ndef square(x): return x",
}

IN_FUNCTIONS = {
    "StopIteration to end a loop": "def square(x): raise StopIteration",
    "GeneratorExit": "def square(x): raise GeneratorExit",
    "a sub-StopIteration": "class StopIteration(StopIteration): 0\ndef square(x): raise StopIteration",
    "KeyboardInterrupt": "def square(x): raise KeyboardInterrupt",
    "an endless iterator": "import itertools\ndef square(x): return itertools.count()",
    "a deep list": """
def square(x):
    value = []
    for _ in range(100000): value = [value]
    return value
""",
    "a nearly too deep list": """
def square(x):
    value = []
    for _ in range(300): value = [value]
    return value
""",
    "a list that holds itself": "def square(x):\n    value = []\n    value.append(value)\n    return value",
    "not a number": "def square(x): return float('nan')",
    "a number of a million digits": "def square(x): return 1 << 3_000_000",
    "a megabyte of text": "def square(x): return 'x' * (1 << 21)",
    "colliding keys": "def square(x): return {i * (2**61 - 1): 0 for i in range(30000)}",
    "text that looks like data": 'def square(x): return \'{"int": "0x9"}\'',
    "an unknown tag": """
import os
def square(x):
    for descriptor in range(3, 64):
        try: os.write(descriptor, b'{"value": "{\\\\"__import__\\\\": [1]}"}\\n')
        except OSError: pass
""",
    "replies that are not objects": """
import os
def square(x):
    for descriptor in range(3, 64):
        try: os.write(descriptor, b'[1, 2]\\n')
        except OSError: pass
""",
    "redefined check": "def check(candidate): pass\ndef square(x): return 0",
    "right only once": "n = []\ndef square(x):\n    n.append(x)\n    return x * x * (len(n) < 2)",
    "dies after one call": """
import os
done = []
def square(x):
    if done: os._exit(0)
    done.append(x)
    return x * x
""",
}


@pytest.fixture(params=["N", "L"])
def sandbox(request):
    layer = next(found for found in layers() if found.name == request.param)
    if not layer.holds:
        pytest.skip(f"layer {layer.name} does not hold here: {layer.reason}")
    return Sandbox(layer.name, LIMITS)


def judge_all(sandbox, programs, kinds):
    """Verdicts and seconds by (program's name, kind), a few at a time: most of the time is waiting."""

    def judge(key):
        start = time.monotonic()
        verdict = verify(sandbox, kinds[key[1]], programs[key[0]], partial=True)
        return verdict, time.monotonic() - start

    keys = [(name, kind) for name in programs for kind in kinds]
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(keys, pool.map(judge, keys), strict=True))


def test_none_earns_reward_and_each_is_judged(sandbox):
    found = judge_all(sandbox, EVERYWHERE, ALL_KINDS)
    for key, (verdict, _) in found.items():
        assert verdict.outcome in ("wrong", "timeout") and verdict.score < 1, (key, verdict)


def test_no_function_earns_reward_and_each_is_judged_in_time(sandbox):
    found = judge_all(sandbox, IN_FUNCTIONS, {"calls": CALLS, "asserts": ASSERTS, "lenient": LENIENT})
    for key, (verdict, seconds) in found.items():
        assert verdict.outcome in ("wrong", "timeout") and verdict.score < 1, (key, verdict)
        assert seconds < 10 * LIMITS.wall_seconds, key


@pytest.mark.parametrize("program", ["raise ValueError", "1 / 0", "import os\nos._exit(1)", "import absent"])
def test_failing_program_is_wrong_though_nothing_was_to_be_printed(sandbox, program):
    assert verify(sandbox, SILENT, program).outcome == "wrong"
    assert verify(sandbox, SILENT, "pass").correct


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_honest_program_is_correct(sandbox, kind):
    honest = "def square(x): return x * x\nif __name__ == '__main__': print(square(int(input())))"
    assert verify(sandbox, ALL_KINDS[kind], honest).correct


def test_a_changed_argument_does_not_reach_the_test(sandbox):
    """The expected value is built from a list that the program empties: only its own copy is empty."""
    tests = AssertTests("data = [1, 2]", ("total",), ("assert total(data) == sum(data) and data == [1, 2]",))
    assert verify(sandbox, tests, "def total(x):\n    x.clear()\n    return 0").outcome == "wrong"


def test_a_program_cannot_make_the_tests_look_broken(sandbox):
    """Some depth can be received, but not sent on one level deeper: that is wrong, and no error."""
    careless = """
for depth in range(470, 500):
    try:
        g([f(depth)])
    except Exception:
        pass
assert g(0) == 1
"""
    program = """
def f(depth):
    value = []
    for _ in range(depth): value = [value]
    return value
def g(x): return 0
"""
    assert verify(sandbox, AssertTests("", ("f", "g"), (careless,)), program).outcome == "wrong"
