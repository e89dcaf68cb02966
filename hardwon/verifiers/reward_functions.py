"""Reward functions of users, TRL's or verl's signature unchanged: the half that runs in a worker process.

    TRL    f(prompts, completions, completion_ids, **columns) -> list[float | None], sync or async
    verl   compute_score(data_source, solution_str, ground_truth, extra_info) -> float | {"score", "acc"}

Which one it is shows in the names of its parameters. Of several functions the weighted scores are summed
(None is left out, as in TRL), and the first decides correctness: by verl's `acc` where it gives one, else
by its own score, unweighted, reaching the threshold.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Reward:
    """`path` is "package.module:function"."""

    path: str
    weight: float
    kind: Literal["trl", "verl"]


@dataclass(frozen=True)
class Response:
    """One response as reward functions see it; `columns` are the problem's."""

    prompt: Any
    text: str
    ids: tuple[int, ...] | None
    answer: Any
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class Score:
    """What one function says of one response; `accuracy` is verl's `acc`."""

    value: float | None
    accuracy: float | None = None


class WrongNumberError(Exception):
    """A function of TRL's kind returned more or fewer rewards than responses: no response is at fault."""


def load_function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    assert callable(function)
    return function


def judge(rewards: Sequence[Reward], threshold: float, responses: Sequence[Response]) -> list[dict[str, Any]]:
    """For each response {"correct", "score"}, or {"error": why} where no number can be trusted."""
    score = {"trl": trl_scores, "verl": verl_scores}
    try:
        scores = [score[reward.kind](load_function(reward.path), responses) for reward in rewards]
    except WrongNumberError as error:
        return [{"error": str(error)}] * len(responses)
    weights = [reward.weight for reward in rewards]
    return [combined(weights, row, threshold) for row in zip(*scores, strict=True)]


def combined(weights: Sequence[float], scores: Sequence[Score], threshold: float) -> dict[str, Any]:
    decisive = scores[0].accuracy if scores[0].accuracy is not None else scores[0].value
    if decisive is None:
        return {
            "error": "the first reward function returned None: nothing says whether the answer is correct"
        }
    if not all(math.isfinite(x) for s in scores for x in (s.value, s.accuracy) if x is not None):
        return {"error": f"not a finite reward in {[s.value for s in scores]}"}
    total = sum(weight * s.value for weight, s in zip(weights, scores, strict=True) if s.value is not None)
    correct = decisive >= 1 if scores[0].accuracy is not None else decisive >= threshold
    return {"correct": bool(correct), "score": total}


def trl_scores(function: Callable[..., Any], responses: Sequence[Response]) -> list[Score]:
    arguments: dict[str, Any] = {
        "prompts": [response.prompt for response in responses],
        "completions": [completion(response) for response in responses],
        "log_extra": lambda *_: None,
        "log_metric": lambda *_: None,
    }
    if responses[0].ids is not None:
        arguments["completion_ids"] = [list(response.ids or ()) for response in responses]
    for name in responses[0].columns:
        arguments.setdefault(name, [response.columns.get(name) for response in responses])
    values = call(function, arguments)
    if len(values) != len(responses):
        raise WrongNumberError(f"{len(values)} rewards were returned for {len(responses)} responses")
    return [Score(None if value is None else float(value)) for value in values]


def completion(response: Response) -> Any:
    """Chat messages for a chat prompt, text for text, as TRL gives them."""
    if isinstance(response.prompt, str):
        return response.text
    return [{"role": "assistant", "content": response.text}]


def verl_scores(function: Callable[..., Any], responses: Sequence[Response]) -> list[Score]:
    return [verl_score(function, response) for response in responses]


def verl_score(function: Callable[..., Any], response: Response) -> Score:
    arguments = {
        "data_source": response.columns.get("data_source"),
        "solution_str": response.text,
        "ground_truth": response.answer,
        "extra_info": response.columns.get("extra_info") or {},
    }
    found = call(function, arguments)
    if isinstance(found, Mapping):
        accuracy = found.get("acc")
        return Score(float(found["score"]), None if accuracy is None else float(accuracy))
    return Score(None if found is None else float(found))


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """The call with those arguments that the function takes; awaited if it is async."""
    parameters = inspect.signature(function).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        arguments = {name: value for name, value in arguments.items() if name in parameters}
    result = function(**arguments)
    return asyncio.run(result) if inspect.iscoroutine(result) else result
