"""Trains in a process of its own, forked from one that has imported everything, and kills it on the way."""

from __future__ import annotations

import functools
import importlib
import io
import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from hardwon.algorithms import find, resolve
from hardwon.json_lines import JsonLines
from hardwon.offline import solutions
from hardwon.progress import Display
from hardwon.run import Run

How = Literal["before", "after", "torn"]
CONTEXT = multiprocessing.get_context("forkserver")
# Modules of the environment: the fork server does not know where the tests lie.
CONTEXT.set_forkserver_preload(
    [
        "hardwon.algorithms.direct_advantage",
        "hardwon.algorithms.group_policy",
        "transformers.models.llama.modeling_llama",
    ]
)


@dataclass(frozen=True)
class Kill:
    """SIGKILL at the n-th call of `place` ("module:name"): before it, after it, its file half written."""

    stage: str
    place: str
    number: int
    how: How = "before"


def train(algorithm: str, path: Path, settings: Mapping[str, Any]) -> Path:
    """A new run, or the resumed one if there is a run at `path`, in this process and without a report."""
    # Small batches of labelling, so that a kill can come between two.
    solutions.ROLLOUTS_A_WRITE = 128
    config: Any = resolve(algorithm, settings, {"run": str(path)})
    values = config.model_dump(mode="json")
    exists = (path / "config.yaml").exists()
    options = {"keep_last": config.keep_checkpoints}
    with Run.resume(path, values, **options) if exists else Run.create(path, values, **options) as run:
        display = Display(config.iterations, console=Console(file=io.StringIO()))
        return find(algorithm).train(config, run, display)


def patch(place: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the function or method at "module:name.name" by `wrap` of it."""
    module, _, name = place.partition(":")
    *parents, last = name.split(".")
    owner = functools.reduce(getattr, parents, importlib.import_module(module))
    setattr(owner, last, wrap(getattr(owner, last)))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(kill: Kill) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    calls = itertools.count(1)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            last = next(calls) == kill.number
            if last and kill.how == "before":
                die()
            result = original(*args, **kwargs)
            if last:
                if kill.how == "torn":
                    tear([*args, *kwargs.values()])
                die()
            return result

        return call

    return wrap


def tear(arguments: Sequence[Any]) -> None:
    """Leave half of the last line in a log that the arguments hold, or half of the files at the last path."""
    logs = [Path(str(value.name)) for value in arguments if isinstance(value, FileIO)]
    logs += [value.path for value in arguments if isinstance(value, JsonLines)]
    for log in logs:
        content = log.read_bytes()
        start = content[:-1].rfind(b"\n") + 1
        os.truncate(log, (start + len(content)) // 2)
    paths = [Path(value) for value in arguments if isinstance(value, str | Path)]
    for path in paths[-1:]:
        for file in [path, *path.rglob("*")]:
            if file.is_file():
                os.truncate(file, file.stat().st_size // 2)


def marking(stage: str, file: Path) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Keeps the name of the stage that runs in a file, for whoever kills the process from outside."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = file.read_text()
            file.write_text(stage)
            try:
                return original(*args, **kwargs)
            finally:
                file.write_text(before)

        return call

    return wrap


def install(kill: Kill) -> None:
    patch(kill.place, dying(kill))


def mark_stages(stages: Mapping[str, str], file: Path) -> None:
    file.write_text("start")
    for place, stage in stages.items():
        patch(place, marking(stage, file))


def child(
    algorithm: str, path: Path, settings: Mapping[str, Any], setup: Callable[[], None] | None, notes: Path
) -> None:
    if setup is not None:
        setup()
    try:
        train(algorithm, path, settings)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        notes.write_text(f"{type(error).__name__}: {error}")
        raise


def start(
    algorithm: str,
    path: Path,
    settings: Mapping[str, Any],
    setup: Callable[[], None] | None = None,
    notes: Path | None = None,
) -> Any:
    """Begin a run in a child, after `setup()` there; an error is left in `notes`: `error` beside the run."""
    notes = notes or path.with_name("error")
    process = CONTEXT.Process(target=child, args=(algorithm, path, settings, setup, notes))
    process.start()
    return process


def train_in_child(*arguments: Any) -> int:
    """The exit code of a whole run, or of what became of it."""
    process = start(*arguments)
    process.join()
    return process.exitcode


def error_of(algorithm: str, path: Path, settings: Mapping[str, Any], *setup: Callable[[], None]) -> str:
    """The error that a run ends with."""
    assert train_in_child(algorithm, path, settings, *setup) == 1
    return path.with_name("error").read_text()


def kill_in(
    stage: str,
    delay: float,
    algorithm: str,
    path: Path,
    settings: Mapping[str, Any],
    stages: Mapping[str, str],
) -> str | None:
    """Kill a run `delay` seconds after it entered `stage`; where it was then, or None if it had ended."""
    file = path.with_name("stage")
    file.write_text("start")
    process = start(algorithm, path, settings, functools.partial(mark_stages, stages, file))
    while process.exitcode is None and file.read_text() != stage:
        process.join(0.002)
    process.join(delay)
    ended = process.exitcode is not None
    process.kill()
    process.join()
    if ended:
        assert process.exitcode == 0, process.exitcode
        return None
    return file.read_text() or "between stages"
