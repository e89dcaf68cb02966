"""Solutions of a policy to training problems, right and wrong balanced, in a file that survives a kill.

The offline methods all begin with these: direct advantage, and `sft` and `dpo` as its baselines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardwon.data import Group, Problem, Rollout, Sampling, State
from hardwon.json_lines import JsonLines, read_json_lines
from hardwon.models.parallel import world
from hardwon.rollouts import Sampler, sample_groups

SOLUTIONS = "solutions.jsonl"
# Rollouts that a process samples between two writes (ours): what a kill can cost at most.
ROLLOUTS_A_WRITE = 2048

Progress = Callable[[int, int], None]  # done, total
Choose = Callable[[Sequence[Rollout]], list[Rollout]]


def states_a_write(num_samples: int) -> int:
    """States that all processes sample from between two writes: with more of them none has less to do."""
    return max(1, ROLLOUTS_A_WRITE * world().size // num_samples)


@dataclass(frozen=True)
class Solution:
    """A response that was kept."""

    ids: tuple[int, ...]
    text: str
    correct: bool


@dataclass(frozen=True)
class Collected:
    """The kept solutions of a problem, and what all of those sampled came to."""

    problem: Problem
    solutions: tuple[Solution, ...]
    num_sampled: int
    num_correct: int
    num_tokens: int


def collect(
    path: Path,
    problems: Sequence[Problem],
    *,
    sampler: Sampler,
    sampling: Sampling,
    num_samples: int,
    choose: Choose,
    iteration: int,
    progress: Progress,
) -> list[Collected]:
    """`num_samples` solutions to each problem, of which those that `choose` keeps are stored.

    What `path` already holds is not sampled again.
    """
    with JsonLines(path) as store:
        done = {record["problem_id"] for record in store.records}
        missing = [problem for problem in problems if problem.id not in done]
        size = states_a_write(num_samples)
        for start in range(0, len(missing), size):
            progress(len(problems) - len(missing) + start, len(problems))
            groups = sample_groups(
                [State(problem) for problem in missing[start : start + size]],
                sampler=sampler,
                sampling=sampling,
                num_samples=num_samples,
                iteration=iteration,
            )
            store.append(_record(group, choose) for group in groups)
    progress(len(problems), len(problems))
    return read_solutions(path, problems)


def read_solutions(path: Path, problems: Iterable[Problem]) -> list[Collected]:
    """What `collect` stored, in its order. ValueError for a problem that is no longer in the data."""
    by_id = {problem.id: problem for problem in problems}
    out = []
    for record in read_json_lines(path):
        if record["problem_id"] not in by_id:
            raise ValueError(f"{path} has problem {record['problem_id']!r}, which the data no longer has")
        solutions = tuple(Solution(tuple(s["ids"]), s["text"], s["correct"]) for s in record["solutions"])
        numbers = (record["num_sampled"], record["num_correct"], record["num_tokens"])
        out.append(Collected(by_id[record["problem_id"]], solutions, *numbers))
    return out


def _record(group: Group, choose: Choose) -> dict[str, Any]:
    kept = choose(group.judged)
    return {
        "problem_id": group.state.problem.id,
        "num_sampled": len(group.rollouts),
        "num_correct": sum(r.verdict.correct for r in group.rollouts),
        "num_tokens": sum(r.length for r in group.rollouts),
        "solutions": [
            {"ids": r.sample.ids.tolist(), "text": r.text, "correct": r.verdict.correct} for r in kept
        ],
    }


def keep_balanced(rollouts: Sequence[Rollout], keep: int) -> list[Rollout]:
    """At most `keep` rollouts, right and wrong as equal in number as can be, distinct ones first.

    Of 10 right and 2 wrong, 6 are 4 right and 2 wrong (arXiv 2412.18279 keeps 6 of 32).
    """
    right = _distinct_first([r for r in rollouts if r.verdict.correct])
    wrong = _distinct_first([r for r in rollouts if not r.verdict.correct])
    num_right = min(len(right), max(keep - keep // 2, keep - len(wrong)))
    return right[:num_right] + wrong[: keep - num_right]


def keep_right(rollouts: Sequence[Rollout], keep: int) -> list[Rollout]:
    """At most `keep` right rollouts, each text once."""
    right = [r for r in rollouts if r.verdict.correct]
    return _distinct_first(right)[: min(keep, len({r.sample.ids.tobytes() for r in right}))]


def _distinct_first(rollouts: Sequence[Rollout]) -> list[Rollout]:
    first: list[Rollout] = []
    again: list[Rollout] = []
    seen: set[bytes] = set()
    for rollout in rollouts:
        key = rollout.sample.ids.tobytes()
        (again if key in seen else first).append(rollout)
        seen.add(key)
    return first + again
