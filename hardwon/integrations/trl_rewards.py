"""Reward functions of TRL, and the raw correctness that is kept apart from the reward."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from hardwon.data import Verdict


def reading_verdicts(function: Any) -> Any:
    """A reward function that may return `{"score", "acc"}` dicts, as TRL expects it: scores alone.

    The `acc` values go the way that TRL offers for extra columns, which gathers them over the ranks.
    """
    if isinstance(function, (str, nn.Module)):
        return function

    def scores(outputs: Sequence[Any], log_extra: Callable[[str, list[Any]], None]) -> list[Any]:
        if not any(isinstance(o, Mapping) for o in outputs):
            return list(outputs)
        log_extra("acc", [o.get("acc") if isinstance(o, Mapping) else None for o in outputs])
        return [o["score"] if isinstance(o, Mapping) else o for o in outputs]

    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func

    async def wrapped_async(*args: Any, log_extra: Any, **kwargs: Any) -> list[Any]:
        return scores(await function(*args, log_extra=log_extra, **kwargs), log_extra)

    def wrapped(*args: Any, log_extra: Any, **kwargs: Any) -> list[Any]:
        return scores(function(*args, log_extra=log_extra, **kwargs), log_extra)

    is_async = inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)
    out: Any = wrapped_async if is_async else wrapped
    out.__name__ = getattr(inner, "__name__", type(inner).__name__)
    return out


def verdict_of(rewards: Iterable[float], acc: Any, correct_at_least: float) -> Verdict:
    """Raw correctness: `acc` if the reward function said so, else the first reward that is not None.

    A row that no reward function scored was not judged: its verdict is `error`.
    """
    scored = [r for r in rewards if not math.isnan(r)]
    if not scored:
        return Verdict("error", message="no reward function scored this response")
    correct = bool(acc) if acc is not None else scored[0] >= correct_at_least
    return Verdict("correct" if correct else "wrong", scored[0])


def weighted_reward(rewards: Sequence[float], weights: Sequence[float]) -> float:
    """TRL's sum over reward functions; NaN where none scored the response."""
    if all(math.isnan(r) for r in rewards):
        return math.nan
    return float(sum(w * r for w, r in zip(weights, rewards, strict=True) if not math.isnan(r)))
