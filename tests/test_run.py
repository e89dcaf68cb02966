"""The run directory: nothing is lost, nothing is logged twice, and nobody else writes."""

import errno
import json
import math
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
import yaml

from hardwon import checkpoints
from hardwon.checkpoints import SaveError, damage, load_state, save_state
from hardwon.data import Group, Problem, Rollout, Sample, State, Verdict
from hardwon.evaluate import stored_evaluations
from hardwon.records import read_metrics, read_rollouts, rollout_iterations, rollout_path
from hardwon.run import Run

# Children of a process that has the imports already and no threads.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["hardwon.run", "hardwon.evaluate", "pytest"])
CONFIG = {"algorithm": "da3po", "optimizer": {"learning_rate": 2e-4}, "iterations": 10}


def make_group(name="sum/1", outcomes=("correct", "wrong"), iteration=0):
    rollouts = tuple(
        Rollout(
            Sample(np.array([5, 6, 2]), np.array([-0.5, -0.25, -0.125], np.float32), finished=i == 0),
            f"3+4=7 ({i})",
            Verdict(outcome),
            {"correct": 1.0, "error": math.nan}.get(outcome, -1.0),
        )
        for i, outcome in enumerate(outcomes)
    )
    return Group(State(Problem(name, "3+4=", "7", {"terms": 2})), (1, 3, 4), rollouts, iteration)


def writer(text="weights"):
    return lambda directory: (directory / "model.txt").write_text(text)


def fill(run, iterations):
    """Logs, stores and checkpoints what a loop would, every second iteration a checkpoint."""
    for iteration in iterations:
        run.log(iteration, {"reward": iteration / 10})
        run.save_rollouts(iteration, [make_group()], [[1.0, -1.0]])
        if iteration % 2 == 0:
            run.checkpoint(iteration, writer(f"weights {iteration}"), metric=0.5)


# ------------------------------------------------------------------------------------ records


def test_metrics_are_one_json_object_a_line_and_nan_is_null(tmp_path):
    with Run.create(tmp_path / "run", CONFIG) as run:
        run.log(1, {"reward": torch.tensor(0.5), "kl": float("nan")})
        run.log(1, {"eval/mean@1": 0.25})
    first, second = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert json.loads(first)["reward"] == 0.5 and json.loads(first)["kl"] is None
    assert json.loads(second)["eval/mean@1"] == 0.25
    # Two lines of one iteration are read as one record.
    (record,) = read_metrics(tmp_path / "run")
    assert record["reward"] == 0.5 and record["eval/mean@1"] == 0.25


def test_rollouts_keep_text_verdict_reward_and_advantage(tmp_path):
    groups = [
        make_group("a", ("correct", "wrong"), iteration=3),
        make_group("b", ("error", "timeout"), iteration=4),
    ]
    with Run.create(tmp_path / "run", CONFIG) as run:
        run.save_rollouts(
            4, groups, torch.tensor([[1.0, -1.0], [0.0, 0.0]]), trained=[[True], [False]], weight=0.5
        )
    rows = read_rollouts(tmp_path / "run").to_pylist()
    assert [r["problem_id"] for r in rows] == ["a", "a", "b", "b"]
    assert [r["index"] for r in rows] == [0, 1, 0, 1]
    assert [r["advantage"] for r in rows] == [1, -1, 0, 0]
    assert [r["outcome"] for r in rows] == ["correct", "wrong", "error", "timeout"]
    # An error is left out of the success rate: group b has one judged rollout, which is not correct.
    assert [r["success_rate"] for r in rows] == [0.5, 0.5, 0.0, 0.0]
    assert math.isnan(rows[2]["reward"])
    assert [r["truncated"] for r in rows] == [False, True, False, True]
    # Group a was sampled one iteration before it was used.
    assert [r["age"] for r in rows] == [1, 1, 0, 0]
    assert [r["trained"] for r in rows] == [True, True, False, False]
    assert rows[0]["prompt"] == "3+4=" and rows[0]["text"] == "3+4=7 (0)" and rows[0]["weight"] == 0.5


