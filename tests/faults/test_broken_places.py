"""A disk that is full or read-only, damaged files, two processes, SIGTERM and a clock that goes backwards."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from fault_runner import Kill, error_of, install, patch, start, train_in_child
from test_kills import ONLINE, assert_nothing_lost

from hardwon.commands import trained_model
from hardwon.models.policy import Policy
from hardwon.records import read_metrics, read_rollouts, rollout_path

pytestmark = pytest.mark.faults
SHORT = {**ONLINE, "iterations": 3}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    assert train_in_child("da3po", path, SHORT) == 0
    return path


def mount(*words):
    return subprocess.run(["mount", *words], capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path):
    """`disk(kilobytes)` is a folder on a file system of that size."""
    mounted = []

    def make(kilobytes: int) -> Path:
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        if not mount("-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(path)):
            pytest.skip(
                "mounting a small file system needs root; test_run.py has a limit on file sizes instead"
            )
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        subprocess.run(["umount", str(path)], check=True)


# ------------------------------------------------------------------------------------------------- disk


@pytest.mark.parametrize("kilobytes", [8, 1000, 3500, 7000])
def test_a_disk_that_fills_up_costs_nothing_once_there_is_room(undisturbed, disk, kilobytes):
    """From no room for the settings, over half a checkpoint, to a checkpoint or two."""
    small = disk(kilobytes)
    path = small / "run"
    message = error_of_run_on_disk(path, kilobytes)
    assert message.startswith("SaveError: cannot save") and "No space left on device" in message, message
    assert mount("-o", "remount,size=64m", str(small))
    assert train_in_child("da3po", path, SHORT) == 0
    assert_nothing_lost(undisturbed, path)


def error_of_run_on_disk(path: Path, kilobytes: int) -> str:
    """The error lies outside of the full disk."""
    process = start("da3po", path, SHORT, None, path.parent.with_name("error"))
    process.join()
    assert process.exitcode == 1, f"{kilobytes} kB were enough"
    return path.parent.with_name("error").read_text()


def turn_read_only(place: str, number: int, folder: Path) -> None:
    calls = itertools.count(1)

    def wrap(original):
        def call(*args, **kwargs):
            if next(calls) == number:
                # Lazily, as a disk with errors does: files that are open for writing forbid the polite way.
                assert mount("--bind", str(folder), str(folder))
                assert mount("-o", "remount,ro,bind", str(folder))
            return original(*args, **kwargs)

        return call

    patch(place, wrap)


GROUP = "hardwon.algorithms.group_policy"


@pytest.mark.parametrize(
    ("place", "number"), [(f"{GROUP}:sample_groups", 1), (f"{GROUP}:checkpoint", 2), (f"{GROUP}:update", 9)]
)
def test_a_directory_that_turns_read_only(undisturbed, disk, place, number):
    folder = disk(64_000)
    path = folder / "run"
    setup = partial(turn_read_only, place, number, path)
    process = start("da3po", path, SHORT, setup, folder.with_name("error"))
    process.join()
    assert process.exitcode == 1
    message = folder.with_name("error").read_text()
    assert message.startswith("SaveError: cannot save") and "Read-only file system" in message
    # And a run that is resumed on it says so at once.
    process = start("da3po", path, SHORT, None, folder.with_name("error"))
    process.join()
    message = folder.with_name("error").read_text()
    assert message.startswith("SaveError: cannot save the run directory") and "Read-only" in message
    subprocess.run(["umount", str(path)], check=True)
    assert train_in_child("da3po", path, SHORT) == 0
    assert_nothing_lost(undisturbed, path)


# ---------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("name", ["model/model.safetensors", "state/tensors.safetensors", "manifest.json"])
@pytest.mark.parametrize("share", [0.0, 0.99])
def test_a_truncated_checkpoint_costs_one_iteration(undisturbed, tmp_path, name, share):
    path = tmp_path / "run"
    assert train_in_child("da3po", path, SHORT, partial(install, Kill("", f"{GROUP}:update", 9))) == -9
    newest = sorted((path / "checkpoints").glob("iteration-*"))[-1]
    assert newest.name == "iteration-000002"
    file = newest / name
    os.truncate(file, int(file.stat().st_size * share))
    assert train_in_child("da3po", path, SHORT) == 0
    assert_nothing_lost(undisturbed, path)


def test_truncated_rollouts_cost_one_file(tmp_path, caplog):
    path = tmp_path / "run"
    assert train_in_child("da3po", path, {**SHORT, "iterations": 2}) == 0
    os.truncate(rollout_path(path, 1), 1000)
    assert set(read_rollouts(path)["iteration"].to_pylist()) == {2}
    assert "cannot be read and are passed over" in caplog.text


def test_a_final_model_that_is_half_written_is_not_there(tmp_path):
    """After a kill in the last write, before anyone resumed: the newest checkpoint has the model."""
    path = tmp_path / "run"
    kill = Kill("", "hardwon.run:shutil.copytree", 1, "torn")
    assert train_in_child("da3po", path, {**SHORT, "iterations": 2}, partial(install, kill)) == -9
    assert not (path / "model").exists()
    assert trained_model(path) == path / "checkpoints/iteration-000002/model"
    Policy.load(trained_model(path))


# ------------------------------------------------------------------------------------ processes and time


def test_a_second_process_is_refused_and_does_not_harm_the_first(undisturbed, tmp_path):
    path = tmp_path / "run"
    first = start("da3po", path, SHORT)
    wait_for(path, 1)
    message = error_of("da3po", path, SHORT)
    assert "in use by another process (pid " in message and message.startswith("ValueError")
    first.join()
    assert first.exitcode == 0
    assert_nothing_lost(undisturbed, path)


def wait_for(path: Path, iteration: int, limit: float = 120) -> None:
    end = time.monotonic() + limit
    while not (path.exists() and any(m["iteration"] >= iteration for m in read_metrics(path))):
        assert time.monotonic() < end, f"iteration {iteration} was not reached"
        time.sleep(0.02)


@pytest.mark.parametrize("grace", [0.0, 0.05, 60.0])
def test_sigterm_and_then_sigkill_after_a_grace_period(undisturbed, tmp_path, grace):
    """As clusters preempt; within a long enough grace the iteration is finished and saved."""
    path, delays = tmp_path / "run", random.Random(int(grace))
    for iteration in (0, 1, 2):
        process = start("da3po", path, SHORT)
        wait_for(path, iteration)
        time.sleep(delays.uniform(0, 0.2))
        process.terminate()
        process.join(grace)
        process.kill()
        process.join()
        assert process.exitcode in ((130, 0, -15) if grace > 1 else (130, 0, -15, -9))
    assert train_in_child("da3po", path, SHORT) == 0
    assert_nothing_lost(undisturbed, path)


def clock_backwards() -> None:
    """Every look at the wall clock is an hour before the last one."""
    hours = itertools.count()
    time.time = lambda: 1.7e9 - 3600.0 * next(hours)
    time.time_ns = lambda: int(1.7e18) - 3600 * 10**9 * next(hours)


def test_a_clock_that_goes_backwards_changes_nothing(undisturbed, tmp_path):
    path = tmp_path / "run"
    kill = Kill("", f"{GROUP}:update", 6)

    assert train_in_child("da3po", path, SHORT, partial(both, clock_backwards, partial(install, kill))) == -9
    assert train_in_child("da3po", path, SHORT, clock_backwards) == 0
    assert_nothing_lost(undisturbed, path)
    elapsed = [m["elapsed_seconds"] for m in read_metrics(path)]
    assert elapsed == sorted(elapsed) and elapsed[0] >= 0


def both(first, second) -> None:
    first()
    second()
