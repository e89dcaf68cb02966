"""Several processes train as one does: the same loss, gradients, weights, rounds, and files."""

import os
import subprocess
import sys

import parallel_worker
import pytest
import torch
from safetensors.torch import load_file

from hardwon.models import parallel
from hardwon.optimization import pack, pack_share
from hardwon.records import read_metrics, read_rollouts
from hardwon.steps.records import PAIRS, VALUES, stage_folder
from hardwon.steps.select import read_pairs

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
TIMES = {"elapsed_seconds", "tokens_per_second", "iteration_seconds", "rollout_seconds", "update_seconds"}


def torchrun(processes, *words):
    # --standalone takes a free port: tests may run beside one another.
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(processes),
    ]
    return subprocess.run([*command, *map(str, words)], env=ENVIRONMENT, capture_output=True, text=True)


def worker(processes, *words):
    done = torchrun(processes, parallel_worker.__file__, *words)
    assert done.returncode == 0, done.stderr
    return done


# ------------------------------------------------------------------------------------------ one update


@pytest.fixture(scope="module")
def alone():
    return parallel_worker.results()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes left: results.pt and the runs run, steps, lora and lora-resumed."""
    path = tmp_path_factory.mktemp("two")
    worker(2, "all", path)
    return path


@pytest.fixture(scope="module")
def two(folder):
    return torch.load(folder / "results.pt")


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    path = tmp_path_factory.mktemp("four") / "results.pt"
    worker(4, "results", path)
    return torch.load(path)


LEARNING_RATE, ADAM_EPSILON = 1e-4, 1e-8


def adam_step(gradient):
    """How far Adam's first step moves a weight: the learning rate, but less where the gradient is tiny."""
    return -LEARNING_RATE * gradient / (gradient.abs() + ADAM_EPSILON)


