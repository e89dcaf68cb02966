"""Makes `embedded`: `python recipes/embedded/chain_arithmetic.py` reproduces what ships in the package.

A Llama of 231,000 parameters with a character tokenizer learns chain_arithmetic in two stages:

1. Skill. Worked solutions, short expressions first, with some guesses among them: which term
   comes next, and how to add it to the running total.
2. Habits. What a base model does with the skill: it works short expressions out line by line
   and mostly guesses at long ones, and now and then a step slips. A worked solution of a long
   expression is right and rare, so its correct answers are hard-won, and reinforcement
   learning has something to find: that working it out pays, and how not to slip.

Test expressions are never trained on (`split_of`). Prints the success rates it ends with.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from small_model import Example, make

from hardwon.tasks.chain_arithmetic import draw_expression, split_of, terms_of, write_solution

FEWEST, MOST = 4, 9


@dataclass(frozen=True)
class Habits:
    """How a response is written: worked out, or guessed after a few steps; and how often a step slips."""

    work_out: dict[int, float]  # probability that all steps are written, by number of terms
    guess_at_once: float  # of the guesses, how many come on the first line
    slip: float  # probability that a step is wrong; later steps go on from the wrong total
    spread: float  # standard deviation of a guess for each term that it skips


SKILL = Habits(dict.fromkeys(range(3, MOST + 1), 0.9), guess_at_once=0.5, slip=0.0, spread=1.5)
BASE = Habits({4: 0.98, 5: 0.8, 6: 0.5, 7: 0.25, 8: 0.1, 9: 0.04}, guess_at_once=0.7, slip=0.03, spread=1.5)


def draw_training_expression(rng: random.Random, num_terms: int) -> str:
    while True:
        expression = draw_expression(rng, num_terms)
        if split_of(expression) == "train":
            return expression


def write_response(rng: random.Random, expression: str, habits: Habits) -> str:
    """Totals line by line, with slips; unless it is worked out, a guess ends it early."""
    terms = terms_of(expression)
    steps = len(terms) - 1
    written = steps
    if rng.random() >= habits.work_out[len(terms)]:
        written = 0 if rng.random() < habits.guess_at_once else rng.randint(0, steps - 1)
    totals, total = [], terms[0]
    for term in terms[1 : written + 1]:
        total += term
        if rng.random() < habits.slip:
            total = max(0, total + rng.choice((-10, -2, -1, 1, 2, 10)))
        totals.append(total)
    if written < steps:
        skipped = terms[written + 1 :]
        totals.append(max(0, round(total + sum(skipped) + rng.gauss(0, habits.spread * len(skipped)))))
    return write_solution(totals)


def skill_examples(rng: random.Random, progress: float) -> Example:
    """Three or four terms at first, all lengths from a third of the stage on."""
    longest = min(MOST, FEWEST + int(progress * 15))
    expression = draw_training_expression(rng, rng.randint(3, longest))
    return expression, write_response(rng, expression, SKILL)


def base_examples(rng: random.Random, progress: float) -> Example:
    expression = draw_training_expression(rng, rng.randint(FEWEST, MOST))
    return expression, write_response(rng, expression, BASE)


if __name__ == "__main__":
    make(
        "embedded",
        skill=skill_examples,
        habits=base_examples,
        skill_steps=4500,
        habit_steps=600,
        level="terms",
    )
