"""A solution step by step, with what each step was worth, in colour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hardwon.show import check_filters, no_such_problem
from hardwon.steps.records import SolutionSteps, judged_iteration, read_solution_steps

# An advantage of this size has the full colour (ours).
FULL_COLOUR = 0.5


def show_steps(
    run_path: str | Path,
    *,
    iteration: int | None = None,
    problem: str | None = None,
    min_success: float | None = None,
    max_success: float | None = None,
    outcome: str | None = None,
    limit: int = 10,
    console: Console | None = None,
) -> None:
    """Print up to `limit` kept solutions: each step with Monte-Carlo counts, value and advantage.

    Solutions in which a step changed most come first. `min_success` and `max_success` bound the share of
    right solutions of their problem. ValueError if the run has no advantages or no solution fits.
    """
    check_filters(min_success, max_success, outcome, limit)
    console = console or Console()
    iteration = judged_iteration(run_path, iteration)
    stored = read_solution_steps(run_path, iteration)
    low, high = (0.0 if min_success is None else min_success), (1.0 if max_success is None else max_success)
    solutions = [
        solution
        for solution in stored
        if problem in (None, solution.problem_id)
        and low <= solution.success_rate <= high
        and outcome in (None, "correct" if solution.correct else "wrong")
    ]
    if not solutions:
        raise ValueError(f"no kept solution of iteration {iteration} fits: {_describe(stored, problem)}")
    for solution in sorted(solutions, key=lambda s: -_largest(s))[:limit]:
        console.print(step_table(solution))
    console.print(f"{min(limit, len(solutions))} of {len(solutions)} kept solutions, iteration {iteration}.")


def _describe(solutions: Sequence[SolutionSteps], problem: str | None) -> str:
    ids = sorted({solution.problem_id for solution in solutions})
    if problem is not None and problem not in ids:
        return no_such_problem(problem, ids)
    rates = [solution.success_rate for solution in solutions]
    between = f"from {min(rates):.3g} to {max(rates):.3g}" if rates else "of nothing"
    number = sum(solution.correct for solution in solutions)
    return f"it has success rates {between}, {number} correct and {len(solutions) - number} wrong ones"


def _largest(solution: SolutionSteps) -> float:
    return max((abs(a) for a in solution.judged.advantage if not math.isnan(a)), default=0.0)


def step_table(solution: SolutionSteps) -> Table:
    """One row per step; green steps helped, red ones hurt."""
    verdict = Text("correct", style="green") if solution.correct else Text("wrong", style="red")
    # Text and not markup: prompts and steps may hold square brackets.
    title = Text.assemble(solution.judged.prompt.strip(), "   ", verdict)
    caption = Text(f"success rate {solution.success_rate:.1%}, {solution.problem_id}")
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", expand=False)
    table.add_column("step")
    for name in ("right of", "value", "advantage"):
        table.add_column(name, justify="right")
    judged = solution.judged
    columns = (judged.steps, judged.mc_correct, judged.mc_total, judged.value, judged.advantage)
    for step, correct, total, value, advantage in zip(*columns, strict=True):
        table.add_row(
            Text(step.rstrip("\r\n") or "(line break)", style=colour(advantage)),
            f"{correct}/{total}" if total else "-",
            _number(value, "{:.2f}"),
            Text(_number(advantage, "{:+.2f}"), style=colour(advantage)),
        )
    return table


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else form.format(value)


def colour(advantage: float) -> str:
    """From red over the terminal's own colour to green.

    >>> colour(-0.5), colour(0.01), colour(0.5)
    ('rgb(255,90,90)', '', 'rgb(60,220,60)')
    """
    if math.isnan(advantage) or abs(advantage) < 0.02:
        return ""
    share = min(abs(advantage) / FULL_COLOUR, 1.0)
    strong = (60, 220, 60) if advantage > 0 else (255, 90, 90)
    red, green, blue = (round(190 + share * (c - 190)) for c in strong)
    return f"rgb({red},{green},{blue})"
