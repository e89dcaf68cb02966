"""Offline fits: epochs of optimizer steps over a fixed set, validated, checkpointed, stopped when it pays.

The run's `iteration` counts optimizer steps over all fits of the run. A checkpoint belongs to one fit and
holds what its next step depends on; whatever is drawn is drawn from (seed, fit, epoch), so a resumed fit
takes the same steps as an undisturbed one.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hardwon.checkpoints import move_directory, saving
from hardwon.config import OptimizerSettings
from hardwon.models.parallel import any_rank, divided_like, on_main
from hardwon.optimization import Optimizer, learning_rate_at
from hardwon.progress import Display, Interrupt
from hardwon.run import Run
from hardwon.sharded_state import load_state, save_state

# Validations in a row below the best after which a fit ends early (ours).
PATIENCE = 2


@dataclass(frozen=True)
class Validation:
    """A figure that should rise, how far below the best it may be by chance, and metrics to log."""

    score: float
    slack: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Fit:
    """What is fitted, and how.

    name        of this fit in the run; metrics are logged under the part before the `-`
    sizes       how many rows each item (which is never split over two steps) brings into a step
    accumulate  (indices of items) -> metrics; leaves the gradients of one optimizer step
    validate    the policy or critic as it is now
    save        writes the model in its own format
    """

    name: str
    model: nn.Module
    settings: OptimizerSettings
    sizes: Sequence[int]
    batch_size: int
    epochs: int
    validations_per_epoch: int
    accumulate: Callable[[Sequence[int]], dict[str, float]]
    validate: Callable[[], Validation]
    save: Callable[[Path], None]


@dataclass
class Progress:
    """Where a fit is: `first` is the run's iteration before its first step."""

    first: int
    done: int = 0
    best: float = -np.inf
    misses: int = 0


def run_fit(fit: Fit, run: Run, display: Display, *, seed: int, checkpoint_every: int, target: Path) -> None:
    """Fit to the end, from the run's newest checkpoint if it is one of this fit.

    `target` gets the model as it was at its best validation, the one before the first step included, so
    that a fit never hands on something worse than what it began with. On Ctrl-C or SIGTERM the step is
    finished and saved, then KeyboardInterrupt is raised.
    """
    optimizer, best = Optimizer(fit.model, fit.settings), target.with_name(f".{target.name}.best")
    progress = _start(fit, optimizer, run)
    steps = [
        batch
        for epoch in range(fit.epochs)
        for batch in batches(fit.sizes, fit.batch_size, [seed, zlib.crc32(fit.name.encode()), epoch])
    ]
    wanted = _validation_points(len(steps), fit.epochs * fit.validations_per_epoch)
    display.begin(fit.name, len(steps), progress.done)
    if progress.done == 0:
        run.log(progress.first, _validated(fit, progress, best))
    with Interrupt(display) as interrupt:
        while progress.done < len(steps) and progress.misses < PATIENCE:
            rate = learning_rate_at(fit.settings, progress.done, len(steps))
            metrics = fit.accumulate(steps[progress.done])
            metrics |= {"grad_norm": optimizer.step(rate), "learning_rate": rate}
            progress.done += 1
            metrics = {f"{fit.name.partition('-')[0]}/{k}": v for k, v in metrics.items()}
            if progress.done in wanted:
                metrics |= _validated(fit, progress, best)
            run.log(progress.first + progress.done, metrics)
            display.update(progress.done, {k.rpartition("/")[2]: f"{v:.4g}" for k, v in metrics.items()})
            stop = any_rank(interrupt.requested)
            if stop or progress.done % checkpoint_every == 0:
                _checkpoint(fit, optimizer, run, progress)
            if stop:
                raise KeyboardInterrupt
    _checkpoint(fit, optimizer, run, progress)
    on_main(partial(_move, best, target))


def batches(sizes: Sequence[int], batch_size: int, key: Sequence[int]) -> list[list[int]]:
    """Items in an order drawn by `key`, together until a batch has `batch_size` rows; each item whole."""
    out: list[list[int]] = []
    rows = batch_size
    for index in np.random.default_rng(list(key)).permutation(len(sizes)).tolist():
        if rows >= batch_size:
            out.append([])
            rows = 0
        out[-1].append(index)
        rows += sizes[index]
    return out


def _validation_points(num_steps: int, wanted: int) -> set[int]:
    return {max(1, round(num_steps * n / wanted)) for n in range(1, wanted + 1)}


def _validated(fit: Fit, progress: Progress, best: Path) -> dict[str, float]:
    """Validate; keep the model if it is the best so far, count a miss if it is clearly worse."""
    result = fit.validate()
    if result.score > progress.best:
        progress.best = result.score
        temporary = best.with_name(f"{best.name}.partial")
        on_main(partial(shutil.rmtree, temporary, ignore_errors=True))
        fit.save(temporary)
        on_main(partial(_move, temporary, best))
    progress.misses = progress.misses + 1 if result.score < progress.best - result.slack else 0
    return {f"{fit.name.partition('-')[0]}/{k}": v for k, v in result.metrics.items()}


def _move(source: Path, target: Path) -> None:
    """`source` in the place of `target`; if there is none, a kill came after it was moved."""
    if source.exists():
        with saving("the fitted model", target):
            move_directory(source, target)


def _trained(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _start(fit: Fit, optimizer: Optimizer, run: Run) -> Progress:
    """A fit's beginning, or where the newest checkpoint left it."""
    latest = run.latest_checkpoint()
    device = next(fit.model.parameters()).device
    state: dict[str, Any] = load_state(latest.path / "state", device.type) if latest else {}
    if state.get("fit") != fit.name:
        return Progress(first=latest.iteration if latest else 0)
    parameters = _trained(fit.model)
    with torch.no_grad():
        for name, value in state["weights"].items():
            parameters[name].copy_(divided_like(value, parameters[name]))
    optimizer.load_state_dict(state["optimizer"])
    return Progress(**state["progress"])


def _checkpoint(fit: Fit, optimizer: Optimizer, run: Run, progress: Progress) -> None:
    state = {
        "fit": fit.name,
        "progress": vars(progress),
        "optimizer": optimizer.state_dict(),
        "weights": _trained(fit.model),
    }
    run.checkpoint(progress.first + progress.done, lambda path: save_state(path / "state", state))