def assert_agree(a, b):
    """To rounding: gradients and figures are near, and weights differ as the steps of their gradients do.

    A gradient of 1e-8, Adam's epsilon, is a sum that came out as nearly 0, of which rounding is a large part;
    the step that Adam makes of it may differ by any share of the learning rate. So weights have no tolerance
    of their own: what their gradients explain is taken off first.
    """
    assert a.keys() == b.keys()
    for name in a:
        difference, limits = b[name] - a[name], {"rtol": 1e-3, "atol": 1e-5}
        gradient = name.replace("weight", "gradient", 1)
        if name.startswith("weight"):
            limits = {"rtol": 0, "atol": 2e-7}  # a float32 near 1 is exact to 6e-8
            if gradient in a:
                difference = difference - (adam_step(b[gradient]) - adam_step(a[gradient]))
        torch.testing.assert_close(
            a[name] + difference, a[name], **limits, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_a_step_that_its_gradient_does_not_explain_is_found():
    """A tiny gradient excuses the weight that it moved, and no other."""
    a = {"gradient x": torch.tensor([1e-9, 0.5]), "weight x": torch.tensor([0.2, 0.3])}
    b = {"gradient x": torch.tensor([4e-9, 0.5]), "weight x": a["weight x"].clone()}
    b["weight x"][0] += (adam_step(b["gradient x"]) - adam_step(a["gradient x"]))[0]  # 1.9e-5, over 1e-5
    assert_agree(a, b)
    b["weight x"][1] += 1e-6
    with pytest.raises(AssertionError, match="weight x"):
        assert_agree(a, b)


@pytest.mark.parametrize("name", parallel_worker.CASES)
def test_two_processes_make_the_update_of_one(alone, two, name):
    assert any(k.startswith("gradient") and v.abs().max() > 1e-3 for k, v in alone[name].items())
    assert_agree(alone[name], two[name])


@pytest.mark.parametrize("name", parallel_worker.CASES)
def test_four_processes_make_the_update_of_one(alone, four, name):
    assert_agree(alone[name], four[name])


def bfloat16_is_near(alone, several):
    """Over all gradients a few of bfloat16's 2^-8 from one process, some more from float32, never equal."""
    names = [name for name in alone if name.startswith("gradient")]
    a, b, exact = (
        torch.cat([results[name].double().flatten() for name in names])
        for results in (parallel_worker.case(*parallel_worker.BFLOAT16), several["bfloat16"], alone)
    )
    assert all(several["bfloat16"][name].dtype == torch.float32 for name in names)
    assert 1e-4 < (b - a).norm() / a.norm() < 0.03
    assert 1e-4 < (b - exact).norm() / exact.norm() < 0.08


def test_two_processes_in_bfloat16_make_nearly_the_update_of_one(alone, two):
    bfloat16_is_near(alone["token_mean"], two)


def test_four_processes_in_bfloat16_make_nearly_the_update_of_one(alone, four):
    bfloat16_is_near(alone["token_mean"], four)


def test_the_copy_that_samples_computes_what_the_sharded_policy_does(two):
    assert two["copies"]["float32"] < 1e-5
    assert two["copies"]["bfloat16"] < 1e-5  # both round weights to bfloat16, so they do not differ at all


def test_every_rank_has_as_many_micro_batches(monkeypatch):
    lengths = [5, 1, 9, 9, 2]
    shares = []
    for rank in range(3):
        monkeypatch.setattr(parallel, "world", lambda rank=rank: parallel.World(rank, 3))
        monkeypatch.setattr("hardwon.optimization.world", parallel.world)
        shares.append(pack_share(lengths, 9))
    # By length 1 2 5 9 9, dealt out: (1, 9), (2, 9), (5). No two of a share fit 9 padded tokens.
    assert shares == [[[1], [2]], [[4], [3]], [[0], []]]


def test_one_process_packs_as_ever():
    lengths = [5, 1, 9, 9, 2, 5, 5]
    assert pack_share(lengths, 10) == pack(lengths, 10)


def test_ranks_divide_items_and_get_all_in_order(monkeypatch):
    """A rank without items takes part: of two items, the third rank has none."""
    monkeypatch.setattr(parallel, "gather", lambda share: [["a"], ["b"], share])
    monkeypatch.setattr(parallel, "world", lambda: parallel.World(2, 3))
    assert parallel.divided(["A", "B"], lambda items: [item.lower() for item in items]) == ["a", "b"]


# ---------------------------------------------------------------------------------------- refused early


def test_an_algorithm_of_one_process_is_refused_by_name():
    from hardwon.algorithms import find

    for name in ("da3po", "grpo", "direct_advantage", "sft"):
        find(name).check_processes(2)
    with pytest.raises(ValueError, match=r"2 processes: this algorithm runs in one.*da3po"):
        find("ppo").check_processes(2)


@pytest.mark.parametrize(
    ("device", "gpus", "message"),
    [("auto", 2, "4 processes on this machine, which has 2 GPUs: use --nproc-per-node 2"),
     ("cuda:1", 8, "device=cuda:1 with 4 processes")],
)  # fmt: skip
def test_more_processes_than_gpus_or_one_gpu_for_all_is_refused(monkeypatch, device, gpus, message):
    for name, value in {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(ValueError, match=message), parallel.processes(device):
        pass


# ------------------------------------------------------------------------------------------ whole runs


def without_times(metrics):
    return {k: v for k, v in metrics.items() if k not in TIMES}


def weights(path, model="model"):
    return load_file(path / model / "model.safetensors")


@pytest.fixture(scope="module")
def undisturbed(folder):
    return folder / "run"


def assert_equal_models(a, b):
    a, b = weights(a), weights(b)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)


def assert_near_models(a, b, model="model"):
    """To rounding, which Adam's steps carry on: less than one step of 2e-4."""
    a, b = weights(a, model), weights(b, model)
    assert a.keys() == b.keys()
    assert max((a[k] - b[k]).abs().max() for k in a) < 1e-4


def test_direct_advantage_of_two_processes_is_that_of_one(folder, tmp_path):
    parallel_worker.train_steps(str(tmp_path))
    alone, two = stage_folder(tmp_path, 1), stage_folder(folder / "steps", 1)
    assert (alone / VALUES).read_text() == (two / VALUES).read_text()
    for a, b in zip(read_pairs(alone / PAIRS), read_pairs(two / PAIRS), strict=True):
        assert a["action_ids"] == b["action_ids"]
        assert b["advantage"] == pytest.approx(a["advantage"], abs=1e-4)
    assert_near_models(alone, two, "critic")
    assert_near_models(tmp_path, folder / "steps")


def test_lora_of_two_processes_is_that_of_one_and_resumes(folder, tmp_path):
    parallel_worker.train(str(tmp_path), parallel_worker.LORA)
    assert_near_models(tmp_path, folder / "lora")
    assert_equal_models(folder / "lora", folder / "lora-resumed")
    names = load_file(folder / "lora/model/adapter/adapter_model.safetensors").keys()
    assert names == load_file(tmp_path / "model/adapter/adapter_model.safetensors").keys()


def test_a_run_of_two_processes_is_that_of_one(undisturbed, tmp_path):
    parallel_worker.train(str(tmp_path / "run"))
    for alone, two in zip(read_metrics(tmp_path / "run"), read_metrics(undisturbed), strict=True):
        for name in without_times(alone):
            assert two[name] == pytest.approx(alone[name], rel=1e-3, abs=1e-5), name
    assert any(m.get("dynamic_sampling/rounds", 0) > 1 for m in read_metrics(undisturbed))
    assert_near_models(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_a_killed_rank_ends_the_job_and_resume_is_exact(undisturbed, tmp_path):
    path = tmp_path / "run"
    done = torchrun(2, parallel_worker.__file__, "die", path)
    assert done.returncode != 0
    assert "rank      : 1" in done.stderr and "Signal 9 (SIGKILL)" in done.stderr
    assert read_metrics(path)[-1]["iteration"] == 2
    done = torchrun(2, "-m", "hardwon", "train", "--resume", path)
    assert done.returncode == 0, done.stderr
    assert str(path / "model") in done.stdout.replace("\n", "")
    assert_equal_models(undisturbed, path)
    assert [*map(without_times, read_metrics(path))] == [*map(without_times, read_metrics(undisturbed))]
    assert read_rollouts(path).to_pandas().equals(read_rollouts(undisturbed).to_pandas())


def saved_by_one(undisturbed, folder):
    """The run, copied, with a checkpoint of iteration 5 that one process read from 4 and wrote."""
    path = folder / "run"
    subprocess.run(["cp", "-r", undisturbed, path], check=True)
    return path, parallel_worker.moments(str(path), save_as=5)


def test_a_checkpoint_of_two_is_read_by_one(undisturbed, tmp_path):
    path, state = saved_by_one(undisturbed, tmp_path)
    assert (path / "checkpoints/iteration-000004/state/shards").is_dir()
    assert not (path / "checkpoints/iteration-000005/state/shards").exists()
    trained = weights(undisturbed)
    for name, value in state.items():
        if name in trained:
            assert torch.equal(value, trained[name])
    assert state["0 step"] == 20 and state["0 exp_avg"].abs().max() > 0


@pytest.mark.slow
def test_direct_advantage_killed_on_one_rank_is_resumed_exactly(folder, tmp_path):
    done = torchrun(2, parallel_worker.__file__, "die-in-steps", tmp_path)
    assert done.returncode != 0 and "Signal 9 (SIGKILL)" in done.stderr
    worker(2, "steps", tmp_path)
    assert_equal_models(tmp_path, folder / "steps")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_a_checkpoint_goes_from_two_to_one_to_many(undisturbed, tmp_path, processes):
    path, state = saved_by_one(undisturbed, tmp_path)
    worker(processes, "moments", path, tmp_path / "moments.pt")
    again = torch.load(tmp_path / "moments.pt")
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)


@pytest.mark.slow
def test_a_checkpoint_of_two_is_read_by_four(undisturbed, tmp_path):
    path = tmp_path / "run"
    subprocess.run(["cp", "-r", undisturbed, path], check=True)
    state = parallel_worker.moments(str(path))
    worker(4, "moments", path, tmp_path / "moments.pt")
    again = torch.load(tmp_path / "moments.pt")
    assert all(torch.equal(again[name], state[name]) for name in state)
