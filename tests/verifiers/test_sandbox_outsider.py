"""Ways past the sandbox's limits that somebody who did not write it found, and that are closed since.

docs/reliability.md has the table.
"""

from __future__ import annotations

import itertools
import os
import platform
import tempfile
import threading
import time
from pathlib import Path

import pytest

from hardwon.verifiers.code import AssertTests, CallTests, StdinTests, verify
from hardwon.verifiers.sandbox import Sandbox
from hardwon.verifiers.sandbox_inside import kernel
from hardwon.verifiers.sandbox_layers import Limits, installed, package_paths, usual_packages
from hardwon.verifiers.sandbox_probe import layers

LIMITS = Limits(wall_seconds=3.0, cpu_seconds=2, memory_bytes=512 << 20)


@pytest.fixture(params=["N", "L"])
def sandbox(request):
    layer = next(found for found in layers() if found.name == request.param)
    if not layer.holds:
        pytest.skip(f"layer {layer.name} does not hold here: {layer.reason}")
    return Sandbox(layer.name, LIMITS)


@pytest.mark.skipif(not installed(), reason="the interpreter keeps its packages elsewhere")
def test_installed_packages_are_out_of_reach(sandbox):
    """Where hardwon is installed, its packaged problems lie there with tests and solutions."""
    folder = Path(installed()[0])
    opened = package_paths(usual_packages())
    closed = (path for path in folder.rglob("*") if path.is_file() and not str(path).startswith(opened))
    files = [str(path) for path in itertools.islice(closed, 50)]
    assert files, "an empty directory proves nothing"
    run = sandbox.run_program(f"""
import os, sys
sys.path.append({str(folder)!r})
for path in {files!r}:
    try: open(path, "rb").read(1); print("read", path)
    except OSError: pass
for path in {files!r}:
    name = os.path.relpath(path, {str(folder)!r}).split(os.sep)[0].removesuffix(".py")
    if name.isidentifier() and name not in sys.stdlib_module_names:
        try: print("imported", __import__(name).__path__)
        except (ImportError, OSError, AttributeError): pass
import wave, xml.dom.minidom  # the standard library is still there
print("end")
""")
    assert run.stdout == b"end\n", run


HIDDEN_FILES = """
import os
held = []
def nameless(i):
    return os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
def deleted(i):
    descriptor = os.open("x", os.O_CREAT | os.O_RDWR)
    os.unlink("x")
    if not os.path.exists("x"): return descriptor
    os.close(descriptor)
    raise OSError("still there")
def replaced(i):
    descriptor = os.open(f"y{i}", os.O_CREAT | os.O_RDWR)
    open("z", "w").close()
    os.rename("z", f"y{i}")
    return descriptor
for way in (nameless, deleted, replaced):
    size = 0
    try:
        for i in range(8):
            held.append(way(i))
            size += os.write(held[-1], bytes(1 << 20))
    except OSError as error:
        print(way.__name__, "refused")
    else:
        print(way.__name__, size)
"""


def test_no_file_escapes_the_count(sandbox):
    """Open files that have no name are not in the directory that the parent counts: 60 times 16 MB in L."""
    run = sandbox.run_program(HIDDEN_FILES)
    assert run.stdout.decode().split("\n")[:3] == [
        "nameless refused",
        "deleted refused",
        "replaced refused",
    ], run


def test_a_file_that_may_only_be_read_cannot_be_emptied(sandbox):
    """Landlock before version 3 lets O_RDONLY | O_TRUNC pass, so system calls are where it is refused."""
    run = sandbox.run_program("""
import os
open("own", "w").write("x")
for flags in (os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_TRUNC):
    try: os.close(os.open("own", flags)); print("emptied")
    except PermissionError: print("refused", os.path.getsize("own"))
""")
    assert run.stdout == b"refused 1\nemptied\n", run


def test_a_program_is_watched_while_the_tests_work():
    """Layer L counts files from outside: also while the parent waits for the process of the tests."""
    if not next(found for found in layers() if found.name == "L").holds:
        pytest.skip("layer L does not hold here")
    checks = "import time\ndef check(f):\n    f()\n    time.sleep(1.5)\n    f()"
    program = """
import threading, time
def fill():
    for i in range(240):
        with open(str(i), "wb") as file: file.write(bytes(4 << 20))
        time.sleep(0.005)
def start(): threading.Thread(target=fill, daemon=True).start()
"""
    before = set(os.listdir(tempfile.gettempdir()))
    peak, over = [0], threading.Event()

    def look():
        while not over.is_set():
            for name in set(os.listdir(tempfile.gettempdir())) - before:
                if name.startswith("hardwon-"):
                    try:
                        sizes = [e.stat().st_size for e in os.scandir(Path(tempfile.gettempdir(), name))]
                    except OSError:
                        continue
                    peak[0] = max(peak[0], sum(sizes))
            time.sleep(0.01)

    observer = threading.Thread(target=look)
    observer.start()
    verdict = verify(Sandbox("L", LIMITS), AssertTests(checks, ("start",), ("check(start)",)), program)
    over.set()
    observer.join()
    assert verdict.outcome == "wrong" and "of files" in verdict.message
    assert 0 < peak[0] < 3 * LIMITS.work_bytes  # 64 MB and what 50 ms can write; else hundreds of MB


