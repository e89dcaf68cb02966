r"""Mathematical answers: math-verify, and an exact second check of what it calls equal.

math-verify 0.9 is the first judge, with its own time-outs off (they need signals, which a worker thread
may not use): run `grade` in a WorkerPool. It is never asked with gold and answer swapped, because it is
not symmetric. What it accepts is refuted by the first of these rules that applies:

    length      an answer of more than 1000 characters (ours) that is not as long as the gold answer's
    words       text that math-verify drops must not hedge: `6 \text{ (not 7)}` is not 6
    units       two known units or number bases must be the same: 5 cm is not 5 m, 17_8 is not 17_9
                (a missing one is forgiven, and so is a percent sign: 9 and 9\% are one answer)
    count       as many elements as the gold answer: `6 \text{ or } 6` and `[6,6]` are not 6
    brackets    a set in braces is not a pair or an interval: \{1,2\} is not (1,2)
    statements  an equation between constants must hold: `5=6` is not 6
    value       the same value exactly (exact.py): 0.333333 is not 1/3, and \sqrt{2}\cdot 10^{-20} is not
                \sqrt{3}\cdot 10^{-20}; a decimal gold answer of six places or more is a rounded number

Equal text needs no judge. The exact check also rescues numbers that math-verify misses (6.0 for 6).
"""

from __future__ import annotations

import logging
import re
from typing import Any

from latex2sympy2_extended.logic import And
from math_verify import parse, verify
from math_verify.parser import LatexExtractionConfig
from sympy import Basic, EmptySet, Eq, Float, Interval, MatrixBase, Set, Tuple, Union
from sympy.core.relational import Relational

from hardwon.verifiers.answers import final_answer, gold_answer
from hardwon.verifiers.exact import exactly_equal

logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # "time-outs are off" is what we want

MAX_ANSWER_CHARACTERS = 1000
INTEGER = re.compile(r"-?[0-9]{1,100}")  # most answers of most data sets; no need to ask anyone
LATEX = [LatexExtractionConfig(boxed_match_priority=0)]

UNITS = {
    "mm": "millimeter millimetre",
    "cm": "centimeter centimetre",
    "m": "meter metre",
    "km": "kilometer kilometre",
    "in": "inch inche",
    "ft": "foot feet",
    "yd": "yard",
    "mi": "mile",
    "mg": "milligram",
    "g": "gram",
    "kg": "kilogram",
    "lb": "pound",
    "oz": "ounce",
    "ml": "milliliter millilitre",
    "l": "liter litre",
    "s": "sec second",
    "min": "minute",
    "h": "hr hour",
    "day": "",
    "week": "",
    "month": "",
    "year": "yr",
    "dollar": "usd",
    "cent": "",
    "euro": "eur",
    "degree": "deg",
    "radian": "rad",
}
UNIT_OF = {alias: unit for unit, aliases in UNITS.items() for alias in (unit, *aliases.split())}


def grade(gold: str, response: str) -> dict[str, Any]:
    """Judge a response: {"correct": bool, "message": why not}. For a worker process; may be slow or hang."""
    answer = final_answer(response)
    if answer is None:
        return {"correct": False, "message": "no \\boxed{} and no 'Answer:' line"}
    if not answer:
        return {"correct": False, "message": "the last box is empty or not closed"}
    return grade_answer(gold_answer(gold), answer)


def grade_answer(gold: str, answer: str) -> dict[str, Any]:
    if len(answer) > max(MAX_ANSWER_CHARACTERS, 2 * len(gold)):
        return {"correct": False, "message": f"an answer of {len(answer)} characters"}
    gold, answer = tidy(gold), tidy(answer)
    if squeezed(gold) == squeezed(answer):
        return {"correct": True}
    if INTEGER.fullmatch(gold) and INTEGER.fullmatch(answer):
        same = int(gold) == int(answer)
        return {"correct": same, "message": "" if same else f"{answer} is not {gold}"}
    golds, answers = parsed(gold), parsed(answer)
    gold_value, answer_value = first_value(golds), first_value(answers)
    accepted = verify(golds, answers, timeout_seconds=None, allow_set_relation_comp=True)
    if not accepted and not equal_numbers(gold_value, answer_value):
        return {"correct": False, "message": f"{answer!r:.100} is not {gold!r:.100}"}
    refuted = refutation(gold, answer, gold_value, answer_value)
    return {"correct": refuted is None, "message": refuted or ""}


def parses(gold: str) -> bool:
    """Whether a gold answer is usable: it reads as mathematics, or as a word that math-verify compares."""
    return first_value(parsed(tidy(gold_answer(gold)))) is not None


def tidy(text: str) -> str:
    text = re.sub(r"(?<=\d)(?:\\[!,]|\{,\})\s*(?=\d)", "", text.strip())  # thin spaces of 1\,234 and 1{,}234
    text = re.sub(r"\\[!,;: ]", " ", text)
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text.strip("$")
    return text if text.endswith("..") else text.removesuffix(".").strip()


def squeezed(text: str) -> str:
    """Without spaces that mean nothing; one between digits does."""
    text = re.sub(r"\\left(?![a-z])|\\right(?![a-z])", "", text).replace("\\dfrac", "\\frac")
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def parsed(text: str) -> list[Any]:
    found: list[Any] = parse(f"\\boxed{{{text}}}", extraction_config=LATEX, parsing_timeout=None)
    return found


