"""Are two parsed answers the same number, set, interval, matrix or formula, exactly and not to six decimals?

Independent of math-verify's comparison: decimals become fractions, constants are compared to 45 digits
relative to their size, formulas at rational points, containers element by element.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended.logic import And
from sympy import Basic, Eq, Float, Interval, MatrixBase, Rational, Set, Tuple
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from hardwon.verifiers.values import ROUNDED_PLACES, together

DIGITS = 60
TOLERANCE = sympy.Float("1e-45", DIGITS)
POINTS = (Rational(7, 5), Rational(-11, 13), Rational(29, 7), Rational(-53, 17), Rational(3, 19))


def exactly_equal(gold: Any, answer: Any) -> bool | None:
    """Whether two sympy values are the same; None where this check can't tell."""
    gold, answer = without_left_side(gold, answer)
    if isinstance(gold, MatrixBase) or isinstance(answer, MatrixBase):
        return same_matrix(gold, answer)
    if isinstance(gold, Relational | And) or isinstance(answer, Relational | And):
        return same_relation(gold, answer)
    if isinstance(gold, Set | Tuple) or isinstance(answer, Set | Tuple):
        return same_collection(gold, answer)
    if gold.is_Symbol or answer.is_Symbol:
        return None  # words: compared as text by math-verify
    return same_expression(gold, answer)


def without_left_side(gold: Any, answer: Any) -> tuple[Any, Any]:
    """`x = 5` against `5` compares 5 with 5; two equations stay equations."""
    equations = [is_equation(gold), is_equation(answer)]
    if all(equations):
        return gold, answer
    return tuple(last_side(x) if yes else x for x, yes in zip((gold, answer), equations, strict=True))


def is_equation(value: Any) -> bool:
    return isinstance(value, Eq) or (isinstance(value, And) and all(isinstance(a, Eq) for a in value.args))


def last_side(value: Any) -> Any:
    return last_side(value._unsorted_args[-1]) if isinstance(value, And) else value.rhs


def fractions(value: Any) -> Any:
    """Every decimal as the fraction that it writes, and what the parser left unevaluated evaluated."""
    value = value.xreplace({number: Rational(str(number)) for number in value.atoms(Float)})
    return value.doit() if hasattr(value, "doit") else value


def decimal_places(number: Float) -> int:
    """Decimals written, trailing zeros aside: the power of ten in 0.333333 is 6."""
    denominator, places = Fraction(str(number)).denominator, 0
    while 10**places % denominator:
        places += 1
    return places


def same_expression(gold: Basic, answer: Basic) -> bool | None:
    exact_gold, exact_answer = fractions(gold), fractions(answer)
    if exact_answer.has(sympy.nan, sympy.zoo):
        return False
    if exact_gold == exact_answer:
        return True
    if exact_gold.free_symbols or exact_answer.free_symbols or exact_gold.atoms(AppliedUndef):
        return same_formula(exact_gold, exact_answer)
    if exact_gold.is_Rational and exact_answer.is_Rational and not isinstance(gold, Float):
        return False
    if isinstance(gold, Float) and decimal_places(gold) >= ROUNDED_PLACES:
        # A long decimal in the data is a rounded value, and whatever rounds to it is right.
        half = Rational(1, 2 * 10 ** decimal_places(gold))
        return bool(abs(exact_answer - exact_gold).evalf(DIGITS) <= half)
    return close(exact_gold.evalf(DIGITS), exact_answer.evalf(DIGITS))


def close(a: Any, b: Any) -> bool | None:
    if not (a.is_number and b.is_number) or a.has(sympy.nan, sympy.zoo) or b.has(sympy.nan, sympy.zoo):
        return None
    if a == b:
        return True
    if a.is_infinite or b.is_infinite:
        return False
    return bool(abs(a - b) <= TOLERANCE * max(abs(a), abs(b)))


def values(expression: Basic, names: list[str]) -> list[Any]:
    """The expression at fixed rational points; each variable takes another one at each."""
    functions = {f: sympy.Symbol(str(f)) for f in expression.atoms(AppliedUndef)}
    expression = expression.xreplace(functions)
    found = []
    for shift in range(len(POINTS)):
        at = {s: POINTS[(names.index(str(s)) * 2 + shift) % len(POINTS)] + names.index(str(s))
              for s in expression.free_symbols}  # fmt: skip
        found.append(expression.xreplace(at).evalf(DIGITS))
    return found


