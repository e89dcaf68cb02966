"""What a program in the sandbox can do, and how the ways in which it may end are told apart."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hardwon.verifiers import sandbox_layers, sandbox_probe
from hardwon.verifiers.sandbox import Sandbox, SandboxError
from hardwon.verifiers.sandbox_inside import plain
from hardwon.verifiers.sandbox_layers import Limits
from hardwon.verifiers.sandbox_probe import Layer, layers, open_sandbox

LIMITS = Limits(wall_seconds=5.0, cpu_seconds=2)


@pytest.fixture(params=["N", "L", "none"])
def sandbox(request):
    if request.param != "none":
        layer = next(found for found in layers() if found.name == request.param)
        if not layer.holds:
            pytest.skip(f"layer {layer.name} does not hold here: {layer.reason}")
    return Sandbox(request.param, LIMITS)


def test_program_reads_stdin_and_prints(sandbox):
    run = sandbox.run_program("print(sum(map(int, open(0).read().split())))", b"1 2\n3")
    assert (run.ending, run.exit_code, run.stdout, run.stderr) == ("exited", 0, b"6\n", b"")


def test_input_larger_than_a_pipe_and_never_read(sandbox):
    big = b"x" * 5_000_000
    assert sandbox.run_program("print(len(open(0).read()))", big).stdout == b"5000000\n"
    assert sandbox.run_program("print('done')", big).stdout == b"done\n"


def test_exit_status_and_traceback(sandbox):
    run = sandbox.run_program("import sys\nprint('x')\nsys.exit(3)")
    assert (run.ending, run.exit_code, run.stdout) == ("exited", 3, b"x\n")
    run = sandbox.run_program("def f(): return 1 / 0\nf()")
    assert run.exit_code == 1 and b"ZeroDivisionError" in run.stderr and b"solution.py" in run.stderr


def test_ordinary_programs_work(sandbox):
    """The standard library, files of its own, a few threads with a large stack, exit() without `site`."""
    program = """
import bisect, collections, decimal, fractions, functools, heapq, itertools, json, math, os, random, re
import string, sys, threading, typing, dataclasses, hashlib, datetime, resource, tempfile, ctypes, zlib
sys.setrecursionlimit(100000)
threading.stack_size(64 << 20)
def depth(n): return n and 1 + depth(n - 1)
found = []
thread = threading.Thread(target=lambda: found.append(depth(20000)))
thread.start()
thread.join()
with open("note.txt", "w") as file:
    file.write("kept")
with tempfile.TemporaryFile() as file:
    file.write(b"x")
