r"""Answers that are words or the letter of a choice: compared as words and letters, never as mathematics."""

from __future__ import annotations

import re

TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
ARTICLES = {"the", "a", "an"}
WORDS = re.compile(r"[^\W\d_]+(?:['.-][^\W\d_]+)*\.?")
CHOICE = re.compile(r"(?:\(([A-Ja-j])\)|\[([A-J])\]|([A-J])(?=\s*$|\s*[.):]))\s*[.):]?\s*(.*)", re.DOTALL)
ANOTHER = re.compile(r"\(?\b[A-J][.)]|^(?:,|/|&|or\b|and\b)")
SYMBOLIC = {
    "all real numbers": r"\mathbb{R}",
    "all reals": r"\mathbb{R}",
    "infinity": r"\infty",
    "negative infinity": r"-\infty",
    "empty set": r"\emptyset",
    "the empty set": r"\emptyset",
}


def unwrapped(text: str) -> str:
    r"""\text{...} as what stands in it, three deep."""
    for _ in range(3):
        text = TEXT.sub(r"\1", text)
    return text.strip()


def words_of(text: str) -> list[str] | None:
    r"""The words of an answer that consists of words, in lower case and without articles; else None.

    Something in \text{...} is words, and so is plain text that can't be a product of variables:

    >>> words_of(r"\text{Does not exist.}"), words_of("No"), words_of("xy"), words_of(r"\text{7 cm}")
    (['does', 'not', 'exist'], ['no'], None, None)
    """
    plain = unwrapped(text).strip(" .!?\"'`*")
    parts = re.split(r"[\s,;:]+", plain)
    if not plain or not all(WORDS.fullmatch(part) for part in parts):
        return None
    if "\\text" not in text and len(parts) == 1 and not reads_as_word(plain):
        return None
    if "\\text" not in text and max(map(len, parts)) == 1:
        return None  # x, y
    words = [part.casefold().strip(".") for part in parts]
    return [word for word in words if word not in ARTICLES] or words


def reads_as_word(text: str) -> bool:
    """No, Monday, even: not xy, ABC, which may be variables. Two small letters are too few to tell."""
    if not text.isascii():
        return len(text) > 1
    few = 2 if text[0].isupper() and text[1:].islower() else 4
    return len(text) >= few and bool(re.search("[aeiouyAEIOUY]", text))


def symbolic(text: str) -> str:
    """Mathematics where the words have a symbol: all real numbers; otherwise the text as it is."""
    return SYMBOLIC.get(" ".join(unwrapped(text).lower().split()), text)


def choice_of(text: str) -> tuple[str, str] | None:
    r"""The letter of a multiple choice and what follows it; None for anything else.

    >>> choice_of("B"), choice_of(r"\text{(B)} 12"), choice_of("B) or C)"), choice_of("B + C")
    (('B', ''), ('B', '12'), None, None)
    """
    match = CHOICE.fullmatch(unwrapped(text).rstrip(" ."))
    if not match or ANOTHER.search(match[4]):
        return None
    return (match[1] or match[2] or match[3]).upper(), match[4].strip()