def test_groups_of_different_size_and_odd_text_are_stored(tmp_path):
    odd = make_group("x\ud800", ("correct",))
    with Run.create(tmp_path / "run", CONFIG) as run:
        run.save_rollouts(1, [odd, make_group("b")], [[1.0, math.nan], [0.5, -0.5]])
        run.save_rollouts(2, [], np.zeros((0, 0)))
    rows = read_rollouts(tmp_path / "run").to_pylist()
    assert [r["advantage"] for r in rows] == [1.0, 0.5, -0.5]
    assert rows[0]["problem_id"] == "x?"
    assert rollout_iterations(tmp_path / "run") == [1]


def test_chat_prompts_are_stored_as_readable_text(tmp_path):
    problem = Problem(
        "p", [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}], "4"
    )
    group = Group(State(problem), (1,), make_group().rollouts, 0)
    with Run.create(tmp_path / "run", CONFIG) as run:
        run.save_rollouts(1, [group], 0.0)
    assert read_rollouts(tmp_path / "run").to_pylist()[0]["prompt"] == "system: Be brief.\nuser: 2+2?"


def test_a_parquet_file_cut_short_is_passed_over_with_a_warning(tmp_path, caplog):
    with Run.create(tmp_path / "run", CONFIG) as run:
        fill(run, [1, 2])
    file = rollout_path(tmp_path / "run", 1)
    file.write_bytes(file.read_bytes()[:-20])
    assert set(read_rollouts(tmp_path / "run")["iteration"].to_pylist()) == {2}
    assert str(file) in caplog.text
    with pytest.raises(ValueError, match="iterations 1 to 2"):
        read_rollouts(tmp_path / "run", [7])


# ------------------------------------------------------------------------------------- resume


def test_resume_ends_with_the_files_of_an_undisturbed_run(tmp_path):
    with Run.create(tmp_path / "whole", CONFIG) as run:
        fill(run, range(1, 9))
    with Run.create(tmp_path / "cut", CONFIG) as run:
        fill(run, range(1, 6))  # dies after iteration 5; the newest checkpoint is of 4
        run.save_evaluation(5, "greedy", {"n": 1})
    with open(tmp_path / "cut/metrics.jsonl", "a") as file:
        file.write('{"iteration": 6, "rew')  # killed in the middle of a line
    (tmp_path / "cut/rollouts/.iteration-000006.parquet.partial").write_bytes(b"PAR1")
    (tmp_path / "cut/checkpoints/.iteration-000006.partial").mkdir()
    with Run.resume(tmp_path / "cut", CONFIG) as run:
        checkpoint = run.latest_checkpoint()
        assert checkpoint.iteration == 4 and (checkpoint.path / "model.txt").read_text() == "weights 4"
        assert [m["iteration"] for m in read_metrics(run.path)] == [1, 2, 3, 4]
        assert rollout_iterations(run.path) == [1, 2, 3, 4]
        assert not list(run.path.rglob("*.partial")) and not list((run.path / "evaluations").iterdir())
        fill(run, range(5, 9))

    def content(path):
        metrics = [{k: v for k, v in m.items() if k != "elapsed_seconds"} for m in read_metrics(path)]
        return (
            metrics,
            read_rollouts(path).drop(["age"]).to_pylist(),
            sorted(os.listdir(path / "checkpoints")),
        )

    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_resume_without_any_checkpoint_starts_over(tmp_path):
    with Run.create(tmp_path / "run", CONFIG) as run:
        run.log(0, {"reward": 0.0})
        run.log(1, {"reward": 0.1})
    with Run.resume(tmp_path / "run") as run:
        assert run.latest_checkpoint() is None and read_metrics(run.path) == [] and run.config == CONFIG


def test_a_changed_setting_is_named(tmp_path):
    Run.create(tmp_path / "run", CONFIG).close()
    changed = {**CONFIG, "optimizer": {"learning_rate": 1e-3}}
    with pytest.raises(ValueError, match=r"optimizer\.learning_rate was 0\.0002 and is now 0\.001"):
        Run.resume(tmp_path / "run", changed)
    with pytest.raises(ValueError, match="group_size was 'not set' and is now 8"):
        Run.resume(tmp_path / "run", {**CONFIG, "group_size": 8})
    with Run.resume(tmp_path / "run", {**CONFIG, "iterations": 20}, may_change=["iterations"]) as run:
        assert run.config["iterations"] == 20
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["iterations"] == 20


def test_settings_with_tuples_and_paths_are_unchanged_after_a_round_trip(tmp_path):
    config = {"betas": (0.9, 0.95), "data": tmp_path / "x.parquet", "extra": {}}
    Run.create(tmp_path / "run", config).close()
    Run.resume(tmp_path / "run", config).close()


