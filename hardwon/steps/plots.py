"""Plots of a direct advantage run: critic, values and advantages by depth, and the policy's curves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from hardwon.plots import COLORS, INK, STYLE, Drawings
from hardwon.records import read_metrics
from hardwon.steps.records import PAIRS, judged_iterations, stage_folder

SIZE = (6.4, 3.8)  # inches


def write_step_plots(run_path: str | Path, iteration: int | None = None) -> list[Path]:
    """PNG files in the `plots` folder of a repetition (default: of every one); returns their paths."""
    written = []
    for number in judged_iterations(run_path) if iteration is None else [iteration]:
        folder = stage_folder(run_path, number) / "plots"
        folder.mkdir(exist_ok=True)
        with matplotlib.rc_context(STYLE):
            for name, (_, draw) in step_drawings(run_path, number).items():
                written.append(folder / f"{name}.png")
                draw().savefig(written[-1], dpi=130)
    return written


def step_drawings(run_path: str | Path, iteration: int | None = None) -> Drawings:
    """The plots of a repetition (default: of the last); none if the run has no advantages."""
    found = judged_iterations(run_path)
    if not found:
        return {}
    folder = stage_folder(run_path, found[-1] if iteration is None else iteration)
    pairs = pq.ParquetFile(folder / PAIRS).read().to_pydict()
    report = json.loads((folder / "critic.json").read_text())
    return {
        "calibration": ("Calibration of the critic", lambda: calibration(report)),
        "critic_by_depth": ("Error of the critic by depth", lambda: critic_by_depth(report)),
        "value_by_depth": ("Values of states by depth", lambda: value_by_depth(pairs)),
        "advantages": ("Advantages of steps", lambda: advantage_histogram(pairs)),
        "advantages_by_depth": ("Advantages of kept steps by depth", lambda: advantages_by_depth(pairs)),
        "policy": ("Fit of the policy", lambda: policy_curves(read_metrics(run_path))),
    }


def _axes(title: str, x: str, y: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes


def calibration(report: Mapping[str, Any]) -> Figure:
    """Success rate against predicted value, in tenths of the value range; the area is the states in each."""
    bins = report["calibration"]
    figure, axes = _axes(
        f"Critic on {report['states']} states of unseen problems",
        "predicted value",
        "share of right completions",
    )
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (4, 3)), label="perfect")
    states = np.array([b["states"] for b in bins], float)
    points = [b["value"] for b in bins], [b["label"] for b in bins]
    axes.plot(*points, color=COLORS[0], linewidth=1.2)
    axes.scatter(*points, s=15 + 180 * states / states.max(), color=COLORS[0], alpha=0.85, label="critic")
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    facts = [
        f"BCE {report['bce']:.3f}, best constant {report['bce_constant']:.3f}",
        f"Brier {report['brier']:.3f}, AUC {report['auc']:.3f}",
        f"correlation {report['correlation']:.3f}",
    ]
    axes.text(0.97, 0.05, "\n".join(facts), ha="right", va="bottom", transform=axes.transAxes, fontsize=8.5)
    axes.legend(loc="upper left")
    return figure


def critic_by_depth(report: Mapping[str, Any]) -> Figure:
    """Mean absolute error and bias of the critic after so many steps."""
    rows = report["by_depth"]
    figure, axes = _axes("Critic error by depth of the state", "steps taken", "value minus Monte-Carlo value")
    depth = [row["depth"] for row in rows]
    axes.bar(
        depth,
        [row["error"] for row in rows],
        color=COLORS[0],
        alpha=0.75,
        width=0.6,
        label="mean absolute error",
    )
    axes.plot(depth, [row["bias"] for row in rows], color=COLORS[1], marker="o", label="bias")
    axes.axhline(0, color=INK, linewidth=0.8)
    top = max(row["error"] for row in rows)
    for row in rows:
        axes.annotate(
            f"n={row['states']}", (row["depth"], row["error"]), ha="center", va="bottom", fontsize=7.5,
            xytext=(0, 2), textcoords="offset points",
        )  # fmt: skip
    axes.set_ylim(top=top * 1.35)
    axes.set_xticks(depth)
    axes.legend(loc="upper right")
    return figure


def _by_depth(depths: np.ndarray, values: np.ndarray) -> tuple[list[int], list[np.ndarray]]:
    found = [int(d) for d in np.unique(depths)]
    return found, [values[depths == d] for d in found]


def value_by_depth(pairs: Mapping[str, Sequence[Any]]) -> Figure:
    """Critic values and Monte-Carlo values of the states after so many steps: median, quartiles, deciles."""
    _, first = np.unique(pairs["state"], return_index=True)
    depths = np.array(pairs["depth"])[first]
    total = np.array(pairs["state_total"], float)[first]
    monte_carlo = np.array(pairs["state_correct"], float)[first] / np.maximum(total, 1)
    figure, axes = _axes("Value of the states by depth", "steps taken", "value")
    for offset, values, color, name in (
        (-0.2, monte_carlo, COLORS[1], "Monte Carlo"),
        (0.2, np.array(pairs["state_value"])[first], COLORS[0], "critic"),
    ):
        found, groups = _by_depth(depths, values)
        _boxes(axes, [d + offset for d in found], groups, color, name)
    axes.set_xticks(found, [str(d) for d in found])
    axes.set_ylim(-0.03, 1.03)
    axes.legend(loc="upper right")
    return figure


def _boxes(axes: Any, places: Sequence[float], groups: Sequence[np.ndarray], color: str, name: str) -> None:
    drawn = axes.boxplot(
        groups, positions=places, widths=0.34, whis=(10, 90), showfliers=False, patch_artist=True,
        medianprops={"color": INK, "linewidth": 1.4},
        whiskerprops={"color": color}, capprops={"color": color},
    )  # fmt: skip
    for box in drawn["boxes"]:
        box.set(facecolor=color, alpha=0.55, edgecolor=color)
    drawn["boxes"][0].set_label(name)


def advantage_histogram(pairs: Mapping[str, Sequence[Any]]) -> Figure:
    """Advantages of all pairs, and of those that are trained on."""
    advantages, kept = np.array(pairs["advantage"]), np.array(pairs["kept"], bool)
    states = np.array(pairs["state"])
    num_states, num_kept = len(np.unique(states)), len(np.unique(states[kept]))
    title = f"Advantages: {num_kept} of {num_states} states kept, {kept.sum()} pairs"
    figure, axes = _axes(title, "advantage", "pairs")
    bins = np.linspace(-1, 1, 41)
    axes.hist(advantages, bins=bins, color=COLORS[0], alpha=0.3, label="all")
    axes.hist(advantages[kept], bins=bins, color=COLORS[0], label="kept")
    axes.set_yscale("log")
    axes.legend()
    return figure


def advantages_by_depth(pairs: Mapping[str, Sequence[Any]]) -> Figure:
    """Advantages of the kept pairs after so many steps: median, quartiles, deciles."""
    kept = np.array(pairs["kept"], bool)
    found, groups = _by_depth(np.array(pairs["depth"])[kept], np.array(pairs["advantage"])[kept])
    figure, axes = _axes("Advantages of the kept steps by depth", "steps taken before", "advantage")
    _boxes(axes, found, groups, COLORS[0], "kept")
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xticks(found, [f"{d}\nn={len(g)}" for d, g in zip(found, groups, strict=True)])
    return figure


POLICY_CURVES = (
    ("explained_variance", "explained variance of A / beta"),
    ("sign_agreement", "sign agreement"),
    ("kl", "KL to the reference, nats a step"),
    ("validation_accuracy", "accuracy on validation problems"),
)


def policy_curves(metrics: Sequence[Mapping[str, Any]]) -> Figure:
    """The policy's fit over optimizer steps (of all repetitions)."""
    figure = Figure(figsize=(SIZE[0] * 1.35, SIZE[1] * 1.4), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(2, 2).flat, POLICY_CURVES, strict=True):
        found = [(m["iteration"], m[f"policy/{name}"]) for m in metrics if f"policy/{name}" in m]
        if found:
            style = {"marker": "o"} if len(found) < 15 else {}
            axes.plot(*zip(*found, strict=True), color=COLORS[0], linewidth=1.5, **style)
        axes.set(title=title, xlabel="iteration (steps of critic and policy)")
    return figure
