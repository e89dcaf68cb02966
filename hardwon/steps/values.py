"""Stages 1 and 2 of direct advantage: the states of the kept solutions, and their Monte-Carlo values.

From every state the reference policy completes the solution N times. The store keeps counts, never labels:
how many of the judged completions were right, and by which first step each of them went on. These first
steps are the candidate actions. A line of the store is whole by itself, and a batch of lines is flushed
before the next one begins: a kill loses at most a batch, and a restart labels only what has no line.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hardwon.data import Group, Sampling, State
from hardwon.functional.step_advantages import value_standard_errors
from hardwon.json_lines import JsonLines, read_json_lines
from hardwon.offline.solutions import Collected, Progress, states_a_write
from hardwon.rollouts import Sampler, sample_groups
from hardwon.steps.split import StepSplitter

# The share of the states, those with the widest intervals, that adaptive allocation labels again (ours).
ADAPTIVE_SHARE = 0.5


@dataclass(frozen=True)
class Action:
    """A candidate step: its ids, how many completions began with it, and how many of them were right.

    `terminal` marks a step that ends the response; its value is its reward, `correct / judged`.
    """

    ids: tuple[int, ...]
    count: int
    correct: int
    judged: int
    terminal: bool


@dataclass(frozen=True)
class Labelled:
    """A state with `correct` of `judged` completions right, and the steps that they began with."""

    state: State
    depth: int
    correct: int
    judged: int
    num_tokens: int
    actions: tuple[Action, ...]


def states_of(collected: Iterable[Collected], splitter: StepSplitter) -> list[State]:
    """The states at every step boundary of the kept solutions: each once, without their ends.

    The solution `3\\n=4.` has two: before anything, and after `3\\n`.
    """
    states: dict[tuple[str, tuple[int, ...]], State] = {}
    for entry in collected:
        for solution in entry.solutions:
            for end in [0, *splitter.ends(solution.ids)[:-1]]:
                key = (entry.problem.id, solution.ids[:end])
                states.setdefault(key, State(entry.problem, solution.ids[:end]))
    return list(states.values())


@dataclass(frozen=True)
class Labeller:
    """What it takes to label a state with `num_samples` completions."""

    sampler: Sampler
    sampling: Sampling
    splitter: StepSplitter
    num_samples: int
    iteration: int


def label(
    path: Path,
    states: Sequence[State],
    labeller: Labeller,
    *,
    seed: int,
    max_states: int = 0,
    max_tokens: int = 0,
    adaptive: bool = False,
    progress: Progress,
) -> list[Labelled]:
    """Complete every state that `path` has no line of, until a budget (0: none) is used up.

    States are taken in an order drawn by `seed`, so that a budget spreads over all problems. With
    `adaptive`, the half with the widest intervals is labelled a second time.
    """
    order = random.Random(seed).sample(states, len(states))[: max_states or None]
    with JsonLines(path) as store:
        _label_round(store, order, labeller, 0, max_tokens, progress)
    labelled = read_labelled(path, order)
    if adaptive:
        with JsonLines(path) as store:
            wide = _widest(_read(store.records, order, rounds=(0,)))
            _label_round(store, wide, labeller, 1, max_tokens, progress)
        labelled = read_labelled(path, order)
    return labelled


def _label_round(
    store: JsonLines,
    states: Sequence[State],
    labeller: Labeller,
    round_: int,
    max_tokens: int,
    progress: Progress,
) -> None:
    done = {_key(record) for record in store.records if record["round"] == round_}
    missing = [s for s in states if (s.problem.id, s.prefix_ids) not in done]
    tokens = sum(record["num_tokens"] for record in store.records)
    size = states_a_write(labeller.num_samples)
    for start in range(0, len(missing), size):
        if max_tokens and tokens >= max_tokens:
            break
        progress(len(states) - len(missing) + start, len(states))
        records = _complete(missing[start : start + size], labeller, round_)
        store.append(records)
        store.records.extend(records)
        tokens += sum(record["num_tokens"] for record in records)
    progress(len(states), len(states))


def _complete(states: Sequence[State], labeller: Labeller, round_: int) -> list[dict[str, Any]]:
    groups = sample_groups(
        states,
        sampler=labeller.sampler,
        sampling=labeller.sampling,
        num_samples=labeller.num_samples,
        iteration=labeller.iteration + round_,
    )
    longest = labeller.sampling.max_new_tokens
    return [record_of(group, labeller.splitter, longest) | {"round": round_} for group in groups]


def record_of(group: Group, splitter: StepSplitter, max_new_tokens: int) -> dict[str, Any]:
    """The line of one labelled state.

    Completions whose verifier failed are left out of every count. A response, prefix and completion
    together, over `max_new_tokens` counts as wrong: the policy could not have written it.
    """
    prefix = group.state.prefix_ids
    actions: dict[tuple[tuple[int, ...], bool], dict[str, Any]] = {}
    ends: dict[tuple[int, ...], int] = {}
    for rollout in group.rollouts:
        ids = (*prefix, *rollout.sample.ids.tolist())
        if ids not in ends:
            ends[ids] = next(end for end in splitter.ends(ids) if end > len(prefix))
        step = ids[len(prefix) : ends[ids]]
        terminal = ends[ids] == len(ids)
        entry = actions.setdefault(
            (step, terminal), {"ids": step, "count": 0, "correct": 0, "judged": 0, "terminal": terminal}
        )
        entry["count"] += 1
        entry["judged"] += not rollout.verdict.is_error
        entry["correct"] += rollout.verdict.correct and len(ids) <= max_new_tokens
    return {
        "problem_id": group.state.problem.id,
        "prefix_ids": prefix,
        "depth": len(splitter.steps(prefix)),
        "correct": sum(a["correct"] for a in actions.values()),
        "judged": sum(a["judged"] for a in actions.values()),
        "num_tokens": sum(r.length for r in group.rollouts),
        "actions": list(actions.values()),
    }


def read_labelled(path: Path, states: Sequence[State]) -> list[Labelled]:
    """The labelled ones of `states`, in their order; the rounds of a state are added up."""
    return _read(read_json_lines(path), states, rounds=(0, 1))


def _read(
    records: Iterable[dict[str, Any]], states: Sequence[State], rounds: tuple[int, ...]
) -> list[Labelled]:
    by_key: dict[tuple[str, tuple[int, ...]], list[dict[str, Any]]] = {}
    for record in records:
        if record["round"] in rounds:
            by_key.setdefault(_key(record), []).append(record)
    keys = [(s.problem.id, s.prefix_ids) for s in states]
    return [_merged(s, by_key[key]) for s, key in zip(states, keys, strict=True) if key in by_key]


def _key(record: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
    return record["problem_id"], tuple(record["prefix_ids"])


def _merged(state: State, records: Sequence[dict[str, Any]]) -> Labelled:
    # A step cut by the length limit may have the ids of one that goes on: it is another action.
    actions: dict[tuple[tuple[int, ...], bool], Action] = {}
    for entry in (action for record in records for action in record["actions"]):
        ids, terminal = tuple(entry["ids"]), entry["terminal"]
        old = actions.get((ids, terminal), Action(ids, 0, 0, 0, terminal))
        actions[ids, terminal] = Action(
            ids,
            old.count + entry["count"],
            old.correct + entry["correct"],
            old.judged + entry["judged"],
            terminal,
        )
    return Labelled(
        state,
        records[0]["depth"],
        sum(r["correct"] for r in records),
        sum(r["judged"] for r in records),
        sum(r["num_tokens"] for r in records),
        tuple(actions.values()),
    )


def _widest(labelled: Sequence[Labelled]) -> list[State]:
    """The share of the states whose values are least certain, in the order of `labelled`."""
    judged = [entry for entry in labelled if entry.judged]
    errors = standard_errors(judged)
    order = sorted(range(len(judged)), key=lambda i: -errors[i])[: round(ADAPTIVE_SHARE * len(judged))]
    return [judged[i].state for i in sorted(order)]


def standard_errors(labelled: Sequence[Labelled]) -> list[float]:
    """The standard error of each state's Monte-Carlo value."""
    correct = torch.tensor([entry.correct for entry in labelled])
    judged = torch.tensor([entry.judged for entry in labelled])
    return value_standard_errors(correct, judged).tolist() if labelled else []