def test_create_refuses_what_is_already_there(tmp_path):
    Run.create(tmp_path / "run", CONFIG).close()
    with pytest.raises(ValueError, match="already holds a run: resume it"):
        Run.create(tmp_path / "run", CONFIG)
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="not empty"):
        Run.create(tmp_path, CONFIG)
    with pytest.raises(ValueError, match=r"not a run directory.*near by: run"):
        Run.resume(tmp_path / "runn")


def test_durations_survive_a_clock_that_goes_backwards(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: -1e9)
    with Run.create(tmp_path / "run", CONFIG) as run:
        fill(run, [1, 2])
        before = run.elapsed_seconds
    with Run.resume(tmp_path / "run") as run:
        fill(run, [3, 4])
        # Seconds add up over resumes, from the last line that was logged.
        assert run.elapsed_seconds >= before - 0.1
    seconds = [m["elapsed_seconds"] for m in read_metrics(tmp_path / "run")]
    assert seconds == sorted(seconds) and seconds[0] >= 0


# --------------------------------------------------------------------------------------- lock


def hold(path, workers):
    run = Run.create(path, {})
    worker = os.fork()  # as a verifier pool has; it must not keep the lock
    if worker == 0:
        time.sleep(60)
        os._exit(0)
    workers.send(worker)
    time.sleep(60)
    run.close()


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path):
    path = tmp_path / "run"
    reader, writer = CONTEXT.Pipe(duplex=False)
    holder = CONTEXT.Process(target=hold, args=(path, writer))
    holder.start()
    worker = reader.recv()
    try:
        with pytest.raises(ValueError, match=rf"in use by another process \(pid {holder.pid}\)"):
            Run.resume(path)
        holder.kill()
        holder.join()
        Run.resume(path).close()  # although the orphaned worker still lives
        os.kill(worker, 0)
    finally:
        holder.kill()
        os.kill(worker, signal.SIGKILL)


def test_the_same_process_is_refused_too(tmp_path):
    with (
        Run.create(tmp_path / "run", CONFIG),
        pytest.raises(ValueError, match=f"in use by another process .pid {os.getpid()}"),
    ):
        Run.resume(tmp_path / "run")


# -------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("harm", ["shorten", "flip", "delete", "manifest"])
def test_a_damaged_checkpoint_is_passed_over_and_later_replaced(tmp_path, caplog, harm):
    with Run.create(tmp_path / "run", CONFIG) as run:
        fill(run, range(1, 5))
    newest = tmp_path / "run/checkpoints/iteration-000004"
    assert damage(newest) is None
    match harm:
        case "shorten":
            (newest / "model.txt").write_text("weig")
        case "flip":
            (newest / "model.txt").write_text("weights 5")  # the same length
        case "delete":
            (newest / "model.txt").unlink()
        case "manifest":
            (newest / "manifest.json").write_text('{"iteration": 4')
    with Run.resume(tmp_path / "run") as run:
        assert run.latest_checkpoint().iteration == 2
        assert "iteration-000004 is damaged and passed over" in caplog.text
        fill(run, range(3, 5))
        assert damage(newest) is None and (newest / "model.txt").read_text() == "weights 4"


def test_a_run_is_not_started_over_if_every_checkpoint_is_damaged(tmp_path):
    with Run.create(tmp_path / "run", CONFIG) as run:
        fill(run, [1, 2])
    (tmp_path / "run/checkpoints/iteration-000002/model.txt").unlink()
    with pytest.raises(ValueError, match=r"every checkpoint in .* is damaged"):
        Run.resume(tmp_path / "run")
    assert len(read_metrics(tmp_path / "run")) == 2


def test_the_last_n_and_the_best_checkpoint_are_kept(tmp_path):
    with Run.create(tmp_path / "run", CONFIG, keep_last=2) as run:
        for iteration, metric in enumerate([0.1, 0.9, 0.9, math.nan, None, 0.2]):
            run.checkpoint(iteration, writer(), metric)
        kept = sorted(p.name for p in (run.path / "checkpoints").iterdir())
    # Of two equals, here 0.9, the earlier one is the best.
    assert kept == ["iteration-000001", "iteration-000004", "iteration-000005"]


