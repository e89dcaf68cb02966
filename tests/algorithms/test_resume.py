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

from hardwon import cli
from hardwon.algorithms import group_policy
from hardwon.records import read_metrics, read_rollouts

# 64 problems and batches of 16 groups: epochs end inside iterations, and surplus groups are carried. What is
# killed is a process of its own; the rest runs in this one, with as many threads.
SETTINGS = {
    "prompts_per_iteration": 16, "group_size": 4, "updates_per_iteration": 2, "epochs_per_iteration": 2,
    "iterations": 6, "checkpoint_every": 1, "eval_every": 3, "eval_problems": 8, "eval_samples": 1,
    "warmup_iterations": 3, "learning_rate_schedule": "linear", "task_options.train_size": 64,
}  # fmt: skip
TIMES = {"elapsed_seconds", "tokens_per_second", "iteration_seconds", "rollout_seconds", "update_seconds"}


def command(*words):
    return [sys.executable, "-m", "hardwon", "train", *words]


def words(path, **changes):
    return [f"{k}={v}" for k, v in {**SETTINGS, **changes, "run": path}.items()]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def run_here():
    """`hardwon train *words` on one thread in this process, without the report."""

    def run(*words):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cli, "finish", lambda *_: None)
            patch.setattr("sys.argv", ["hardwon", "train", *map(str, words)])
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                with pytest.raises(SystemExit) as ended:
                    cli.main()
            finally:
                torch.set_num_threads(threads)
        return ended.value.code

    return run


def start(path, **changes):
    return subprocess.Popen(
        command("da3po", *words(path, **changes)),
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


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
def undisturbed(run_here, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    assert run_here("da3po", *words(path)) == 0
    carried = [m["dynamic_sampling/carried"] for m in read_metrics(path)[1:]]
    assert any(carried), "the settings are meant to carry groups over a checkpoint"
    return path


def test_kill_9_and_resume_is_exact(undisturbed, run_here, tmp_path):
    path = tmp_path / "run"
    process = start(path)
    wait_for(path, 4, process)  # other moments: tests/faults
    time.sleep(random.random() * 0.2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert run_here("--resume", path) == 0
    assert_same(undisturbed, path)


# The signals themselves: SIGTERM in tests/faults.
def test_an_interrupt_finishes_the_iteration_saves_and_says_how_to_go_on(undisturbed, run_here, tmp_path):
    path = tmp_path / "run"
    process = start(path, checkpoint_every=100)
    wait_for(path, 3, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"hardwon train --resume {path}" in out.replace("\n", "")
    done = read_metrics(path)[-1]["iteration"]
    assert (path / "checkpoints" / f"iteration-{done:06d}").is_dir()
    assert run_here("--resume", path) == 0
    assert_same(undisturbed, path)


def test_a_kill_far_from_the_last_checkpoint_is_made_up_for(undisturbed, run_here, tmp_path, monkeypatch):
    """The error stands for the kill: iterations 5 and 6 are logged, the last checkpoint is that of 4."""
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(group_policy, "checkpoint", failing(group_policy.checkpoint, 2))
        assert run_here("da3po", *words(path, checkpoint_every=4)) == 2
    assert read_metrics(path)[-1]["iteration"] == 6
    assert run_here("--resume", path) == 0
    assert_same(undisturbed, path)


def failing(real, number):
    """`real`, but for the call of that number, in which the disk is gone."""
    calls = []

    def call(*args):
        calls.append(args)
        if len(calls) == number:
            raise OSError("the disk is gone")
        return real(*args)

    return call


def test_a_finished_run_can_be_resumed_for_more(run_here, tmp_path):
    path, whole = tmp_path / "run", tmp_path / "whole"
    assert run_here("da3po", *words(path, iterations=3, learning_rate_schedule="constant")) == 0
    assert run_here("--resume", path, "iterations=5") == 0
    assert run_here("da3po", *words(whole, iterations=5, learning_rate_schedule="constant")) == 0
    x, y = (load_file(p / "model" / "model.safetensors") for p in (path, whole))
    assert all(torch.equal(x[k], y[k]) for k in x)
    assert any(m["dynamic_sampling/carried"] for m in read_metrics(path) if m["iteration"] == 4)
    # Groups that waited at the end of iteration 3 are stored once, when their time has come.
    assert read_rollouts(path).to_pandas().equals(read_rollouts(whole).to_pandas())


def test_a_mixture_resumes_exactly_and_reports_each_source(run_here, tmp_path):
    """Three quarters short sums, one quarter longer ones from a file that `math` judges."""
    data = tmp_path / "long.jsonl"
    rows = [{"prompt": f"{i % 10}+{i // 10}+1+1+1", "answer": i % 10 + i // 10 + 3} for i in range(100)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = [
        {"name": "short", "weight": 3, "task_options": {"train_size": 64, "max_terms": 4}},
        {"data": str(data), "task": "math", "task_options": {"held_out_fraction": 0.1}},
    ]
    changes = {"data": json.dumps(sources), "learning_rate_schedule": "constant", "checkpoint_every": 2}
    changes |= {"max_rounds": 2, "max_new_tokens": 16, "eval_every": 2, "eval_samples": 2}

    def run(path, iterations):
        given = words(path, iterations=iterations, **changes)
        return run_here("da3po", *(word for word in given if not word.startswith("task_options")))

    path, whole = tmp_path / "run", tmp_path / "whole"
    assert run(path, 2) == 0
    assert run_here("--resume", path, "iterations=4") == 0
    assert run(whole, 4) == 0
    assert_same(path, whole)
    before, *trained = read_metrics(path)
    assert before["eval/short/mean@1"] > before["eval/long/mean@1"] == 0  # math wants a box
    # The mean of the eight problems is that of four and four, since the sources take turns.
    assert before["eval/mean@1"] == (before["eval/short/mean@1"] + before["eval/long/mean@1"]) / 2
    short, long = (sum(m[f"groups_sampled/{name}"] for m in trained) for name in ("short", "long"))
    assert abs(short - 3 * long) <= 3
    for m in trained:
        weights = m["groups_sampled/short"], m["groups_sampled/long"]
        parts = m["reward/short"], m["reward/long"]
        mean = sum(w * r for w, r in zip(weights, parts, strict=True)) / sum(weights)
        assert mean == pytest.approx(m["reward"])


def refused(run_here, capsys, *given):
    """What hardwon says when it refuses, on one line."""
    assert run_here(*given) == 2
    return " ".join(capsys.readouterr().err.split())


def test_a_changed_setting_is_refused_by_name(undisturbed, run_here, capsys):
    message = refused(run_here, capsys, "--resume", undisturbed, "learning_rate=1e-3")
    assert "learning_rate was 0.0001 and is now 0.001" in message


def test_changed_data_is_refused(run_here, capsys, tmp_path):
    data, path = tmp_path / "problems.jsonl", tmp_path / "run"
    problems = [{"prompt": f"{i}+1", "answer": str(i + 1)} for i in range(60)]

    def write():
        data.write_text("".join(json.dumps(p) + "\n" for p in problems))

    write()
    settings = SETTINGS | {"task": "math", "data": data, "run": path, "iterations": 1, "max_rounds": 1}
    settings |= {"max_new_tokens": 4, "overlong_buffer": 2, "task_options.held_out_fraction": 0.2}
    del settings["task_options.train_size"]
    assert run_here("da3po", *(f"{k}={v}" for k, v in settings.items())) == 0
    problems[7]["prompt"] = "1+1+1"
    write()
    message = refused(run_here, capsys, "--resume", path, "iterations=2")
    assert "has changed since this run began" in message
