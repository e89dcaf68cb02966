"""Exact arithmetic on what a model wrote, read without running it."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

MAX_CHARACTERS = 2000
ARITHMETIC: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def exact_arithmetic(text: str) -> tuple[Fraction, list[int]] | None:
    """Value and sorted numbers of + - * / on whole numbers; None for anything else, and without a value.

    >>> exact_arithmetic("(7 - 3) * 6 / 1")
    (Fraction(24, 1), [1, 3, 6, 7])
    """
    if len(text) > MAX_CHARACTERS:
        return None
    numbers: list[int] = []
    try:
        return value(ast.parse(text.strip(), mode="eval").body, numbers), sorted(numbers)
    except (ValueError, SyntaxError, ZeroDivisionError, MemoryError, RecursionError):
        return None


def value(node: ast.expr, numbers: list[int]) -> Fraction:
    """Adds the numbers that it meets to `numbers`."""
    match node:
        case ast.Constant(value=number) if type(number) is int:
            numbers.append(number)
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -value(operand, numbers)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in ARITHMETIC:
            return ARITHMETIC[type(sign)](value(left, numbers), value(right, numbers))
    raise ValueError("not arithmetic")