def test_what_else_lies_in_a_run_is_left_alone(tmp_path):
    """A copy that somebody made beside the run's own files is neither read, nor counted, nor deleted."""
    with Run.create(tmp_path / "run", CONFIG) as run:
        run.save_rollouts(1, [make_group("a")], 0.0)
        run.save_evaluation(1, "greedy", {"score": 1})
        run.checkpoint(1, writer())
    foreign = [
        tmp_path / "run" / "rollouts" / "iteration-abc.parquet",
        tmp_path / "run" / "evaluations" / "iteration-best-greedy.json",
        tmp_path / "run" / "checkpoints" / "iteration-1copy",
    ]
    for path in foreign:
        path.mkdir()
    with Run.resume(tmp_path / "run") as run:
        assert run.latest_checkpoint().iteration == 1
    assert rollout_iterations(tmp_path / "run") == [1]
    assert list(stored_evaluations(tmp_path / "run", "greedy")) == [1]
    assert all(path.is_dir() for path in foreign)


def test_a_failed_save_names_the_path_and_leaves_the_earlier_checkpoint(tmp_path):
    def full_disk(directory):
        (directory / "model.txt").write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Run.create(tmp_path / "run", CONFIG) as run:
        with pytest.raises(
            SaveError, match=r"iteration-000001: No space left on device\. There is no earlier"
        ):
            run.checkpoint(1, full_disk)
        run.checkpoint(2, writer())
        with pytest.raises(SaveError, match=r"iteration-000003: No space left.*iteration-000002 is intact"):
            run.checkpoint(3, full_disk)
        assert os.listdir(run.path / "checkpoints") == ["iteration-000002"]
        assert checkpoints.latest_checkpoint(run.path / "checkpoints").iteration == 2


