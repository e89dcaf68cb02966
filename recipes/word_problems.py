"""Small word problems in the layout of GSM8K: `python recipes/word_problems.py FILE.jsonl [--rows 2000]`.

Columns `question` and `answer`, a worked solution that ends in "#### 37", for trying a small model
where no data set can be downloaded. Two steps per row with numbers up to 12, or one step with digits
(`--steps 1`); the seed decides all.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path

NAMES = ("Ana", "Ben", "Chloe", "Dev", "Elif", "Femi", "Grace", "Hugo", "Ines", "Jun")
THINGS = ("apples", "pencils", "marbles", "cards", "shells", "stamps", "buttons", "coins")


def gain(r: random.Random, name: str, thing: str) -> tuple[str, str, int]:
    have, more = r.randint(1, 9), r.randint(1, 9)
    question = f"{name} has {have} {thing} and finds {more} more. How many {thing} does {name} have now?"
    return question, f"{have}+{more}={have + more}", have + more


def lose(r: random.Random, name: str, thing: str) -> tuple[str, str, int]:
    have = r.randint(3, 12)
    less = r.randint(1, have - 1)
    question = f"{name} has {have} {thing} and gives away {less}. How many {thing} are left?"
    return question, f"{have}-{less}={have - less}", have - less


def gain_then_lose(r: random.Random, name: str, thing: str) -> tuple[str, str, int]:
    have, more = r.randint(2, 12), r.randint(2, 9)
    less = r.randint(1, have + more - 1)
    question = (
        f"{name} has {have} {thing} and finds {more} more. Then {name} gives away {less}. How many are left?"
    )
    steps = f"{have}+{more}={have + more}\n{have + more}-{less}={have + more - less}"
    return question, steps, have + more - less


def boxes(r: random.Random, name: str, thing: str) -> tuple[str, str, int]:
    rows, each = r.randint(2, 6), r.randint(2, 6)
    extra = r.randint(1, 9)
    question = (
        f"{name} fills {rows} boxes with {each} {thing} each and keeps {extra} more. How many {thing} in all?"
    )
    steps = f"{rows}*{each}={rows * each}\n{rows * each}+{extra}={rows * each + extra}"
    return question, steps, rows * each + extra


def two_days(r: random.Random, name: str, thing: str) -> tuple[str, str, int]:
    first, more = r.randint(2, 12), r.randint(1, 6)
    question = (
        f"{name} sells {first} {thing} on Monday and {more} more than that on Tuesday. "
        f"How many {thing} does {name} sell on both days together?"
    )
    steps = f"{first}+{more}={first + more}\n{first}+{first + more}={2 * first + more}"
    return question, steps, 2 * first + more


Kind = Callable[[random.Random, str, str], tuple[str, str, int]]
KINDS: dict[int, tuple[Kind, ...]] = {1: (gain, lose), 2: (gain_then_lose, boxes, two_days)}


def rows(number: int, steps: int, seed: int) -> list[dict[str, str]]:
    """`number` rows with distinct questions."""
    r = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < number:
        question, solution, answer = r.choice(KINDS[steps])(r, r.choice(NAMES), r.choice(THINGS))
        found[question] = f"{solution}\n#### {answer}"
    return [{"question": question, "answer": answer} for question, answer in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description="Small word problems in the layout of GSM8K")
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--steps", type=int, choices=KINDS, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.file.write_text(
        "".join(json.dumps(row) + "\n" for row in rows(given.rows, given.steps, given.seed))
    )


if __name__ == "__main__":
    main()
