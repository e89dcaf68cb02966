"""What more GPUs bring: the cost model of `hardwon check --dry-run` from 1 to 64, and its test on this CPU.

    python benchmarks/scaling.py --plot docs/images/scaling.png     table and plot, nothing is run
    python benchmarks/scaling.py --check                            one and two processes here, compared

The table rests on the assumptions of hardwon/cost.py. The check takes the rates of one process on one core,
predicts two processes from them, and measures these.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from hardwon.algorithms import resolve
from hardwon.config import read_yaml
from hardwon.cost import Assumptions, Workload, stages
from hardwon.hardware import Hardware, parse_hardware
from hardwon.plan import dtype_on, offline_shape, plan
from hardwon.plan_tables import duration
from hardwon.records import read_metrics

RECIPES = Path(__file__).parents[1] / "recipes"
COUNTS = (1, 2, 4, 8, 16, 32, 64)


class Case(NamedTuple):
    """A recipe on growing numbers of one device."""

    title: str
    recipe: str
    device: str
    settings: Mapping[str, Any]
    assumed: Mapping[str, Any]


SERVED = {"generator": "vllm", "vllm_server": "http://server:8000"}
CASES = (
    Case("da3po 4B, FSDP2, hf", "da3po_qwen3_4b", "H200-141GB", {}, {}),
    Case("da3po 4B, one trains, the others serve vLLM", "da3po_qwen3_4b", "H200-141GB", SERVED, {}),
    Case("direct advantage 7B, FSDP2, hf", "direct_advantage_qwen2_5_math_7b", "H200-141GB", {}, {}),
)


class Point(NamedTuple):
    count: int
    seconds: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def simulate(case: Case) -> list[Point]:
    """Stages of an iteration for every number of devices that the run fits."""
    algorithm = "direct_advantage" if case.recipe.startswith("direct") else "da3po"
    points = []
    for count in COUNTS:
        if count == 1 and "vllm_server" in case.settings:
            continue  # nobody is left to serve
        config = resolve(algorithm, read_yaml(RECIPES / f"{case.recipe}.yaml"), case.settings)
        hardware = parse_hardware(f"{count}x{case.device}")
        found = plan(config, hardware, Assumptions(**case.assumed), RECIPES / "models")
        if not any(finding.status == "error" for finding in found.findings):
            points.append(Point(count, {stage.name: stage.seconds for stage in found.stages}))
    return points


def print_case(case: Case, points: Sequence[Point], console: Console) -> None:
    """A column a number of devices; the last rows say what the devices are worth."""
    table = Table(title=f"{case.title}: {case.device}, an iteration")
    table.add_column("devices")
    for point in points:
        table.add_column(str(point.count), justify="right")
    for name in points[0].seconds:
        table.add_row(name, *(duration(p.seconds.get(name, 0.0)) for p in points))
    table.add_row("all together", *(duration(p.total) for p in points), style="bold")
    first = points[0]
    shares = (first.total * first.count / (p.total * p.count) for p in points)
    table.add_row("of ideal", *(f"{share:.0%}" for share in shares))
    console.print(table)


def draw(found: Mapping[str, Sequence[Point]], path: Path) -> None:
    """Hours of an iteration over devices, both logarithmic; dotted is what perfect division would give."""
    figure, axes = plt.subplots(figsize=(8, 4.8), dpi=120)
    for title, points in found.items():
        counts, hours = [p.count for p in points], [p.total / 3600 for p in points]
        (line,) = axes.plot(counts, hours, marker="o", label=title)
        ideal = [hours[0] * counts[0] / n for n in counts]
        axes.plot(counts, ideal, linestyle=":", color=line.get_color(), linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="GPUs (H200)", ylabel="hours an iteration, estimated")
    axes.set_xticks(COUNTS, [str(n) for n in COUNTS])
    axes.minorticks_off()
    axes.set_title("An estimate from assumed efficiencies; dotted: perfect division", fontsize=10, loc="left")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path)


# ------------------------------------------------------------------- the test of the model on this machine

CHECKED = {"iterations": 16, "eval_every": 0, "eval_problems": 1, "eval_samples": 1, "seed": 0}


def measure(processes: int) -> dict[str, float]:
    """Medians over the later iterations of a run with one core a process."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = [f"{key}={value}" for key, value in CHECKED.items()]
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
        command = [sys.executable, *(launch if processes > 1 else ["-m"]), "hardwon", "train", "dapo"]
        subprocess.run(
            [*pinned(processes), *command, *words, f"run={run}"],
            check=True,
            capture_output=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        rows = [m for m in read_metrics(run) if m.get("iteration", 0) > 4 and "rollout_seconds" in m]
    names = ("rollout_seconds", "update_seconds", "tokens_sampled", "iteration_seconds")
    out = {name: median(m[name] for m in rows) for name in names}
    out["accepted"] = median(m["dynamic_sampling/accept_rate"] for m in rows)
    out["length"] = median(m["completions/mean_length"] for m in rows)
    return out


def pinned(processes: int) -> list[str]:
    return ["taskset", "-c", ",".join(map(str, range(processes)))]


def predict(processes: int, assumed: Assumptions) -> dict[str, float]:
    config = resolve("dapo", CHECKED)
    hardware = Hardware("cpu", 8.0, 60e9, 60e9, 10e9, 1e9, processes)
    work = Workload(offline_shape("embedded", None), config, hardware, dtype_on(config, hardware), assumed)
    return {stage.name: stage.seconds for stage in stages(work)}


def check(console: Console) -> None:
    """Rates of one process such that the model gives what was measured; then two processes, both ways."""
    one = measure(1)
    common = {"response_tokens": one["length"], "accept_rate": min(one["accepted"], 1.0), "prompt_tokens": 16}
    rates = {"decode_tokens_per_s": {64: 1e4}, "update_tokens_per_s": 1e4}
    first = predict(1, Assumptions(**common, **rates))
    rates = {
        "decode_tokens_per_s": {64: 1e4 * first["rollout"] / one["rollout_seconds"]},
        "update_tokens_per_s": 1e4 * first["update"] / one["update_seconds"],
    }
    two, said = measure(2), predict(2, Assumptions(**common, **rates))
    table = Table(title="dapo on the embedded model, seconds an iteration, one core a process")
    for column in ("", "1 process", "2 processes", "predicted from 1", "measured / predicted"):
        table.add_column(column, justify="right" if column else "left")
    for name in ("rollout", "update"):
        a, b = one[f"{name}_seconds"], two[f"{name}_seconds"]
        table.add_row(name, f"{a:.3f}", f"{b:.3f}", f"{said[name]:.3f}", f"{b / said[name]:.2f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--plot", type=Path, help="where to draw the table")
    parser.add_argument("--check", action="store_true", help="compare with one and two processes here")
    args, console = parser.parse_args(), Console()
    if args.check:
        check(console)
        return
    found = {case.title: simulate(case) for case in CASES}
    for case in CASES:
        print_case(case, found[case.title], console)
    if args.plot:
        draw(found, args.plot)


if __name__ == "__main__":
    main()
