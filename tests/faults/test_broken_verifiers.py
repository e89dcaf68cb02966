"""Training goes on with a verifier that hangs, crashes, raises, leaks or returns garbage now and then."""

from __future__ import annotations

import time

import pytest
from fault_runner import train_in_child
from faulty_rewards import fault_of
from test_kills import ONLINE

from hardwon.records import read_metrics, read_rollouts

pytestmark = pytest.mark.faults
SHORT = {**ONLINE, "iterations": 2, "eval_every": 0, "prompts_per_iteration": 4, "max_rounds": 2}


def train(path, reward):
    options = {**SHORT["task_options"], "reward_seconds": 0.5}
    settings = {**SHORT, "reward": f"faulty_rewards:{reward}", "task_options": options}
    assert train_in_child("da3po", path, settings) == 0
    return read_rollouts(path).to_pandas()


@pytest.mark.parametrize(
    ("reward", "outcome"),
    [("hangs", "timeout"), ("crashes", "error"), ("raises", "error"), ("garbage", "error")],
)
def test_only_the_responses_at_fault_are_affected(tmp_path, reward, outcome):
    began = time.monotonic()
    rollouts = train(tmp_path / "run", reward)
    faults = rollouts["text"].map(fault_of)
    assert faults.any() and not faults.all()
    assert set(rollouts["outcome"][faults]) == {outcome}
    assert set(rollouts["outcome"][~faults]) <= {"correct", "wrong"}
    if outcome == "error":  # left out of the statistics and of the loss, and counted
        assert rollouts["reward"][faults].isna().all()
        assert not rollouts["advantage"][faults & rollouts["trained"]].any()
        assert sum(m["verifier/errors"] for m in read_metrics(tmp_path / "run") if m["iteration"]) > 0
    assert time.monotonic() - began < 120


def test_a_wrong_number_of_rewards_is_every_rollouts_error_and_no_crash(tmp_path):
    rollouts = train(tmp_path / "run", "wrong_number")
    assert set(rollouts["outcome"]) == {"error"} and not rollouts["correct"].any()


@pytest.mark.parametrize("reward", ["leaks", "prints"])
def test_a_leak_and_forged_replies_do_not_change_a_verdict(tmp_path, reward):
    """The leak is the worker's alone: it ends with the pool."""
    rollouts = train(tmp_path / "run", reward)
    assert set(rollouts["outcome"]) <= {"correct", "wrong"}
    assert (rollouts["outcome"] == "correct").any() and (rollouts["outcome"] == "wrong").any()
