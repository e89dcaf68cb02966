"""Files that survive a kill: atomic writes, checkpoints with a manifest, and state without pickle.

A checkpoint is a directory `iteration-000123` with a `manifest.json` that lists every file with its
size and SHA-256. It is written under a temporary name, synced, and then renamed, so that a process
killed at any moment leaves either the whole checkpoint or none. Damage that happens later (a disk that
lost blocks, a copy that was cut short) is found by the manifest, and the checkpoint before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from hardwon.data import Group, Problem, Rollout, Sample, Sampling, State, Verdict

log = logging.getLogger("hardwon")

MANIFEST = "manifest.json"
RECORDS: dict[str, type] = {
    c.__name__: c for c in (Problem, State, Sampling, Sample, Verdict, Rollout, Group)
}


class SaveError(OSError):
    """A file of the run could not be written; what was saved before is intact."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: the state after training iteration `iteration`."""

    path: Path
    iteration: int
    metric: float | None = None


# ---------------------------------------------------------------------------------------------- writing


@contextlib.contextmanager
def saving(what: str, path: Path, note: str = "") -> Iterator[None]:
    """Turns a failed write (disk full, read-only, quota) into a `SaveError` that names the path."""
    try:
        yield
    except SaveError:
        raise
    # safetensors and torch report a full disk as errors of their own, not as OSError.
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SaveError(f"cannot save {what} at {path}: {reason}{'. ' + note if note else ''}") from error


def fsync(path: Path) -> None:
    """Forces a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: bytes) -> None:
    """Writes a file so that readers, and a process killed meanwhile, see the old content or the new one."""
    temporary = path.with_name(f".{path.name}.partial")
    with saving(path.name, path):
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        fsync(path.parent)


def move_directory(source: Path, target: Path) -> None:
    """Puts a written directory in the place of `target`: its files reach the disk before its name does."""
    for path in source.rglob("*"):
        fsync(path)
    fsync(source)
    shutil.rmtree(target, ignore_errors=True)
    os.rename(source, target)
    fsync(target.parent)


# ------------------------------------------------------------------------------------------ checkpoints


def write_checkpoint(
    folder: Path, iteration: int, write: Callable[[Path], None], metric: float | None = None
) -> Checkpoint:
    """Adds the checkpoint of `iteration` to `folder`: complete and synced, or not there at all.

    `write(directory)` puts the files into an empty directory. A whole checkpoint of the same iteration
    is kept as it is; a damaged one is replaced. Raises SaveError if the disk refuses.
    """
    target = folder / f"iteration-{iteration:06d}"
    if target.exists() and damage(target) is None:
        return _read(target)
    earlier = [c.path.name for c in list_checkpoints(folder)]
    note = f"The earlier checkpoint {earlier[-1]} is intact" if earlier else "There is no earlier checkpoint"
    temporary = folder / f".{target.name}.partial"
    with saving("the checkpoint", target, note):
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            write(temporary)
            _seal(temporary, iteration, metric)
            move_directory(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return Checkpoint(target, iteration, metric)


def _seal(directory: Path, iteration: int, metric: float | None) -> None:
    """Writes the manifest of a directory."""
    entries = sorted(directory.rglob("*"))
    files = {
        p.relative_to(directory).as_posix(): {"size": p.stat().st_size, "sha256": _sha256(p)}
        for p in entries
        if p.is_file()
    }
    manifest = {"iteration": iteration, "metric": metric, "files": files}
    write_atomic(directory / MANIFEST, json.dumps(manifest, indent=1).encode())


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint directory, in words; None if every file is as it was written."""
    try:
        files = json.loads((checkpoint / MANIFEST).read_text())["files"]
        for name, entry in files.items():
            path = checkpoint / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != entry["size"]:
                return f"{name} has {path.stat().st_size} bytes instead of {entry['size']}"
            if _sha256(path) != entry["sha256"]:
                return f"{name} has changed since it was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    return None


def _read(path: Path) -> Checkpoint:
    manifest = json.loads((path / MANIFEST).read_text())
    return Checkpoint(path, int(manifest["iteration"]), manifest["metric"])


