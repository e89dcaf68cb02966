"""What a run of direct advantage leaves in its directory, as data. Reading needs no lock and no model.

steps/iteration-1/           one folder a repetition of the method
  solutions.jsonl            stage 1: the kept solutions of each problem
  steps.jsonl                their steps, with where each ends in tokens
  values.jsonl               stage 2: Monte-Carlo counts of each state, and the steps that were sampled
  fresh.jsonl                a second, independent labelling of some held-out states
  critic/, critic.json       stage 3: the critic, Hugging Face format, and how good it is
  advantages.parquet, .json  stage 4: every (state, step) pair with value and advantage
  policy/, policy.json       stage 5: the policy, Hugging Face format
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hardwon.checkpoints import numbered
from hardwon.json_lines import read_json_lines
from hardwon.offline.solutions import SOLUTIONS
from hardwon.steps.formats import JudgedSolution

STEPS, VALUES, FRESH = "steps.jsonl", "values.jsonl", "fresh.jsonl"
PAIRS = "advantages.parquet"


def stage_folder(run_path: str | Path, iteration: int) -> Path:
    return Path(run_path) / "steps" / f"iteration-{iteration}"


def judged_iterations(run_path: str | Path) -> list[int]:
    """The repetitions that have advantages, in order."""
    folders = numbered(Path(run_path) / "steps")
    return sorted(number for number, folder in folders if (folder / PAIRS).is_file())


def judged_iteration(run_path: str | Path, iteration: int | None = None) -> int:
    """That repetition, by default the last that has advantages. ValueError if it has none."""
    numbers = judged_iterations(run_path)
    if not numbers:
        raise ValueError(
            f"{run_path} has no advantages: it is no run of direct_advantage, or has not come so far"
        )
    if iteration is not None and iteration not in numbers:
        raise ValueError(
            f"iteration={iteration}: {run_path} has advantages of {', '.join(map(str, numbers))}; "
            f"the nearest is {min(numbers, key=lambda number: abs(number - iteration))}"
        )
    return numbers[-1] if iteration is None else iteration


@dataclass(frozen=True)
class SolutionSteps:
    """A kept solution with the judgement of each step; `success_rate` is of all that were sampled with it."""

    problem_id: str
    correct: bool
    success_rate: float
    judged: JudgedSolution


def read_solution_steps(run_path: str | Path, iteration: int | None = None) -> list[SolutionSteps]:
    """The kept solutions of a repetition (default: the last), each step with counts, value and advantage."""
    folder = stage_folder(run_path, judged_iteration(run_path, iteration))
    pairs = _Pairs(pq.ParquetFile(folder / PAIRS).read().to_pylist())
    rates = {
        r["problem_id"]: r["num_correct"] / r["num_sampled"] for r in read_json_lines(folder / SOLUTIONS)
    }
    return [_judged(record, pairs, rates[record["problem_id"]]) for record in read_json_lines(folder / STEPS)]


class _Pairs:
    """Look-up of states and steps by their ids."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        self.steps: dict[tuple[str, tuple[int, ...], tuple[int, ...]], dict[str, Any]] = {}
        self.states: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
        for row in rows:
            prefix = tuple(row["prefix_ids"])
            self.steps[row["problem_id"], prefix, tuple(row["action_ids"])] = row
            self.states[row["problem_id"], prefix] = row


def _judged(record: dict[str, Any], pairs: _Pairs, success_rate: float) -> SolutionSteps:
    ids, ends = tuple(record["ids"]), record["ends"]
    columns = [
        _judged_step(record, pairs, ids[:start], ids[start:end], last=end == len(ids))
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
    ]
    correct, total, value, advantage = zip(*columns, strict=True) if columns else ((), (), (), ())
    judged = JudgedSolution(record["prompt"], tuple(record["steps"]), correct, total, value, advantage)
    return SolutionSteps(record["problem_id"], record["correct"], success_rate, judged)


def _judged_step(
    record: dict[str, Any], pairs: _Pairs, prefix: Sequence[int], step: Sequence[int], *, last: bool
) -> tuple[int, int, float, float]:
    """Counts and value of the state after a step, and the step's advantage.

    The completions of a state need not have taken the step that the solution took. Its advantage is then
    its value less the state's mean, which is the same for all of its steps.
    """
    problem_id, here = record["problem_id"], tuple(prefix)
    after = pairs.states.get((problem_id, (*here, *step)))
    if last:
        correct, total, value = int(record["correct"]), 1, float(record["correct"])
    elif after is not None:
        correct, total, value = after["state_correct"], after["state_total"], after["state_value"]
    else:
        correct, total, value = 0, 0, math.nan
    pair = pairs.steps.get((problem_id, here, tuple(step)))
    sibling = pairs.states.get((problem_id, here))
    if pair is not None:
        return correct, total, pair["value"], pair["advantage"]
    mean = sibling["value"] - sibling["advantage"] if sibling is not None else math.nan
    return correct, total, value, value - mean
