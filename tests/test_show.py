"""Reading rollouts in the terminal: what is picked, and that model text cannot take the screen over."""

import io
import re

import numpy as np
import pytest
from rich.console import Console
from synthetic_run import make_run

from hardwon.data import Group, Problem, Rollout, Sample, State, Verdict
from hardwon.run import Run
from hardwon.show import show


@pytest.fixture(scope="module")
def run_path(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run", iterations=3, groups=8)


def read(path, width=100, **filters):
    out = io.StringIO()
    show(path, console=Console(file=out, width=width, color_system=None), **filters)
    return out.getvalue()


def write_run(path, rows):
    """A run of one iteration with one group; rows are (text, outcome, reward, advantage)."""
    sample = Sample(np.array([1, 2]), np.zeros(2, np.float32), True)
    rollouts = tuple(Rollout(sample, text, Verdict(outcome), reward) for text, outcome, reward, _ in rows)
    group = Group(State(Problem("p/1", "3-7+5", "1")), (1,), rollouts, 4)
    with Run.create(path, {}) as run:
        run.save_rollouts(5, [group], [[advantage for *_, advantage in rows]])
    return path


def test_a_rollout_is_shown_with_all_that_was_decided_about_it(tmp_path):
    rows = [
        ("3-7=-4\n=1.", "correct", 1.0, 2.65),
        ("=3.", "wrong", -1.0, -0.38),
        ("=", "error", float("nan"), 0.0),
    ]
    text = read(write_run(tmp_path / "run", rows))
    assert "iteration 5, success rate 50.0%, p/1" in text and "sampled in iteration 4" in text
    assert "3-7+5" in text and "    3-7=-4\n" in "\n".join(line.rstrip() for line in text.splitlines())
    assert "✓ correct  reward +1.00, advantage +2.65, 2 tokens" in text
    assert "✗ wrong  reward -1.00, advantage -0.38, 2 tokens" in text
    assert "! error  reward none, advantage +0.00" in text


def test_the_last_iteration_is_shown_and_the_limit_counts_groups(run_path):
    text = read(run_path, limit=2)
    assert "iteration 3," in text and "iteration 2," not in text
    assert text.count("success rate") == 2 and text.count("advantage") == 2 * 8
    assert text.rstrip().endswith("2 of 8 groups.")
    assert "iteration 1," in read(run_path, iteration=1)


def group_of(outcomes, problem="p/1"):
    """Rollouts whose texts are their numbers, in the order in which they were sampled."""
    sample = Sample(np.array([1, 2]), np.zeros(2, np.float32), True)
    rollouts = tuple(Rollout(sample, f"no. {i}", Verdict(o), 0.0) for i, o in enumerate(outcomes))
    return Group(State(Problem(problem, "1+1", "2")), (1,), rollouts, 1)


def write_groups(path, groups):
    with Run.create(path, {}) as run:
        run.save_rollouts(1, groups, [[0.0] * len(group.rollouts) for group in groups])
    return path


def order_of(text):
    """What is printed, in its order: problems and numbers of rollouts."""
    return re.findall(r"p/\d|(?<=no\. )\d", text)


def test_the_rarer_verdict_of_a_group_comes_first(tmp_path):
    hard = group_of(["wrong", "wrong", "correct", "wrong"])
    easy = group_of(["correct", "wrong", "correct", "correct"], "p/2")
    text = read(write_groups(tmp_path / "run", [hard, easy]))
    assert order_of(text) == ["p/1", "2", "0", "1", "3", "p/2", "1", "0", "2", "3"]


def test_groups_with_a_right_answer_come_before_those_with_none(tmp_path):
    groups = [
        group_of(["wrong"] * 2, "p/1"),
        group_of(["correct"] * 2, "p/2"),
        group_of(["wrong", "correct"], "p/3"),
    ]
    path = write_groups(tmp_path / "run", groups)
    assert order_of(read(path)) == ["p/3", "1", "0", "p/1", "0", "1", "p/2", "0", "1"]
    assert order_of(read(path, max_success=0.5, limit=1)) == ["p/3", "1", "0"]


def test_two_groups_of_one_problem_stay_two(tmp_path):
    """Also where a filter leaves one rollout of each, whose numbers go up."""
    groups = [group_of(["correct", "wrong", "wrong"]), group_of(["wrong", "wrong", "correct"])]
    text = read(write_groups(tmp_path / "run", groups), outcome="correct")
    assert order_of(text) == ["p/1", "0", "p/1", "2"] and "2 of 2 groups" in text


def test_filters(run_path):
    hard = read(run_path, max_success=0.3, outcome="correct", limit=50)
    assert "✓ correct" in hard and "✗" not in hard and "success rate 12.5%" in hard
    assert all(f"success rate {rate}" not in hard for rate in ("37.5%", "50.0%", "100.0%"))
    dropped = read(run_path, min_success=1.0, limit=1)
    assert "advantage none" in dropped and "not trained on" in dropped


def test_a_problem_is_searched_in_every_iteration(run_path):
    first = read(run_path, iteration=1, limit=1)
    problem = first.split(", ")[2].split()[0]
    assert "iteration 1," in read(run_path, problem=problem)


def test_model_text_is_only_text(tmp_path):
    rows = [("[bold red]x[/] \x1b[2J\x1b]0;gone\x07 \u202e[/nothing]", "wrong", 0.0, 0.0)]
    text = read(write_run(tmp_path / "run", rows), width=200)
    assert "[bold red]x[/] <U+001B>[2J<U+001B>]0;gone<U+0007> <U+202E>[/nothing]" in text
    assert "\x1b" not in text and "\u202e" not in text


def test_long_responses_are_cut_with_a_count(tmp_path):
    text = read(write_run(tmp_path / "run", [("x" * 30_000, "wrong", 0.0, 0.0)]))
    assert "(10,000 more characters)" in text


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"iteration": 9}, "no such rollouts: it has iterations 1 to 3"),
        ({"problem": "chain/x"}, "there is no problem chain/x; the nearest is chain/"),
        ({"outcome": "timeout"}, "iteration 3 has success rates from .*, and the verdicts correct, wrong"),
        ({"outcome": "corect"}, "outcome=corect: choose from .*; the nearest is correct"),
        (
            {"min_success": 0.9, "max_success": 0.1},
            "max_success=0.1: success rates lie between 0 and 1",
        ),
        ({"limit": 0}, "limit=0: choose at least 1"),
    ],
)
def test_what_cannot_be_shown_is_explained(run_path, filters, message):
    with pytest.raises(ValueError, match=message):
        read(run_path, **filters)


def test_a_run_without_rollouts(tmp_path):
    Run.create(tmp_path / "run", {}).close()
    with pytest.raises(ValueError, match="it has none"):
        read(tmp_path / "run")
