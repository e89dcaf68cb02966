"""The plots of a report: one function a figure, for one run or several overlaid.

Each figure is written twice: as PNG on white, and as SVG text for the page, in which ink and grid
colours follow the page's light or dark theme.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from hardwon.statistics import Estimate

INK, GRID, PAPER = "#1f2328", "#d8dce1", "#fefefd"  # replaced by the page's own colours in SVG
COLORS = ("#3d74d6", "#d9652b", "#2a9d74", "#a355c7", "#b58a12", "#cf4467", "#5b8a99", "#8a6d5b")
DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)))
# The first run's blue, from nothing to opaque: it reads on a light page and on a dark one.
HEAT = LinearSegmentedColormap.from_list("heat", ["#3d74d600", "#3d74d6ff"])
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
}


@dataclass(frozen=True)
class Curves:
    """What the plots need of one run. Metrics: name -> (iterations, values), both of shape (N,)."""

    name: str
    metrics: Mapping[str, tuple[np.ndarray, np.ndarray]]
    held_out: Mapping[str, Mapping[int, Estimate]]  # "sampled", "greedy" -> iteration -> mean
    success: np.ndarray  # (num_groups, 2): iteration and success rate of each group
    num_levels: int  # success rates are multiples of 1 / num_levels


@dataclass(frozen=True)
class Lines:
    """A plot of metrics over iterations; each series is (metric, label)."""

    name: str
    title: str
    series: tuple[tuple[str, str], ...]
    percent: bool = False
    log: bool = False
    from_zero: bool = True


LINES = (
    Lines("reward", "Reward of sampled rollouts", (("reward", "mean"),), from_zero=False),
    Lines("success_rate", "Success rate of sampled rollouts", (("success_rate", "mean"),), percent=True),
    Lines("entropy", "Entropy of the policy, nats a token", (("entropy", "entropy"),)),
    Lines(
        "clip_fractions",
        "Share of tokens clipped",
        (("clip_ratio/high_mean", "upper bound"), ("clip_ratio/low_mean", "lower bound")),
        percent=True,
    ),
    Lines("kl", "KL to the reference policy, nats a token", (("kl", "kl"),), from_zero=False),
    Lines(
        "lengths",
        "Length of responses, tokens",
        (("completions/mean_length", "mean"), ("completions/max_length", "longest")),
    ),
    Lines("grad_norm", "Gradient norm before clipping", (("grad_norm", "norm"),), log=True),
    Lines("explained_variance", "Explained variance of the critic", (("explained_variance", "critic"),)),
    Lines("throughput", "Rollout tokens per second", (("tokens_per_second", "tokens/s"),)),
    Lines(
        "seconds",
        "Seconds an iteration",
        (("iteration_seconds", "iteration"), ("rollout_seconds", "rollouts"), ("update_seconds", "update")),
    ),
)
FITS = {"critic": "critic", "policy": "policy", "dpo": "policy (dpo)", "sft": "policy (sft)"}


Drawings = dict[str, tuple[str, Callable[[], Figure]]]
"""Name -> title, and what draws it."""


def plot_all(
    runs: Sequence[Curves], folder: Path, more: Drawings | None = None
) -> dict[str, tuple[str, str]]:
    """Draws what the runs have data for, and then `more`; PNG files into `folder`. Name -> (title, SVG)."""
    figures: Drawings = {}
    if any(estimates for run in runs for estimates in run.held_out.values()):
        figures["held_out"] = ("Accuracy on held-out problems", lambda: held_out(runs))
    if any(len(run.success) for run in runs):
        figures["success_histogram"] = ("Success rates of prompts over time", lambda: success_histogram(runs))
    if any("dynamic_sampling/dropped" in run.metrics for run in runs):
        figures["groups"] = ("Groups by their responses", lambda: groups(runs))
    for spec in (*LINES, *fit_lines(runs)):
        if any(metric in run.metrics for run in runs for metric, _ in spec.series):
            figures[spec.name] = (spec.title, lambda spec=spec: lines(runs, spec))  # type: ignore[misc]
    figures |= more or {}
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    with matplotlib.rc_context(STYLE):
        for name, (title, draw) in figures.items():
            figure = draw()
            figure.savefig(folder / f"{name}.png")
            figure.set_layout_engine("none")  # it is laid out: no second time for the SVG
            drawn[name] = (title, to_svg(figure, name))
    return drawn


def fit_lines(runs: Sequence[Curves]) -> list[Lines]:
    """A plot for each measure of the offline fits, which log under their own name: `critic/loss`."""
    found = {name for run in runs for name, (iterations, _) in run.metrics.items() if len(iterations) > 1}
    fits = sorted(name for name in found if name.split("/")[0] in FITS)
    return [
        Lines(name.replace("/", "_"), f"Fit of the {FITS[name.split('/')[0]]}: {name.split('/')[1]}",
              ((name, name),), from_zero=False)
        for name in fits
    ]  # fmt: skip


def to_svg(figure: Figure, name: str) -> str:
    """The figure as an `<svg>` element to put into a page, with colours that follow the page's theme."""
    out = io.StringIO()
    # Ids come from the salt: figures on one page must not share them.
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    for color, variable in ((INK, "ink"), (GRID, "grid"), (PAPER, "paper")):
        text = text.replace(color, f"var(--{variable})")
    return re.sub(r'(<svg [^>]*?)width="[^"]*" height="[^"]*"|height="[^"]*pt" ', r"\1", text, count=1)