def numbered(folder: Path, pattern: str = "iteration-*") -> list[tuple[int, Path]]:
    """`(12, iteration-000012...)` for what is in `folder`, by number; other names are left alone."""
    found = [(re.match(r"iteration-(\d+)\b", path.name), path) for path in folder.glob(pattern)]
    return sorted((int(match[1]), path) for match, path in found if match)


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Checkpoints with a readable manifest, oldest first; their files are not verified here."""
    found = []
    for _, path in numbered(folder):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found.append(_read(path))
    return sorted(found, key=lambda c: c.iteration)


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest undamaged checkpoint; None if none was ever written.

    Damaged ones are passed over with a warning. Raises ValueError if every one is damaged: to start
    over silently would throw the run away.
    """
    paths = [path for _, path in numbered(folder)]
    for path in reversed(paths):
        problem = damage(path)
        if problem is None:
            return _read(path)
        log.warning("Checkpoint %s is damaged and passed over: %s.", path, problem)
    if paths:
        raise ValueError(f"every checkpoint in {folder} is damaged; to start over, use a new run directory")
    return None


def best_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint with the highest metric (the earliest of equals); None if none has one."""
    rated = [c for c in list_checkpoints(folder) if c.metric is not None and not math.isnan(c.metric)]
    return max(rated, key=lambda c: (c.metric, -c.iteration)) if rated else None


def prune_checkpoints(folder: Path, keep_last: int) -> None:
    """Deletes all but the newest `keep_last` checkpoints and the best one."""
    checkpoints = list_checkpoints(folder)
    best = best_checkpoint(folder)
    for checkpoint in checkpoints[: max(0, len(checkpoints) - keep_last)]:
        if best is None or checkpoint.iteration != best.iteration:
            # Renamed first: a deletion cut short must not look like a damaged checkpoint.
            doomed = checkpoint.path.with_name(f".{checkpoint.path.name}.partial")
            os.rename(checkpoint.path, doomed)
            shutil.rmtree(doomed, ignore_errors=True)


# ------------------------------------------------------------------------------------------------ state


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Writes nested state to the directory `path`: `state.json` and `tensors.safetensors`; no pickle.

    Holds dicts (with any plain keys), lists, tuples, None, bool, int, float, str, torch tensors, numpy
    arrays and the records of hardwon.data; `load_state` gives them back bit for bit (tensors on the
    CPU). Raises TypeError with the place of anything else.
    """
    tensors: dict[str, torch.Tensor] = {}
    tree = _encode(state, "state", tensors)
    path.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(tensors, path / "tensors.safetensors")
    (path / "state.json").write_text(json.dumps(tree, allow_nan=False), encoding="utf-8")


def load_state(path: Path) -> dict[str, Any]:
    """Reads what `save_state` wrote. Raises ValueError naming the path if the files are not whole."""
    try:
        tensors = safetensors.torch.load_file(path / "tensors.safetensors")
        state = _decode(json.loads((path / "state.json").read_text(encoding="utf-8")), tensors)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"the state in {path} cannot be read: {error}") from error
    if not isinstance(state, dict):
        raise ValueError(f"the state in {path} cannot be read: not a dict")
    return state


def _tag(kind: str, value: Any) -> dict[str, Any]:
    """Whatever JSON has no word for is written {"!": kind, "v": value}."""
    return {"!": kind, "v": value}


def _encode(value: Any, place: str, tensors: dict[str, torch.Tensor]) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else _tag("float", repr(value))
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        # A copy: safetensors refuses tensors that share memory, as tied weights and views do.
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return _tag("tensor", name)
    if isinstance(value, np.ndarray):
        return _tag("array", _encode(torch.from_numpy(np.array(value, order="C")), place, tensors)["v"])
    if type(value) in (list, tuple):
        items = [_encode(item, f"{place}[{i}]", tensors) for i, item in enumerate(value)]
        return items if type(value) is list else _tag("tuple", items)
    if isinstance(value, Mapping):
        if all(type(key) is str for key in value) and "!" not in value:
            return {key: _encode(item, f"{place}.{key}", tensors) for key, item in value.items()}
        pairs = [[_encode(k, place, tensors), _encode(v, f"{place}.{k}", tensors)] for k, v in value.items()]
        return _tag("dict", pairs)
    name = type(value).__name__
    if RECORDS.get(name) is type(value) and is_dataclass(value):
        return _tag(
            name,
            {f.name: _encode(getattr(value, f.name), f"{place}.{f.name}", tensors) for f in fields(value)},
        )
    raise TypeError(
        f"{place} is a {name}, which cannot be saved; save tensors, numbers, strings, lists or dicts"
    )


def _decode(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "!" not in value:
        return {key: _decode(item, tensors) for key, item in value.items()}
    kind, content = value["!"], value["v"]
    match kind:
        case "float":
            return float(content)
        case "tensor":
            return tensors[content]
        case "array":
            return tensors[content].numpy()
        case "tuple":
            return tuple(_decode(content, tensors))
        case "dict":
            return {_decode(k, tensors): _decode(v, tensors) for k, v in content}
    return RECORDS[kind](**_decode(content, tensors))
