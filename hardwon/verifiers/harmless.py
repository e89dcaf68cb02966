"""Scorers of reasoning_gym that evaluate what a model wrote get an evaluator that cannot run it.

reasoning_gym 0.1.25 hands answers to `eval` in four scorers, and in five to sympy's `parse_expr`, which
calls `eval` too. Here the first read literals, and the second formulas: numbers, names, + - * / ** and
elementary functions.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Collection
from typing import Any

LITERALS = (
    "algorithmic.string_insertion",
    "algorithmic.spiral_matrix",
    "algorithmic.binary_matrix",
    "games.n_queens",
)
ELEMENTARY = {
    "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
    "acosh", "atanh", "exp", "log", "ln", "sqrt", "Abs",
}  # fmt: skip
# Module -> the functions that an answer may call.
FORMULAS = {
    "algebra.simple_integration": ELEMENTARY,
    "algebra.intermediate_integration": ELEMENTARY | {"Integral"},  # gold answers hold it
    "algebra.polynomial_multiplication": ELEMENTARY,
    "games.puzzle24": ELEMENTARY,
    "games.countdown": ELEMENTARY,
}
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.UAdd, ast.USub)
LONGEST = 2000  # characters


def disarm() -> None:
    """Replace the evaluators in the scorers' modules, in this process. The generators keep theirs."""
    for name in LITERALS:
        vars(importlib.import_module(f"reasoning_gym.{name}"))["eval"] = ast.literal_eval
    for name, functions in FORMULAS.items():
        module = vars(importlib.import_module(f"reasoning_gym.{name}"))
        for alias in ("sympy", "sp"):
            if alias in module:
                module[alias] = Guarded(module[alias], functions)
        if "parse_expr" in module:
            module["parse_expr"] = only_formulas(module["parse_expr"], functions)


class Guarded:
    """sympy, but for its `parse_expr`."""

    def __init__(self, module: Any, functions: Collection[str]) -> None:
        self._module = module
        self.parse_expr = only_formulas(module.parse_expr, functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def only_formulas(parse: Callable[..., Any], functions: Collection[str]) -> Callable[..., Any]:
    def parse_formula(text: str, *args: Any, **options: Any) -> Any:
        if not is_formula(text, functions):
            raise ValueError(f"not a formula: {text!r:.80}")
        return parse(text, *args, **options)

    return parse_formula


def is_formula(text: str, functions: Collection[str] = frozenset(ELEMENTARY)) -> bool:
    """Whether `text` holds no attribute, text or name that begins with `_`, and calls `functions` only."""
    if len(text) > LONGEST or not text.isascii():
        return False
    try:
        return _formula(ast.parse(text.strip(), mode="eval").body, functions)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def _formula(node: ast.expr, functions: Collection[str]) -> bool:
    match node:
        case ast.Constant(value=number):
            return type(number) in (int, float)
        case ast.Name(id=name):
            return not name.startswith("_")
        case ast.UnaryOp(op=operator, operand=operand):
            return isinstance(operator, OPERATORS) and _formula(operand, functions)
        case ast.BinOp(left=left, op=operator, right=right):
            return (
                isinstance(operator, OPERATORS) and _formula(left, functions) and _formula(right, functions)
            )
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return name in functions and all(_formula(argument, functions) for argument in arguments)
    return False
