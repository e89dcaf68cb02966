"""Short runs of the online loop on the embedded model."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console

from hardwon.algorithms import find, resolve
from hardwon.progress import Display
from hardwon.run import Run

SMALL = {
    "iterations": 2,
    "prompts_per_iteration": 8,
    "group_size": 4,
    "warmup_iterations": 0,
    "eval_every": 0,
    "eval_problems": 8,
    "eval_samples": 1,
    "task_options": {"train_size": 64},
}


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Bits depend on how many threads share a sum, so no test leaves another number behind."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Path]:
    """`train("da3po", iterations=3)` trains in a run directory of its own and returns that directory."""

    def run_it(algorithm: str, *, path: Path | None = None, **settings: object) -> Path:
        path = path or tmp_path / f"{algorithm}-{len(list(tmp_path.iterdir()))}"
        config = resolve(algorithm, SMALL, settings, {"run": str(path)})
        display = Display(config.iterations, console=Console(file=io.StringIO()))
        with Run.create(path, config.model_dump(mode="json"), keep_last=config.keep_checkpoints) as run:
            find(algorithm).train(config, run, display)
        return path

    return run_it
