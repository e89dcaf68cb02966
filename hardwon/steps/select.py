"""Stage 4 of direct advantage: advantages of the candidate steps, and the states worth training on.

The critic judges the state after each step; the verifier's reward stands in for it where the step ends the
response. Every (state, step) pair goes to one parquet file, kept or not, with the counts, values and
advantages that it was judged by, and for the kept ones the reference policy's log-probs, computed once.

Shapes: `S` states, `M` candidate steps of a state, the most that any has; shorter rows are padded.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from hardwon.checkpoints import saving, write_atomic
from hardwon.data import State
from hardwon.functional.step_advantages import action_values, select_states, step_advantages
from hardwon.steps.values import Labelled

Values = Callable[[Sequence[State]], Tensor]  # states -> values in [0, 1], float32 (S,)


@dataclass(frozen=True)
class Judged:
    """Values and advantages of the candidate steps, values of the states, and which states to keep."""

    counts_SM: Tensor
    values_SM: Tensor
    advantages_SM: Tensor
    state_values_S: Tensor
    kept_S: Tensor


def judge(
    labelled: Sequence[Labelled], values: Values, *, baseline: Literal["unique", "all"], min_gap: float
) -> Judged:
    """Advantages of every candidate step (arXiv 2412.18279), equal steps of a state counted once."""
    states = [entry.state for entry in labelled]
    after = [
        State(entry.state.problem, entry.state.prefix_ids + action.ids)
        for entry in labelled
        for action in entry.actions
        if not action.terminal
    ]
    known = _values_of([*states, *after], values)
    shape = (len(labelled), max((len(entry.actions) for entry in labelled), default=0))
    counts_SM, next_SM, rewards_SM = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    terminal_SM = torch.zeros(shape, dtype=torch.bool)
    for s, entry in enumerate(labelled):
        for m, action in enumerate(entry.actions):
            # A step that ends the response in a way that no verifier could judge is worth nothing known.
            counts_SM[s, m] = action.count if action.judged or not action.terminal else 0
            terminal_SM[s, m] = action.terminal
            if action.terminal:
                rewards_SM[s, m] = action.correct / max(action.judged, 1)
            else:
                next_SM[s, m] = known[_key(entry.state, action.ids)]
    values_SM = action_values(next_SM, rewards_SM, terminal_SM)
    advantages_SM = step_advantages(values_SM, counts_SM, baseline=baseline)
    kept_S = select_states(values_SM, counts_SM, minimum_gap=min_gap)
    state_values_S = torch.tensor([known[_key(state)] for state in states])
    return Judged(counts_SM, values_SM, advantages_SM, state_values_S, kept_S)


def _key(state: State, action_ids: tuple[int, ...] = ()) -> tuple[str, tuple[int, ...]]:
    return state.problem.id, state.prefix_ids + action_ids


def _values_of(states: Sequence[State], values: Values) -> dict[tuple[str, tuple[int, ...]], float]:
    """The critic's value of each distinct state, computed once."""
    distinct = {_key(state): state for state in states}
    return dict(zip(distinct, values(list(distinct.values())).tolist(), strict=True))


def pair_rows(
    labelled: Sequence[Labelled], judged: Judged, validation: set[str], decode: Callable[[Sequence[int]], str]
) -> list[dict[str, Any]]:
    """One row a (state, step) pair. `kept` marks those to train on: never those of validation problems."""
    rows = []
    for s, entry in enumerate(labelled):
        held_out = entry.state.problem.id in validation
        shared = {
            "problem_id": entry.state.problem.id,
            "state": s,
            "depth": entry.depth,
            "prefix_ids": list(entry.state.prefix_ids),
            "state_correct": entry.correct,
            "state_total": entry.judged,
            "state_value": float(judged.state_values_S[s]),
            "validation": held_out,
        }
        for m, action in enumerate(entry.actions):
            if not judged.counts_SM[s, m]:
                continue
            rows.append(
                shared
                | {
                    "action_ids": list(action.ids),
                    "action_text": decode(action.ids).encode("utf-8", "replace").decode(),
                    "terminal": action.terminal,
                    "count": action.count,
                    "mc_correct": action.correct,
                    "mc_total": action.judged,
                    "value": float(judged.values_SM[s, m]),
                    "advantage": float(judged.advantages_SM[s, m]),
                    "kept": bool(judged.kept_S[s]) and not held_out,
                }
            )
    return rows


SCHEMA = pa.schema(
    [
        ("problem_id", pa.string()),
        ("state", pa.int64()),
        ("depth", pa.int64()),
        ("prefix_ids", pa.list_(pa.int64())),
        ("state_correct", pa.int64()),
        ("state_total", pa.int64()),
        ("state_value", pa.float32()),
        ("validation", pa.bool_()),
        ("action_ids", pa.list_(pa.int64())),
        ("action_text", pa.string()),
        ("terminal", pa.bool_()),
        ("count", pa.int64()),
        ("mc_correct", pa.int64()),
        ("mc_total", pa.int64()),
        ("value", pa.float32()),
        ("advantage", pa.float32()),
        ("kept", pa.bool_()),
        ("reference_log_probs", pa.list_(pa.float32())),
    ]
)


def write_pairs(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes the pairs whole or not at all."""
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMA), content, compression="zstd")
    with saving("the advantages", path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content.getvalue())


def read_pairs(path: Path, *, kept_only: bool = False) -> list[dict[str, Any]]:
    """The rows that `write_pairs` wrote."""
    rows: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    return [row for row in rows if row["kept"]] if kept_only else rows


def selection_summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """States and pairs, how many are kept, actions a state, and how far apart the advantages are."""
    states = {row["state"] for row in rows}
    kept = [row for row in rows if row["kept"]]
    kept_states = {row["state"] for row in kept}
    trainable = {row["state"] for row in rows if not row["validation"]}
    return {
        "states": float(len(states)),
        "states_kept": float(len(kept_states)),
        "frac_states_kept": len(kept_states) / max(len(trainable), 1),
        "actions_per_state": len(rows) / max(len(states), 1),
        "pairs_kept": float(len(kept)),
        "frac_terminal": sum(row["terminal"] for row in kept) / max(len(kept), 1),
        "advantage_mean_abs": sum(abs(row["advantage"]) for row in kept) / max(len(kept), 1),
    }
