"""What each layer of the sandbox costs: time per execution, overhead over plain Python, throughput.

    python benchmarks/sandbox.py [--runs 100] [--workers 2]

One execution prints a number; "judged" is a whole verdict on one assert-style problem (two processes).
The layers take turns, so that a change of the machine's load meets them all.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from hardwon.verifiers.code import AssertTests, verify
from hardwon.verifiers.sandbox import Sandbox
from hardwon.verifiers.sandbox_layers import interpreter
from hardwon.verifiers.sandbox_probe import layers

PROGRAM = "print(1)"
TESTS = AssertTests("", ("square",), ("assert square(3) == 9", "assert square(4) == 16"))
SOLUTION = "def square(x):\n    return x * x\n"


def plain() -> None:
    subprocess.run([interpreter(), "-c", PROGRAM], check=True, capture_output=True)


def execute(sandbox: Sandbox) -> None:
    run = sandbox.run_program(PROGRAM)
    assert run.stdout == b"1\n", run


def judge(sandbox: Sandbox) -> None:
    assert verify(sandbox, TESTS, SOLUTION).correct


def seconds(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def cpu_seconds(action: Callable[[], None]) -> float:
    """Of this process and its ended children: what is left when a busy machine stretches the clock."""
    start = sum(os.times()[:4])
    action()
    return sum(os.times()[:4]) - start


def rate(action: Callable[[], None], runs: int, workers: int) -> float:
    with ThreadPoolExecutor(workers) as pool:
        start = time.perf_counter()
        for future in [pool.submit(action) for _ in range(runs)]:
            future.result()
        return runs / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    sandboxes = [Sandbox("none"), *(Sandbox(layer.name) for layer in reversed(layers()) if layer.holds)]
    actions: dict[str, Callable[[], None]] = {"plain python": plain}
    for sandbox in sandboxes:
        actions[f"layer {sandbox.layer}"] = lambda sandbox=sandbox: execute(sandbox)
        actions[f"layer {sandbox.layer}, judged"] = lambda sandbox=sandbox: judge(sandbox)
    for action in actions.values():
        action()
    times = {name: [] for name in actions}
    for _ in range(options.runs):
        for name, action in actions.items():
            times[name].append(1000 * seconds(action))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"{machine}, Python {platform.python_version()}, {options.runs} runs")
    print(f"| | median ms | overhead ms | CPU ms | per second, {options.workers} workers |")
    print("|---|---|---|---|---|")
    base = statistics.median(times["plain python"])
    for name, values in times.items():
        median = statistics.median(values)
        cpu = f"{1000 * statistics.mean(cpu_seconds(actions[name]) for _ in range(options.runs)):.1f}"
        if "layer N" in name:
            cpu = "-"  # its processes end under bubblewrap, which does not account for them
        per_second = rate(actions[name], options.runs, options.workers)
        print(f"| {name} | {median:.1f} | {median - base:+.1f} | {cpu} | {per_second:.0f} |")


if __name__ == "__main__":
    main()
