"""What a run directory holds, as data: settings, metrics and rollouts. Reading needs no lock."""

from __future__ import annotations

import contextlib
import difflib
import json
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from hardwon.checkpoints import log, numbered
from hardwon.data import Group, Problem

CONFIG, METRICS = "config.yaml", "metrics.jsonl"


# ---------------------------------------------------------------------------------------------- settings


def to_yaml(config: Mapping[str, Any]) -> bytes:
    text: str = yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True)
    return text.encode("utf-8", "replace")


def _plain(value: Any) -> Any:
    """Settings as YAML gives them back: tuples become lists, paths text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def read_config(path: str | Path) -> dict[str, Any]:
    """The settings of the run at `path`. Raises ValueError, naming runs near by, if there is none."""
    file = Path(path) / CONFIG
    if not file.is_file():
        near: list[str] = []
        with contextlib.suppress(OSError):
            runs = [p.name for p in file.parent.parent.iterdir() if (p / CONFIG).is_file()]
            near = difflib.get_close_matches(file.parent.name, runs, n=3, cutoff=0.3)
        hint = f"; near by: {', '.join(near)}" if near else ""
        raise ValueError(f"{path} is not a run directory: it has no {CONFIG}{hint}")
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{file} cannot be read: it holds no settings")
    return config


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        flat |= _flatten(value, f"{name}.") if isinstance(value, dict) and value else {name: value}
    return flat


def check_unchanged(
    stored: Mapping[str, Any], now: Mapping[str, Any], may_change: Collection[str] = ()
) -> None:
    """Raises ValueError naming every setting that differs from the run's, but for those in `may_change`."""
    before, after = _flatten(_plain(stored)), _flatten(_plain(now))
    changes = [
        f"{name} was {before.get(name, 'not set')!r} and is now {after.get(name, 'not set')!r}"
        for name in sorted(before.keys() | after.keys())
        if name not in may_change and before.get(name, "not set") != after.get(name, "not set")
    ]
    if changes:
        raise ValueError(
            f"a run can only be resumed with its own settings: {'; '.join(changes)}. "
            "Leave them out to resume, or start a new run directory"
        )


# ----------------------------------------------------------------------------------------------- records


def rollout_path(path: str | Path, iteration: int) -> Path:
    return Path(path) / "rollouts" / f"iteration-{iteration:06d}.parquet"


def prompt_text(problem: Problem) -> str:
    """A prompt as text to read; chat messages are written one after the other with their role."""
    if isinstance(problem.prompt, str):
        return problem.prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in problem.prompt)


def visible(text: str, longest: int | None = None) -> str:
    """Model text that is safe to show: control and direction characters are named, line breaks stay.

    >>> visible("a\\x1b[2Jb\\u202e")
    'a<U+001B>[2Jb<U+202E>'
    """
    cut = "" if longest is None or len(text) <= longest else f" ... ({len(text) - longest:,} more characters)"
    shown = text[:longest].replace("\r\n", "\n")
    if not shown.isprintable():
        shown = "".join(_visible_character(c) for c in shown)
    return shown + cut


def _visible_character(character: str) -> str:
    if character in "\n\t" or not unicodedata.category(character).startswith("C"):
        return character
    return f"<U+{ord(character):04X}>"


def rollout_table(
    iteration: int, groups: Sequence[Group], advantages_PG: Any, *, trained: Any = True, **columns: Any
) -> pa.Table:
    """One row a rollout, group by group; the columns are what `Run.save_rollouts` stores."""
    sizes = [len(group.rollouts) for group in groups]
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    shape = (len(groups), max(sizes))
    present_PG = np.arange(shape[1]) < np.array(sizes)[:, None]

    def per_rollout(values: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(values), shape)[present_PG]

    def text(values: list[str]) -> list[str]:
        # Lone surrogates, which a byte-level tokenizer can produce, are no valid UTF-8.
        return [value.encode("utf-8", "replace").decode() for value in values]

    def per_group(values: list[Any]) -> pa.Array:
        return pa.array(values).take(pa.array(np.repeat(np.arange(len(groups)), sizes)))

    return pa.table(
        {
            "iteration": np.full(len(rollouts), iteration, np.int32),
            "problem_id": per_group(text([group.state.problem.id for group in groups])),
            "prompt": per_group(text([prompt_text(group.state.problem) for group in groups])),
            "index": np.concatenate([np.arange(size, dtype=np.int32) for size in sizes]),
            "text": text([r.text for r in rollouts]),
            "outcome": [r.verdict.outcome for r in rollouts],
            "correct": np.array([r.verdict.correct for r in rollouts]),
            "reward": np.array([r.reward for r in rollouts], np.float32),
            "advantage": per_rollout(advantages_PG).astype(np.float32),
            "length": np.array([r.length for r in rollouts], np.int32),
            "truncated": np.array([r.truncated for r in rollouts]),
            "success_rate": per_group([float(group.success_rate) for group in groups]),
            "trained": per_rollout(trained).astype(bool),
            "age": per_group([iteration - group.iteration for group in groups]),
            **{name: per_rollout(values) for name, values in columns.items()},
        }
    )


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The metrics of a run, one dict an iteration, in order. A line cut short by a kill is left out."""
    merged: dict[int, dict[str, Any]] = {}
    for line in metric_lines(Path(path)):
        merged.setdefault(line["iteration"], {}).update(line)
    return [merged[iteration] for iteration in sorted(merged)]


def metric_lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    file = path / METRICS
    for line in file.read_bytes().splitlines() if file.is_file() else ():
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and type(record.get("iteration")) is int:
                lines.append(record)
    return lines


def rollout_iterations(path: str | Path) -> list[int]:
    """The iterations of which rollouts are stored."""
    return [number for number, _ in numbered(Path(path) / "rollouts", "iteration-*.parquet")]


def read_rollouts(
    path: str | Path, iterations: Iterable[int] | None = None, columns: Sequence[str] | None = None
) -> pa.Table:
    """Stored rollouts as one table; every iteration by default. A file cut short is passed over (warned).

    Raises ValueError if the run has none of those asked for.
    """
    stored = rollout_iterations(path)
    tables = []
    for iteration in stored if iterations is None else iterations:
        file = rollout_path(path, iteration)
        try:
            tables.append(pq.ParquetFile(file).read(columns))
        except FileNotFoundError:
            continue
        except (pa.ArrowException, OSError) as error:
            log.warning("Rollouts %s cannot be read and are passed over: %s", file, error)
    if not tables:
        have = f"it has iterations {stored[0]} to {stored[-1]}" if stored else "it has none"
        raise ValueError(f"{path} has no such rollouts: {have}")
    return pa.concat_tables(tables, promote_options="permissive")
