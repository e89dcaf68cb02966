"""What somebody who did not write the sandbox tried: cheats, escapes, and right programs to be misjudged.

Each row names a kind of attempt, the tests it is judged by, the program, and the verdict that it should get.
docs/reliability.md has the table of outcomes.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from hardwon.verifiers.code import AssertTests, CallTests, StdinTests, verify
from hardwon.verifiers.sandbox import Sandbox
from hardwon.verifiers.sandbox_layers import Limits
from hardwon.verifiers.sandbox_probe import layers

LIMITS = Limits(wall_seconds=4.0, cpu_seconds=2, memory_bytes=512 << 20, output_bytes=1 << 20)
HELD = [layer.name for layer in layers() if layer.holds and layer.name != "none"]

# The square of a number, in all four layouts.
STDIN = StdinTests(("3\n", "10\n"), ("9\n", "100\n"))
CALLS = CallTests("square", ([3], [10]), (9, 100))
HUMANEVAL = AssertTests(
    "def check(candidate):\n    assert candidate(3) == 9\n    assert candidate(10) == 100\n",
    ("square",),
    ("check(square)",),
    "def square(x):\n    ",
)
MBPP = AssertTests("", ("square",), ("assert square(3) == 9", "assert square(10) == 100"))
TEXT = CallTests("name", ([1],), ("a",))
LISTS = CallTests("pair", ([1, 2],), ([1, 2],))
RAISES = AssertTests(
    "",
    ("read",),
    (
        "try:\n    read(b'\\xff')\nexcept UnicodeDecodeError:\n    pass\nelse:\n    raise AssertionError",
        "try:\n    read(b'')\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError",
    ),
)

CHEATS = [
    ("answers to calls that have not come", CALLS, """
import os
for fd in range(3, 20):
    for text in ('{"value": "9"}', '{"value": "100"}', '{"value": null}'):
        try: os.write(fd, text.encode() + b"\\n")
        except OSError: pass
def square(x): return 0
"""),
    ("two replies to a call, so that the next is answered early", CALLS, """
import os
def square(x):
    for fd in range(3, 20):
        try: os.write(fd, b'{"value": "100"}\\n')
        except OSError: pass
    return 9
"""),
    ("a thread that goes on answering", MBPP, """
import os, threading, time
def spam():
    while True:
        for fd in range(3, 12):
            try: os.write(fd, b'{"passed": true, "message": ""}\\n')
            except OSError: pass
        time.sleep(0.001)
threading.Thread(target=spam, daemon=True).start()
def square(x): return 0
"""),
    ("half a line, to be completed by the honest reply", CALLS, """
import os
def square(x):
    for fd in range(3, 12):
        try: os.write(fd, b'{"value": "9", "was": ')
        except OSError: pass
    return 0
"""),
    ("the same key twice", CALLS, """
import json
class Twice(str): pass
def square(x): return {"int": "0x9", "value": 9}
"""),
    ("types that the comparison might confuse: text", CALLS, "def square(x): return str(x * x)"),
    ("types that the comparison might confuse: a list of one", CALLS, "def square(x): return [x * x]"),
    ("a metaclass that says isinstance", CALLS, """
class Meta(type):
    def __instancecheck__(cls, other): return True
    def __eq__(cls, other): return True
    __hash__ = type.__hash__
class Number(metaclass=Meta):
    __class__ = int
    def __eq__(self, other): return True
    def __index__(self): return 9
    def bit_length(self): return 1
    def __int__(self): return 9
def square(x): return Number()
"""),
    ("a number that changes when it is read again", MBPP, """
class Moving(int):
    def __int__(self): return 1
    def __index__(self): return 1
    def __eq__(self, other): return True
    def bit_length(self): return 1
def square(x): return Moving(7)
"""),
    ("patched int, hex and isinstance in its own process", MBPP, """
import builtins
builtins.isinstance = lambda *a: True
builtins.hex = lambda n: "0x9"
builtins.int = lambda *a: 9
def square(x): return 7
"""),
    ("settrace over the shim", CALLS, """
import sys
def trace(frame, event, arg):
    for name in list(frame.f_locals):
        if name in ("value", "reply"): frame.f_locals[name] = {"value": "9"}
    return trace
sys.settrace(trace)
def square(x): return 0
"""),
    ("objects that the collector knows", CALLS, """
import gc
found = [o for o in gc.get_objects() if isinstance(o, (dict, list)) and "expected" in repr(o)[:2000]]
def square(x): return found[0] if found else 100
"""),
    ("an import hook and a poisoned sys.modules", MBPP, """
import sys
for name in ("json", "plain", "kernel", "builtins", "__main__"):
    sys.modules[name] = None
class Hook:
    def find_spec(self, *a): raise SystemExit(0)
