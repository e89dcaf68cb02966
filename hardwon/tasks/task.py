"""What a task is: problems, a verifier, and a worked answer that proves the two fit together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from hardwon.data import Problem, Verdict

Split = Literal["train", "test"]


def split_lines(text: str) -> list[str]:
    r"""Reasoning steps as lines, each with its line break, so that the joined steps equal `text`.

    >>> split_lines("2+3=5\n5*2=10\n\n10")
    ['2+3=5\n', '5*2=10\n', '\n', '10']
    """
    pieces = text.split("\n")
    steps = [piece + "\n" for piece in pieces[:-1]]
    return [*steps, pieces[-1]] if pieces[-1] else steps


def nothing_to_close() -> None:
    """For tasks that hold no process and no file."""


@dataclass(frozen=True)
class Task:
    """A value made of functions; a task module builds one in its `load`.

    problems(split)    the problems of "train" or "test", the same list in the same order each time;
                       no prompt is in both.
    verify(pairs)      one verdict for each (problem, response), in order. Never raises for what a
                       model wrote; a failure of the verifier itself is Verdict("error").
    gold(problem)      a response that earns full reward.
    split_steps(text)  the response cut at step boundaries; the joined steps equal the text.
    close()            ends worker processes; harmless when called twice.
    prompt_template    how a prompt is worded unless the user says it; None: as it is.
    notes              sentences about what loading the data did, for `hardwon check`.
    """

    name: str
    problems: Callable[[Split], list[Problem]]
    verify: Callable[[Sequence[tuple[Problem, str]]], list[Verdict]]
    gold: Callable[[Problem], str]
    split_steps: Callable[[str], list[str]] = split_lines
    close: Callable[[], None] = nothing_to_close
    prompt_template: str | None = None
    notes: tuple[str, ...] = ()
