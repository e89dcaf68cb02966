r"""Solutions with a judgement of each step, to and from the formats that others use.

- TRL's stepwise supervision: columns `prompt`, `completions` (list of steps) and `labels` (list of bools).
- Math-Shepherd: `input` (question and solution with `ки` after each step), `label` (the same text with `+` or
  `-` in the place of `ки`) and `task`.
- Parquet with `prompt`, `steps`, `mc_correct`, `mc_total`, `value`, `advantage`: nothing is lost.

Counts are the truth and a label is a reading of them: a step counts as right if its completions reach
`threshold`, by default as soon as one of them is right (the hard label of Math-Shepherd). What is read
from a format of labels has the counts 1 of 1 or 0 of 1.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hardwon.checkpoints import write_atomic

MARK = "ки"


@dataclass(frozen=True)
class JudgedSolution:
    """A judged solution: of completions after step i, `mc_correct[i]` of `mc_total[i]` were right.

    A step that was not labelled has a total of 0; `value` and `advantage` are NaN where there is none.
    """

    prompt: str
    steps: tuple[str, ...]
    mc_correct: tuple[int, ...]
    mc_total: tuple[int, ...]
    value: tuple[float, ...] = ()
    advantage: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.steps)
        nan = (math.nan,) * n
        object.__setattr__(self, "value", self.value or nan)
        object.__setattr__(self, "advantage", self.advantage or nan)
        sizes = [len(x) for x in (self.mc_correct, self.mc_total, self.value, self.advantage)]
        if any(size != n for size in sizes):
            raise ValueError(f"{n} steps, but {sizes} correct, total, value and advantage: give one per step")

    def labels(self, threshold: float = 0.0) -> list[bool]:
        """Right where the success rate is over `threshold`; an unlabelled step counts as wrong."""
        return [k > threshold * n for k, n in zip(self.mc_correct, self.mc_total, strict=True)]


# --------------------------------------------------------------------------------------------- TRL


def to_trl(solution: JudgedSolution, threshold: float = 0.0) -> dict[str, Any]:
    """A row for TRL's PRMTrainer. It joins steps with its own separator, so line breaks at their ends go.

    >>> to_trl(JudgedSolution("1+2+3", ("3\\n", "=6."), (16, 16), (16, 16)))
    {'prompt': '1+2+3', 'completions': ['3', '=6.'], 'labels': [True, True]}
    """
    steps = [step.rstrip("\r\n") for step in solution.steps]
    return {"prompt": solution.prompt, "completions": steps, "labels": solution.labels(threshold)}


def from_trl(row: dict[str, Any], separator: str = "\n") -> JudgedSolution:
    """The reverse; `separator` goes back between steps."""
    steps = row["completions"]
    texts = [step + (separator if i < len(steps) - 1 else "") for i, step in enumerate(steps)]
    return _of_labels(row["prompt"], texts, row["labels"])


# ------------------------------------------------------------------------------------ Math-Shepherd


def to_math_shepherd(
    solution: JudgedSolution, threshold: float = 0.0, task: str = "hardwon"
) -> dict[str, str]:
    """A row of Math-Shepherd's data set (arXiv 2312.08935), in which steps begin with `Step 1: ` and so on.

    ValueError for a text that contains the mark itself.
    """
    if any(MARK in text for text in (solution.prompt, *solution.steps)):
        raise ValueError(f"the text contains {MARK!r}, which marks steps in this format: use parquet")
    texts = [step.rstrip("\r\n") for step in solution.steps]
    texts = [t if t.startswith(f"Step {i}:") else f"Step {i}: {t}" for i, t in enumerate(texts, 1)]
    signs = ["+" if right else "-" for right in solution.labels(threshold)]
    return {
        "input": f"{solution.prompt} " + "\n".join(f"{text} {MARK}" for text in texts),
        "label": f"{solution.prompt} "
        + "\n".join(f"{t} {sign}" for t, sign in zip(texts, signs, strict=True)),
        "task": task,
    }


def from_math_shepherd(row: dict[str, str]) -> JudgedSolution:
    """Question, steps (with their line breaks and `Step 1:`) and labels of a row.

    ValueError if `input` and `label` do not fit together, or if no step begins with `Step 1:`, which is
    all that tells the question from the solution.
    """
    *pieces, _ = row["input"].split(MARK)
    labels, place = [], 0
    for number, piece in enumerate(pieces, 1):
        sign = row["label"][place + len(piece) : place + len(piece) + 1]
        if sign not in ("+", "-") or not row["label"].startswith(piece, place):
            raise ValueError(f"step {number} of a Math-Shepherd row: `label` does not follow `input`")
        labels.append(sign == "+")
        place += len(piece) + 1
    start = pieces[0].find("Step 1:") if pieces else -1
    if start < 0:
        raise ValueError(
            "a Math-Shepherd row has no 'Step 1:' and so no border between question and solution"
        )
    texts = [pieces[0][start:], *(piece.removeprefix("\n") for piece in pieces[1:])]
    texts = [text.removesuffix(" ") for text in texts]
    steps = [text + "\n" for text in texts[:-1]] + texts[-1:]
    return _of_labels(pieces[0][:start].removesuffix(" "), steps, labels)


def _of_labels(prompt: str, steps: Sequence[str], labels: Sequence[bool]) -> JudgedSolution:
    return JudgedSolution(prompt, tuple(steps), tuple(int(right) for right in labels), (1,) * len(labels))


# ------------------------------------------------------------------------------------------- files


def write_parquet(path: Path, solutions: Iterable[JudgedSolution]) -> None:
    """Everything that is known of each solution, a row each."""
    schema = pa.schema(
        [
            ("prompt", pa.string()),
            ("steps", pa.list_(pa.string())),
            ("mc_correct", pa.list_(pa.int64())),
            ("mc_total", pa.list_(pa.int64())),
            ("value", pa.list_(pa.float64())),
            ("advantage", pa.list_(pa.float64())),
        ]
    )
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([vars(s) for s in solutions], schema=schema), content)
    write_atomic(path, content.getvalue())


def read_parquet(path: Path) -> list[JudgedSolution]:
    """What `write_parquet` wrote, or any file with `prompt`, `steps`, `mc_correct` and `mc_total`."""
    names = ("prompt", "steps", "mc_correct", "mc_total", "value", "advantage")
    rows = pq.ParquetFile(path).read().to_pylist()
    missing = [n for n in names[:4] if rows and n not in rows[0]]
    if missing:
        raise ValueError(f"{path} has no column {missing[0]!r}; it needs {', '.join(names[:4])}")
    return [
        JudgedSolution(
            row["prompt"],
            *(tuple(row[name]) for name in names[1:4]),
            *(tuple(row.get(n) or ()) for n in names[4:]),
        )
        for row in rows
    ]


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Rows of `to_trl` or `to_math_shepherd`, as a data set library reads them."""
    write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
