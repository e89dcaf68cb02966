"""The run directory: everything that a training run leaves behind, and exact resume.

    config.yaml                     the resolved settings
    metrics.jsonl                   one JSON object a line: iteration, elapsed_seconds, metrics
    prompts.parquet                 every prompt's token ids (hardwon.stored_prompts)
    rollouts/iteration-000012.parquet    every rollout with text, verdict, reward and advantage
    evaluations/iteration-000000-greedy.json
    checkpoints/iteration-000100/   whole or not there (hardwon.checkpoints)
    lock                            held by the process that writes

Iteration N's checkpoint is the state after iteration N. On resume, whatever was logged after the newest
whole checkpoint is cut away, so that an interrupted run ends with the same files as an undisturbed one.
No wall clock is read: durations come from the monotonic clock and add up over resumes. Nothing of the
environment is written. With several processes the first one holds the run and the others follow it
(`Follower`); the directory must be one that all of them see.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import importlib.util
import json
import math
import os
import shutil
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq

from hardwon import checkpoints
from hardwon.checkpoints import Checkpoint, fsync, log, move_directory, numbered, saving, write_atomic
from hardwon.data import Group
from hardwon.models.parallel import barrier, broadcast, on_main, world
from hardwon.records import (
    CONFIG,
    METRICS,
    check_unchanged,
    metric_lines,
    read_config,
    read_metrics,
    rollout_path,
    rollout_table,
    to_yaml,
)

LOCK = "lock"
FOLDERS = ("rollouts", "evaluations", "checkpoints")


class Sink(Protocol):
    """Another place that metrics go to. Whatever it raises turns it off and ends nothing else."""

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class Run:
    """A run directory held for writing; a second process that opens it is refused."""

    def __init__(self, path: Path, config: Mapping[str, Any], lock: Lock, keep_last: int) -> None:
        self.path = path
        self.config = dict(config)
        self._lock = lock
        self._keep_last = keep_last
        self._sinks: dict[str, Sink] = {}
        self._unsynced: list[Path] = []
        self._metrics_file = FileIO(path / METRICS, "a")
        self._latest: Checkpoint | None = None
        self._started = time.monotonic()
        elapsed = (m.get("elapsed_seconds") for m in read_metrics(path))
        self._elapsed_before = max((s for s in elapsed if isinstance(s, int | float)), default=0.0)

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        *,
        keep_last: int = 2,
        tensorboard: bool = False,
        wandb: bool = False,
    ) -> Run:
        """Starts a run in a new or empty directory and writes its settings.

        Raises ValueError if a run, or anything else, is there already, if an extra that a sink needs is
        not installed, or if another process holds the directory; SaveError if it cannot be written.
        """
        path = Path(path)
        sinks = _check_sinks(tensorboard, wandb)
        _check_keep_last(keep_last)
        _check_new(path)
        with saving("the run directory", path):
            for folder in FOLDERS:
                (path / folder).mkdir(parents=True, exist_ok=True)
            lock = Lock(path / LOCK)
        # Written last: a directory with settings is a run, one without can be used again.
        write_atomic(path / CONFIG, to_yaml(config))
        run = cls(path, config, lock, keep_last)
        run._open_sinks(sinks, first_iteration=0)
        return run

    @classmethod
    def resume(
        cls,
        path: str | Path,
        config: Mapping[str, Any] | None = None,
        *,
        may_change: Collection[str] = (),
        keep_last: int = 2,
        tensorboard: bool = False,
        wandb: bool = False,
    ) -> Run:
        """Opens a run to continue after its newest whole checkpoint (`run.latest_checkpoint()`).

        Metrics, rollouts and evaluations of later iterations are cut away. `config` is compared with
        the settings of the run; a difference is an error that names the setting, except for the names
        in `may_change`, which are taken over. Raises ValueError, as `create` does.
        """
        path = Path(path)
        sinks = _check_sinks(tensorboard, wandb)
        _check_keep_last(keep_last)
        stored = read_config(path)
        if config is not None:
            check_unchanged(stored, config, may_change)
        with saving("the run directory", path):
            lock = Lock(path / LOCK)
            for folder in FOLDERS:
                (path / folder).mkdir(exist_ok=True)
        checkpoint = checkpoints.latest_checkpoint(path / "checkpoints")
        last = checkpoint.iteration if checkpoint else -1
        with saving("the run directory", path):
            _cut_back(path, last)
        if config is not None and to_yaml(config) != to_yaml(stored):
            write_atomic(path / CONFIG, to_yaml(config))
        run = cls(path, stored if config is None else config, lock, keep_last)
        run._latest = checkpoint
        run._open_sinks(sinks, first_iteration=last + 1)
        return run

    # ------------------------------------------------------------------------------------- recording

    @property
    def elapsed_seconds(self) -> float:
        """Seconds that this run has been worked on, over all resumes."""
        return self._elapsed_before + time.monotonic() - self._started

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Appends one line to metrics.jsonl, in one write. What is not finite is written as null."""
        values = {name: float(value) for name, value in metrics.items()}
        line: dict[str, Any] = {"iteration": iteration, "elapsed_seconds": round(self.elapsed_seconds, 3)}
        line |= {name: value if math.isfinite(value) else None for name, value in values.items()}
        with saving("metrics", self.path / METRICS):
            _append(self._metrics_file, json.dumps(line, allow_nan=False).encode() + b"\n")
        for name in list(self._sinks):
            with self._sink_may_fail(name):
                self._sinks[name].log(iteration, values)

    def save_rollouts(
        self,
        iteration: int,
        groups: Sequence[Group],
        advantages_PG: Any,
        *,
        trained: Any = True,
        **columns: Any,
    ) -> None:
        """Writes the rollouts of one iteration, trained on or not, to a file of their own.

        `advantages_PG`, `trained` and every further column are scalars or arrays that broadcast to one
        value per rollout: shape (P, G), or (P, 1) for one per group. Nothing is written without groups.
        """
        if not groups:
            return
        target = rollout_path(self.path, iteration)
        table = rollout_table(iteration, groups, advantages_PG, trained=trained, **columns)
        temporary = target.with_name(f".{target.name}.partial")
        with saving("rollouts", target):
            try:
                pq.write_table(table, temporary, compression="zstd", compression_level=1)
                os.replace(temporary, target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        self._unsynced.append(target)

    def save_evaluation(self, iteration: int, name: str, evaluation: Mapping[str, Any]) -> Path:
        """Writes an evaluation (`Evaluation.to_dict()`) of the policy after `iteration`; returns its path."""
        path = self.path / "evaluations" / f"iteration-{iteration:06d}-{name}.json"
        write_atomic(path, json.dumps(evaluation).encode())
        return path

    # ----------------------------------------------------------------------------------- checkpoints

    def checkpoint(
        self, iteration: int, write: Callable[[Path], None], metric: float | None = None
    ) -> Checkpoint:
        """Saves the state after `iteration`; see `hardwon.checkpoints.write_checkpoint`.

        What was logged up to here reaches the disk first. Afterwards all but the newest `keep_last`
        checkpoints and the best one (highest `metric`) are deleted.
        """
        with saving("the run's records", self.path):
            for path in (self.path / METRICS, *self._unsynced, self.path / "rollouts"):
                fsync(path)
        self._unsynced.clear()

        def write_together(directory: Path) -> None:
            broadcast(directory)
            write(directory)
            barrier()

        folder = self.path / "checkpoints"
        self._latest = broadcast(checkpoints.write_checkpoint(folder, iteration, write_together, metric))
        checkpoints.prune_checkpoints(folder, self._keep_last)
        return self._latest

    def publish(self, source: Path) -> Path:
        """Copies a saved model to `model/`, where it is whole or not there at all; returns that path."""
        target, temporary = self.path / "model", self.path / ".model.partial"

        def copy() -> None:
            with saving("the trained model", target):
                shutil.rmtree(temporary, ignore_errors=True)
                shutil.copytree(source, temporary)
                move_directory(temporary, target)

        on_main(copy)
        return target

    def latest_checkpoint(self) -> Checkpoint | None:
        """The newest whole checkpoint, verified when the run was opened; None in a new run."""
        return self._latest

    # ---------------------------------------------------------------------------------- open and shut

    def _open_sinks(self, names: Iterable[str], first_iteration: int) -> None:
        for name in names:
            with self._sink_may_fail(name):
                self._sinks[name] = SINKS[name](self.path, self.config, first_iteration)

    @contextlib.contextmanager
    def _sink_may_fail(self, name: str) -> Iterator[None]:
        """A sink that fails is turned off and said once; the run and metrics.jsonl go on."""
        try:
            yield
        except Exception as error:  # of many kinds: the network, the disk, the package's own
            self._sinks.pop(name, None)
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            log.warning("log_to=%s failed and is turned off; %s has every metric: %s", name, METRICS, reason)

    def close(self) -> None:
        """Closes files and sinks and releases the lock; harmless when called twice."""
        for name in list(self._sinks):
            with self._sink_may_fail(name):
                self._sinks.pop(name).close()
        self._metrics_file.close()
        self._lock.release()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Follower(Run):
    """A run as all ranks but the first see it: read from, and not written to but for shards."""

    def __init__(self, path: Path, config: Mapping[str, Any], latest: Checkpoint | None) -> None:
        self.path, self.config, self._latest = path, dict(config), latest

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        pass

    def save_rollouts(self, iteration: int, *groups: Any, **columns: Any) -> None:
        pass

    def save_evaluation(self, iteration: int, name: str, evaluation: Mapping[str, Any]) -> Path:
        return self.path

    def checkpoint(
        self, iteration: int, write: Callable[[Path], None], metric: float | None = None
    ) -> Checkpoint:
        """Add this rank's part to a checkpoint, if the first rank writes one."""
        told: Any = broadcast(None)
        if isinstance(told, Path):
            write(told)
            barrier()
            told = broadcast(None)
        latest: Checkpoint = told
        self._latest = latest
        return latest

    def close(self) -> None:
        pass


def open_together(open_run: Callable[[], Run]) -> Run:
    """The run that rank 0 opens, and on every other rank its `Follower`; with one process `open_run()`."""
    run = open_run() if world().is_main else None
    told = broadcast((run.path, run.config, run.latest_checkpoint()) if run is not None else None)
    if run is not None:
        return run
    assert told is not None
    return Follower(*told)


# ------------------------------------------------------------------------------------------------- lock


class Lock:
    """An exclusive lock on a file, which the system drops when the process ends in whatever way."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._descriptor, 32).decode().strip() or "unknown"
            os.close(self._descriptor)
            raise ValueError(
                f"{path.parent} is in use by another process (pid {owner}): wait for it or stop it first"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())
        _held_locks.add(self)

    def release(self) -> None:
        """Lets go of the lock; harmless when called twice."""
        if self in _held_locks:
            _held_locks.discard(self)
            os.close(self._descriptor)


_held_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _close_locks_in_child() -> None:
    """A forked worker must not keep the lock alive after its parent was killed."""
    for lock in list(_held_locks):
        lock.release()


os.register_at_fork(after_in_child=_close_locks_in_child)


def _check_new(path: Path) -> None:
    if (path / CONFIG).exists():
        raise ValueError(f"{path} already holds a run: resume it, or choose another directory")
    names = sorted(p.name for p in path.iterdir()) if path.is_dir() else []
    foreign = [n for n in names if n not in (LOCK, *FOLDERS) and not n.endswith(".partial")]
    if foreign:
        raise ValueError(f"{path} is not empty (it has {foreign[0]}): choose a new or empty run directory")


def _check_keep_last(keep_last: int) -> None:
    if keep_last < 1:
        raise ValueError(f"keep_last={keep_last}: at least 1 checkpoint must be kept")


def _append(file: FileIO, content: bytes) -> None:
    """Appends all of `content`, or, if the disk is full, nothing."""
    size = os.fstat(file.fileno()).st_size
    try:
        while content:
            content = content[file.write(content) :]
    except OSError:
        os.ftruncate(file.fileno(), size)
        raise


def _cut_back(path: Path, last: int) -> None:
    """Removes what was logged after iteration `last`, and what an interrupted write left lying."""
    kept = [json.dumps(line) + "\n" for line in metric_lines(path) if line["iteration"] <= last]
    write_atomic(path / METRICS, "".join(kept).encode())
    for folder in FOLDERS:
        for partial in (path / folder).glob(".*.partial"):
            shutil.rmtree(partial) if partial.is_dir() else partial.unlink()
    for folder in ("rollouts", "evaluations"):
        for iteration, file in numbered(path / folder):
            if iteration > last:
                file.unlink()


# ------------------------------------------------------------------------------------------------- sinks


class TensorBoardSink:
    """Scalars for TensorBoard, in the run directory."""

    def __init__(self, path: Path, config: Mapping[str, Any], first_iteration: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(path / "tensorboard"), purge_step=first_iteration)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, iteration)

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """Metrics for Weights & Biases; a resumed run continues under the same id."""

    def __init__(self, path: Path, config: Mapping[str, Any], first_iteration: int) -> None:
        wandb = importlib.import_module("wandb")
        id_file = path / "wandb-id"
        run_id = id_file.read_text() if id_file.exists() else wandb.util.generate_id()
        write_atomic(id_file, run_id.encode())
        self._run = wandb.init(
            project="hardwon", name=path.name, id=run_id, resume="allow", dir=str(path), config=dict(config)
        )

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=iteration)

    def close(self) -> None:
        self._run.finish()


SINKS: dict[str, Callable[[Path, Mapping[str, Any], int], Sink]] = {
    "tensorboard": TensorBoardSink,
    "wandb": WandbSink,
}


def _check_sinks(tensorboard: bool, wandb: bool) -> list[str]:
    wanted = [name for name, on in (("tensorboard", tensorboard), ("wandb", wandb)) if on]
    for name in wanted:
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"{name}=true needs the package {name}: pip install 'hardwon[{name}]'")
    return wanted
