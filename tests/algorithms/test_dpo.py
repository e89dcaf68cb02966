"""DPO on the embedded model: pairs of one problem, the loss by hand, and resume."""

import math

import pytest
import torch
from run_and_die import exit_code_of_death, train
from safetensors.torch import load_file

from hardwon.algorithms.dpo import Config, accumulate, summed_log_probs
from hardwon.models.policy import Policy
from hardwon.records import read_metrics
from hardwon.scoring import Span

SETTINGS = {
    "num_problems": 24, "solutions_per_problem": 8, "batch_size": 8, "checkpoint_every": 2, "epochs": 2,
    "eval_problems": 4, "eval_samples": 1, "validations_per_epoch": 1, "task_options": {"train_size": 64},
}  # fmt: skip
PAIRS = [
    (Span((10, 11), (22, 4)), Span((10, 11), (23, 4, 34, 2))),
    (Span((10,), (22, 4, 19)), Span((10,), (34, 2))),
]


def gradient(policy):
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


def test_loss_at_the_reference_and_micro_batches():
    policy = Policy.load("embedded", device="cpu")
    with torch.no_grad():
        reference = torch.stack(summed_log_probs(policy, PAIRS, Config()), dim=1)
    one_by_one = [torch.stack(summed_log_probs(policy, [pair], Config())).T.detach() for pair in PAIRS]
    torch.testing.assert_close(reference, torch.cat(one_by_one))  # padding changes nothing
    # At the reference every margin is 0: -log sigmoid(0) = ln 2, and nothing is preferred yet.
    metrics = accumulate(policy, PAIRS, reference, Config())
    assert metrics["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert metrics["tokens"] == 2 + 4 + 3 + 2
    whole = gradient(policy)
    policy.model.zero_grad()
    accumulate(policy, PAIRS, reference, Config(micro_batch_tokens=1))
    torch.testing.assert_close(gradient(policy), whole, rtol=1e-4, atol=1e-5)


def test_learns_preferences_and_resumes(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train("dpo", whole, SETTINGS)
    assert exit_code_of_death("dpo", killed, SETTINGS, "hardwon.optimization:Optimizer.step", 4) == 9
    train("dpo", killed, SETTINGS)
    first, second = (load_file(run / "model/model.safetensors") for run in (whole, killed))
    assert all(torch.equal(first[name], second[name]) for name in first)
    metrics = read_metrics(whole)
    fitted = [m for m in metrics if "dpo/loss" in m]
    # (warm-up and early steps leave the first margins at 0)
    assert fitted[0]["dpo/loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert fitted[-1]["dpo/accuracies"] > 0.5
    assert metrics[-1]["tokens/trained"] == sum(m["dpo/tokens"] for m in fitted)
