"""A solution step by step, with what each step was worth, in colour."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hardwon.steps.records import SolutionSteps, last_iteration, read_solution_steps

# An advantage of this size has the full colour (ours).
FULL_COLOUR = 0.5


def show_steps(
    run_path: str | Path,
    *,
    limit: int = 10,
    problem: str | None = None,
    iteration: int | None = None,
    console: Console | None = None,
) -> None:
    """Print up to `limit` kept solutions: each step with Monte-Carlo counts, value and advantage.

    Solutions in which a step changed most come first. ValueError if the run has no advantages.
    """
    console = console or Console()
    iteration = iteration or last_iteration(run_path)
    solutions = read_solution_steps(run_path, iteration)
    if problem is not None:
        solutions = [s for s in solutions if s.problem_id == problem]
        if not solutions:
            raise ValueError(
                f"problem={problem!r} has no kept solutions in iteration {iteration} of {run_path}"
            )
    for solution in sorted(solutions, key=lambda s: -_largest(s))[:limit]:
        console.print(step_table(solution))
    console.print(f"{min(limit, len(solutions))} of {len(solutions)} kept solutions, iteration {iteration}.")


def _largest(solution: SolutionSteps) -> float:
    return max((abs(a) for a in solution.judged.advantage if not math.isnan(a)), default=0.0)


def step_table(solution: SolutionSteps) -> Table:
    """One row a step; green steps helped, red ones hurt."""
    verdict = Text("correct", style="green") if solution.correct else Text("wrong", style="red")
    # Text and not markup: prompts and steps may hold square brackets.
    title = Text.assemble(solution.judged.prompt.strip(), "   ", verdict)
    table = Table(title=title, title_justify="left", expand=False)
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
