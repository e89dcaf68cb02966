"""Train in a process of its own, which dies at its n-th call of some function as if killed by `kill -9`."""

import functools
import importlib
import io
import itertools
import multiprocessing
import os
from pathlib import Path
from unittest import mock

from rich.console import Console

from hardwon.algorithms import find, resolve
from hardwon.offline import solutions
from hardwon.progress import Display
from hardwon.run import Run


# Small batches of labelling, so that a kill can come between two.
@mock.patch.object(solutions, "ROLLOUTS_A_WRITE", 128)
def train(algorithm, path, settings):
    config = resolve(algorithm, settings, {"run": str(path)})
    values = config.model_dump(mode="json")
    exists = (Path(path) / "config.yaml").exists()
    with Run.resume(path, values) if exists else Run.create(path, values) as run:
        display = Display(1, console=Console(file=io.StringIO()))
        return find(algorithm).train(config, run, display)


def die_at_call(place, number):
    """Replace a function or method by one that ends the process at its n-th call."""
    module_name, _, name = place.partition(":")
    owner = importlib.import_module(module_name)
    *parents, last = name.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original, calls = getattr(owner, last), itertools.count(1)

    @functools.wraps(original)
    def dying(*args, **kwargs):
        if next(calls) == number:
            os._exit(9)
        return original(*args, **kwargs)

    setattr(owner, last, dying)


def train_and_die(algorithm, path, settings, place, number):
    die_at_call(place, number)
    train(algorithm, path, settings)


def exit_code_of_death(*arguments):
    """Run `train_and_die` in a process forked from one that has imported everything: that is quick."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["run_and_die", "transformers.models.llama.modeling_llama"])
    process = context.Process(target=train_and_die, args=arguments)
    process.start()
    process.join()
    return process.exitcode
