"""Is what a program printed or returned what was expected? The rules of programming contests.

    whole numbers    exactly, of any size
    other numbers    within 1e-6, absolute or relative to the expected value
    anything else    exactly

A number has a decimal point or an exponent if either side of the pair has one. Where the expected number
is whole, only the absolute tolerance counts: 1000000007 is not met by 1000000006.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

TOLERANCE = Decimal("1e-6")
EXACTLY = Context(prec=40, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])

# Exponents of more digits are text: no test means them, and arithmetic on them has no meaning.
NUMBER = re.compile(rb"[+-]?(?:\d+(\.\d*)?|(\.\d+))([eE][+-]?\d{1,4})?")


def same_text(expected: bytes, printed: bytes) -> bool:
    """Whether both have the same tokens on the same lines. Empty lines and the kind and number of blanks
    between tokens do not matter.

    >>> same_text(b"0.333333333 yes", b"0.333333  yes\\n"), same_text(b"7", b"007")
    (True, False)
    """
    if expected == printed:
        return True
    wanted = [tokens for line in expected.split(b"\n") if (tokens := line.split())]
    found = [tokens for line in printed.split(b"\n") if (tokens := line.split())]
    return same_lists(wanted, found, lambda a, b: same_lists(a, b, same_token))


def same_lists(wanted: list[Any], found: list[Any], same: Callable[[Any, Any], bool]) -> bool:
    return len(wanted) == len(found) and all(a == b or same(a, b) for a, b in zip(wanted, found, strict=True))


def same_token(expected: bytes, printed: bytes) -> bool:
    """Of two tokens that differ as text: whether they are numbers, not both whole, and close."""
    wanted, found = NUMBER.fullmatch(expected), NUMBER.fullmatch(printed)
    if not wanted or not found:
        return False
    whole = not any(wanted.groups())
    if whole and not any(found.groups()):
        return False
    return close(Decimal(expected.decode()), Decimal(printed.decode()), whole=whole)


def close(expected: Decimal, found: Decimal, *, whole: bool) -> bool:
    """Within the tolerance; `whole` says that the expected number is."""
    scale = Decimal(1) if whole else max(Decimal(1), expected.copy_abs())
    difference = EXACTLY.subtract(expected, found).copy_abs()
    return difference <= EXACTLY.multiply(TOLERANCE, scale)


def same_data(expected: Any, found: Any) -> bool:
    """Whether two JSON values agree at any depth. True and False are no numbers, as on LeetCode, which
    refuses a value that is not of the declared type; NaN equals nothing.

    >>> same_data([1, {"a": 0.3}], [1.0, {"a": 0.1 * 3}]), same_data(True, 1)
    (True, False)
    """
    if isinstance(expected, list):
        return isinstance(found, list) and same_items(expected, found)
    if isinstance(expected, dict):
        return isinstance(found, dict) and same_items(expected, found)
    if is_number(expected) and is_number(found):
        return same_number(expected, found)
    return type(expected) is type(found) and bool(expected == found)


def same_items(expected: Any, found: Any) -> bool:
    """Of two lists, or of two dicts whose keys are the same."""
    if len(expected) != len(found):
        return False
    if isinstance(expected, dict):
        return all(key in found and same_data(value, found[key]) for key, value in expected.items())
    return all(map(same_data, expected, found))


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def same_number(expected: int | float, found: int | float) -> bool:
    if expected == found:
        return True
    if isinstance(expected, int) and isinstance(found, int):
        return False
    for value in (expected, found):
        if isinstance(value, float) and not math.isfinite(value):
            return False
        if isinstance(value, int) and value.bit_length() > 1100:  # no float comes near it
            return False
    return close(Decimal(expected), Decimal(found), whole=isinstance(expected, int))
