"""A run killed in every stage, one kill after the other, ends with the same files as an undisturbed one."""

import io
import json

import pytest
import torch
from rich.console import Console
from run_and_die import exit_code_of_death, train
from safetensors.torch import load_file

from hardwon.algorithms import direct_advantage
from hardwon.data import Problem
from hardwon.models.policy import Policy
from hardwon.models.prompts import encode_prompt
from hardwon.records import read_metrics
from hardwon.report import load_run, step_plots, write_report
from hardwon.steps.records import read_solution_steps
from hardwon.steps.select import read_pairs
from hardwon.steps.show import show_steps

SETTINGS = {
    "num_problems": 12, "solutions_per_problem": 8, "completions": 4, "critic_batch_size": 12,
    "batch_size": 20, "require_critic": False, "checkpoint_every": 2, "eval_problems": 4, "eval_samples": 1,
    "validations_per_epoch": 1, "critic_epochs": 1, "fresh_states": 8, "min_gap": 0.0,
    "task_options": {"train_size": 64}, "iterations": 2,
}  # fmt: skip
# One after the other: each begins where the last one died. Many more are in tests/faults.
KILLS = [
    ("hardwon.steps.values:sample_groups", 2),  # labelling, after the first batch
    ("hardwon.optimization:Optimizer.step", 4),  # critic, one step after its second
    ("hardwon.steps.select:pq.write_table", 1),  # advantages
    ("hardwon.optimization:Optimizer.step", 4),  # policy
    ("hardwon.steps.values:sample_groups", 1),  # labelling of the second repetition
]
TIMES = {"elapsed_seconds"}


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(undisturbed, killed five times)."""
    whole, killed = (tmp_path_factory.mktemp(name) / "run" for name in ("whole", "killed"))
    train("direct_advantage", whole, SETTINGS)
    for place, number in KILLS:
        assert exit_code_of_death("direct_advantage", killed, SETTINGS, place, number) == 9, place
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct_advantage, "write_step_plots", lambda path: None)  # half of the time
        train("direct_advantage", killed, SETTINGS)
    return whole, killed


@pytest.mark.parametrize("model", ["steps/iteration-1/critic", "steps/iteration-2/critic", "model"])
def test_models_are_the_same_bit_for_bit(runs, model):
    first, second = (weights(run / model) for run in runs)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_nothing_is_labelled_twice_and_nothing_is_lost(runs):
    for name in ("solutions.jsonl", "values.jsonl", "fresh.jsonl", "steps.jsonl", "advantages.parquet"):
        for iteration in (1, 2):
            first, second = (run / "steps" / f"iteration-{iteration}" / name for run in runs)
            assert first.read_bytes() == second.read_bytes(), (name, iteration)


def test_metrics_are_the_same(runs):
    first, second = (
        [{k: v for k, v in m.items() if k not in TIMES} for m in read_metrics(run)] for run in runs
    )
    assert first == second


def test_the_second_repetition_goes_on_from_the_first(runs):
    """Its reference, by whose log-probs ratios are taken, is the first one's policy."""
    whole, _ = runs
    policy = Policy.load(whole / "steps/iteration-1/policy", device="cpu")
    row = read_pairs(whole / "steps/iteration-2/advantages.parquet", kept_only=True)[0]
    problem = row["problem_id"].removeprefix("chain_arithmetic/")
    prompt_ids = encode_prompt(policy.tokenizer, Problem("p", problem, ""))
    ids = torch.tensor([[*prompt_ids, *row["prefix_ids"], *row["action_ids"]]])
    with torch.no_grad():
        log_probs = policy.model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    stored = torch.tensor(row["reference_log_probs"])
    torch.testing.assert_close(log_probs[-len(stored) :], stored, rtol=1e-3, atol=1e-4)


def test_steps_of_a_run_join_to_its_solutions(runs):
    whole, _ = runs
    solutions = read_solution_steps(whole, 1)
    lines = [json.loads(x) for x in (whole / "steps/iteration-1/solutions.jsonl").read_text().splitlines()]
    texts = [s["text"] for line in lines for s in line["solutions"]]
    assert ["".join(s.judged.steps) for s in solutions] == texts
    # The last step is worth the verdict.
    assert all(s.judged.value[-1] == float(s.correct) for s in solutions if s.judged.steps)


def shown(run, **filters):
    out = io.StringIO()
    show_steps(run, console=Console(file=out, width=100), **filters)
    return out.getvalue()


def test_show_steps_takes_the_filters_of_show(runs):
    whole, _ = runs
    text = shown(whole, limit=2)
    assert "advantage" in text and "2 of" in text and "iteration 2" in text
    assert "iteration 1" in shown(whole, iteration=1)
    right = shown(whole, iteration=1, outcome="correct", limit=99)
    wrong = shown(whole, iteration=1, outcome="wrong", limit=99)
    assert " correct" in right and " wrong" not in right and " correct" not in wrong
    # Bounds hold for the share of right solutions to the problem, kept or not.
    lines = [json.loads(x) for x in (whole / "steps/iteration-1/solutions.jsonl").read_text().splitlines()]
    rates = sorted({line["num_correct"] / line["num_sampled"] for line in lines if line["solutions"]})
    for rate in rates:
        text = shown(whole, iteration=1, min_success=rate, max_success=rate, limit=99)
        number = sum(len(x["solutions"]) for x in lines if x["num_correct"] / x["num_sampled"] == rate)
        assert f"{number} of {number} kept" in text and text.count(f"success rate {rate:.1%}") == number
    problem = lines[0]["problem_id"]
    assert shown(whole, iteration=1, problem=problem, limit=99).count(problem) == len(lines[0]["solutions"])


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"problem": "nothing"}, "there is no problem nothing; the nearest is chain_arithmetic/"),
        ({"outcome": "error"}, "it has success rates from .* correct and .* wrong ones"),
        ({"outcome": "rigth"}, "outcome=rigth: choose from"),
        ({"iteration": 9}, "iteration=9: .* has advantages of 1, 2; the nearest is 2"),
    ],
)
def test_steps_that_cannot_be_shown_are_explained(runs, filters, message):
    with pytest.raises(ValueError, match=message):
        shown(runs[0], **filters)


def test_plots_are_files_and_in_the_report(runs):
    whole, _ = runs
    names = {
        "calibration",
        "critic_by_depth",
        "value_by_depth",
        "advantages",
        "advantages_by_depth",
        "policy",
    }
    assert {p.stem for p in (whole / "steps/iteration-2/plots").glob("*.png")} == names
    page = write_report([whole], whole / "report.html").read_text()
    for heading in ("Calibration of the critic", "Advantages of steps", "Fit of the policy"):
        assert f'aria-label="{heading}"' in page
    assert "of unseen problems" in page  # text of a plot, which is drawn as text
    assert names <= {p.stem for p in (whole / "plots").glob("*.png")}
    both = step_plots([load_run(run, name) for run, name in zip(runs, ("whole", "killed"), strict=True)])
    assert both["advantages-2"][0] == "killed: Advantages of steps" and len(both) == 2 * len(names)