FULL = """
    import os, resource, sys
    import torch
    from hardwon.checkpoints import SaveError, save_state
    from hardwon.run import Run
    run = Run.create(sys.argv[1], {})
    run.checkpoint(1, lambda path: save_state(path, {"w": torch.ones(4)}))
    run.log(1, {"reward": 1.0})
    size = os.path.getsize(sys.argv[1] + "/metrics.jsonl")
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, size + 10))  # from here on the disk is full
    for save in (lambda: run.checkpoint(2, lambda path: save_state(path, {"w": torch.ones(4096)})),
                 lambda: run.log(2, {"reward": 2.0})):
        try:
            save()
        except SaveError as error:
            print(error)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs file size limits")
def test_a_disk_that_really_refuses_to_write(tmp_path):
    path = tmp_path / "run"
    code = textwrap.dedent(FULL)
    result = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    lines = result.stdout.splitlines()
    assert len(lines) == 2, result
    assert "cannot save the checkpoint at" in lines[0] and "iteration-000001 is intact" in lines[0]
    assert "cannot save metrics at" in lines[1] and str(path / "metrics.jsonl") in lines[1]
    # No half line and no half checkpoint.
    assert (path / "metrics.jsonl").read_text().endswith("}\n")
    with Run.resume(path) as run:
        assert run.latest_checkpoint().iteration == 1
        assert torch.equal(load_state(run.latest_checkpoint().path)["w"], torch.ones(4))


def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match=r"cannot save the run directory at .*file/run"):
        Run.create(tmp_path / "file/run", CONFIG)
    with Run.create(tmp_path / "run", CONFIG) as run:

        def read_only(*_):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(os, "replace", read_only)
        with pytest.raises(
            SaveError, match=r"cannot save rollouts at .*000001.parquet: Read-only file system"
        ):
            run.save_rollouts(1, [make_group()], 0.0)
        assert list((run.path / "rollouts").iterdir()) == []


def write_for_ever(path, reports):
    run = Run.create(path, {})
    payload = "x" * 200_000
    for iteration in range(1, 10**9):
        run.log(iteration, {"reward": 1.0})
        run.checkpoint(iteration, lambda path: [(path / str(i)).write_text(payload) for i in range(5)])
        os.write(reports.fileno(), f"{iteration}\n".encode())


def test_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    rng = np.random.default_rng(0)
    for trial in range(4):
        path = tmp_path / f"run{trial}"
        reader, writer = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=write_for_ever, args=(path, writer))
        process.start()
        writer.close()
        with open(reader.fileno(), closefd=False) as reports:
            reports.readline()
            time.sleep(rng.uniform(0, 0.1))
            process.kill()
            done = [1, *(int(line) for line in reports.read().split())][-1]
        process.join()
        reader.close()
        with Run.resume(path) as run:
            # The last one reported is on the disk, and at most one more.
            assert run.latest_checkpoint().iteration in (done, done + 1)


# -------------------------------------------------------------------------------------- state


def test_state_comes_back_bit_for_bit(tmp_path):
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    tied = torch.randn(4, 4)
    state = {
        "optimizer": optimizer.state_dict(),  # its state has integer keys
        "rng": torch.get_rng_state(),
        "numpy_rng": np.random.default_rng(7).bit_generator.state,  # 128-bit integers
        "carried": [make_group(outcomes=("correct", "error"))],
        "odd": {"!": 1, "nan": math.nan, "inf": -math.inf, "tenth": 0.1, "zero": -0.0, "none": None},
        "tuple": ((1, 2), [True, "\ud800 \x00 ü"]),
        "shared": [tied, tied.T, torch.tensor(1.5, dtype=torch.bfloat16), torch.zeros(0), np.float32([1.5])],
        "scalar": np.array(3),
    }
    save_state(tmp_path / "state", state)
    back = load_state(tmp_path / "state")
    for name, value in optimizer.state_dict()["state"][0].items():
        assert torch.equal(back["optimizer"]["state"][0][name], value)
    assert back["optimizer"]["param_groups"] == optimizer.state_dict()["param_groups"]
    assert torch.equal(back["rng"], state["rng"]) and back["numpy_rng"] == state["numpy_rng"]
    assert back["tuple"] == state["tuple"] and back["scalar"].shape == () and back["scalar"] == 3
    odd = back["odd"]
    assert math.isnan(odd.pop("nan")) and math.copysign(1, odd["zero"]) == -1
    assert odd == {"!": 1, "inf": -math.inf, "tenth": 0.1, "zero": 0.0, "none": None}
    for got, expected in zip(back["shared"], state["shared"], strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape and (got == expected).all()
    (group,) = back["carried"]
    (expected,) = state["carried"]
    assert isinstance(group, Group) and group.state == expected.state and group.prompt_ids == (1, 3, 4)
    for got, wanted in zip(group.rollouts, expected.rollouts, strict=True):
        assert got.verdict == wanted.verdict and got.text == wanted.text
        np.testing.assert_array_equal(got.reward, wanted.reward)
        np.testing.assert_array_equal(got.sample.ids, wanted.sample.ids)
        np.testing.assert_array_equal(got.sample.log_probs, wanted.sample.log_probs)
        assert got.sample.log_probs.dtype == np.float32


def test_state_refuses_what_it_cannot_hold_and_names_the_place(tmp_path):
    with pytest.raises(TypeError, match=r"state\.a\[1\]\.b is a set"):
        save_state(tmp_path / "state", {"a": [0, {"b": {1}}]})


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"a": {"!": "tensor", "v": "9"}}', '{"a": {"!": "system", "v": {}}}']
)
def test_a_state_that_is_not_whole_is_refused(tmp_path, content):
    save_state(tmp_path / "state", {"a": torch.ones(1)})
    (tmp_path / "state/state.json").write_text(content)
    with pytest.raises(ValueError, match=f"the state in {tmp_path / 'state'} cannot be read"):
        load_state(tmp_path / "state")


# -------------------------------------------------------------------------------------- sinks


def test_tensorboard_gets_the_metrics(tmp_path):
    pytest.importorskip("tensorboard")
    with Run.create(tmp_path / "run", CONFIG, tensorboard=True) as run:
        run.log(1, {"reward": 0.5})
    assert list((tmp_path / "run/tensorboard").glob("events*"))


def test_a_missing_extra_is_named_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"wandb=true needs the package wandb: pip install 'hardwon\[wandb\]'"
    ):
        Run.create(tmp_path / "run", CONFIG, wandb=True)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="keep_last=0"):
        Run.create(tmp_path / "run", CONFIG, keep_last=0)


def test_no_secret_of_the_environment_reaches_the_run_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret_value")
    with Run.create(tmp_path / "run", CONFIG) as run:
        fill(run, [1, 2])
        run.save_evaluation(2, "greedy", {"n": 1})
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or b"very_secret" not in file.read_bytes()