# ---------------------------------------------------------------------------------------- figures


def lines(runs: Sequence[Curves], spec: Lines) -> Figure:
    """Metrics over iterations: every value faint, and their moving average."""
    figure, axes = _new(spec.title)
    for number, run in enumerate(runs):
        present = [(i, m, label) for i, (m, label) in enumerate(spec.series) if m in run.metrics]
        for index, metric, label in present:
            iterations, values = thin(*run.metrics[metric])
            many = len(runs) > 1
            color = COLORS[(number if many else index) % len(COLORS)]
            dash = DASHES[index % len(DASHES)] if many else "-"
            parts = ([run.name] if many else []) + ([label] if len(spec.series) > 1 else [])
            label = _safe(": ".join(parts))
            axes.plot(iterations, values, color=color, alpha=0.22, linewidth=0.8)
            axes.plot(iterations, smooth(values), color=color, linewidth=1.8, linestyle=dash, label=label)
    if len(runs) > 1 or len(spec.series) > 1:
        _legend(axes)
    # A run whose values are all 0 (no update was ever made) has no logarithm to show.
    if spec.log and axes.dataLim.ymax > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif spec.from_zero:
        axes.set_ylim(bottom=0)
    if spec.percent:
        _percent(axes)
    return figure


def held_out(runs: Sequence[Curves]) -> Figure:
    """Held-out accuracy with 95 % intervals: sampled at temperature 1, and greedy."""
    figure, axes = _new("Accuracy on held-out problems, with 95 % intervals")
    for number, run in enumerate(runs):
        for index, (kind, label) in enumerate((("sampled", "sampled"), ("greedy", "greedy"))):
            if not run.held_out.get(kind):
                continue
            x = np.array(sorted(run.held_out[kind]))
            estimates = [run.held_out[kind][i] for i in x]
            mean, low, high = (np.array([getattr(e, f) for e in estimates]) for f in ("value", "low", "high"))
            color = COLORS[(number if len(runs) > 1 else index) % len(COLORS)]
            name = f"{run.name}, {label}" if len(runs) > 1 else label
            if kind == "sampled" or len(runs) == 1:  # more bands would hide one another
                axes.fill_between(x, low, high, color=color, alpha=0.16, linewidth=0)
            axes.plot(
                x, mean, color=color, linewidth=1.8, marker="o", markersize=3.5, linestyle=DASHES[index],
                label=_safe(name),
            )  # fmt: skip
    axes.set_ylim(0, 1)
    _percent(axes)
    _legend(axes)
    return figure


def success_histogram(runs: Sequence[Curves]) -> Figure:
    """How many prompts are solved how often: one column a span of iterations, shading = share of groups."""
    shown = [run for run in runs if len(run.success)]
    figure, all_axes = _panels("Success rates of prompts over time", shown)
    for axes, run in zip(all_axes, shown, strict=True):
        iterations, rates = run.success.T
        edges = np.unique(np.linspace(iterations.min(), iterations.max() + 1, 81).round()) - 0.5
        levels = (np.arange(run.num_levels + 2) - 0.5) / run.num_levels
        counts, _, _ = np.histogram2d(iterations, rates, bins=(edges, levels))
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        # The ends are often most of it: a square root keeps what lies between visible.
        mesh = axes.pcolormesh(
            edges, levels, np.sqrt(shares).T, cmap=HEAT, vmin=0, vmax=1, rasterized=True, linewidth=0
        )
        axes.grid(visible=False)
        axes.set_ylim(levels[0], levels[-1])
        _percent(axes)
    bar = figure.colorbar(mesh, ax=list(all_axes), pad=0.02, aspect=18)
    ticks = np.array([0, 0.05, 0.25, 0.5, 1])
    bar.set_ticks(np.sqrt(ticks), labels=[f"{tick:.0%}" for tick in ticks])
    bar.outline.set_visible(False)
    bar.set_label("share of groups")
    all_axes[0].set_ylabel("success rate of a prompt")
    return figure


