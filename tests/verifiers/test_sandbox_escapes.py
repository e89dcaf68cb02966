"""Every kind of escape and excess, in every layer that holds on this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox_attacks import SECRET, TAKES_TOO_MUCH, WANTS_OUT, attack, host_targets, on_this_machine

from hardwon.verifiers.sandbox import Sandbox
from hardwon.verifiers.sandbox_layers import Limits
from hardwon.verifiers.sandbox_probe import layers

SMALL = Limits(wall_seconds=2.0, cpu_seconds=1, memory_bytes=512 << 20, output_bytes=1 << 20)


@pytest.fixture(scope="module")
def host():
    with host_targets() as targets:
        yield targets


@pytest.fixture(params=["N", "L"])
def sandbox(request):
    layer = next(found for found in layers() if found.name == request.param)
    if not layer.holds:
        pytest.skip(f"layer {layer.name} does not hold here: {layer.reason}")
    return Sandbox(layer.name, SMALL)


@pytest.mark.parametrize("name", WANTS_OUT)
def test_no_way_out(sandbox, host, name):
    if not on_this_machine(name):
        pytest.skip("by x86-64 system call numbers")
    run = sandbox.run_program(attack(name, host))
    assert b"escaped" not in run.stdout, run
    # It was tried: either refused politely, or the kernel ended the program for it.
    assert b"refused" in run.stdout or run.exit_code != 0, run
    assert Path(host["victim"]).read_text() == SECRET
    assert sorted(os.listdir(host["folder"])) == ["secret", "socket", "victim"]


@pytest.mark.parametrize("name", TAKES_TOO_MUCH)
def test_no_more_than_its_share(sandbox, name):
    program, ending = TAKES_TOO_MUCH[name]
    start = time.monotonic()
    run = sandbox.run_program(program)
    assert b"escaped" not in run.stdout
    assert run.ending == ending or ending == "any", run
    assert not (run.ending == "exited" and run.exit_code == 0)
    assert len(run.stdout) + len(run.stderr) <= 2 * SMALL.output_bytes
    assert time.monotonic() - start < SMALL.wall_seconds + 3


TRAINER = """
import sys, time
from hardwon.verifiers.sandbox import Sandbox
with Sandbox(sys.argv[1]).start({"mode": "functions", "source": "import time; time.sleep(100)"}) as child:
    print(child.process.pid, flush=True)
    time.sleep(100)
"""


def family(pid):
    """The process and its descendants, as far as they live."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(entry.name)] = int(parent)
    found = {pid} & set(parents)
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def test_nothing_outlives_a_killed_trainer(sandbox, tmp_path):
    command = [sys.executable, "-c", TRAINER, sandbox.layer]
    here = {**os.environ, "TMPDIR": str(tmp_path)}
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, env=here)
    pids = family(int(trainer.stdout.readline()))
    assert len(pids) == (3 if sandbox.layer == "N" else 1)  # bubblewrap, its first process, the program
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    deadline = time.monotonic() + 10
    while any(family(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in pids if family(pid)] == []


def test_nothing_is_left_running(sandbox):
    """The process that ran the program, and all that it may have started, are gone: its pipe is closed."""
    with sandbox.start({"mode": "functions", "source": "import time\nwhile True: time.sleep(1)"}) as child:
        pid = child.process.pid
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)
    assert not os.path.exists(child.host_work)
