"""N iterations, killed, resumed, N more: the same files as 2N undisturbed ones, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from hardwon.records import read_metrics, read_rollouts

# 64 problems and batches of 16 groups: epochs end inside iterations, and surplus groups are carried.
SETTINGS = {
    "prompts_per_iteration": 16, "group_size": 4, "updates_per_iteration": 2, "epochs_per_iteration": 2,
    "iterations": 10, "checkpoint_every": 1, "eval_every": 4, "eval_problems": 8, "eval_samples": 1,
    "warmup_iterations": 3, "learning_rate_schedule": "linear", "task_options.train_size": 64,
}  # fmt: skip
TIMES = {"elapsed_seconds", "tokens_per_second", "iteration_seconds", "rollout_seconds", "update_seconds"}


def command(*words):
    return [sys.executable, "-m", "hardwon", "train", *words]


def words(path, **changes):
    return [f"{k}={v}" for k, v in {**SETTINGS, **changes, "run": path}.items()]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run_whole(path, **changes):
    subprocess.run(
        command("da3po", *words(path, **changes)), check=True, env=ENVIRONMENT, capture_output=True
    )


def resume(path):
    return subprocess.run(
        command("--resume", str(path)), check=True, env=ENVIRONMENT, capture_output=True, text=True
    )


def without_times(metrics):
    return {k: v for k, v in metrics.items() if k not in TIMES}


def assert_same(a, b):
    """Weights, metrics but for the clock, and every rollout."""
    x, y = (load_file(p / "model" / "model.safetensors") for p in (a, b))
    assert x.keys() == y.keys()
    assert all(torch.equal(x[k], y[k]) for k in x)
    for m, n in zip(read_metrics(a), read_metrics(b), strict=True):
        assert {k: v for k, v in m.items() if k not in TIMES} == {
            k: v for k, v in n.items() if k not in TIMES
        }
    # pandas, because Arrow holds NaN (the advantage of a dropped group) to be unequal to itself.
    assert read_rollouts(a).to_pandas().equals(read_rollouts(b).to_pandas())


def wait_for(path, iteration, process, limit=120):
    end = time.monotonic() + limit
    while time.monotonic() < end and process.poll() is None:
        if path.exists() and any(m["iteration"] >= iteration for m in read_metrics(path)):
            return
        time.sleep(0.02)
    raise AssertionError(f"iteration {iteration} was not reached: {process.stderr.read()}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    run_whole(path)
    carried = [m["dynamic_sampling/carried"] for m in read_metrics(path)[1:]]
    assert any(carried), "the settings are meant to carry groups over a checkpoint"
    return path


@pytest.mark.parametrize("iteration", [2, 7])
def test_kill_9_and_resume_is_exact(undisturbed, tmp_path, iteration):
    path = tmp_path / "run"
    process = subprocess.Popen(
        command("da3po", *words(path)), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_for(path, iteration, process)
    time.sleep(random.random() * 0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    resume(path)
    assert_same(undisturbed, path)


def test_checkpoints_further_apart_than_the_kill_are_exact_too(undisturbed, tmp_path):
    path = tmp_path / "run"
    process = subprocess.Popen(
        command("da3po", *words(path, checkpoint_every=4)), env=ENVIRONMENT, stderr=subprocess.PIPE
    )
    wait_for(path, 6, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    resume(path)
    assert_same(undisturbed, path)


@pytest.mark.parametrize("number", [signal.SIGINT])  # SIGTERM: tests/faults
def test_an_interrupt_finishes_the_iteration_saves_and_says_how_to_go_on(undisturbed, tmp_path, number):
    path = tmp_path / "run"
    process = subprocess.Popen(
        command("da3po", *words(path, checkpoint_every=100)),
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(path, 3, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"hardwon train --resume {path}" in out.replace("\n", "")
    done = read_metrics(path)[-1]["iteration"]
    assert (path / "checkpoints" / f"iteration-{done:06d}").is_dir()
    resume(path)
    assert_same(undisturbed, path)


def test_a_finished_run_can_be_resumed_for_more(undisturbed, tmp_path):
    path = tmp_path / "run"
    run_whole(path, iterations=3, learning_rate_schedule="constant")
    subprocess.run(
        command("--resume", str(path), "iterations=5"), check=True, env=ENVIRONMENT, capture_output=True
    )
    whole = tmp_path / "whole"
    run_whole(whole, iterations=5, learning_rate_schedule="constant")
    x, y = (load_file(p / "model" / "model.safetensors") for p in (path, whole))
    assert all(torch.equal(x[k], y[k]) for k in x)
    assert any(m["dynamic_sampling/carried"] for m in read_metrics(path) if m["iteration"] == 4)
    # Groups that waited at the end of iteration 3 are stored once, when their time has come.
    assert read_rollouts(path).to_pandas().equals(read_rollouts(whole).to_pandas())


def refused(*given):
    """What hardwon says when it refuses, on one line."""
    done = subprocess.run(command(*given), env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    return " ".join(done.stderr.split())


def test_a_changed_setting_is_refused_by_name(undisturbed):
    message = refused("--resume", str(undisturbed), "learning_rate=1e-3")
    assert "learning_rate was 0.0001 and is now 0.001" in message


def test_changed_data_is_refused(tmp_path):
    data, path = tmp_path / "problems.jsonl", tmp_path / "run"
    problems = [{"prompt": f"{i}+1", "answer": str(i + 1)} for i in range(60)]

    def write():
        data.write_text("".join(json.dumps(p) + "\n" for p in problems))

    write()
    settings = SETTINGS | {"task": "math", "data": data, "run": path, "iterations": 1, "max_rounds": 1}
    settings |= {"max_new_tokens": 4, "overlong_buffer": 2, "task_options.held_out_fraction": 0.2}
    del settings["task_options.train_size"]
    given = [f"{k}={v}" for k, v in settings.items()]
    subprocess.run(command("da3po", *given), check=True, env=ENVIRONMENT, capture_output=True)
    problems[7]["prompt"] = "1+1+1"
    write()
    assert "has changed since this run began" in refused("--resume", str(path), "iterations=2")
