"""The verl plug-in inside verl's trainer: replay buffer, reward manager, discovery, launch config."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

try:
    from verl.trainer.ppo.v1 import replay_buffer
except Exception as error:  # hydra raises a bare Exception if antlr4 is not 4.9
    pytest.skip(f"verl's V1 trainer cannot be imported here: {error}", allow_module_level=True)

from verl import DataProto
from verl.trainer.config import AlgoConfig

from hardwon.integrations.verl_reward import HardwonRewardManager
from hardwon.integrations.verl_sampler import DynamicReplayBuffer, carries_signal

ROOT = Path(__file__).parents[2]


def test_through_verls_own_call():
    from verl.trainer.ppo.ray_trainer import compute_advantage

    rewards_BT = torch.zeros(16, 4)
    rewards_BT[0, 3] = 1.0
    data = DataProto.from_dict(
        {"token_level_rewards": rewards_BT, "response_mask": torch.ones(16, 4)},
        non_tensors={"uid": np.array(["a"] * 16, dtype=object)},
    )
    out = compute_advantage(data, adv_estimator="da3po", config=AlgoConfig())
    # Published settings: population std, sqrt(15) = 3.872983, doubled.
    assert out.batch["advantages"][0, 0].item() == pytest.approx(2 * 3.872983, abs=1e-5)
    assert torch.equal(out.batch["advantages"], out.batch["returns"])


class Queue:
    """TransferQueue as the replay buffer sees it, with prompts that end at the next poll but one.

    `scores(number)` gives the scores of the number-th prompt's responses.
    """

    def __init__(self, scores, group_size=4):
        self.scores, self.group_size = scores, group_size
        self.tags, self.values = {}, {}
        self.step, self.submitted = 1, 0

    def submit(self, count):
        for _ in range(count):
            uid = f"u{self.submitted:02}"
            self.submitted += 1
            self.tags[uid] = {"is_prompt": True, "status": "pending", "global_steps": self.step}
        return count

    def kv_list(self):
        for uid, tag in list(self.tags.items()):
            if tag.get("status") == "running":
                self._end(uid, tag)
            elif tag.get("status") == "pending":
                tag["status"] = "running"
        return {"train": {key: dict(tag) for key, tag in self.tags.items()}}

    def _end(self, uid, tag):
        scores = self.scores(int(uid[1:]))
        tag["status"] = "finished" if len(scores) == self.group_size else "failure"
        for session, score in enumerate(scores):
            key = f"{uid}_{session}_0"
            self.tags[key] = {"status": "success", "response_len": 10}
            self.values[key] = torch.tensor([0.0, score])

    def kv_clear(self, keys, partition_id):
        for key in keys:
            self.tags.pop(key, None)
            self.values.pop(key, None)

    def kv_batch_get(self, keys, partition_id, select_fields):
        assert select_fields == ["rm_scores"]
        return {"rm_scores": [self.values[key] for key in keys]}


def make_buffer(monkeypatch, scores, mode="sync", **sampler_kwargs):
    queue = Queue(scores)
    monkeypatch.setattr(replay_buffer, "tq", queue)
    buffer = DynamicReplayBuffer(
        trainer_mode=mode,
        trainer_config={},
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs=sampler_kwargs,
        poll_interval=0.0,
        refill_fn=queue.submit,
    )
    return buffer, queue


def step(buffer, queue, number, batch_size=4):
    """What the trainer does: submit a batch of prompts, then sample one."""
    queue.step = number
    queue.submit(batch_size)
    batch, metrics = buffer.sample(global_steps=number, partition_id="train", batch_size=batch_size)
    prompts = [key.split("_")[0] for key in batch.keys]
    queue.kv_clear(keys=batch.keys, partition_id="train")  # the trainer does, after the update
    return sorted(set(prompts)), metrics


VARIED, RIGHT, WRONG = [1.0, 0.0, 0.0, 1.0], [1.0] * 4, [0.0] * 4


def test_range_test():
    assert carries_signal(VARIED)
    # The float32 std of these is about 8e-9, so a test of std == 0 would keep them.
    assert not carries_signal([0.1] * 8)
    assert not carries_signal([1.0, math.nan, 1.0])
    assert not carries_signal([]) and not carries_signal([1.0])


def test_groups_without_a_signal_are_replaced(monkeypatch):
    # Prompts 0 and 1 are useless; the batch of 4 is filled up from later ones.
    useless = {0: RIGHT, 1: WRONG}
    buffer, queue = make_buffer(monkeypatch, lambda n: useless.get(n, VARIED))
    prompts, metrics = step(buffer, queue, 1)
    assert prompts == ["u02", "u03", "u04", "u05"]
    assert metrics["dynamic_sampling/kept"] == 4
    assert metrics["dynamic_sampling/all_correct"] == metrics["dynamic_sampling/all_wrong"] == 1
    assert metrics["dynamic_sampling/wasted_tokens"] == 2 * 4 * 10
    # Nothing that verl would sleep the engines on is left running.
    assert not any(tag["status"] in ("pending", "running") for tag in queue.tags.values())


def test_surplus_waits_oldest_first_and_expires(monkeypatch):
    # Step 1 (prompts 0-3): one useless, so a rate of (3 + 1)/(4 + 1), about 0.8, asks for two more: 5 kept.
    buffer, queue = make_buffer(monkeypatch, lambda n: WRONG if n == 0 else VARIED, max_age=1)
    prompts, _ = step(buffer, queue, 1)
    assert prompts == ["u01", "u02", "u03", "u04"]
    assert "u05" in queue.tags
    # Step 2 (6-9): u5 goes first, and u9 waits.
    prompts, metrics = step(buffer, queue, 2)
    assert prompts == ["u05", "u06", "u07", "u08"] and metrics["dynamic_sampling/carried"] == 1
    # A step number later than max_age allows: u9 has expired.
    prompts, metrics = step(buffer, queue, 4)
    assert prompts == ["u10", "u11", "u12", "u13"]
    assert metrics["dynamic_sampling/expired"] == 1 and metrics["dynamic_sampling/carried"] == 0


def test_a_surplus_is_dropped_with_max_age_zero(monkeypatch):
    buffer, queue = make_buffer(monkeypatch, lambda n: WRONG if n == 0 else VARIED, max_age=0)
    step(buffer, queue, 1)
    assert not queue.tags


def test_a_reward_that_never_varies_ends(monkeypatch):
    buffer, queue = make_buffer(monkeypatch, lambda n: WRONG, max_rounds=3)
    prompts, metrics = step(buffer, queue, 1)
    assert queue.submitted == 3 * 4
    # verl needs a whole batch: it is filled with groups whose advantage is 0.
    assert len(prompts) == 4 and metrics["dynamic_sampling/shortfall"] == 4
    assert metrics["dynamic_sampling/rounds"] == 3
    assert not queue.tags


def test_failed_groups(monkeypatch):
    # u0 lost three of four responses and u1 all; u2 lost two, and the others still differ.
    lost = {0: [1.0], 1: [], 2: [1.0, 0.0]}
    buffer, queue = make_buffer(monkeypatch, lambda n: lost.get(n, VARIED))
    prompts, _ = step(buffer, queue, 1)
    assert prompts == ["u02", "u03", "u04", "u05"]
    buffer, queue = make_buffer(monkeypatch, lambda n: [], max_rounds=2)
    with pytest.raises(RuntimeError, match="no prompt gave any response"):
        step(buffer, queue, 1)


def test_settings_of_the_sampler(monkeypatch):
    with pytest.raises(ValueError, match="max_round"):
        make_buffer(monkeypatch, lambda n: VARIED, max_round=3)
    with pytest.raises(ValueError, match="trainer_mode=separate_async"):
        make_buffer(monkeypatch, lambda n: VARIED, mode="separate_async")


@pytest.mark.slow
def test_on_the_real_queue():
    """TransferQueue's own actors under Ray: 13 s of work, and it needs Ray to start."""
    script = Path(__file__).with_name("verl_queue_example.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    result = json.loads(line.removeprefix("RESULT "))
    assert result["keys"] == [f"u0{n}_{s}_0" for n in (2, 3, 4, 5) for s in range(4)]
    assert result["metrics"]["dynamic_sampling/wasted_tokens"] == 2 * (3 + 4 + 5 + 6)
    # Two useful of four: a rate of about 0.6 asks for four more, of which two are left over and wait.
    assert result["left"] == ["u06", "u07"]


# --------------------------------------------------------------------------------------- reward manager


class Tokenizer:
    def decode(self, ids, skip_special_tokens):
        return "".join(chr(int(i)) for i in ids)


def judge(manager, texts, gold="7"):
    async def all_at_once():
        return await asyncio.gather(*(manager.run_single(item(text, gold)) for text in texts))

    return asyncio.run(all_at_once())


def item(text, gold):
    """One response of padded width 40 after a prompt of two tokens."""
    ids = torch.zeros(1, 40, dtype=torch.long)
    ids[0, : len(text)] = torch.tensor([ord(c) for c in text])
    mask = torch.cat([torch.ones(1, 2), (torch.arange(40) < len(text))[None].float()], dim=1).long()
    return DataProto.from_dict(
        {"prompts": torch.ones(1, 2, dtype=torch.long), "responses": ids, "attention_mask": mask},
        non_tensors={
            "data_source": np.array(["math"], dtype=object),
            "reward_model": np.array([{"ground_truth": gold}], dtype=object),
        },
    )


def make_manager(compute_score=None):
    from omegaconf import OmegaConf

    path = "custom.py" if compute_score else None
    config = OmegaConf.create({"reward": {"custom_reward_function": {"path": path}}})
    return HardwonRewardManager(config, Tokenizer(), compute_score or (lambda **kwargs: 1 / 0))


def test_the_score_is_raw_correctness():
    manager = make_manager()
    try:
        found = judge(manager, [r"so \boxed{7}", r"\boxed{8}", "no box", r"\boxed{6} wait \boxed{7}"])
    finally:
        manager.pool.close()
    assert [r["reward_score"] for r in found] == [1.0, 0.0, 0.0, 1.0]
    assert [r["reward_extra_info"]["acc"] for r in found] == [True, False, False, True]
    assert found[0]["reward_extra_info"].keys() == found[2]["reward_extra_info"].keys()


def test_a_custom_function_may_shape_but_acc_judges():
    answers = iter([{"score": -3.0, "acc": True}, {"score": 9.0, "acc": False}, 0.9, -1.0, None])
    found = judge(make_manager(lambda **kwargs: next(answers)), ["a"] * 5)
    scores = sorted(r["reward_score"] for r in found if not math.isnan(r["reward_score"]))
    assert scores == [0.0, 0.0, 1.0, 1.0]


def test_a_failing_custom_function_is_not_a_wrong_answer():
    (found,) = judge(make_manager(lambda **kwargs: 1 / 0), ["a"])
    assert math.isnan(found["reward_score"])
    assert found["reward_extra_info"]["verifier_error"]


def test_verl_resolves_the_reward_manager():
    from verl.trainer.ppo.reward import resolve_reward_manager_cls

    module = SimpleNamespace(path="pkg://hardwon.integrations.verl_reward")
    manager = SimpleNamespace(source="importlib", module=module, name="HardwonRewardManager")
    config = SimpleNamespace(reward=SimpleNamespace(reward_manager=manager))
    assert resolve_reward_manager_cls(config) is HardwonRewardManager


# -------------------------------------------------------------------------------------------- discovery


def run_check(tmp_path, **environment):
    """`--check` where hardwon's entry point is installed, whatever else is."""
    info = tmp_path / "hardwon_entry-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: hardwon-entry\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[verl.plugins]\nhardwon = hardwon.integrations.verl\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "hardwon.integrations.verl", "--check"],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_check_finds_the_entry_point(tmp_path):
    done = run_check(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "verl knows da3po, da3po_symmetric" in done.stdout


def test_check_reports_what_verl_hides(tmp_path):
    settings = tmp_path / "bad.yaml"
    settings.write_text("amplification_facto: 3\n")
    done = run_check(tmp_path, VERL_USE_EXTERNAL_PLUGINS="none", HARDWON_VERL_CONFIG=str(settings))
    assert done.returncode == 1
    assert "verl did not register da3po" in done.stderr and "VERL_USE_EXTERNAL_PLUGINS is none" in done.stderr
    assert "did you mean 'amplification_factor'" in done.stderr


def test_the_package_declares_the_entry_point():
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points."verl.plugins"]\nhardwon = "hardwon.integrations.verl"' in text


# --------------------------------------------------------------------------------------------- recipes


@pytest.fixture
def recipe(monkeypatch, tmp_path):
    """The launch config of recipes/verl as verl's main_ppo composes it, and verl's own."""
    hydra = pytest.importorskip("hydra")
    folder = ROOT / "recipes" / "verl"
    monkeypatch.setenv("HARDWON_DATA", str(tmp_path))
    monkeypatch.setenv("HARDWON_VERL_CONFIG", str(folder / "da3po.yaml"))
    with hydra.initialize_config_dir(str(folder), version_base=None):
        ours = hydra.compose("da3po_dapo_math_17k")
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        theirs = hydra.compose("ppo_trainer")
    return ours, theirs


def test_the_recipe_sets_only_what_verl_knows(recipe):
    from omegaconf import OmegaConf

    ours, theirs = (OmegaConf.to_container(config, resolve=False) for config in recipe)

    def unknown(a, b, place=""):
        for key, value in a.items():
            if key not in b:
                yield f"{place}{key}"
            elif isinstance(value, dict) and isinstance(b[key], dict):
                yield from unknown(value, b[key], f"{place}{key}.")

    sampler = "trainer.v1.sampler.sampler_kwargs"
    allowed = {f"{sampler}.max_rounds", f"{sampler}.max_age", "ray_kwargs.ray_init.runtime_env.env_vars"}
    assert set(unknown(ours, theirs)) == allowed


def test_the_recipe_is_accepted_by_verl(recipe, monkeypatch):
    """verl validates it, builds its dataclasses, and finds our sampler and reward manager by it."""
    from verl.trainer.ppo.reward import resolve_reward_manager_cls
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    from hardwon.integrations.verl import load_settings

    ours, _ = recipe
    assert not need_critic(ours) and not need_reference_policy(ours)
    validate_config(ours, use_reference_policy=False, use_critic=False)
    actor = omega_conf_to_dataclass(ours.actor_rollout_ref.actor)
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c) == (0.2, 0.28, 10.0)
    assert resolve_reward_manager_cls(ours).__name__ == "HardwonRewardManager"
    stub = SimpleNamespace(config=ours, trainer_mode="sync", _add_prompts_to_generate=lambda n: n)
    buffer = PPOTrainer._build_replay_buffer(stub)
    assert type(buffer).__name__ == "DynamicReplayBuffer" and buffer.max_rounds == 10
    settings = load_settings()
    assert settings.max_response_length == ours.data.max_response_length
    assert ours.data.gen_batch_size == 1


def test_prepare_data_keeps_each_prompt_once():
    import importlib.util

    from datasets import Dataset

    spec = importlib.util.spec_from_file_location("prepare_data", ROOT / "recipes/verl/prepare_data.py")
    prepare_data = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prepare_data)
    rows = [("a", "1"), ("b", "2"), ("a", "1")]
    columns = {
        "prompt": [[{"role": "user", "content": text}] for text, _ in rows],
        "data_source": ["m"] * 3,
        "reward_model": [{"ground_truth": answer} for _, answer in rows],
    }
    kept = prepare_data.once_each(Dataset.from_dict(columns))
    assert [row["ground_truth"] for row in kept["reward_model"]] == ["1", "2"]
    with pytest.raises(ValueError, match="reward_model are missing"):
        prepare_data.once_each(Dataset.from_dict({k: columns[k] for k in ("prompt", "data_source")}))


def test_the_launch_script_stops_before_verl_if_data_is_missing(tmp_path):
    assert subprocess.run(["bash", "-n", ROOT / "recipes/verl/run.sh"], check=False).returncode == 0
    environment = os.environ | {"HARDWON_DATA": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", ROOT / "recipes/verl/run.sh"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "dapo-math-17k.parquet is missing" in done.stderr