def variable_names(*expressions: Basic) -> list[str]:
    return sorted({str(s) for e in expressions for s in e.free_symbols | e.atoms(AppliedUndef)})


def same_formula(gold: Basic, answer: Basic) -> bool | None:
    names = variable_names(gold, answer)
    pairs = zip(values(gold, names), values(answer, names), strict=True)
    found = [same for a, b in pairs if (same := close(a, b)) is not None]
    return all(found) if found else None


def same_matrix(gold: Any, answer: Any) -> bool | None:
    if not (isinstance(gold, MatrixBase) and isinstance(answer, MatrixBase)):
        return None
    return gold.shape == answer.shape and all_equal(zip(gold.flat(), answer.flat(), strict=True))


def all_equal(pairs: Iterable[tuple[Any, Any]]) -> bool | None:
    return together([exactly_equal(a, b) for a, b in pairs])


def elements(value: Any) -> list[Any] | None:
    if isinstance(value, Interval):
        return [value.start, value.end]
    if isinstance(value, Tuple | sympy.FiniteSet):
        return list(getattr(value, "_unsorted_args", value.args))
    return None if isinstance(value, Set) else [value]


def same_collection(gold: Any, answer: Any) -> bool | None:
    if isinstance(gold, Interval) and isinstance(answer, Interval):
        ends = gold.left_open == answer.left_open and gold.right_open == answer.right_open
        return ends and all_equal([(gold.start, answer.start), (gold.end, answer.end)])
    golds, answers = elements(gold), elements(answer)
    if golds is None or answers is None:
        return trusted_unless_decimal(gold, answer)
    if len(golds) != len(answers):
        return False
    if isinstance(gold, sympy.FiniteSet) and isinstance(answer, sympy.FiniteSet):
        return same_unordered(golds, answers)
    return all_equal(zip(golds, answers, strict=True))


def same_unordered(golds: list[Any], answers: list[Any]) -> bool | None:
    left = list(answers)
    for value in golds:
        match = next((other for other in left if exactly_equal(value, other) is not False), None)
        if match is None:
            return False
        left.remove(match)
    return True


def same_relation(gold: Any, answer: Any) -> bool | None:
    if isinstance(gold, Relational) and isinstance(answer, Relational):
        if isinstance(gold, Eq) and isinstance(answer, Eq) and gold.lhs == answer.lhs and gold.lhs.is_Symbol:
            return exactly_equal(gold.rhs, answer.rhs)
        return True if same_up_to_factor(gold, answer) else trusted_unless_decimal(gold, answer)
    if isinstance(gold, And) and isinstance(answer, And) and len(gold.args) == len(answer.args):
        return all_equal(zip(gold._unsorted_args, answer._unsorted_args, strict=True))
    return trusted_unless_decimal(gold, answer)


def same_up_to_factor(gold: Relational, answer: Relational) -> bool:
    """The sides' differences have a constant ratio; where an inequality points is math-verify's to say."""
    differences = [fractions(r.lhs) - fractions(r.rhs) for r in (gold, answer)]
    names = variable_names(*differences)
    pairs = list(zip(*(values(d, names) for d in differences), strict=True))
    ratios = [a / b for a, b in pairs if b != 0]
    return bool(ratios) and all(close(ratios[0], ratio) for ratio in ratios[1:])


def trusted_unless_decimal(gold: Any, answer: Any) -> bool | None:
    """None without decimals; with them, the two must be one set after the decimals became fractions."""
    if not (gold.atoms(Float) or answer.atoms(Float)):
        return None
    try:
        return bool(as_set(gold) == as_set(answer))
    except (NotImplementedError, TypeError, AttributeError, ValueError):
        return False


def as_set(value: Any) -> Any:
    if isinstance(value, And):
        return sympy.Intersection(*(as_set(part) for part in value._unsorted_args))
    value = fractions(value)
    return value.as_set() if isinstance(value, Relational) else value
