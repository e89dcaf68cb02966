"""Rejection sampling on the embedded model: only right responses, once each, and resume."""

import io
import math
import os
import signal

import pytest
import torch
from rich.console import Console
from run_and_die import exit_code_of_death, train
from safetensors.torch import load_file

from hardwon import cli
from hardwon.algorithms import resolve
from hardwon.offline import solutions
from hardwon.offline.solutions import read_solutions
from hardwon.records import read_metrics
from hardwon.run import Run
from hardwon.tasks.chain_arithmetic import load

SETTINGS = {
    "num_problems": 24, "solutions_per_problem": 8, "batch_size": 8, "checkpoint_every": 2, "epochs": 2,
    "eval_problems": 4, "eval_samples": 1, "validations_per_epoch": 1, "task_options": {"train_size": 64},
}  # fmt: skip


def test_fits_right_responses_and_resumes(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert train("sft", whole, SETTINGS) == whole / "model"
    assert exit_code_of_death("sft", killed, SETTINGS, "hardwon.optimization:Optimizer.step", 4) == 9
    train("sft", killed, SETTINGS)
    first, second = (load_file(run / "model/model.safetensors") for run in (whole, killed))
    assert all(torch.equal(first[name], second[name]) for name in first)

    collected = read_solutions(whole / "solutions.jsonl", load(train_size=64).problems("train"))
    kept = [s.ids for entry in collected for s in entry.solutions]
    assert all(s.correct for entry in collected for s in entry.solutions)
    assert all(len({s.ids for s in e.solutions}) == len(e.solutions) <= 4 for e in collected)

    metrics = read_metrics(whole)
    losses = [m["sft/loss"] for m in metrics if "sft/loss" in m]
    last = metrics[-1]
    # Two epochs over the kept responses of the problems that do not validate.
    assert 0 < last["tokens/trained"] <= 2 * sum(map(len, kept))
    assert last["tokens/trained"] == sum(m.get("sft/tokens", 0) for m in metrics)
    assert last["tokens/generated"] == sum(entry.num_tokens for entry in collected)
    assert losses[-1] < losses[0] and all(map(math.isfinite, losses))


def test_sigterm_while_collecting_says_how_to_go_on(tmp_path, monkeypatch):
    """As clusters send it; what was collected before is not sampled again."""
    path, sampled, real = tmp_path / "run", [], solutions.sample_groups

    def sample(states, **kwargs):
        sampled.append([state.problem.id for state in states])
        if len(sampled) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(states, **kwargs)

    monkeypatch.setattr(solutions, "ROLLOUTS_A_WRITE", 64)  # 8 of the 24 problems
    monkeypatch.setattr(solutions, "sample_groups", sample)
    monkeypatch.setattr(cli, "console", Console(file=io.StringIO(), width=500))
    config = resolve("sft", SETTINGS, {"run": str(path), "epochs": 1})
    with pytest.raises(SystemExit) as stop, Run.create(path, config.model_dump(mode="json")) as run:
        cli.train_in(run, config, 1)
    assert stop.value.code == 130
    assert f"Stopped. Go on with:  hardwon train --resume {path}" in cli.console.file.getvalue()
    with Run.resume(path) as run:
        assert cli.train_in(run, config, 1).is_dir()
    assert len(sampled) == 4 and sampled[3] == sampled[2]
