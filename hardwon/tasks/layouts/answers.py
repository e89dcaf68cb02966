"""Answers of rows as texts that mathematics is compared with. Any text of several is right."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hardwon.tasks.layouts.layout import is_list, json_or_none
from hardwon.verifiers.answers import gold_answer, last_boxed

LONGEST_BARE = 200  # characters of a worked solution without a box that may still be the answer itself (ours)


def gold_texts(answer: Any) -> list[str]:
    r"""The right answers that a column's value writes. ValueError says what else it is.

    A list, or its JSON text, holds several right answers. A number becomes exact decimal digits, since
    `1e-05` would be read with Euler's e. A worked solution gives its last box, or what follows "####".

    >>> gold_texts(37.0), gold_texts(1e-05), gold_texts('["37", "37.0"]'), gold_texts("6*7=42\n#### 42")
    (['37'], ['0.00001'], ['37', '37.0'], ['42'])
    """
    if isinstance(answer, str):
        listed = json_or_none(answer) if answer.lstrip().startswith("[") else None
        if is_list(listed) and listed and all(isinstance(item, str) for item in listed):
            return gold_texts(listed)
        if not answer.strip():
            raise ValueError("is empty")
        return [gold_answer(answer)]
    if is_list(answer):
        if not answer:
            raise ValueError("is empty")
        return list(dict.fromkeys(text for item in answer for text in gold_texts(item)))
    if isinstance(answer, bool) or not isinstance(answer, int | float | Decimal):
        raise ValueError(f"text or a number is wanted, found {answer!r:.80}")
    return [number_text(answer)]


def number_text(number: int | float | Decimal) -> str:
    """Decimal digits of exactly the number that was written; a whole one without a point."""
    if not isinstance(number, int) and not Decimal(number).is_finite():
        raise ValueError(f"a finite number is wanted, found {number}")
    # Of a float its shortest writing, which is the one in the file, and not the bits behind it.
    exact = number if isinstance(number, int | Decimal) else Decimal(repr(number))
    if exact == int(exact):
        return format(Decimal(exact), "f").partition(".")[0]
    return format(Decimal(exact), "f").rstrip("0")


def comparable(answer: Any) -> Any:
    """Equal for columns that say the same answer in other words."""
    try:
        return gold_texts(answer)
    except ValueError:
        return repr(answer)


def says_its_answer(solution: Any) -> bool:
    """Whether a worked solution marks its answer, or is so short that it is the answer."""
    if not isinstance(solution, str) or last_boxed(solution) is not None or "####" in solution:
        return True
    return len(solution) <= LONGEST_BARE and "\n" not in solution.strip()