GROUPS = ("kept", "dropped", "all_wrong", "all_correct")


def groups(runs: Sequence[Curves]) -> Figure:
    """Groups with right and wrong responses, and those all wrong or all right: what a filter drops."""
    shown = [run for run in runs if "dynamic_sampling/dropped" in run.metrics]
    figure, all_axes = _panels("Groups by their responses, an iteration", shown)
    for axes, run in zip(all_axes, shown, strict=True):
        iterations, _ = run.metrics["dynamic_sampling/dropped"]
        counts = {name: run.metrics[f"dynamic_sampling/{name}"][1] for name in GROUPS}
        uniform = counts["all_wrong"] + counts["all_correct"]
        # Without dynamic sampling uniform groups are trained on, and so among the kept ones.
        mixed = counts["kept"] - np.maximum(uniform - counts["dropped"], 0)
        parts = {
            "right and wrong": mixed,
            "all wrong": counts["all_wrong"],
            "all right": counts["all_correct"],
        }
        heights = [smooth(thin(iterations, part)[1]) for part in parts.values()]
        axes.stackplot(
            thin(iterations, mixed)[0],
            *heights,
            colors=COLORS[: len(parts)],
            labels=list(parts),
            alpha=0.75,
            edgecolor=PAPER,
            linewidth=0.6,
        )
        if run.metrics.get("dynamic_sampling/carried", (0, np.zeros(1)))[1].any():
            x, carried = thin(*run.metrics["dynamic_sampling/carried"])
            axes.plot(x, smooth(carried), color=INK, linewidth=1.2, linestyle=DASHES[1], label="carried over")
        axes.set_ylim(0, max(1.0, float(np.sum(heights, axis=0).max())))
    handles, labels = all_axes[0].get_legend_handles_labels()
    if len(shown) == 1:
        _legend(all_axes[0])
    else:
        figure.legend(handles, labels, loc="outside upper left", ncols=len(labels))
    return figure


# ------------------------------------------------------------------------------------------ parts


def _new(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.4, 3.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.margins(x=0.01)
    return figure, axes


def _panels(title: str, runs: Sequence[Curves]) -> tuple[Figure, Sequence[Axes]]:
    """One panel a run, side by side; the title names the figure, or each run where there are several."""
    figure = Figure(
        figsize=(6.4 if len(runs) == 1 else max(12.8, 4.2 * len(runs)), 3.5), dpi=150, layout="constrained"
    )
    all_axes = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for axes, run in zip(all_axes, runs, strict=True):
        axes.set_title(title if len(runs) == 1 else _safe(run.name))
        axes.set_xlabel("iteration")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
        axes.margins(x=0)
    return figure, all_axes


def _percent(axes: Axes) -> None:
    def label(value: float, _: int) -> str:
        return f"{100 * value:g} %"

    axes.yaxis.set_major_formatter(FuncFormatter(label))


def _legend(axes: Axes) -> None:
    """Between title and plot, where it covers nothing, in as many columns as its labels leave room for."""
    handles, labels = axes.get_legend_handles_labels()
    rows = math.ceil(sum(8 + len(label) for label in labels) / 88)
    columns = math.ceil(len(labels) / rows)
    legend = axes.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(-0.01, 0.985),
        borderaxespad=0.1,
        ncols=columns,
        handlelength=1.8,
    )
    # It may not squeeze the plot: the title makes room for its rows instead.
    legend.set_in_layout(False)
    axes.set_title(axes.get_title(loc="left"), pad=10 + 15 * rows)


def _safe(name: str) -> str:
    """A name as matplotlib shall print it, not read it as a formula."""
    return name.replace("$", r"\$")


def thin(iterations: np.ndarray, values: np.ndarray, most: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """At most `most` points: means over equal spans of a longer series."""
    if len(values) <= most:
        return iterations, values
    spans = np.array_split(np.arange(len(values)), most)
    return np.array([iterations[s].mean() for s in spans]), np.array([values[s].mean() for s in spans])


def smooth(values: np.ndarray) -> np.ndarray:
    """A centred moving average over about a fortieth of the series; NaN values are left out."""
    half = len(values) // 80
    present = ~np.isnan(values)
    kernel = np.ones(2 * half + 1)
    if half == 0 or not present.any():
        return values
    # "same" sees zeros beyond the ends; dividing by the same sum of ones leaves them out too.
    total = np.convolve(np.where(present, values, 0.0), kernel, "same")
    count = np.convolve(present.astype(float), kernel, "same")
    average: np.ndarray = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return average
