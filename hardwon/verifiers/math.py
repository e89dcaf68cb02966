r"""Mathematical answers: read exactly where they can be, and else judged by math-verify and a second check.

An answer and the gold answer are first put into one spelling (notation.py). Then the first of these decides:

    text        equal text is equal
    choice      a letter against `B`, `(B)`, `B. 12`: by the letter (words.py)
    words       two answers of words: the same words, case and articles aside; never a formula
    shape       numbers (exactly), units, lists, sets, pairs, intervals, matrices (values.py)
    formula     what is left: math-verify, and a refutation of what it accepts

Numbers are equal exactly: 0.333333 is not 1/3. A decimal gold answer of six places and five digits or more is
a rounded number, though. A missing unit is forgiven, and so is a percent sign (9 and 9\% are one answer, and
0.09 and 9\%, but 0.5\% is not 1/2); different units are not: 5 cm is not 5 m, 3 kJ is 3000 J.

math-verify 0.9 runs with its own time-outs off (they need signals, which a worker thread may not use): run
`grade` in a WorkerPool. It is never asked with gold and answer swapped, because it is not symmetric. What it
accepts is refuted by the first of these rules that applies:

    length      an answer of more than 1000 characters (ours) that is not as long as the gold answer's
    words       text that math-verify drops must not hedge: `6 \text{ (not 7)}` is not 6
    letters     A is not a, where they are variables
    bases       two number bases must be the same: 17_8 is not 17_9 (a missing one is forgiven)
    count       as many elements as the gold answer: \sqrt2, \sqrt2 is not \sqrt2
    brackets    a set in braces is not a pair or an interval: \{a,b\} is not (a,b)
    statements  an equation between constants must hold: `5=6` is not 6
    value       the same value exactly (exact.py): \sqrt{2}\cdot 10^{-20} is not \sqrt{3}\cdot 10^{-20}

The exact check also rescues numbers that math-verify misses.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from latex2sympy2_extended.logic import And
from math_verify import parse, verify
from math_verify.parser import LatexExtractionConfig
from sympy import Basic, EmptySet, Eq, Float, Interval, MatrixBase, Set, Tuple, Union
from sympy.core.relational import Relational

from hardwon.verifiers.answers import final_answer, gold_answer, shortened
from hardwon.verifiers.exact import exactly_equal, fractions
from hardwon.verifiers.notation import one_spelling, squeezed, without_scientific
from hardwon.verifiers.units import split_unit
from hardwon.verifiers.values import Bag, Leaf, Ordered, canonical, read, same
from hardwon.verifiers.words import TEXT, choice_of, symbolic, words_of

logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # "time-outs are off" is what we want

MAX_ANSWER_CHARACTERS = 1000
INTEGER = re.compile(r"-?[0-9]{1,100}")  # most answers of most data sets; no need to ask anyone
SMALL_LETTER = re.compile("[a-j]")
SLOW = re.compile(r"\^[^-+*/,]*\^|\^\s*\{?\s*-?\d{4}|!|\\(?:int|sum|prod|lim|binom)")  # towers, ...
LATEX = [LatexExtractionConfig(boxed_match_priority=0)]

Way = Callable[[str, str], bool | str | None]
Grade = dict[str, Any]
"""{"correct": bool, "message": why not, "answer": canonical form or None}"""


def grade(gold: object, response: str) -> Grade:
    """Judge a response. For a worker process; may be slow or hang."""
    answer = final_answer(response)
    if not answer:
        missing = (
            "no \\boxed{} and no 'Answer:' line" if answer is None else "the last box is empty or not closed"
        )
        return {"correct": False, "message": missing, "answer": None}
    found = grade_answer(gold_answer(gold), answer)
    return {**found, "answer": canonical_answer(answer)}


def grade_answer(gold: str, answer: str) -> Grade:
    if len(answer) > max(MAX_ANSWER_CHARACTERS, 2 * len(gold)):
        return {"correct": False, "message": f"an answer of {len(answer)} characters"}
    gold, answer = (symbolic(one_spelling(text)) for text in (gold, answer))
    if squeezed(gold) == squeezed(answer):
        return {"correct": True, "message": ""}
    correct = equal(gold, answer)
    if isinstance(correct, str):
        return {"correct": False, "message": correct}
    return {"correct": correct, "message": "" if correct else f"{answer!r:.100} is not {gold!r:.100}"}


def equal(gold: str, answer: str) -> bool | str:
    """Whether two answers in one_spelling are equal; where math-verify was refuted, a text that says why."""
    if INTEGER.fullmatch(gold) and INTEGER.fullmatch(answer):
        return int(gold) == int(answer)
    return first_finding(gold, answer, equal_choice, equal_words, equal_shape)


def first_finding(gold: str, answer: str, *ways: Way) -> bool | str:
    """What the first of the ways finds that can tell; else what math-verify says."""
    for way in ways:
        found = way(gold, answer)
        if found is not None:
            return found
    return equal_formula(gold, answer)


def equal_choice(gold: str, answer: str) -> bool | str | None:
    """By the letter, if both have one; by what follows it, if only one has. `B` against `x` is no choice."""
    wanted, found = choice_of(gold), choice_of(answer)
    if wanted and not wanted[1] and SMALL_LETTER.fullmatch(answer):
        return wanted[0] == answer.upper()
    if wanted and found:
        if wanted[0] != found[0]:
            return False
        return equal(wanted[1], found[1]) if wanted[1] and found[1] and wanted[1] != found[1] else True
    if wanted and wanted[1]:
        return equal(wanted[1], answer)
    if found and found[1]:
        return equal(gold, found[1])
    return None


def equal_words(gold: str, answer: str) -> bool | None:
    wanted, found = words_of(gold), words_of(answer)
    if wanted is None or found is None:
        return None
    return wanted == found or ("and" in wanted and sorted(wanted) == sorted(found))


def equal_shape(gold: str, answer: str) -> bool | str | None:
    letters = bool(split_unit(gold)[1].dimensions) or bool(split_unit(answer)[1].dimensions)
    reasons: list[str] = []

    def judge(a: str, b: str) -> bool:
        found = equal_text(a, b)
        if isinstance(found, str):
            reasons.append(found)
        return found is True

    found = same(read(gold, letters=letters), read(answer, letters=letters), judge)
    return reasons[-1] if found is False and reasons else found


def equal_text(gold: str, answer: str) -> bool | str:
    """Two elements of which one is no number."""
    return first_finding(gold, answer, equal_choice, equal_words)


def equal_formula(gold: str, answer: str) -> bool | str:
    """What math-verify says; the reason as text where it says yes and is refuted."""
    gold, answer = without_scientific(gold), without_scientific(answer)
    golds, answers = parsed(gold), parsed(answer)
    gold_value, answer_value = first_value(golds), first_value(answers)
    accepted = verify(golds, answers, timeout_seconds=None, allow_set_relation_comp=True)
    if not accepted and not equal_numbers(gold_value, answer_value):
        return False
    return refutation(gold, answer, gold_value, answer_value) or True


def parses(gold: object) -> bool:
    """Whether a gold answer is usable: words, a letter, a number, or what math-verify can read."""
    text = symbolic(one_spelling(gold_answer(gold)))
    if not text:
        return False
    if choice_of(text) or words_of(text):
        return True
    value = read(text)
    if isinstance(value, Leaf) and (value.number is not None or value.infinite):
        return True
    return first_value(parsed(without_scientific(text))) is not None


def canonical_answer(answer: str) -> str:
    r"""What a response votes for: one text for `1/2`, `0.5` and `\frac{1}{2}`, of 200 characters at most."""
    if len(answer) > MAX_ANSWER_CHARACTERS:
        return shortened(" ".join(answer.split()))
    text = symbolic(one_spelling(answer))
    choice = choice_of(text)
    if choice:
        return choice[0]
    words = words_of(text)
    return canonical(Leaf(" ".join(words)) if words else read(text), formula=canonical_formula)


def canonical_formula(text: str) -> str:
    """sympy's text of a formula that it can read; the text itself where sympy may take its time."""
    if SLOW.search(text) or words_of(text):
        return squeezed(text)
    value = first_value(parsed(without_scientific(text)))
    try:
        return squeezed(text) if value is None else str(fractions(value))
    except (TypeError, ValueError, ArithmeticError, AttributeError, NotImplementedError, RecursionError):
        return squeezed(text)


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
    if letters(gold) != letters(answer) and letters(gold.lower()) == letters(answer.lower()):
        return f"{answer!r} and {gold!r} are in small and capital letters"
    if len(bases(gold) | bases(answer)) > 1:
        return f"{answer!r} is in another base than {gold!r}"
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


