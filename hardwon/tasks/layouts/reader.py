"""From rows to problems: finds the layout, reads its parts, and remembers which layouts there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hardwon.config import load_function
from hardwon.data import Problem
from hardwon.tasks.layouts.answers import gold_texts
from hardwon.tasks.layouts.code import code_layout, code_parts
from hardwon.tasks.layouts.layout import (
    BadRowError,
    Layout,
    LeftOutError,
    Row,
    at,
    column_names,
    is_list,
    read,
)
from hardwon.tasks.layouts.mapping import check_columns, mapped, rewritten
from hardwon.tasks.layouts.math import math_layout, reward_layout
from hardwon.tasks.layouts.prompts import prompt_of

ProblemOf = Callable[[Row, str], tuple[Problem, str]]  # row, default id; problem, name of the layout

CODE_IDS = ("id", "task_id", "problem_id", "question_id")


@dataclass
class Reader:
    """A function from (row, default id) to a problem; None for a row that is left out, which `notes` counts.

    `problem_of` is one of the three below. `columns` names columns by part ({"prompt": "question"}), and
    `row_function` ("module:function") rewrites each row before that. Raises BadRowError.
    """

    problem_of: ProblemOf
    columns: Mapping[str, str] | None = None
    row_function: str | None = None
    taken: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        check_columns(self.columns or {})
        self.rewrite = load_function("row_function", self.row_function) if self.row_function else None

    def __call__(self, row: Row, default_id: str) -> Problem | None:
        if self.rewrite:
            row = rewritten(row, self.rewrite)
            if row is None:
                self.left_out["row_function gives None"] += 1
                return None
        if not isinstance(row, Mapping) and not (is_list(row) and all(isinstance(m, Mapping) for m in row)):
            raise BadRowError("*", f"a row of named columns is wanted, found a {type(row).__name__}")
        seen = mapped(row, self.columns) if self.columns else row
        try:
            problem, name = self.problem_of(seen, default_id)
        except LeftOutError as error:
            self.left_out[error.reason] += 1
            return None
        self.taken[name] += 1
        return replace(problem, info=self.all_columns(row, seen, problem)) if self.columns else problem

    def all_columns(self, row: Row, seen: Row, problem: Problem) -> dict[str, Any]:
        """The problem's `info` with the columns that `mapped` renamed or hid under their own names."""
        assert self.columns is not None
        used = {self.columns[role] for role in ("prompt", "tests") if role in self.columns}
        used |= set(column_names(seen)) - set(problem.info)
        info = {name: row[name] for name in column_names(row) if name not in used}
        return info | ({"tests": problem.info["tests"]} if "tests" in problem.info else {})

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each layout that was taken, and for each reason to leave rows out."""
        taken = [f"{rows(number)} read as layout {name}" for name, number in self.taken.most_common()]
        left_out = [f"{rows(number)} left out: {reason}" for reason, number in self.left_out.most_common()]
        return (*taken, *left_out)


def rows(number: int) -> str:
    return f"{number:,} {'row' if number == 1 else 'rows'}"


def math_problem(row: Row, default_id: str) -> tuple[Problem, str]:
    """Its answer keeps the column's type; it must be text, a number, or several of these."""
    layout = math_layout(row)
    problem = answered(row, layout, default_id)
    try:
        gold_texts(problem.answer)
    except ValueError as error:
        raise BadRowError(answer_place(layout), str(error)) from error
    return problem, layout.name


def reward_problem(row: Row, default_id: str) -> tuple[Problem, str]:
    """Its answer is of any type, or None: a user's reward function reads it."""
    layout = reward_layout(row)
    return answered(row, layout, default_id), layout.name


def code_problem(row: Row, default_id: str) -> tuple[Problem, str]:
    """Its answer is the row's own program, "" without one; its `info["tests"]` are for verifiers/code.py."""
    layout = code_layout(row)
    prompt, solution, tests = code_parts(row, layout)
    name = next((str(row[name]) for name in CODE_IDS if at(row, name) is not None), default_id)
    return Problem(name, prompt, solution, info_of(row, layout) | {"tests": tests}), layout.name


def answered(row: Row, layout: Layout, default_id: str) -> Problem:
    prompt = prompt_of(row, layout)
    answer = None if layout.answer is None else read(row, layout.answer)
    if isinstance(answer, str):
        answer = answer.strip()
    return Problem(row_id(row, default_id), prompt, answer, info_of(row, layout))


def answer_place(layout: Layout) -> str:
    return layout.answer if isinstance(layout.answer, str) else "answer"


def info_of(row: Row, layout: Layout) -> dict[str, Any]:
    """The row's columns as they came, but the prompt's and those of the tests."""
    used = {layout.prompt, *layout.test_columns}
    return {name: row[name] for name in column_names(row) if name not in used}


def row_id(row: Row, default: str) -> str:
    given = at(row, "id")
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise BadRowError("id", f"text or a whole number is wanted, found {given!r:.80}")
    return str(given)
