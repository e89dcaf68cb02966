"""What users say about their rows: which column has which part, or a function that rewrites a row."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from hardwon.config import nearest
from hardwon.tasks.layouts import code, math
from hardwon.tasks.layouts.layout import BadRowError, Row, at, column_names

RowFunction = Callable[[Row], Any]

ROLES = {
    "prompt": (*math.PROMPTS, *code.PROMPTS),
    "answer": (*math.ANSWERS, *code.SOLUTIONS),
    "tests": (*code.TESTS, ("public_test_cases", "public_tests", "official_tests", "verification_info")),
    "options": (("options", "choices"),),
    "id": (("id",),),
    "entry_point": (("entry_point",),),
    "starter_code": (("starter_code",),),
}
"""What `columns` may name, and the columns that would stand for it otherwise."""


def check_columns(columns: Mapping[str, str]) -> None:
    """ValueError for a part that no row has, or a path that is no text."""
    for role, path in columns.items():
        if role not in ROLES:
            raise ValueError(f"columns.{role} is unknown{nearest(role, ROLES)}; known: {', '.join(ROLES)}")
        if not isinstance(path, str) or not path:
            raise ValueError(f"columns.{role}={path!r}: the name of a column is wanted, or a path a.b.c")


def mapped(row: Row, columns: Mapping[str, str]) -> Row:
    """The row with the named columns under the names of their parts; other columns can't stand for these."""
    hidden = {
        path.partition(".")[0]
        for role in columns
        for tier in ROLES[role]
        for path in tier
    }  # fmt: skip
    found: dict[str, Any] = {name: row[name] for name in column_names(row) if name not in hidden}
    for role, path in columns.items():
        value = at(row, path)
        if value is None:
            names = ", ".join(column_names(row))
            raise BadRowError(path, f"is missing or empty (columns.{role}); the row has {names}")
        found[role] = value
    return found


def load_row_function(path: str) -> RowFunction:
    """ValueError says why `module:function` can't be had."""
    module, _, name = path.partition(":")
    if not name:
        raise ValueError(f"row_function={path!r}: 'module:function' is wanted")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a user's module often lies where the command is given
    try:
        found = importlib.import_module(module)
    except Exception as error:  # a module of the user may raise anything
        raise ValueError(f"row_function={path!r}: can't import {module!r} ({error})") from error
    function = getattr(found, name, None)
    if not callable(function):
        raise ValueError(
            f"row_function={path!r}: {module!r} has no function {name!r}{nearest(name, dir(found))}"
        )
    return function


def rewritten(row: Row, function: RowFunction) -> Row | None:
    """What the function makes of the row; None leaves the row out."""
    try:
        found = function(row)
    except Exception as error:  # a user's function may raise anything
        raise BadRowError("*", f"row_function raised {type(error).__name__}: {error}") from error
    if found is not None and not isinstance(found, Mapping):
        raise BadRowError("*", f"row_function returned a {type(found).__name__}; a row or None is wanted")
    return found
