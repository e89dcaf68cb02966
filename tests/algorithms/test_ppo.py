"""PPO on the embedded model: rewards at the last token, a critic that learns, and resume."""

import numpy as np
import pytest
import torch
from run_and_die import exit_code_of_death, train
from safetensors.torch import load_file

from hardwon.algorithms.ppo import Config, make_rows, mini_batches, prepare, token_values
from hardwon.config import build
from hardwon.data import Group, Problem, Rollout, Sample, State, Verdict
from hardwon.models.tokens import collate
from hardwon.records import read_metrics
from hardwon.run import Run

SETTINGS = {
    "iterations": 6, "prompts_per_iteration": 8, "samples_per_prompt": 2, "checkpoint_every": 2,
    "eval_every": 0, "eval_problems": 4, "eval_samples": 1, "task_options": {"train_size": 64},
    "warmup_iterations": 0, "max_prompt_tokens": 64, "max_new_tokens": 40, "updates_per_iteration": 2,
}  # fmt: skip


@pytest.fixture
def trainer(tmp_path):
    config = build(Config, SETTINGS)
    with Run.create(tmp_path / "run", config.model_dump(mode="json")) as run:
        yield prepare(config, run)[0]


def rollout(ids, reward, outcome="correct"):
    sample = Sample(np.array(ids), np.full(len(ids), -1.0, np.float32), finished=True)
    return Rollout(sample, "", Verdict(outcome), reward)


def test_advantages_of_a_fresh_critic(trainer):
    """A critic of zeros gives returns of the reward at every token; advantages are those, normalised."""
    good, bad = rollout([22, 4, 2], 1.0), rollout([23, 2], -1.0, "wrong")
    failed = rollout([24, 2], float("nan"), "error")
    rows = make_rows(trainer, [Group(State(Problem("p", "1", "1")), (10, 11), (good, failed, bad), 1)])
    assert len(rows) == 2  # the verifier's failure takes no part
    assert rows[0].returns.tolist() == [1, 1, 1]
    assert rows[1].returns.tolist() == [-1, -1]
    # Tokens 1, 1, 1, -1, -1: mean 0.2, sample std 1.0954.
    assert rows[0].advantages.tolist() == pytest.approx([0.8 / 1.0954] * 3, abs=1e-4)
    assert rows[1].advantages.tolist() == pytest.approx([-1.2 / 1.0954] * 2, abs=1e-4)


def test_token_values_stand_where_log_probs_do(trainer):
    """Column t is the value of the state before token t + 1: the critic's own value of these tokens."""
    with torch.no_grad():
        torch.nn.init.normal_(trainer.critic.model.score.weight)
        ids, zeros = (10, 11, 22, 4), [0.0, 0.0]
        values_BT = token_values(trainer.critic, collate([(ids[:2], ids[2:], zeros, zeros)], 0))
        for t in range(3):
            torch.testing.assert_close(values_BT[0, t], trainer.critic.logits([ids[: t + 1]])[0])


def test_every_row_is_in_one_mini_batch(trainer):
    rows = make_rows(
        trainer,
        [Group(State(Problem("p", "1", "1")), (10,), tuple(rollout([22, 2], 1.0) for _ in range(5)), 1)],
    )
    config = trainer.config
    sizes = [len(batch) for batch in mini_batches(rows, config, 1)]
    assert sizes == [3, 2]
    assert len(mini_batches(rows[:1], config.model_copy(update={"updates_per_iteration": 4}), 1)) == 1


def test_critic_learns_and_resume_is_exact(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train("ppo", whole, SETTINGS)
    assert exit_code_of_death("ppo", killed, SETTINGS, "hardwon.algorithms.ppo:iterate", 4) == 9
    train("ppo", killed, SETTINGS)
    first, second = (load_file(run / "model/model.safetensors") for run in (whole, killed))
    assert all(torch.equal(first[name], second[name]) for name in first)
    metrics = [m for m in read_metrics(whole) if "value_loss" in m]
    assert len(metrics) == 6
    assert metrics[-1]["tokens/trained"] == metrics[-1]["tokens/generated"]  # one epoch
    # The critic begins at 0, where the loss is half a squared return of 1.
    assert metrics[-1]["value_loss"] < metrics[0]["value_loss"] <= 0.5 + 1e-5
