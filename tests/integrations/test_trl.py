"""DA3POTrainer on a tiny random model: the batch, the loss, the metrics, resume, and two processes."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

trl = pytest.importorskip("trl", reason="the TRL plug-in needs hardwon[trl]")

import trl_example  # noqa: E402
from trl_example import (  # noqa: E402
    always_wrong,
    even_first_token,
    make_trainer,
    verl_like,
    watch,
    weights_hash,
)

from hardwon.checkpoints import load_state  # noqa: E402
from hardwon.data import Problem, Verdict  # noqa: E402
from hardwon.integrations import trl_config  # noqa: E402
from hardwon.integrations.trl_config import DA3POConfig  # noqa: E402
from hardwon.integrations.trl_rewards import verdict_of, weighted_reward  # noqa: E402
from hardwon.integrations.trl_rows import group_of, merged  # noqa: E402


def group(outcomes: list[str], rewards: list[float]):
    rows = [
        {"prompt_ids": torch.zeros(1).numpy(), "completion_ids": [5, 2], "finished": True, "columns": {}}
        for _ in outcomes
    ]
    return group_of(Problem("0", "", ""), rows, [Verdict(o) for o in outcomes], rewards, 1)


def test_advantages_of_one_correct_in_sixteen(tmp_path):
    # Population std: A+ = (15/16) / (sqrt(15)/16) = 3.872983, A- = -0.258199. p = 1/16 < tau doubles A+.
    trainer = make_trainer(tmp_path, num_generations=16, per_device_train_batch_size=16)
    one = group(["correct"] + ["wrong"] * 15, [1.0] + [-1.0] * 15)
    half = group(["correct"] * 8 + ["wrong"] * 8, [1.0] * 8 + [-1.0] * 8)
    advantages_PG = trainer.advantages_of([one, half])
    assert advantages_PG[0, 0].item() == pytest.approx(2 * 3.872983, abs=1e-6)
    assert advantages_PG[0, 1].item() == pytest.approx(-0.258199, abs=1e-6)
    # p = 1/2 is not below tau = 1/2: as in dapo.
    assert advantages_PG[1].tolist() == pytest.approx([1.0] * 8 + [-1.0] * 8)


def test_an_unjudged_response_has_no_advantage_and_no_share(tmp_path):
    # Left out: rewards 1, 0, 0 have mean 1/3 and std sqrt(2)/3, so A+ = sqrt(2), doubled as 1/3 < 1/2.
    trainer = make_trainer(tmp_path)
    rows = group(["correct", "wrong", "error", "wrong"], [1.0, 0.0, math.nan, 0.0])
    advantages = trainer.advantages_of([rows])[0].tolist()
    assert advantages == pytest.approx([2 * math.sqrt(2), -math.sqrt(0.5), 0.0, -math.sqrt(0.5)])


def test_loss_is_the_token_mean_and_metrics_are_counted_once(tmp_path):
    trainer = make_trainer(tmp_path, max_age=0)
    rounds, batches = watch(trainer)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logs) == len(batches) == 3
    for log, batch in zip(logs, batches, strict=True):
        # On-policy the ratio is 1, so the loss is -sum(A length) / sum(length).
        tokens = sum(length for _, length in batch)
        assert log["loss"] == pytest.approx(-sum(a * n for a, n in batch) / tokens, abs=1e-5)
        assert log["dynamic_sampling/kept"] == 2
    # A success rate over kept groups alone lies strictly inside (0, 1); over all that was sampled, each
    # response counts once: a multiple of 1 / (4 responses x groups of the step's rounds).
    drawn = [sum(len(problems) for problems in rounds), sum(log["dynamic_sampling/rounds"] for log in logs)]
    assert drawn[1] == len(rounds)
    first = rounds[: int(logs[0]["dynamic_sampling/rounds"])]
    responses = 4 * sum(len(problems) for problems in first)
    assert (logs[0]["success_rate"] * responses) == pytest.approx(round(logs[0]["success_rate"] * responses))
    assert logs[0]["reward"] == pytest.approx(2 * logs[0]["success_rate"] - 1)
    assert all(a == pytest.approx(0) or n > 0 for batch in batches for a, n in batch)


def test_a_carried_group_keeps_the_log_probs_it_was_sampled_with(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=8, size=40, max_age=1)
    share, met = trainer._share, []

    def sharing(fill, advantages_PG):
        batch = share(fill, advantages_PG)
        met.append(([g.iteration for g in fill.groups], fill.groups[0], batch))
        return batch

    trainer._share = sharing
    trainer.train()
    carried = [(step, g, batch) for step, (born, g, batch) in enumerate(met, 1) if born[0] < step]
    assert carried, "this seed carries a group"
    for step, old_group, batch in carried:
        assert step - old_group.iteration == 1
        for row, rollout in enumerate(old_group.rollouts):
            log_probs = torch.from_numpy(rollout.sample.log_probs)
            assert torch.equal(batch["old_per_token_logps"][row, : rollout.length], log_probs)


def test_only_varied_groups_are_trained_on_and_the_table_shows_them(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=1)
    _, batches = watch(trainer)
    trainer.train()
    rewards = list(trainer._logs["rewards"]["even_first_token"])
    assert len(rewards) == len(trainer._logs["prompt"]) == len(trainer._logs["completion"]) == 8
    for start in (0, 4):
        assert set(rewards[start : start + 4]) == {1.0, -1.0}
    assert sorted(trainer._logs["advantages"]) == pytest.approx(sorted(a for a, _ in batches[0]))


def test_a_reward_that_never_varies_ends_and_leaves_the_weights_alone(tmp_path):
    # Momentum and weight decay would move them on a gradient of 0.
    trainer = make_trainer(tmp_path, always_wrong, max_steps=2, max_rounds=2, weight_decay=0.5)
    before = weights_hash(trainer)
    rounds, _ = watch(trainer)
    trainer.train()
    assert len(rounds) == 2 * 2
    assert weights_hash(trainer) == before
    log = trainer.state.log_history[-2]
    assert log["dynamic_sampling/empty_batches"] == 1
    assert log["dynamic_sampling/all_wrong"] > 0


def test_strict_failure_is_an_option(tmp_path):
    trainer = make_trainer(tmp_path, always_wrong, max_rounds=1, on_shortfall="fail")
    with pytest.raises(RuntimeError, match="max_rounds=1"):
        trainer.train()


def test_verl_like_rewards_say_what_is_correct(tmp_path):
    # Scores stay below 0.07, so nothing would count as correct by score.
    trainer = make_trainer(tmp_path, verl_like, max_steps=1)
    trainer.train()
    log = trainer.state.log_history[0]
    assert 0 < log["success_rate"] < 1
    assert log["dynamic_sampling/kept"] > 0
    assert log["reward"] < 0.07


def test_overlong_punishment_lowers_the_reward_and_not_the_verdict(tmp_path):
    # Longest 6, buffer 6: a response of n tokens is punished by n / 6; even_first_token gives +1 or -1.
    trainer = make_trainer(tmp_path, max_steps=1, overlong_buffer=6)
    trainer.train()
    log = trainer.state.log_history[0]
    expected = 2 * log["success_rate"] - 1 - log["completions/mean_length"] / 6
    assert log["reward"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "carried"),
    [
        pytest.param({"steps_per_generation": 2, "max_age": 3, "seed": 11}, 2, id="in a generation batch"),
        pytest.param({"max_age": 3, "dynamic_sampling": False}, 0, id="at its edge, without filtering"),
    ],
)
def test_resume_is_bit_exact(tmp_path, settings, carried):
    """Saved after step 3 of 6: with two steps a generation that is in the middle of one."""
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "size": 10, **settings}
    whole = make_trainer(tmp_path / "whole", **settings)
    whole.train()
    saved = load_state(tmp_path / "whole/checkpoint-3/da3po_state_0")
    assert len(saved["filler"]["carried"]) == carried, "this seed makes the case that is meant"
    resumed = make_trainer(tmp_path / "resumed", **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole/checkpoint-3"))
    assert weights_hash(resumed) == weights_hash(whole)
    for a, b in zip(whole.state.log_history[3:6], resumed.state.log_history[3:6], strict=True):
        assert a["loss"] == b["loss"] and a.get("num_tokens") == b.get("num_tokens")
    assert resumed.filler.state_dict()["stream"] == whole.filler.state_dict()["stream"]


def test_resume_refuses_other_data_and_foreign_checkpoints(tmp_path):
    make_trainer(tmp_path, max_steps=1, save_strategy="steps", save_steps=1).train()
    other = make_trainer(tmp_path, size=11)
    with pytest.raises(ValueError, match="train_dataset is not the one"):
        other.train(resume_from_checkpoint=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="not written by DA3POTrainer"):
        other.train(resume_from_checkpoint=str(tmp_path / "empty"))


def test_evaluation_is_untouched(tmp_path):
    trainer = make_trainer(tmp_path, per_device_eval_batch_size=4)
    metrics = trainer.evaluate(trl_example.make_dataset(4))
    assert "eval_reward" in metrics
    assert not any(trainer.filler.stream.drawn.values())


BOUNDED = {"per_device_train_batch_size": 4, "max_rounds": 2, "max_steps": 2, "max_age": 0}
ON_TWO = {
    "varied": {**BOUNDED, "reward": "even_first_token"},
    "never": {**BOUNDED, "reward": "always_wrong"},
    "shared": {"per_device_train_batch_size": 2, "max_steps": 1, "max_rounds": 6},
}


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """The results of both ranks of each training of ON_TWO."""
    return run_two(tmp_path_factory.mktemp("two"), ON_TWO)


@pytest.mark.parametrize("name", ["varied", "never"])
def test_two_processes_do_the_same(on_two, name):
    """Every rank does the same rounds and ends with the same weights, also with nothing to train on."""
    first, second = on_two[name]
    assert first["rounds"] == second["rounds"]
    assert first["weights"] == second["weights"]


def test_two_processes_with_nothing_to_train_on_end_after_the_cap(on_two):
    assert len(on_two["never"][0]["rounds"]) == BOUNDED["max_steps"] * BOUNDED["max_rounds"]
    assert all(n == 0 for result in on_two["never"] for batch in result["batches"] for _, n in batch)


def test_the_loss_is_the_token_mean_of_two_processes(on_two):
    results = on_two["varied"]
    for step, log in enumerate(log for log in results[0]["log"] if "loss" in log):
        # The token mean over both ranks: the denominator is the tokens of the whole step.
        rows = results[0]["batches"][step] + results[1]["batches"][step]
        tokens = sum(n for _, n in rows)
        assert log["loss"] == pytest.approx(-sum(a * n for a, n in rows) / tokens, abs=1e-5)


def test_two_processes_share_one_group(on_two):
    """A group of 4 lies across two ranks with 2 rows each, which TRL allows."""
    rows = [row for result in on_two["shared"] for row in result["batches"][0]]
    assert len(rows) == 4
    assert sum(a for a, _ in rows if a < 0) < 0 < sum(a for a, _ in rows if a > 0)


def run_two(output: Path, trainings: dict[str, dict[str, object]]) -> dict[str, list[dict]]:
    arguments = [json.dumps({**settings, "run": name}) for name, settings in trainings.items()]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    script = Path(trl_example.__file__)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*command, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", script, output, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {
        name: [json.loads((output / name / f"result-{rank}.json").read_text()) for rank in (0, 1)]
        for name in trainings
    }


def test_verdicts_come_from_acc_or_from_the_first_reward_given():
    nan = math.nan
    assert verdict_of([0.1, 1.0], True, 0.5).outcome == "correct"
    assert verdict_of([1.0, 0.0], False, 0.5).outcome == "wrong"
    assert verdict_of([nan, 0.5], None, 0.5).outcome == "correct"
    assert verdict_of([0.4, 1.0], None, 0.5).outcome == "wrong"
    assert verdict_of([nan, nan], None, 0.5).is_error
    assert weighted_reward([1.0, nan], [0.5, 2.0]) == 0.5
    assert math.isnan(weighted_reward([nan, nan], [1.0, 1.0]))


def test_metrics_of_rounds_merge_by_rows():
    # Means 1 over 30 rows and 5 over 10 rows: (30 + 50) / 40 = 2; extremes stay extremes.
    rounds = [(30, {"a/mean": 1.0, "a/max": 3.0, "a/min_x": 1.0}), (10, {"a/mean": 5.0, "a/max": 2.0})]
    assert merged(rounds) == {"a/mean": 2.0, "a/max": 3.0, "a/min_x": 1.0}


def test_another_trl_is_refused(monkeypatch):
    monkeypatch.setattr(trl, "__version__", "1.17.0")
    with pytest.raises(ImportError, match=r"tested with 1\.16\.0; trl 1\.17\.0"):
        importlib.reload(trl_config)
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"amplification": "da"}, "did you mean 'daa'"),
        ({"amplify_by": "rewards"}, "did you mean 'reward'"),
        ({"max_rounds": 0}, "max_rounds=0"),
        ({"overlong_buffer": 99, "max_completion_length": 20}, "max_completion_length=20"),
        (
            {"per_device_train_batch_size": 3, "num_generations": 4},
            "nearest valid generation_batch_size is 12",
        ),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "sum_then_normalize"),
    ],
)
def test_settings_are_checked_and_name_the_nearest_choice(tmp_path, settings, message):
    defaults = {"use_cpu": True, "bf16": False, "per_device_train_batch_size": 16}
    with pytest.raises(ValueError, match=message):
        DA3POConfig(output_dir=str(tmp_path), **{**defaults, **settings})


def test_published_defaults(tmp_path):
    config = DA3POConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, per_device_train_batch_size=16)
    assert (config.epsilon, config.epsilon_high, config.loss_type, config.beta) == (0.2, 0.28, "dapo", 0.0)
    assert (config.num_generations, config.max_completion_length, config.overlong_buffer) == (16, 20480, 4096)
    assert (config.amplification_factor, config.amplification_threshold, config.max_rounds) == (2.0, 0.5, 10)


def test_a_plain_grpo_config_is_refused(tmp_path):
    config = trl.GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    from hardwon.integrations.trl import DA3POTrainer

    with pytest.raises(ValueError, match="takes a DA3POConfig"):
        DA3POTrainer(trl_example.make_model(), even_first_token, config, trl_example.make_dataset())
