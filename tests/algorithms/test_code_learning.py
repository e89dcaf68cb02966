"""Both methods learn to write code: programs run in the sandbox, their lines are the steps."""

import json

import pytest
from run_and_die import train as train_in

from hardwon.evaluate import compare, load_evaluation, stored_evaluations
from hardwon.records import read_metrics, read_rollouts
from hardwon.steps.records import read_solution_steps

FEW_PROBLEMS = {"model": "embedded_code", "task_options": {"train_size": 200}, "eval_samples": 2}


def test_the_online_loop_judges_programs_by_running_them(train):
    """Two iterations: what is recorded as correct computes what the problem says."""
    path = train("da3po", **FEW_PROBLEMS, group_size=8, overlong="none")
    rows = read_rollouts(path).to_pandas()
    assert set(rows.outcome) <= {"correct", "wrong", "timeout"}
    right = rows[rows.correct]
    assert len(right) and right.text.str.startswith("def f(x):").all()
    metrics = read_metrics(path)
    assert [m["iteration"] for m in metrics if "success_rate" in m] == [1, 2]
    assert all(0 < m["success_rate"] < 1 for m in metrics if "success_rate" in m)


def test_the_steps_of_direct_advantage_are_lines_of_the_program(tmp_path):
    small = {
        "eval_problems": 8,
        "num_problems": 12,
        "solutions_per_problem": 8,
        "completions": 4,
        "critic_batch_size": 16,
        "batch_size": 32,
        "epochs": 1,
        "fresh_states": 0,
        "require_critic": False,
        "min_gap": 0.0,
    }
    train_in("direct_advantage", tmp_path / "run", FEW_PROBLEMS | small)
    solutions = [solution.judged for solution in read_solution_steps(tmp_path / "run")]
    assert solutions
    for judged in solutions:
        assert all(step.endswith("\n") and step.count("\n") == 1 for step in judged.steps[:-1])
    assert any(len(judged.steps) > 2 for judged in solutions)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [("da3po", {"iterations": 20, "prompts_per_iteration": 32}), ("direct_advantage", {"num_problems": 400})],
)
def test_held_out_programs_become_right(tmp_path, algorithm, settings):
    """Beyond the interval of the gain, over 256 problems that no training saw."""
    train_in(algorithm, tmp_path / "run", settings | {"model": "embedded_code"})
    files = stored_evaluations(tmp_path / "run", "sampled")
    gain = compare(*(load_evaluation(files[n]) for n in (min(files), max(files))))
    print(json.dumps({"algorithm": algorithm, "difference": gain.difference, "low": gain.low}))
    assert gain.low > 0
