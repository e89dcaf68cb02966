"""Tasks by name. Each module is imported only when its task is asked for, so extras stay optional."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from hardwon.config import nearest
from hardwon.tasks.mixture import REWARD_OPTIONS, is_mixture, load_mixture
from hardwon.tasks.task import Task

__all__ = ["TASKS", "Task", "load_task"]

TASKS = {
    "chain_arithmetic": "hardwon.tasks.chain_arithmetic",
    "reasoning_gym": "hardwon.tasks.reasoning_gym",
    "math": "hardwon.tasks.math",
    "code": "hardwon.tasks.code",
    "tiny_programs": "hardwon.tasks.tiny_programs",
    "custom": "hardwon.tasks.custom",
}
"""Task name -> module with `load(...) -> Task`."""

EXTRAS = {"reasoning_gym": "reasoning-gym", "datasets": "datasets"}
"""Top-level module of an optional dependency -> the extra of hardwon that installs it."""


def load_task(spec: str, *, data: Any = None, eval_data: Any = None, seed: int = 0, **options: Any) -> Task:
    """The task named by `spec`: a name of TASKS, or "reasoning_gym:<dataset>".

    `data` and `eval_data` are files or Hugging Face data sets, for tasks that read data (tasks/sources.py),
    or several such with a weight and a task each (tasks/mixture.py). `reward` ("package.module:function")
    judges instead of the task's own verifier; see tasks/custom.py. Other options
    go to the task's own `load`. ValueError names an unknown task or option and the nearest known one;
    ImportError names the extra to install.
    """
    if is_mixture(data) or is_mixture(eval_data):
        return load_mixture(load_task, spec, data=data, eval_data=eval_data, seed=seed, **options)
    name, _, dataset = spec.partition(":")
    if name not in TASKS:
        raise ValueError(f"task={spec!r} is unknown{nearest(name, TASKS)}; known: {', '.join(TASKS)}")
    given = {"data": data, "eval_data": eval_data, "dataset": dataset or None}
    arguments = {key: value for key, value in given.items() if value is not None} | options
    load = import_load(name)
    reward = {}
    if name != "custom" and "reward" in arguments:
        reward = {key: arguments.pop(key) for key in REWARD_OPTIONS if key in arguments}
        if "any_answer" in inspect.signature(load).parameters:
            arguments["any_answer"] = True
    check_arguments(spec, load, arguments)
    task = load(seed=seed, **arguments)
    if not reward:
        return task
    from hardwon.tasks.custom import with_reward

    return with_reward(task, **reward)


def check_arguments(spec: str, load: Callable[..., Task], arguments: dict[str, Any]) -> None:
    """ValueError for an argument that `load` doesn't take, or lacks."""
    parameters = inspect.signature(load).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for key in arguments:
        if key not in parameters and not takes_any:
            raise ValueError(f"task={spec!r} takes no {key!r}{nearest(key, parameters)}")
    wanted = {
        "data": "data=<file or data set>",
        "dataset": "a data set: reasoning_gym:<dataset>",
        "reward": "reward=<package.module:function>",
    }
    for key, parameter in parameters.items():
        if key not in arguments and key in wanted and parameter.default is inspect.Parameter.empty:
            raise ValueError(f"task={spec!r} needs {wanted[key]}")


def import_load(name: str) -> Callable[..., Task]:
    try:
        load: Callable[..., Task] = importlib.import_module(TASKS[name]).load
        return load
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise ImportError(
            f"task={name!r} needs the package {error.name!r}: pip install 'hardwon[{extra}]'", name=error.name
        ) from error
