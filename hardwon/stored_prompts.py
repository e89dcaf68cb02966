"""Prompts as token ids, rendered once and kept with the run.

A chat template may write today's date, and a library may change its default instruction. So a run keeps the
ids in `prompts.parquet` (problem_id, key, ids), and from then on reads them: after a resume, at every
evaluation, in every stage of an offline method, and on every rank.
"""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hardwon.checkpoints import write_atomic
from hardwon.data import Problem
from hardwon.models.parallel import on_main

PROMPTS = "prompts.parquet"

Render = Callable[[Problem], tuple[int, ...]]


def problem_key(problem: Problem) -> str:
    """What tells a problem from all others of a run; both splits may use the same ids."""
    content = repr((problem.id, problem.prompt)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class StoredPrompts:
    """`prompts(problem)` are the token ids of its prompt: those that are stored, else rendered now."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._ids: dict[str, np.ndarray] = {}  # int32: a quarter of what Python's integers take

    def __call__(self, problem: Problem) -> tuple[int, ...]:
        key = problem_key(problem)
        if key not in self._ids:
            self._ids[key] = np.array(self._render(problem), np.int32)
        return tuple(self._ids[key].tolist())

    def load(self, path: Path) -> None:
        """Use the prompts of a file, if it is there. ValueError for one that can't be read."""
        if path.is_file():
            self._ids |= _read(path)

    def keep(self, path: Path, problems: Sequence[Problem]) -> None:
        """Render what the file does not have and add it, so that a bad prompt is found now and not at night.

        Of several ranks the first one renders and writes, and all read.
        """
        self.load(path)

        def complete() -> None:
            wanted = {problem_key(problem): problem for problem in problems}
            missing = {key: problem for key, problem in wanted.items() if key not in self._ids}
            if missing:
                _write(path, {key: (p.id, np.array(self._render(p), np.int32)) for key, p in missing.items()})

        on_main(complete)
        self.load(path)


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        table = pq.ParquetFile(path).read(["key", "ids"])
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} can't be read ({error}). It holds the run's prompts: take it away to render them anew"
        ) from error
    keys = table["key"].to_pylist()
    ids: list[np.ndarray] = [row for chunk in table["ids"].chunks for row in _rows(chunk)]
    return dict(zip(keys, ids, strict=True))


def _rows(lists: pa.LargeListArray) -> Iterable[np.ndarray]:
    values, offsets = lists.values.to_numpy(), lists.offsets.to_numpy()
    return (values[a:b] for a, b in itertools.pairwise(offsets))


def _write(path: Path, added: dict[str, tuple[str, np.ndarray]]) -> None:
    """The file with more prompts, whole or not there at all."""
    offsets = np.cumsum([0, *(len(ids) for _, ids in added.values())], dtype=np.int64)
    values = np.concatenate([ids for _, ids in added.values()])
    problem_ids = [name.encode("utf-8", "replace").decode() for name, _ in added.values()]
    columns = {
        "problem_id": pa.array(problem_ids, pa.string()),
        "key": pa.array(list(added), pa.string()),
        "ids": pa.LargeListArray.from_arrays(offsets, values),
    }
    table = pa.table(columns)
    if path.is_file():
        table = pa.concat_tables([pq.ParquetFile(path).read(), table])
    content = io.BytesIO()
    pq.write_table(table, content, compression="zstd")
    write_atomic(path, content.getvalue())
