"""Every kind of escape and excess, in every layer that holds on this machine."""

from __future__ import annotations

import os
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


def test_nothing_is_left_running(sandbox):
    """The process that ran the program, and all that it may have started, are gone: its pipe is closed."""
    with sandbox.start({"mode": "functions", "source": "import time\nwhile True: time.sleep(1)"}) as child:
        pid = child.process.pid
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)
    assert not os.path.exists(child.host_work)