def test_sleeping_does_not_hold_a_place_for_every_test(sandbox):
    """With partial credit every test is run, but only three may use up their time."""
    short = Sandbox(sandbox.layer, Limits(wall_seconds=0.3, cpu_seconds=1))
    tests = StdinTests(("1",) * 20, ("1",) * 20)
    start = time.monotonic()
    verdict = verify(short, tests, "import time; time.sleep(9)", partial=True)
    assert (verdict.outcome, verdict.score) == ("timeout", 0.0)
    assert time.monotonic() - start < 20 * 0.3


def test_a_reply_far_too_long_is_not_read(sandbox):
    """Three million brackets in the parent would hold up every other verdict for seconds."""
    program = "def f(): return [[]] * 500_000"
    verdict = verify(sandbox, CallTests("f", ([],), ([1],)), program)
    assert verdict.outcome == "wrong" and "characters" in verdict.message
    right = {"a": [(), 1.5, "\u00e9" * 100, None, True, 1 << 80], "b": [{}] * 50}
    honest = f"def f(): return {right!r}"
    assert verify(sandbox, CallTests("f", ([],), (dict(right, a=[[], *right["a"][1:]]),)), honest).correct


def test_a_full_disk_is_an_error_of_the_sandbox_and_no_crash(sandbox, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    verdict = verify(sandbox, CallTests("f", ([],), (1,)), "def f(): return 1")
    assert verdict.outcome == "error" and "could not start" in verdict.message


def test_no_start_leaves_descriptors_behind(sandbox, monkeypatch):
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("hardwon.verifiers.sandbox_layers.python_command", lambda control: ["/nowhere"])
    monkeypatch.setattr("hardwon.verifiers.sandbox_layers.bubblewrap_command", lambda *a: ["/nowhere"])
    for _ in range(3):
        assert verify(sandbox, CallTests("f", ([],), (1,)), "").outcome == "error"
    assert len(os.listdir("/proc/self/fd")) == before


def test_starter_code_needs_no_import(sandbox):
    """As on LeetCode, where starter codes say List. A name that nobody knows stays an error."""
    tests = CallTests("first", ([[7, 8]],), (7,))
    program = "class Solution:\n    def first(self, x: List[int]) -> Optional[int]: return {}"
    assert verify(sandbox, tests, program.format("x[0]")).correct
    assert verify(sandbox, tests, program.format("Countr(x)[7] and 7")).outcome == "wrong"


SWEEP = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
word = lambda value: ctypes.c_ulong(value & (1 << 64) - 1)
def refused(number, *arguments):
    ctypes.set_errno(0)
    return libc.syscall(number, *map(word, arguments)) == -1 and ctypes.get_errno() == errno.EPERM
"""


@pytest.mark.skipif(platform.machine() not in kernel.SYSTEM_CALLS, reason="no list for this machine")
def test_every_system_call_that_is_not_listed_is_refused(sandbox):
    """All 512 numbers that exist or may come, but those of the list; EPERM is the filter's answer.

    335 and 336 of x86-64 (uretprobe, uprobe) pass any filter from Linux 6.14 on: SIGILL ends the caller.
    """
    _, allowed, special = kernel.SYSTEM_CALLS[platform.machine()]
    numbers = sorted(set(range(512)) - allowed - set(special.values()) - {335, 336})
    run = sandbox.run_program(
        f"{SWEEP}\nprint([n for n in {numbers} if not refused(n, -1, -1, -1, -1, -1, -1)])"
    )
    assert run.stdout == b"[]\n", run


@pytest.mark.skipif(platform.machine() not in kernel.SYSTEM_CALLS, reason="no list for this machine")
def test_listed_calls_are_refused_for_other_ends(sandbox):
    """Signals but to abort, others' limits, owners of files, processes instead of threads, the terminal."""
    number = kernel.SYSTEM_CALLS[platform.machine()][2]
    threads = kernel.THREAD_FLAGS[0]
    calls = [(number["fcntl"], 1, command, 0) for command in (5, 6, 8, 10, 15, 1024, 1026, 1031, 1033)]
    calls += [(number["ioctl"], 0, request, 0) for request in (0x5412, 0x5413, 0x8901, 0x5452, 0x541C)]
    calls += [
        (number["clone"], flags, 0, 0, 0, 0) for flags in (17, 0, threads | 0x10000000, threads & ~0x10000)
    ]
    calls += [(number["tgkill"], pid, 1, signal) for pid, signal in ((1, 6), (2, 9), (1, 0))]
    calls += [(number["prlimit64"], 1, 0, 0, 0)]
    run = sandbox.run_program(f"{SWEEP}\nprint([c for c in {calls} if not refused(*c)])")
    assert run.stdout == b"[]\n", run


AHEAD = """
import os
for descriptor in range(3, 20):
    try: os.write(descriptor, b'{"value": null}\\n{"value": "9"}\\n{"value": "100"}\\n')
    except OSError: pass
"""


@pytest.mark.parametrize("ending", ["", "os._exit(0)", "while True: pass"])
def test_replies_written_ahead_answer_nothing(sandbox, ending):
    """A program that knows the answers, in order, has to wait for the questions, and to live."""
    calls = CallTests("square", ([3], [10]), (9, 100))
    asserts = AssertTests("", ("square",), ("assert square(3) == 9", "assert square(10) == 100"))
    for tests in (calls, asserts):
        assert verify(sandbox, tests, AHEAD + ending).outcome in ("wrong", "timeout")