def hedges(text: str) -> bool:
    """Text in the answer with another number, or a word that takes something back."""
    parts = [part for part in TEXT.findall(text) if not part.strip().isdigit()]
    return any(re.search(r"\d|\bnot\b|\bmaybe\b|\bbut\b", part, re.IGNORECASE) for part in parts)


def letters(text: str) -> set[str]:
    """The variables: math-verify takes A for a."""
    return set(re.findall("[A-Za-z]", re.sub(r"\\[A-Za-z]+", " ", TEXT.sub(" ", text))))


def bases(text: str) -> set[str]:
    return set(re.findall(r"\d_\{?(\d+)", text))


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


def count(text: str) -> int:
    """Elements as written."""
    value = read(text)
    return len(value.items) if isinstance(value, Bag | Ordered) else 1


def bracket_kind(text: str) -> str | None:
    r""" "set" for \{...\}, "ordered" for (a,b) and [a,b], None for anything else such as (x+1)(x-1)."""
    match read(text):
        case Bag(braces=True):
            return "set"
        case Ordered(variable=""):
            return "ordered"
    return None


def false_statement(value: Any) -> bool:
    """An equation between constants that doesn't hold, anywhere in the answer."""
    equations = [e for e in value.atoms(Eq) if not (e.lhs.free_symbols or e.rhs.free_symbols)]
    if isinstance(value, Interval):
        return False
    return any(exactly_equal(e.lhs, e.rhs) is False for e in equations)


def percent_forgiven(gold: str, answer: str) -> bool:
    without = [squeezed(re.sub(r"\\?%", "", text)) for text in (gold, answer)]
    return without[0] == without[1]