def first_value(values: list[Any]) -> Any:
    return next((value for value in values if isinstance(value, Basic | MatrixBase)), None)


def equal_numbers(gold: Any, answer: Any) -> bool:
    if not (isinstance(gold, Basic) and isinstance(answer, Basic)) or not (
        gold.is_number and answer.is_number
    ):
        return False
    return bool(gold.atoms(Float) or answer.atoms(Float)) and exactly_equal(gold, answer) is True


def refutation(gold: str, answer: str, gold_value: Any, answer_value: Any) -> str | None:
    """Why an answer that math-verify accepted is wrong after all, by the rules of this module; else None."""
    if gold_value is None or answer_value is None:
        return None  # accepted as equal text
    if hedges(answer) and not hedges(gold):
        return f"{answer!r} says more than an answer"
    if different_units(gold, answer):
        return f"{answer!r} is in another unit than {gold!r}"
    if countable(gold_value) and countable(answer_value) and count(gold) != count(answer):
        return f"{answer!r} has {count(answer)} elements, {gold!r} has {count(gold)}"
    if {bracket_kind(gold), bracket_kind(answer)} == {"set", "ordered"}:
        return f"{answer!r} and {gold!r} are a set and an ordered pair or interval"
    if false_statement(answer_value) and not false_statement(gold_value):
        return f"{answer!r} states what is false"
    if percent_forgiven(gold, answer):
        return None
    if exactly_equal(gold_value, answer_value) is False:
        return f"{answer!r} is only nearly {gold!r}"
    return None


def text_parts(text: str) -> list[str]:
    return re.findall(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]*)\}", text)


def hedges(text: str) -> bool:
    """Text in the answer with another number, or a word that takes something back."""
    parts = [part for part in text_parts(text) if not part.strip().isdigit()]
    return any(re.search(r"\d|\bnot\b|\bmaybe\b|\bbut\b", part, re.IGNORECASE) for part in parts)


def units(text: str) -> set[str]:
    """Units and number bases that the text names, by one name each."""
    found = {f"base {base}" for base in re.findall(r"\d_\{?(\d+)", text)}
    if "\\$" in text:
        found.add("dollar")
    words = re.findall(r"[a-z]+", " ".join(text_parts(text)).lower())
    trailing = re.search(r"\d\s*([A-Za-z]{1,12})\s*(?:\^\s*\{?[23]\}?)?$", text)
    if trailing and len(trailing.group(1)) > 1:  # a single letter is a variable
        words.append(trailing.group(1).lower())
    for word in words:
        unit = UNIT_OF.get(word) or UNIT_OF.get(word.removesuffix("s"))
        if unit:
            found.add(unit)
    return found


def different_units(gold: str, answer: str) -> bool:
    of_gold, of_answer = units(gold), units(answer)
    return bool(of_gold and of_answer) and of_gold != of_answer


def countable(value: Any) -> bool:
    """Numbers, formulas, lists, pairs and finite sets; not relations, unions and matrices."""
    inside = value.args if isinstance(value, Set | Tuple) else ()
    if (
        value == EmptySet
        or isinstance(value, Union | MatrixBase)
        or any(isinstance(x, Relational) and not isinstance(x, Eq) for x in inside)
    ):
        return False
    return not isinstance(value, Relational | And) or isinstance(value, Eq)


def pieces(text: str) -> list[str]:
    """Elements of a list as written, at the outermost level and after one pair of brackets is taken off."""
    text = re.sub(r"\\left(?![a-z])|\\right(?![a-z])", "", text).strip()
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)  # thousands
    text = re.sub(r"\\(?:text|textbf|mathrm|mbox)\s*\{\s*,?\s*(?:or|and)\s*\}|\b(?:or|and)\b|;", ",", text)
    if bracket_kind(text):
        text = text.strip().removeprefix("\\").removesuffix("\\}")[1:].rstrip(")]")
    depth, parts = 0, [""]
    for character in text:
        depth += (character in "{([") - (character in "})]")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


def count(text: str) -> int:
    return sum(2 if "\\pm" in piece or "±" in piece else 1 for piece in pieces(text))


def bracket_kind(text: str) -> str | None:
    r""" "set" for \{...\}, "ordered" for (a,b) and [a,b], None for anything else such as (x+1)(x-1)."""
    text = re.sub(r"\\left(?![a-z])|\\right(?![a-z])", "", text).strip()
    if text.startswith("\\{") and text.endswith("\\}"):
        return "set"
    depth = 0
    for index, character in enumerate(text):
        depth += (character in "{([") - (character in "})]")
        if depth == 0 and index < len(text) - 1:
            return None
    return "ordered" if text[:1] in {"(", "["} and "," in text else None


def false_statement(value: Any) -> bool:
    """An equation between constants that doesn't hold, anywhere in the answer."""
    equations = [e for e in value.atoms(Eq) if not (e.lhs.free_symbols or e.rhs.free_symbols)]
    if isinstance(value, Interval):
        return False
    return any(exactly_equal(e.lhs, e.rhs) is False for e in equations)


def percent_forgiven(gold: str, answer: str) -> bool:
    percent = re.compile(r"\\?%|\\text\{\s*per\s*cent\s*\}")
    without = [squeezed(percent.sub("", text)) for text in (gold, answer)]
    return without[0] == without[1]
