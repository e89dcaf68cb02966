"""report.html: what a run, or several overlaid, did and came to, on one page that needs nothing else.

Model text is escaped and its control characters are named; the page allows no script. Plots are also
written as PNG files beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from rich.table import Table

from hardwon import plots
from hardwon.checkpoints import write_atomic
from hardwon.evaluate import Evaluation, compare, load_evaluation, stored_evaluations
from hardwon.plots import Curves
from hardwon.records import read_config, read_metrics, read_rollouts, rollout_iterations, visible
from hardwon.statistics import Comparison, Estimate, compare_paired
from hardwon.steps.plots import step_drawings

LONGEST_TEXT = 4000  # characters of a response on the page
KINDS = ("sampled", "greedy")
FORM_ROWS = {
    "answered": "answered",
    "boxed": "boxed",
    "truncated": "cut off",
    "accuracy_if_answered": "if answered",
}


@dataclass(frozen=True)
class RunData:
    """What the page needs of one run."""

    path: Path
    name: str
    config: Mapping[str, Any]
    curves: Curves
    first: Mapping[str, Evaluation]  # by kind; the same as `last` if there was one only
    last: Mapping[str, Evaluation]
    iterations: int
    elapsed_seconds: float
    errors: int


@dataclass(frozen=True)
class Change:
    """One row of the before/after table."""

    measure: str
    before: Estimate
    after: Estimate
    comparison: Comparison | None


@dataclass(frozen=True)
class Example:
    """A group of rollouts to read: what the policy wrote for one prompt."""

    title: str
    iteration: int
    problem_id: str
    prompt: str
    success_rate: float
    rollouts: Sequence[Mapping[str, Any]]


def write_report(run_paths: Sequence[str | Path], output: str | Path | None = None) -> Path:
    """Writes the page of one run or of several, by default into the first; PNG plots go to `plots/` beside.

    Returns the page's path. Raises ValueError for a path that is no run.
    """
    paths = [Path(path) for path in run_paths]
    runs = [load_run(path, name) for path, name in zip(paths, run_names(paths), strict=True)]
    default = "report.html" if len(runs) == 1 else "comparison.html"
    target = Path(output) if output is not None else paths[0] / default
    folder = target.parent / ("plots" if len(runs) == 1 else f"{target.stem}-plots")
    drawn = plots.plot_all([run.curves for run in runs], folder, step_plots(runs))
    page = render(
        title=", ".join(run.name for run in runs),
        runs=runs,
        colors=[plots.COLORS[i % len(plots.COLORS)] for i in range(len(runs))],
        changes=[changes(run) for run in runs],
        forms=[form_changes(run) for run in runs],
        figures=[(name, title, Markup(svg)) for name, (title, svg) in drawn.items()],
        examples=[examples(run.path) for run in runs],
        settings=settings_table([run.config for run in runs]),
    )
    write_atomic(target, page.encode("utf-8", "replace"))
    return target


def step_plots(runs: Sequence[RunData]) -> plots.Drawings:
    """Direct advantage's plots of each run's last repetition; among several runs they say whose they are."""
    drawings: plots.Drawings = {}
    for number, run in enumerate(runs, 1):
        for name, (title, draw) in step_drawings(run.path).items():
            whose = (name, title) if len(runs) == 1 else (f"{name}-{number}", f"{run.name}: {title}")
            drawings[whose[0]] = (whose[1], draw)
    return drawings


def render(**values: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = lambda value: "–" if np.isnan(value) else f"{100 * value:.1f} %"
    environment.filters["signed"] = lambda value: "–" if value is None or np.isnan(value) else f"{value:+.2f}"
    environment.filters["visible"] = lambda text: visible(str(text), LONGEST_TEXT)
    environment.filters["duration"] = duration
    return environment.get_template("report.html.j2").render(**values)


def duration(seconds: float) -> str:
    """
    >>> duration(42.4), duration(312), duration(7380)
    ('42 s', '5 min 12 s', '2 h 03 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


# ----------------------------------------------------------------------------------------- reading


def run_names(paths: Sequence[Path]) -> list[str]:
    """The directories' own names, or as much of their paths as tells them apart."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(len(p) for p in parts) + 1):
        names = ["/".join(p[-length:]) for p in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return [str(path) for path in paths]


def load_run(path: str | Path, name: str | None = None) -> RunData:
    """Reads a run directory, finished or not; whatever it lacks is left out of the page."""
    path = Path(path)
    config, records = read_config(path), read_metrics(path)
    stored = {kind: stored_evaluations(path, kind) for kind in KINDS}
    loaded = {kind: {i: load_evaluation(f) for i, f in files.items()} for kind, files in stored.items()}
    held_out = {kind: {i: e.mean_at_k() for i, e in found.items()} for kind, found in loaded.items()}
    success, num_levels = success_rates(path)
    name = name or path.resolve().name
    return RunData(
        path=path,
        name=name,
        config=config,
        curves=Curves(name, metric_columns(records), held_out, success, num_levels),
        first={kind: found[min(found)] for kind, found in loaded.items() if found},
        last={kind: found[max(found)] for kind, found in loaded.items() if found},
        iterations=max((int(r["iteration"]) for r in records), default=0),
        elapsed_seconds=max((r.get("elapsed_seconds", 0.0) for r in records), default=0.0),
        errors=int(sum(r.get("verifier/errors") or 0 for r in records)),
    )


def metric_columns(records: Sequence[Mapping[str, Any]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Name -> (iterations, values) of every metric that was ever a number."""
    columns: dict[str, tuple[list[int], list[float]]] = {}
    for record in records:
        for name, value in record.items():
            if name != "iteration" and (value is None or isinstance(value, int | float)):
                iterations, values = columns.setdefault(name, ([], []))
                iterations.append(record["iteration"])
                values.append(np.nan if value is None else float(value))
    arrays = {name: (np.array(i), np.array(v)) for name, (i, v) in columns.items()}
    return {name: pair for name, pair in arrays.items() if not np.isnan(pair[1]).all()}


def success_rates(path: Path) -> tuple[np.ndarray, int]:
    """(iteration, success rate) of every stored group, and the number of steps from 0 to 1."""
    stored = rollout_iterations(path)
    if not stored:
        return np.zeros((0, 2)), 1
    table = read_rollouts(path, columns=["iteration", "index", "success_rate"])
    firsts = table.filter(pa.compute.equal(table["index"], 0))
    rates = np.column_stack([firsts["iteration"].to_numpy(), firsts["success_rate"].to_numpy()])
    group_size = int(pa.compute.max(table["index"]).as_py()) + 1
    return rates[~np.isnan(rates[:, 1])], min(group_size, 16)


# ------------------------------------------------------------------------------------ before, after


def changes(run: RunData) -> list[Change]:
    """What training changed on the held-out problems; empty with fewer than two evaluations."""
    rows = []
    for kind in KINDS:
        if kind not in run.first or run.first[kind] is run.last[kind]:
            continue
        before, after = run.first[kind], run.last[kind]
        summary = after.summary()
        for measure, value in before.summary().items():
            if measure in summary:
                comparison = compare(before, after) if measure == "mean@1" else None
                name = "greedy" if kind == "greedy" else measure
                rows.append(Change(name, value, summary[measure], comparison))
    return rows


def form_changes(run: RunData) -> list[Change]:
    """What training changed in the form of sampled responses, and in how right those with an answer are."""
    before, after = run.first.get("sampled"), run.last.get("sampled")
    if before is None or after is None or before is after:
        return []
    shares, forms = (before.form_values(), after.form_values()), (before.form(), after.form())
    return [
        Change(
            title,
            forms[0][name],
            forms[1][name],
            paired(shares[0][name], shares[1][name]) if name in shares[0] and name in shares[1] else None,
        )
        for name, title in FORM_ROWS.items()
        if name in forms[0] and name in forms[1]
    ]


def paired(before_P: np.ndarray, after_P: np.ndarray) -> Comparison | None:
    """The paired comparison, or None where no problem was judged in both."""
    both = ~np.isnan(before_P) & ~np.isnan(after_P)
    return compare_paired(before_P, after_P) if both.any() else None


def before_after(run_path: str | Path) -> Table:
    """The before/after table for the terminal, in per cent; it fits 80 columns."""
    run = load_run(run_path)
    problems = next((len(e.problem_ids) for e in run.last.values()), 0)
    title = f"{problems} held-out problems, per cent correct with 95 % intervals"
    return _change_table(title, changes(run), ("", "before", "after", "difference", "p"))


def form_before_after(run_path: str | Path) -> Table:
    """The same of the form of sampled responses; without p-values, so that it fits as well."""
    title = "form of the sampled responses, per cent with 95 % intervals"
    return _change_table(title, form_changes(load_run(run_path)), ("", "before", "after", "difference"))


def _change_table(title: str, rows: Sequence[Change], columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for row in rows:
        cells = [_cell(row.before), _cell(row.after)]
        if row.comparison is not None:
            c = row.comparison
            interval = f"\\[{100 * c.low:+.1f}, {100 * c.high:+.1f}]"
            cells += [f"[bold]{100 * c.difference:+.1f}[/] {interval}", f"{c.p_value:.2g}"]
        table.add_row(row.measure, *cells[: len(columns) - 1])
    return table


def _cell(value: Estimate) -> str:
    return f"[bold]{100 * value.value:.1f}[/] \\[{100 * value.low:.1f}, {100 * value.high:.1f}]"


# ---------------------------------------------------------------------------------------- examples


def examples(path: str | Path) -> list[Example]:
    """Rollouts of a hard and an easy prompt, right and wrong, from the first and the last iteration."""
    stored = rollout_iterations(path)
    chosen: list[Example] = []
    for when, iteration in (("first", stored[:1]), ("last", stored[-1:])):
        if not iteration or (when == "last" and len(stored) == 1):
            continue
        table = read_rollouts(path, iteration)
        groups = group_rows(table)
        by_rate = sorted(groups, key=lambda group: group[0]["success_rate"])
        mixed = [group for group in by_rate if 0 < group[0]["success_rate"] < 1]
        picks = [("hard prompt", mixed[0]), ("easy prompt", mixed[-1])] if len(mixed) > 1 else []
        picks = picks or [("prompt", group) for group in (mixed or groups)[:1]]
        chosen += [_example(f"{when} iteration, {label}", group) for label, group in picks]
    return chosen


def group_rows(table: pa.Table) -> list[list[dict[str, Any]]]:
    """The rows of stored rollouts, group by group: each group starts at index 0."""
    groups: list[list[dict[str, Any]]] = []
    for row in table.to_pylist():
        if row["index"] == 0 or not groups:
            groups.append([])
        groups[-1].append(row)
    return groups


def _example(title: str, group: list[dict[str, Any]], each: int = 2) -> Example:
    right = [row for row in group if row["correct"]][:each]
    wrong = [row for row in group if not row["correct"]][:each]
    first = group[0]
    return Example(
        title, first["iteration"], first["problem_id"], first["prompt"], first["success_rate"], right + wrong
    )


# ---------------------------------------------------------------------------------------- settings


def settings_table(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str], bool]]:
    """Every setting: its name, its value in each run, and whether the runs differ in it."""
    rows = []
    for name in dict.fromkeys(name for config in configs for name in config):
        values = [
            json.dumps(config[name], ensure_ascii=False, default=str) if name in config else "–"
            for config in configs
        ]
        rows.append((name, values, len(set(values)) > 1))
    return rows
