"""Multiple choice: the options go into the prompt with letters, and the right letter is the answer.

Options keep the order of the data, except where the data always names the right one first: these are put in
the order of a hash of the question and the option, so that the right letter depends on no position.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from string import ascii_uppercase
from typing import Any

from hardwon.tasks.layouts.layout import BadRowError, Layout, Row, at, is_list, needed, text_at

INSTRUCTION = "Answer with the letter of the right option."
LETTERED = re.compile(r"\(?([A-Za-z])\s?[).:]\s*\S")

Options = tuple[list[str], list[str]]  # labels as the data writes them (letters where it writes none), texts


def lettered(question: str, options: Sequence[str]) -> str:
    """The question, with its options if it doesn't list them. Letters of the options ("A)3") are kept."""
    letters = ascii_uppercase[: len(options)]
    if all(lists(question, letter, option) for letter, option in zip(letters, options, strict=True)):
        return question
    own = [LETTERED.match(option) for option in options]
    if [found[1].upper() if found else "" for found in own] == list(letters):
        lines = [option.strip() for option in options]
    else:
        lines = [f"{letter}) {option}" for letter, option in zip(letters, options, strict=True)]
    return "\n".join([question.strip(), "", *lines, "", INSTRUCTION])


def lists(question: str, letter: str, option: str) -> bool:
    return re.search(rf"\b{letter}\s?[).:]\s*{re.escape(option)}", question) is not None


def options_at(row: Row, path: str) -> Options:
    """A list; {"text", "label"} as ARC has it; {"A": ...} as MedQA has it; or MathQA's one line of text."""
    value = needed(row, path)
    if isinstance(value, str):
        value = re.split(r"\s*,\s*(?=[a-z]\s\))", value.strip())
    if isinstance(value, Mapping):
        texts = value.get("text")
        if is_list(texts):
            own = value.get("label")
            value = dict(zip(map(str, own if is_list(own) else ascii_uppercase), texts, strict=False))
        pairs = [(str(label), str(text)) for label, text in value.items() if text is not None]
        labels, value = [label for label, _ in pairs], [text for _, text in pairs]
    elif is_list(value):
        labels = list(ascii_uppercase[: len(value)])
    if not is_list(value) or not 2 <= len(value) <= len(ascii_uppercase):
        raise BadRowError(path, f"from 2 to {len(ascii_uppercase)} options are wanted, found {value!r:.80}")
    return list(labels), [str(option) for option in value]


def right_index(path: str, given: Any, options: Options, first: int) -> int:
    """Which option is right: by its label, its number from `first` on, or its text.

    BadRowError if that means none, or by two readings two different ones.
    """
    labels, texts = options
    name = str(int(given) if isinstance(given, float) and given.is_integer() else given).strip()
    readings: dict[str, int] = {}
    if isinstance(given, str) and name.upper() in map(str.upper, labels):
        readings["label"] = [label.upper() for label in labels].index(name.upper())
    elif name.isdecimal() and first <= int(name) < first + len(texts):
        readings["number"] = int(name) - first
    if isinstance(given, str) and name in texts:
        readings["text"] = texts.index(name)
    if not readings:
        raise BadRowError(path, f"{given!r:.80} is none of the options {', '.join(labels)}")
    if len(set(readings.values())) > 1:
        raise BadRowError(path, f"{given!r:.80} is the {' of one option and the '.join(readings)} of another")
    return next(iter(readings.values()))


def choice(
    name: str,
    question: str | Callable[[Row], str],
    options: str | Callable[[Row], Options],
    right: str,
    *more_marks: str,
    first: int = 0,
) -> Layout:
    """The layout of multiple choice with options in the data's order; numbers of options begin at `first`."""

    def found(row: Row) -> Options:
        return options_at(row, options) if isinstance(options, str) else options(row)

    def prompt(row: Row) -> str:
        asked = text_at(row, question) if isinstance(question, str) else question(row)
        return lettered(asked, found(row)[1])

    def answer(row: Row) -> str:
        return ascii_uppercase[right_index(right, needed(row, right), found(row), first)]

    marks = [mark for mark in (question, options, right, *more_marks) if isinstance(mark, str)]
    return Layout(name, tuple(marks), prompt, answer)


def columns(*names: str) -> Callable[[Row], Options]:
    """Options that have a column each."""

    def read(row: Row) -> Options:
        texts = [str(at(row, name)) for name in names if at(row, name) is not None]
        return list(ascii_uppercase[: len(texts)]), texts

    return read


def right_first(name: str, question: str, right: str, *wrong: str) -> Layout:
    """The layout of multiple choice that has a column for the right option and one for each wrong one."""

    def order(row: Row) -> list[str]:
        asked = text_at(row, question)
        options = [str(needed(row, right)), *(str(at(row, w)) for w in wrong if at(row, w) is not None)]
        return sorted(options, key=lambda option: hashlib.sha256(f"{asked}\0{option}".encode()).digest())

    def prompt(row: Row) -> str:
        return lettered(text_at(row, question), order(row))

    def answer(row: Row) -> str:
        return ascii_uppercase[order(row).index(str(needed(row, right)))]

    return Layout(name, (question, right, wrong[0]), prompt, answer)


LETTER_COLUMNS = columns("A", "B", "C", "D", "E")

CHOICES = (
    choice("mmlu_pro", "question", "options", "answer_index"),
    choice("medqa", "question", "options", "answer_idx"),
    choice("mmlu", "question", "choices", "answer"),
    choice("arc", "question", "choices", "answerKey"),  # commonsense_qa too
    choice("openbookqa", "question_stem", "choices", "answerKey"),
    choice("aqua", "question", "options", "correct"),
    choice("mathqa", "Problem", "options", "correct"),
    choice("medmcqa", "question", columns("opa", "opb", "opc", "opd"), "cop", "opa", "opb"),
    choice("cmmlu", "Question", LETTER_COLUMNS, "Answer", "A", "B"),
    choice("ceval", "question", LETTER_COLUMNS, "answer", "A", "B"),
    choice("winogrande", "sentence", columns("option1", "option2"), "answer", "option1", "option2", first=1),
    choice("hellaswag", "ctx", "endings", "label"),
    choice("logiqa", lambda row: f"{text_at(row, 'context')}\n\n{text_at(row, 'query')}", "options",
           "correct_option", "context", "query"),
    choice("options", "question", "options", "answer"),
    replace(choice("options", "prompt", "options", "answer"),
            when=lambda row: isinstance(row["prompt"], str)),
    right_first("gpqa", "Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2",
                "Incorrect Answer 3"),
    right_first("sciq", "question", "correct_answer", "distractor1", "distractor2", "distractor3"),
)  # fmt: skip
