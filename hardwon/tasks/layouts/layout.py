"""A layout says where a row of a data set has its prompt, its answer and its tests.

The tables are in math.py (with choice.py) and code.py. A new layout is one value there:

    Layout("gsm8k", ("question", "answer"), "question", "answer")

A path names a column, or a place inside one: "reward_model.ground_truth", "conversations.0.value".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeGuard

Row = Any  # a mapping of columns, or a list of messages
Place = str | Callable[[Row], Any]  # a path, or what reads the row

SHOWN_LAYOUTS = 3
MANY_DIGITS = 1000
MOST_COLUMN_SETS = 1000


class BadRowError(ValueError):
    """One fault of one row; `column` is where."""

    def __init__(self, column: str, fault: str) -> None:
        super().__init__(f"column {column!r}: {fault}")


class LeftOutError(BadRowError):
    """A row as it should be that can't be judged here: it is left out, and the notes count it."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.reason = reason


def any_row(row: Row) -> bool:
    return True


@dataclass(frozen=True)
class Layout:
    """`marks` are the places that a row of this layout fills; `when` is asked where they are not enough.

    prompt, answer   where each is; an answer of None means that the row may do without
    tests            reads unit tests, for programs
    test_columns     columns that `tests` has read, which do not go into `Problem.info`
    """

    name: str
    marks: tuple[str, ...]
    prompt: Place
    answer: Place | None = None
    tests: Callable[[Row], Any] | None = None
    test_columns: tuple[str, ...] = ()
    when: Callable[[Row], bool] = any_row

    def fits(self, row: Row) -> bool:
        return all(filled(row, mark) for mark in self.marks) and self.when(row)


class Finder:
    """The first layout of a table that fits a row, or None.

    A data set may have a million rows with the same columns: which layouts need others is asked once.
    """

    def __init__(self, table: Sequence[Layout]) -> None:
        self.table = table
        self.possible: dict[tuple[str, ...], list[Layout]] = {}

    def __call__(self, row: Row) -> Layout | None:
        if not isinstance(row, Mapping):
            return next((layout for layout in self.table if layout.fits(row)), None)
        names = tuple(column_names(row))
        if names not in self.possible:
            if len(self.possible) > MOST_COLUMN_SETS:
                self.possible.clear()
            self.possible[names] = [
                layout
                for layout in self.table
                if all(mark in names or mark.partition(".")[0] in names for mark in layout.marks)
            ]
        return next((layout for layout in self.possible[names] if layout.fits(row)), None)


def at(row: Row, path: str) -> Any:
    """The value at a path; None where there is none. JSON text is entered like the object that it writes."""
    if isinstance(row, Mapping) and path in row:
        return row[path]
    value = row
    for part in path.split("."):
        if isinstance(value, str):
            value = json_or_none(value)
        if isinstance(value, Mapping):
            value = value.get(part)
        elif is_list(value) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def read(row: Row, place: Place) -> Any:
    return at(row, place) if isinstance(place, str) else place(row)


def needed(row: Row, path: str) -> Any:
    """The value at a path; BadRowError if it is missing or empty."""
    value = at(row, path)
    if value is not None:
        return value
    head = path.partition(".")[0]
    if path in column_names(row) or (head != path and head in column_names(row)):
        raise BadRowError(path, "is empty" if path in column_names(row) else f"is missing in {head}")
    raise BadRowError(path, f"is missing; the row has {', '.join(column_names(row))}")


def text_at(row: Row, path: str) -> str:
    value = needed(row, path)
    if not isinstance(value, str):
        raise BadRowError(path, f"text is wanted, found {value!r:.80}")
    if not value.strip():
        raise BadRowError(path, "is empty")
    return value


def column_names(row: Row) -> list[str]:
    return [str(name) for name in row] if isinstance(row, Mapping) else []


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def json_or_none(text: str) -> Any:
    """The object or list that a text writes in JSON; None for any other text."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return from_json(text)
    except (ValueError, RecursionError):
        return None


def from_json(text: str) -> Any:
    """As json.loads, with whole numbers of any length: `int` reads no more than 4,300 digits."""
    return json.loads(text, parse_int=lambda d: int(d) if len(d) < MANY_DIGITS else int(Decimal(d)))


def filled(row: Row, path: str) -> bool:
    value = at(row, path)
    return value is not None and value != "" and value != []


def pick(
    row: Row, role: str, tiers: Sequence[Sequence[str]], same: Callable[[Any], Any] = lambda value: value
) -> str | None:
    """The place of `role`: the only filled one of the first tier that has any; None if no tier has.

    BadRowError lists the candidates where two of one tier hold different things (`same` makes comparable).
    """
    for tier in tiers:
        found = [path for path in tier if filled(row, path)]
        if not found:
            continue
        if any(same(at(row, path)) != same(at(row, found[0])) for path in found[1:]):
            raise BadRowError(
                role, f"could be {' or '.join(found)}: choose with columns={{{role}: {found[0]}}}"
            )
        return found[0]
    return None


def nearest_layouts(row: Row, table: Sequence[Layout]) -> str:
    """The layouts of which the row has most marks, for an error message."""
    names = {name.lower() for name in column_names(row)}

    def share(layout: Layout) -> float:
        heads = [mark.partition(".")[0].lower() for mark in layout.marks]
        return sum(head in names for head in heads) / len(heads)

    near = sorted((layout for layout in table if share(layout) > 0), key=share, reverse=True)[:SHOWN_LAYOUTS]
    if not near:
        return ""
    return "; the nearest layouts are " + ", ".join(
        f"{layout.name} ({', '.join(layout.marks)})" for layout in near
    )