assert open("note.txt").read() == "kept"
os.remove("note.txt")
print(found, hash("a") is not None, __name__, sys.argv, input())
exit()
"""
    run = sandbox.run_program(program, "übrig\n".encode())
    assert run.stdout.decode() == "[20000] True __main__ ['solution.py'] übrig\n", run


def test_same_output_each_time(sandbox):
    """A fixed hash seed: the order of a set of words does not change a verdict."""
    program = "print({'a', 'b', 'c', 'd', 'e', 'f'})"
    assert len({sandbox.run_program(program).stdout for _ in range(3)}) == 1


def test_endings(sandbox):
    assert sandbox.run_program("while True: pass").ending == "timeout"
    assert sandbox.run_program("while True: print('x' * 100000)").ending == "limit"


@pytest.mark.parametrize("name", ["N", "L"])
@pytest.mark.parametrize(
    ("program", "by_parent"),
    [
        (
            "import threading, time\nthreading.stack_size(65536)\n"
            "for _ in range(60): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
            "time.sleep(9)",
            "threads",
        ),
        (
            "import time\nfor i in range(9): open(str(i), 'wb', 0).write(bytes(1 << 20))\ntime.sleep(9)",
            "bytes of files",
        ),
    ],
    ids=["threads", "files"],
)
def test_threads_and_files_are_counted(name, program, by_parent):
    """In N the kernel refuses the next one; in L the parent looks now and then, and ends the program."""
    if not next(found for found in layers() if found.name == name).holds:
        pytest.skip(f"layer {name} does not hold here")
    limits = Limits(wall_seconds=5.0, cpu_seconds=2, work_bytes=4 << 20)
    run = Sandbox(name, limits).run_program(program)
    if name == "L":
        assert run.ending == "limit" and by_parent in run.message, run
    else:
        assert run.ending == "exited" and run.exit_code == 1, run


def test_many_at_once(sandbox):
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda i: sandbox.run_program("print(input())", str(i).encode()), range(24)))
    assert [int(run.stdout) for run in runs] == list(range(24))


def test_nothing_is_leaked(sandbox):
    """Descriptors, threads and directories of the parent are as before."""
    sandbox.run_program("pass")
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for program in ("print(1)", "raise ValueError", "import os; os._exit(0)", "print('x' * 10_000_000)"):
        sandbox.run_program(program)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_conversation(sandbox):
    with sandbox.start(
        {"mode": "functions", "source": "def add(a, b=1): print('noise'); return (a, b)"}
    ) as child:
        assert child.receive() == b'{"value": null}'
        child.send_line(b'{"id": 1, "name": "add", "arguments": "[[1], {\\"dict\\": [[\\"b\\", 2]]}]"}')
        assert child.receive() == b'{"value": "{\\"tuple\\": [1, 2]}", "id": 1}'
        child.send_line(b'{"id": 2, "name": "absent", "arguments": "[[], {\\"dict\\": []}]"}')
        assert b"AttributeError" in child.receive()


def test_sandbox_that_does_not_start_is_an_error(monkeypatch, sandbox):
    monkeypatch.setattr(sandbox_layers, "BOOT", "import sys; sys.exit('no walls')")
    with pytest.raises(SandboxError, match="no walls"):
        sandbox.run_program("print(1)")
    monkeypatch.setattr(sandbox_layers, "interpreter", lambda: "/absent/python")
    with pytest.raises(SandboxError):
        sandbox.run_program("print(1)")


def test_limits_must_be_positive():
    with pytest.raises(ValueError, match="cpu_seconds=0"):
        Limits(cpu_seconds=0)


def test_choice_of_layer(monkeypatch):
    def holding(*names):
        found = tuple(Layer(name, name in names, "because") for name in ("N", "L"))
        monkeypatch.setattr(sandbox_probe, "layers", lambda: found)

    holding("N", "L")
    assert open_sandbox().layer == "N"
    assert open_sandbox("L").layer == "L"
    holding("L")
    assert open_sandbox().layer == "L"
    with pytest.raises(ValueError, match="N: because"):
        open_sandbox("N")
    holding()
    with pytest.raises(ValueError, match="unsafe_no_isolation"):
        open_sandbox()
    assert open_sandbox(unsafe_no_isolation=True).layer == "none"
    with pytest.raises(ValueError, match="contradicts"):
        open_sandbox("L", unsafe_no_isolation=True)
    with pytest.raises(ValueError, match="choose auto, N or L"):
        open_sandbox("M")


def test_probe_finds_missing_walls():
    """The same probe without walls reports what it could do, so `holds` is not a default."""
    found = sandbox_probe.probe("none")
    assert not found.holds and "read a file of the host" in found.reason


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        1 << 200,
        0.1,
        float("inf"),
        "text \ud800 \0",
        [1, [2, ()]],
        (1, "a"),
        {1, 2},
        frozenset({"x"}),
        {1: "a", (2, 3): {"b": None}},
        b"\0\xff",
        bytearray(b"x"),
        1 + 2j,
        range(1, 9, 2),
    ],
)
def test_plain_data_survives_with_its_type(value):
    back = plain.loads(plain.dumps(value))
    assert back == value and type(back) is type(value)


def test_plain_data_rebuilds_subclasses_and_iterators():
    class Sly(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    assert type(plain.loads(plain.dumps(Sly(5)))) is int
    iterator = plain.loads(plain.dumps(i * i for i in range(3)))
    assert iterator != [0, 1, 4] and list(iterator) == [0, 1, 4]


def test_nodes_of_leetcode_are_plain_data(monkeypatch):
    class TreeNode:
        def __init__(self, val, left=None, right=None):
            self.val, self.left, self.right = val, left, right

    class ListNode:
        def __init__(self, val, next=None):
            self.val, self.next = val, next

    monkeypatch.setattr(plain, "classes", {"TreeNode": TreeNode})
    tree = plain.loads(plain.dumps([TreeNode(1, None, TreeNode((2, 3)))]))[0]
    assert type(tree) is TreeNode and (tree.val, tree.left, tree.right.val) == (1, None, (2, 3))
    long = None
    for value in range(5000):  # far deeper than Python recurses
        long = ListNode(value, long)
    back = plain.loads(plain.dumps(long))  # of a class of its own, where nobody here defines one
    assert back.val == 4999 and back.next.next.val == 4997 and type(back) is not ListNode
    circle = ListNode(1)
    circle.next = circle
    back = plain.loads(plain.dumps(circle))
    assert back.next is back
    for text in ('{"nodes": []}', '{"nodes": [["ListNode", [1, {"node": 5}]]]}', '{"nodes": [["int", []]]}'):
        with pytest.raises(ValueError, match=r".*"):
            plain.loads(text)


@pytest.mark.parametrize("value", [object(), print, sys, [lambda: 0], {"a": object}])
def test_anything_else_is_not_plain(value):
    with pytest.raises(TypeError, match="not plain data"):
        plain.dumps(value)


@pytest.mark.parametrize(
    "text", ["", "{", "{}", '{"a": 1, "b": 2}', '{"eval": "1"}', '{"set": [[]]}', '{"int": 5}', "[" * 100000]
)
def test_what_dumps_cannot_have_written_is_refused(text):
    with pytest.raises(ValueError, match=r".*"):
        plain.loads(text)
