"""kill -9 at named and at random moments, then resume: the files of an undisturbed run, bit for bit."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from fault_runner import Kill, install, kill_in, train_in_child
from safetensors.torch import load_file

from hardwon.records import read_metrics, read_rollouts

pytestmark = pytest.mark.faults

# Epochs end inside iterations and surplus groups are carried over the kills.
ONLINE = {
    "prompts_per_iteration": 16, "group_size": 4, "updates_per_iteration": 2, "epochs_per_iteration": 2,
    "iterations": 6, "checkpoint_every": 1, "eval_every": 3, "eval_problems": 8, "eval_samples": 1,
    "warmup_iterations": 3, "learning_rate_schedule": "linear", "task_options": {"train_size": 64},
}  # fmt: skip
OFFLINE = {
    "num_problems": 12, "solutions_per_problem": 8, "completions": 4, "critic_batch_size": 12,
    "batch_size": 20, "require_critic": False, "checkpoint_every": 2, "eval_problems": 4, "eval_samples": 1,
    "validations_per_epoch": 1, "critic_epochs": 1, "fresh_states": 8, "min_gap": 0.0,
    "task_options": {"train_size": 64}, "iterations": 1,
}  # fmt: skip
TIMES = {"elapsed_seconds", "tokens_per_second", "iteration_seconds", "rollout_seconds", "update_seconds"}

GROUP, OFFLINE_METHOD = "hardwon.algorithms.group_policy", "hardwon.algorithms.direct_advantage"
# Several runs, each killed once after the other; where a kill comes at a higher number than an iteration has
# of such calls, one or more iterations are finished before it.
CHAINS = {
    "first iteration": [
        Kill("start", "hardwon.run:write_atomic", 1),
        Kill("start", "hardwon.run:write_atomic", 1, "after"),
        Kill("evaluation", f"{GROUP}:evaluate_and_record", 1),
        Kill("evaluation", "hardwon.run:write_atomic", 2, "after"),
        Kill("rollout", "hardwon.models.decoding:Decoder._step", 60),
        Kill("update", f"{GROUP}:update", 1, "after"),
        Kill("records", "hardwon.run:pq.write_table", 1, "torn"),
        Kill("checkpoint", "hardwon.models.policy:Policy.save", 1, "torn"),
    ],
    "rollout and update": [
        Kill("rollout", "hardwon.models.decoding:Decoder._step", 40),
        Kill("rollout", f"{GROUP}:sample_groups", 2),
        Kill("rollout", "hardwon.rollouts:_rollout", 90),
        Kill("update", f"{GROUP}:update", 7),
        Kill("update", "hardwon.optimization:Optimizer.step", 3),
        Kill("update", "hardwon.optimization:Optimizer.step", 5, "after"),
        Kill("update", f"{GROUP}:make_rows", 1, "after"),
    ],
    "records": [
        Kill("records", "hardwon.run:pq.write_table", 2, "torn"),
        Kill("records", "hardwon.run:pq.write_table", 1, "after"),
        Kill("records", "hardwon.run:Run.save_rollouts", 2, "after"),
        Kill("records", "hardwon.run:_append", 1, "torn"),
        Kill("records", "hardwon.run:_append", 2, "after"),
        Kill("evaluation", f"{GROUP}:evaluate_and_record", 1, "after"),
    ],
    "checkpoint": [
        Kill("checkpoint", "hardwon.checkpoints:safetensors.torch.save_file", 2, "torn"),
        Kill("checkpoint", f"{GROUP}:save_state", 1, "torn"),
        Kill("checkpoint", "hardwon.checkpoints:_seal", 2),
        Kill("checkpoint", "hardwon.checkpoints:_seal", 1, "after"),
        Kill("checkpoint", "hardwon.checkpoints:os.rename", 1, "after"),
        Kill("checkpoint", "hardwon.checkpoints:prune_checkpoints", 1),
        Kill("checkpoint", "hardwon.checkpoints:prune_checkpoints", 1, "after"),
    ],
}  # fmt: skip
OFFLINE_KILLS = [
    Kill("collect", "hardwon.models.decoding:Decoder._step", 50),
    Kill("collect", "hardwon.json_lines:JsonLines.append", 1),
    Kill("collect", "hardwon.json_lines:JsonLines.append", 1, "after"),
    Kill("labelling", "hardwon.steps.values:sample_groups", 2),
    Kill("labelling", "hardwon.json_lines:JsonLines.append", 1, "torn"),
    Kill("labelling", "hardwon.json_lines:JsonLines.append", 1, "after"),
    Kill("critic", "hardwon.models.critic:Critic.save", 1, "torn"),
    Kill("critic", "hardwon.optimization:Optimizer.step", 1),
    Kill("critic", "hardwon.optimization:Optimizer.step", 4, "after"),
    Kill("critic", "hardwon.offline.fitting:save_state", 1, "torn"),
    Kill("critic", "hardwon.offline.fitting:move_directory", 1),
    Kill("advantages", "hardwon.steps.select:pq.write_table", 1),
    Kill("policy", "hardwon.optimization:Optimizer.step", 2),
    Kill("policy", "hardwon.offline.fitting:save_state", 1, "torn"),
    Kill("policy", "hardwon.offline.fitting:shutil.rmtree", 1, "after"),
    Kill("evaluation", "hardwon.offline.setup:evaluate_and_record", 1),
    Kill("final model", "hardwon.run:shutil.copytree", 1, "torn"),
]
ONLINE_STAGES = {
    f"{GROUP}:sample_groups": "rollout",
    f"{GROUP}:update": "update",
    f"{GROUP}:record_rollouts": "records",
    f"{GROUP}:checkpoint": "checkpoint",
    f"{GROUP}:evaluate_and_record": "evaluation",
}
OFFLINE_STAGES = {
    f"{OFFLINE_METHOD}:{name}_stage": stage
    for name, stage in {
        "collect": "collect", "label": "labelling", "critic": "critic", "select": "advantages",
        "policy": "policy",
    }.items()
}  # fmt: skip

KILLED: Counter[tuple[str, str, str]] = Counter()
"""(method, stage, named or random) of every kill, for the summary at the end."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """One whole run of each method."""
    runs = {}
    for algorithm, settings in (("da3po", ONLINE), ("direct_advantage", OFFLINE)):
        runs[algorithm] = tmp_path_factory.mktemp(algorithm) / "run"
        assert train_in_child(algorithm, runs[algorithm], settings) == 0
    carried = [m["dynamic_sampling/carried"] for m in read_metrics(runs["da3po"])[1:]]
    assert any(carried), "the settings are meant to carry groups over a checkpoint"
    return runs


def without_times(run: Path):
    return [{k: v for k, v in m.items() if k not in TIMES} for m in read_metrics(run)]


def assert_same_weights(first: Path, second: Path):
    x, y = (load_file(path / "model.safetensors") for path in (first, second))
    assert x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)


def assert_nothing_lost(whole: Path, killed: Path):
    """The final weights, every metric and every stored text, verdict, reward and advantage."""
    assert_same_weights(whole / "model", killed / "model")
    assert without_times(whole) == without_times(killed)
    names = sorted(p.relative_to(whole) for p in whole.rglob("*") if p.is_file())
    left = sorted(p.relative_to(killed) for p in killed.rglob("*") if p.is_file())
    assert names == left, "a kill must leave nothing lying about"
    for name in names:
        if name.suffix in (".jsonl", ".json") and name.parts[0] in ("steps", "evaluations"):
            assert json_without_times(whole / name) == json_without_times(killed / name), name
    if (whole / "rollouts").exists() and any((whole / "rollouts").iterdir()):
        # pandas, because Arrow holds NaN (the advantage of a dropped group) to be unequal to itself.
        assert read_rollouts(whole).to_pandas().equals(read_rollouts(killed).to_pandas())


def json_without_times(path: Path):
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    return [
        {k: v for k, v in record.items() if "seconds" not in k} if isinstance(record, dict) else record
        for record in map(json.loads, lines)
    ]


def killed_one_after_the_other(algorithm, path, settings, kills):
    for kill in kills:
        assert train_in_child(algorithm, path, settings, partial(install, kill)) == -9, (
            f"never reached: {kill}"
        )
        KILLED[algorithm, kill.stage, "named"] += 1
    assert train_in_child(algorithm, path, settings) == 0


@pytest.mark.parametrize("chain", CHAINS)
def test_online_killed_at_named_moments(undisturbed, tmp_path, chain):
    killed_one_after_the_other("da3po", tmp_path / "run", ONLINE, CHAINS[chain])
    assert_nothing_lost(undisturbed["da3po"], tmp_path / "run")


def test_online_killed_in_the_last_write(undisturbed, tmp_path):
    """The trained model is a copy of the last checkpoint's."""
    last = Kill("final model", "hardwon.run:shutil.copytree", 1, "torn")
    killed_one_after_the_other("da3po", tmp_path / "run", ONLINE, [last])
    assert_nothing_lost(undisturbed["da3po"], tmp_path / "run")


def test_offline_killed_at_named_moments(undisturbed, tmp_path):
    killed_one_after_the_other("direct_advantage", tmp_path / "run", OFFLINE, OFFLINE_KILLS)
    assert_nothing_lost(undisturbed["direct_advantage"], tmp_path / "run")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("algorithm", "settings", "stages"),
    [("da3po", ONLINE, ONLINE_STAGES), ("direct_advantage", OFFLINE, OFFLINE_STAGES)],
    ids=["online", "offline"],
)
def test_killed_at_random_moments(undisturbed, tmp_path, algorithm, settings, stages, seed):
    """In every stage in turn, a random moment after it began."""
    delays, path = random.Random(seed), tmp_path / "run"
    for stage in stages.values():
        killed_in = kill_in(stage, delays.uniform(0, 0.1), algorithm, path, settings, stages)
        if killed_in is not None:
            KILLED[algorithm, killed_in, "random"] += 1
    assert train_in_child(algorithm, path, settings) == 0
    assert_nothing_lost(undisturbed[algorithm], path)
