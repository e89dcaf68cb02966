"""Python programs judged by unit tests in a sandbox (verifiers/code.py, docs/sandbox.md).

Rows hold tests in any of the layouts of layouts/code.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hardwon.data import Problem, Verdict
from hardwon.tasks.layouts.reader import Reader, code_problem
from hardwon.tasks.layouts.tests import end_unpacker
from hardwon.tasks.sources import Source
from hardwon.tasks.splits import HELD_OUT_FRACTION, RowWeights, load_splits
from hardwon.tasks.task import Task
from hardwon.verifiers import code
from hardwon.verifiers.sandbox_layers import Limits
from hardwon.verifiers.sandbox_probe import open_sandbox

PACKAGED = Path(__file__).with_name("code_problems.jsonl")
PACKAGED_HELD_OUT = 0.25


def load(
    data: Source | None = None,
    eval_data: Source | None = None,
    seed: int = 0,
    *,
    held_out_fraction: float | None = None,
    row_weights: RowWeights = "distinct",
    columns: Mapping[str, str] | None = None,
    row_function: str | None = None,
    partial_credit: bool = False,
    sandbox: str = "auto",
    unsafe_no_isolation: bool = False,
    cpu_seconds: int = 5,
    memory_mb: int = 1024,
    verifier_workers: int | None = None,
    packages: Sequence[str] | None = None,
) -> Task:
    """Problems of `data`, or the 26 small ones that come with the package.

    columns              {part: column} for rows of no known layout (docs/layouts.md)
    row_function         "module:function" that rewrites rows
    partial_credit       Verdict.score is the passed fraction of tests, which runs all of them; else no score
    sandbox              "auto" (the strongest layer that holds here), "N" or "L"
    unsafe_no_isolation  run programs with resource limits only
    cpu_seconds          of one run (ours); three times that by the clock
    memory_mb            address space of one run (ours)
    verifier_workers     runs at the same time; default: the machine's cores
    packages             what programs may import beside the standard library; default: numpy and
                         sortedcontainers, where they are installed

    The split depends on the prompts alone, so `seed` changes nothing. ValueError names bad rows, and a
    layer that does not hold.
    """
    if held_out_fraction is None:
        held_out_fraction = HELD_OUT_FRACTION if data else PACKAGED_HELD_OUT
    reader = Reader(code_problem, columns, row_function)
    try:
        splits = load_splits(
            data or str(PACKAGED),
            eval_data,
            held_out_fraction=held_out_fraction,
            row_weights=row_weights,
            convert=reader,
        )
    finally:
        end_unpacker()
    return code_task(
        "code",
        splits,
        gold=gold,
        partial_credit=partial_credit,
        sandbox=sandbox,
        unsafe_no_isolation=unsafe_no_isolation,
        limits=Limits(wall_seconds=3.0 * cpu_seconds, cpu_seconds=cpu_seconds, memory_bytes=memory_mb << 20),
        verifier_workers=verifier_workers,
        packages=packages,
        notes=(*reader.notes, *splits.notes),
    )


def code_task(
    name: str,
    splits: Mapping[str, Sequence[Problem]],
    *,
    gold: Callable[[Problem], str],
    partial_credit: bool = False,
    sandbox: str = "auto",
    unsafe_no_isolation: bool = False,
    limits: Limits | None = None,
    verifier_workers: int | None = None,
    packages: Sequence[str] | None = None,
    notes: tuple[str, ...] = (),
) -> Task:
    """A task over problems whose `info["tests"]` are unit tests (verifiers/code.py).

    Of equal answers to one problem in one call only the first runs: the others get its verdict.
    """
    box = open_sandbox(
        sandbox, limits or Limits(), unsafe_no_isolation=unsafe_no_isolation, packages=packages
    )
    pool = ThreadPoolExecutor(verifier_workers or os.cpu_count() or 1, thread_name_prefix="code")

    def verify_one(pair: tuple[Problem, str]) -> Verdict:
        problem, text = pair
        return code.verify(box, problem.info["tests"], text, partial=partial_credit)

    def verify(pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        distinct = {(id(problem), text): (problem, text) for problem, text in pairs}
        verdicts = dict(zip(distinct, pool.map(verify_one, distinct.values()), strict=True))
        return [verdicts[id(problem), text] for problem, text in pairs]

    return Task(name, lambda split: list(splits[split]), verify, gold, close=pool.shutdown, notes=notes)


def gold(problem: Problem) -> str:
    """The row's own solution in a fenced block. ValueError if the row has none."""
    if not problem.answer:
        raise ValueError(f"problem {problem.id!r} has no solution column; columns={{answer: ...}} names one")
    return f"```python\n{problem.answer.rstrip()}\n```"
