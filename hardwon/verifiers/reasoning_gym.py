"""reasoning_gym's generators and scorers, for a worker process; and checks of the scorers that are too lax.

Raw correctness is a score of 1 or more. Some scorers of reasoning_gym 0.1.25 give 1 to wrong answers, which
a policy finds soon: those have a second check here. An answer at which a scorer raises is wrong if the
scorer can judge the gold answer, and an error otherwise.
"""

from __future__ import annotations

import functools
import json
import numbers
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import reasoning_gym

from hardwon.verifiers.answers import last_tagged
from hardwon.verifiers.expressions import exact_arithmetic
from hardwon.verifiers.harmless import disarm
from hardwon.verifiers.sandbox_inside import plain
from hardwon.verifiers.values import canonical_text

Entry = dict[str, Any]  # question, answer, metadata

disarm()


@functools.lru_cache(maxsize=8)
def dataset(name: str, config: str) -> Any:
    return reasoning_gym.create_dataset(name, **json.loads(config))


def generate(name: str, config: str, index: int) -> str:
    """One entry as `plain.dumps` writes it: JSON alone would turn the keys of its metadata into text."""
    return plain.dumps(plain_numbers(dataset(name, config)[index]))


def plain_numbers(value: Any) -> Any:
    """Numbers of other types as Python's own, at any depth; those that are no int or float as text.

    codeio and number_sequence may hold SymPy's Integer, gsm_symbolic Fractions, which no scorer reads.
    """
    if isinstance(value, dict):
        return {plain_numbers(key): plain_numbers(item) for key, item in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(plain_numbers(item) for item in value)
    if value is None or isinstance(value, bool | int | float | complex | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Rational):
        return str(value)
    return float(value) if isinstance(value, numbers.Real) else value


def gold(entry: Entry) -> str | None:
    """The answer, or the solution that the generator kept in the metadata; None if there is neither."""
    metadata = entry["metadata"]
    for value in (entry["answer"], metadata.get("example_answer"), metadata.get("example_correct_answer")):
        if isinstance(value, str):
            return value
    return json.dumps(metadata["possible_answer"]) if "possible_answer" in metadata else None


def grade(name: str, config: str, entry: Entry, response: str) -> dict[str, Any]:
    """The scorer's grade of what stands between the last <answer> tags."""
    answer = last_tagged(response)
    if answer is None:
        return {"correct": False, "score": 0.0, "message": "no <answer>...</answer>"}
    return {**grade_answer(name, config, entry, answer), "answer": canonical_text(answer)}


def grade_answer(name: str, config: str, entry: Entry, answer: str) -> dict[str, Any]:
    scorer = dataset(name, config).score_answer
    try:
        score = float(scorer(answer=answer, entry=entry))
    except Exception as error:
        scorer(answer=gold(entry), entry=entry)  # raises again, as an error, if it is the scorer that fails
        return {"correct": False, "score": 0.0, "message": f"no such answer: {type(error).__name__}: {error}"}
    if score >= 1 and not strictly(name, gold(entry), answer):
        return {
            "correct": False,
            "score": 0.0,
            "message": f"refuted: {answer!r:.100} got {score} by a lax scorer",
        }
    return {"correct": score >= 1, "score": score}


def strictly(name: str, gold_answer: str | None, answer: str) -> bool:
    """Whether an answer that scored 1 stands: no guess list, and right for its data set's second check."""
    if gold_answer is None or gold_answer == answer:
        return True
    if re.search(r"\bor\b", answer, re.IGNORECASE) and not re.search(r"\bor\b", gold_answer, re.IGNORECASE):
        return False
    check = SECOND_CHECKS.get(name)
    return check is None or check(gold_answer, answer)


def same_words(gold_answer: str, answer: str) -> bool:
    return words(gold_answer) == words(answer)


def as_many_words(gold_answer: str, answer: str) -> bool:
    return len(words(gold_answer)) >= len(words(answer))


def words(text: str) -> list[str]:
    return re.findall(r"[^\s,]+", text.casefold())


def same_numbers(gold_answer: str, answer: str) -> bool:
    return numbers_in(gold_answer) == numbers_in(answer)


def numbers_in(text: str) -> list[Fraction]:
    return [
        Fraction(number) for number in re.findall(r"-?\d+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d)", "", text))
    ]


def close_fraction(gold_answer: str, answer: str) -> bool:
    return abs(Fraction(gold_answer.replace(",", "")) - Fraction(answer.replace(",", ""))) <= Fraction(
        1, 10_000
    )


def finite(gold_answer: str, answer: str) -> bool:
    return not re.search("nan|inf", answer, re.IGNORECASE)


def integrated(gold_answer: str, answer: str) -> bool:
    return "Integral" not in answer


def same_arithmetic(gold_answer: str, answer: str) -> bool:
    """The same numbers, each as often, and exactly the same value."""
    found = exact_arithmetic(answer)
    return found is not None and found == exact_arithmetic(gold_answer)


SECOND_CHECKS: dict[str, Callable[[str, str], bool]] = {
    "coin_flip": close_fraction,  # compares the shorter text only: "0" equals "0.3125"
    "complex_arithmetic": finite,  # min(1, nan) is 1
    "countdown": same_arithmetic,  # y/y makes numbers that were not given; takes nearly the target
    "fraction_simplification": same_numbers,  # reads the first fraction of several
    "game_of_life_halting": same_words,  # takes any text but "" for True, the gold answer "False" too
    "gsm_symbolic": same_numbers,  # finds the gold number anywhere, "-20" and "20 574" included
    "intermediate_integration": integrated,  # the question again is its own antiderivative's derivative
    "letter_jumble": same_words,  # looks at the first words
    "puzzle24": same_arithmetic,  # takes any four numbers, and 24.5
    "spell_backward": same_words,  # looks at the first letters
    "time_intervals": as_many_words,  # reads the first interval of several
    "word_sorting": same_words,  # looks at the first words
}


ACTIONS: dict[str, Callable[..., Any]] = {"generate": generate, "grade": grade}


def work(action: str, *arguments: Any) -> Any:
    """The one function of the worker pool: "generate" or "grade"."""
    return ACTIONS[action](*arguments)