sys.meta_path.insert(0, Hook())
def square(x): return 0
"""),
    ("an exception that prints the answer", STDIN, "import sys\nsys.excepthook = lambda *a: print(9)\n1 / 0"),
    ("its own exit status", STDIN, "import os\nprint(9)\nos._exit(3)"),
    ("white space that hides a wrong answer", STDIN, "print(9, end='\\n' * 50 + '100')"),
    ("a carriage return over a wrong answer", STDIN, "x = int(input())\nprint('0\\r' + str(x * x))"),
    ("both answers at once", STDIN, "print(9)\nprint(100)"),
    ("a NUL between the digits", STDIN, "x = int(input())\nprint('\\0' + str(x * x))"),
    ("the tests' file, wherever it is", MBPP, """
import os, re
text = ""
for folder in (".", "/tmp", "/", "/proc/self", "/proc/self/fd", "/dev/shm", "/var/tmp", "/root", "/home"):
    try:
        for name in os.listdir(folder):
            try: text += open(folder + "/" + name).read()
            except Exception: pass
    except OSError: pass
found = re.findall(r"square\\((\\d+)\\) == (\\d+)", text)
def square(x): return int(dict(found).get(str(x), 0))
"""),
    ("the parent's command line and memory", CALLS, """
import os
text = ""
for name in ("cmdline", "environ", "mem", "maps", "status", "fd/0"):
    try: text += open(f"/proc/{os.getppid()}/{name}", errors="replace").read(10000)
    except Exception: pass
def square(x): return 9 if text else 0
"""),
    ("redefined entry point in the tests' process", HUMANEVAL, "return 0\n\ndef check(candidate): pass\n"),
    ("a candidate that is a class", HUMANEVAL, """
class square:
    def __new__(cls, x): return True
    def __eq__(self, other): return True
"""),
    ("a generator that answers and then kills its process", MBPP, """
import os
def square(x):
    yield x * x
    os._exit(0)
"""),
    ("a set that grows while it is sent", CALLS, """
class Growing(list):
    def __iter__(self):
        yield 9
        self.append(1)
        yield 9
def square(x): return Growing([9])
"""),
    ("infinity and minus zero", CallTests("f", ([1],), (0,)), "def f(x): return float('inf')"),
    ("an unpaired surrogate as the answer", TEXT, "def name(x): return '\\ud800'"),
    ("text that is equal only after normalisation", CallTests("name", ([1],), ("\u00e9",)),
     "def name(x): return 'e\\u0301'"),
    ("a dictionary for a list", LISTS, "def pair(a, b): return {0: 1, 1: 2}"),
    ("a message that is not text", MBPP, """
class Bad(Exception):
    def __str__(self): raise SystemExit(0)
def square(x): raise Bad
"""),
    ("an exception group", MBPP, "def square(x): raise ExceptionGroup('m', [ValueError()])"),
    ("twenty thousand empty files", CALLS, """
def square(x):
    for i in range(20_000):
        open(str(i), "w").close()
    return 0
""", "wrong or timeout"),
    ("every descriptor taken", CALLS, """
held = []
try:
    while True: held.append(open("/dev/null"))
except OSError: pass
def square(x): return 0
"""),
    ("timers and signals of its own", CALLS, """
import signal
for s in range(1, 32):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
def square(x):
    while True: pass
""", "timeout"),
]  # fmt: skip

RIGHT = [
    ("reads by open(0)", STDIN, "print(int(open(0).read()) ** 2)"),
    ("reads by sys.stdin.buffer", STDIN, "import sys\nprint(int(sys.stdin.buffer.readline()) ** 2)"),
    ("reads by os.read", STDIN, "import os\nprint(int(os.read(0, 100)) ** 2)"),
    ("reads lines until EOFError", STDIN, """
while True:
    try: x = int(input())
    except EOFError: break
    print(x * x)
"""),
    ("reads by fileinput-like iteration", STDIN, "import sys\nfor line in sys.stdin: print(int(line) ** 2)"),
    ("ends by sys.exit()", STDIN, "import sys\nprint(int(input()) ** 2)\nsys.exit()"),
    ("ends by quit()", STDIN, "print(int(input()) ** 2)\nquit()"),
    ("prints trailing spaces and no line break", STDIN, "print(int(input()) ** 2, end='   ')"),
    ("prints through a buffer", STDIN, "import sys\nsys.stdout.write(str(int(input()) ** 2) + '\\n')"),
    ("a main guard", STDIN, "def main(): print(int(input()) ** 2)\nif __name__ == '__main__': main()"),
    ("a byte order mark and CRLF", STDIN, "\ufeffx = int(input())\r\nprint(x * x)\r\n"),
    ("deep recursion in a thread with a big stack", STDIN, """
import sys, threading
sys.setrecursionlimit(1 << 20)
threading.stack_size(1 << 26)
def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
def main(): print(int(input()) ** 2 if depth(50_000) == 50_000 else 0)
thread = threading.Thread(target=main)
thread.start()
thread.join()
"""),
    ("unicode output", StdinTests(("",), ("\u00e9\u4e2d\n",)), "print('\\u00e9\\u4e2d')"),
    ("a dataclass and typing", CALLS, """
from dataclasses import dataclass, field
from typing import NamedTuple
@dataclass(order=True)
class Box:
    value: int
    seen: list[int] = field(default_factory=list)
class Point(NamedTuple):
    x: int
