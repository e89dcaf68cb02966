"""Read rollouts in the terminal: prompt, response, verdict, reward and advantage."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from hardwon.data import Outcome
from hardwon.records import read_rollouts, rollout_iterations, visible

MARKS = {
    "correct": ("✓", "green"),
    "wrong": ("✗", "red"),
    "timeout": ("…", "yellow"),
    "error": ("!", "magenta"),
}
LONGEST_TEXT = 20_000  # characters of one response


def show(
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
    """Prints up to `limit` groups (a prompt and its rollouts), paged where they fill more than the screen.

    Of the last iteration; of every iteration if a `problem` is given. `min_success` and `max_success`
    bound the success rate of the group. Groups with right and wrong rollouts come first, and in each its
    rarer verdict. Raises ValueError if nothing fits, saying what there is.
    """
    check_filters(min_success, max_success, outcome, limit)
    table = _read(run_path, iteration, problem)
    rows = select(table, problem=problem, min_success=min_success, max_success=max_success, outcome=outcome)
    if not len(rows):
        raise ValueError(f"no rollout fits: {_describe(table, problem)}")
    groups = groups_of(rows)
    console = console or Console()
    with _paged(console):
        for group in groups[:limit]:
            console.print(_block(group))
        console.print(f"{min(limit, len(groups))} of {len(groups)} groups.", style="dim")


def check_filters(
    min_success: float | None, max_success: float | None, outcome: str | None, limit: int
) -> None:
    outcomes = get_args(Outcome)
    if outcome is not None and outcome not in outcomes:
        near = difflib.get_close_matches(outcome, outcomes, n=1, cutoff=0.0)[0]
        raise ValueError(f"outcome={outcome}: choose from {', '.join(outcomes)}; the nearest is {near}")
    if limit < 1:
        raise ValueError(f"limit={limit}: choose at least 1")
    low, high = (0.0 if min_success is None else min_success), (1.0 if max_success is None else max_success)
    if not 0 <= low <= high <= 1:
        raise ValueError(f"min_success={low}, max_success={high}: success rates lie between 0 and 1")


def _read(run_path: str | Path, iteration: int | None, problem: str | None) -> pa.Table:
    """The rollouts with the number of their group, which is counted before any filter."""
    stored = rollout_iterations(run_path)
    wanted = [iteration] if iteration is not None else stored if problem is not None else stored[-1:]
    table = read_rollouts(run_path, wanted)
    return table.append_column("group", [np.cumsum(table["index"].to_numpy() == 0)])


def select(
    table: pa.Table,
    *,
    problem: str | None = None,
    min_success: float | None = None,
    max_success: float | None = None,
    outcome: str | None = None,
) -> pa.Table:
    """Rows that pass every filter given; a group of unknown success rate passes no bound on it."""
    filters = (
        ("problem_id", pc.equal, problem),
        ("success_rate", pc.greater_equal, min_success),
        ("success_rate", pc.less_equal, max_success),
        ("outcome", pc.equal, outcome),
    )
    for column, test, bound in filters:
        if bound is not None:
            table = table.filter(test(table[column], bound))
    return table


def no_such_problem(problem: str, ids: Sequence[str]) -> str:
    near = difflib.get_close_matches(problem, ids, n=1, cutoff=0.0)
    return f"there is no problem {problem}{f'; the nearest is {near[0]}' if near else ''}"


def _describe(table: pa.Table, problem: str | None) -> str:
    ids = table["problem_id"].unique().to_pylist()
    if problem is not None and problem not in ids:
        return no_such_problem(problem, ids)
    iterations = sorted(set(table["iteration"].to_pylist()))
    span = f"{iterations[0]}" if len(iterations) == 1 else f"{iterations[0]} to {iterations[-1]}"
    rates = table["success_rate"].to_numpy()
    known = rates[~np.isnan(rates)]
    between = (
        f"success rates from {known.min():.3g} to {known.max():.3g}" if len(known) else "no success rates"
    )
    outcomes = ", ".join(sorted(table["outcome"].unique().to_pylist()))
    return f"iteration {span} has {between}, and the verdicts {outcomes}"


# ---------------------------------------------------------------------------------------- printing


Rows = list[Mapping[str, Any]]


def groups_of(table: pa.Table) -> list[Rows]:
    """The rows group by group; groups with right and wrong rollouts come first: training learns from them."""
    groups = [list(rows) for _, rows in itertools.groupby(table.to_pylist(), lambda row: row["group"])]
    by_use = sorted(groups, key=lambda rows: (rows[0]["iteration"], not 0 < rows[0]["success_rate"] < 1))
    return [sorted(rows, key=_is_common) for rows in by_use]


def _is_common(row: Mapping[str, Any]) -> bool:
    """Whether most rollouts of its group have this verdict."""
    return bool(row["correct"] == (row["success_rate"] > 0.5))


def _block(group: Rows) -> Group:
    first = group[0]
    rate = "unknown" if np.isnan(first["success_rate"]) else f"{first['success_rate']:.1%}"
    title = f"iteration {first['iteration']}, success rate {rate}, {visible(first['problem_id'])}"
    note = f"sampled in iteration {first['iteration'] - first['age']}" if first["age"] else None
    text = Text(visible(first["prompt"], LONGEST_TEXT))
    prompt = Panel(
        text, title=Text(title), title_align="left", subtitle=note, subtitle_align="left", border_style="blue"
    )
    return Group(prompt, *(part for row in group for part in _rollout(row)), Text())


def _rollout(row: Mapping[str, Any]) -> tuple[Text, Padding]:
    mark, color = MARKS[row["outcome"]]
    head = Text(f"{mark} {row['outcome']}", style=f"bold {color}")
    reward, advantage = _number(row["reward"]), _number(row["advantage"])
    head.append(f"  reward {reward}, advantage {advantage}, {row['length']} tokens", style="dim")
    if row["truncated"]:
        head.append(", cut by the length limit", style="dim")
    if not row["trained"]:
        head.append(", not trained on", style="dim")
    return head, Padding(Text(visible(row["text"], LONGEST_TEXT)), (0, 0, 1, 4))


def _number(value: float | None) -> str:
    return "none" if value is None or np.isnan(value) else f"{value:+.2f}"


@contextlib.contextmanager
def _paged(console: Console) -> Iterator[None]:
    """A pager on a terminal; plain output into files and pipes."""
    if not console.is_terminal:
        yield
        return
    # Colours pass through; what fits on one screen is printed and done.
    os.environ.setdefault("LESS", "-RFX")
    with console.pager(styles=True):
        yield