def square(x: int) -> int: return Box(Point(x).x).value ** 2
"""),
    ("annotations that are types and not text", CALLS,
     "def square(x: int): return x * x if square.__annotations__['x'] is int else 0"),
    ("a class Solution", CALLS, "class Solution:\n    def square(self, x): return x * x"),
    ("the standard library", CALLS, """
import bisect, collections, decimal, fractions, functools, heapq, itertools, math, re, statistics
@functools.lru_cache
def square(x): return int(math.pow(x, 2))
"""),
    ("a pool of threads", CALLS, """
from concurrent.futures import ThreadPoolExecutor
def square(x):
    with ThreadPoolExecutor(4) as pool: return sum(pool.map(lambda _: x, range(x)))
"""),
    ("a file in its own directory", CALLS, """
def square(x):
    with open("note.txt", "w") as file: file.write(str(x * x))
    return int(open("note.txt").read())
"""),
    ("a tuple for a list", LISTS, "def pair(a, b): return a, b"),
    ("the body of the prompt's function", HUMANEVAL, "return x * x\n"),
    ("the whole function again", HUMANEVAL, "```python\ndef square(x):\n    return x * x\n```"),
    ("prints while it answers", MBPP, "def square(x):\n    print('working on', x)\n    return x * x"),
    ("an unclosed fence", MBPP, "Here:\n```python\ndef square(x): return x * x\n"),
    ("the last of several blocks", MBPP,
     "```python\ndef square(x): return 0\n```\nNo:\n```python\ndef square(x): return x * x\n```\nDone."),
    ("a block that holds a fence", MBPP,
     "````python\ndef square(x):\n    '''\n    ```\n    '''\n    return x * x\n````"),
    ("errors of builtin classes and of classes made from them", RAISES, """
class Empty(ValueError): pass
def read(data):
    if not data: raise Empty("nothing")
    return data.decode()
"""),
]  # fmt: skip

ROWS = [(row[0], row[1], row[2], row[3] if len(row) > 3 else "wrong") for row in CHEATS]
ROWS += [(f"right: {name}", tests, program, "correct") for name, tests, program in RIGHT]


@pytest.fixture(scope="module", params=HELD)
def verdicts(request):
    """Verdicts by name in one layer, a few at a time."""
    box = Sandbox(request.param, LIMITS)
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        judged = pool.map(lambda row: verify(box, row[1], row[2]), ROWS)
        return {row[0]: verdict for row, verdict in zip(ROWS, judged, strict=True)}


@pytest.mark.skipif(not HELD, reason="no layer of the sandbox holds on this machine")
@pytest.mark.parametrize(("name", "expected"), [(row[0], row[3]) for row in ROWS], ids=lambda v: str(v)[:50])
def test_each_gets_the_verdict_that_it_deserves(verdicts, name, expected):
    assert verdicts[name].outcome in expected.split(" or "), verdicts[name].message


def test_partial_credit_counts_only_what_passed():
    """One of two tests: half the score, and never `correct`."""
    box = Sandbox(HELD[0], LIMITS)
    verdict = verify(box, CALLS, "def square(x): return 9", partial=True)
    assert (verdict.outcome, verdict.score) == ("wrong", 0.5)


# x86-64 numbers of calls that reach past a process, beside those in sandbox_attacks.py.
CALLS_PAST_A_PROCESS = {
    "shmget": 29, "socket": 41, "socketpair": 53, "msgget": 68, "ptrace": 101, "acct": 163, "mq_open": 240,
    "add_key": 248, "inotify_init": 253, "unshare": 272, "vmsplice": 278, "perf_event_open": 298,
    "fanotify_init": 300, "setns": 308, "process_vm_readv": 310, "kcmp": 312, "seccomp": 317,
    "memfd_create": 319, "bpf": 321, "userfaultfd": 323, "pkey_alloc": 330, "io_uring_setup": 425,
    "fsopen": 430, "pidfd_open": 434, "pidfd_getfd": 438, "process_madvise": 440, "landlock_add_rule": 445,
    "memfd_secret": 447,
}  # fmt: skip
TRIES = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def refused(numbers):
    out = []
    for number in numbers:
        result = libc.syscall(number, -1, 0, 0, 0, 0)
        out.append(result == -1 and ctypes.get_errno() == errno.EPERM)
    return out
def held():
    open_ones = []
    for fd in range(64):
        try: os.fstat(fd)
        except OSError: continue
        open_ones.append(fd)
    return len(open_ones)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86-64")
@pytest.mark.parametrize("layer", HELD)
def test_calls_past_a_process_are_refused(layer):
    numbers = list(CALLS_PAST_A_PROCESS.values())
    tests = CallTests("refused", ([numbers],), ([True] * len(numbers),))
    verdict = verify(Sandbox(layer, LIMITS), tests, TRIES)
    assert verdict.correct, verdict.message


@pytest.mark.parametrize("layer", HELD)
def test_a_program_holds_its_own_descriptors_and_no_other(layer):
    """Standard input, output and error, /dev/null, the calls that come, and the replies."""
    verdict = verify(Sandbox(layer, LIMITS), CallTests("held", ([],), (6,)), TRIES)
    assert verdict.correct, verdict.message
