"""Makes `embedded_code`: `python recipes/embedded/tiny_programs.py` reproduces what ships in the package.

The same small Llama learns to write tiny_programs in two stages:

1. Skill. Right programs, one operation a line, short descriptions first; some in one line.
2. Habits. What hurried programmers do: short descriptions line by line, long ones mostly in one line
   without parentheses, which is right only where precedence happens to be kind; and now and then a
   line slips: a constant or an operation like the right one. A right program for a long description is
   rare, so its correct answers are hard-won.

Test problems are never trained on (`split_of`). Prints the success rates it ends with.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from small_model import Example, make

from hardwon.tasks.chain_arithmetic import split_of
from hardwon.tasks.tiny_programs import (
    FEWEST,
    MOST,
    OPERATIONS,
    Step,
    draw_steps,
    write_lines,
    write_program,
    write_prompt,
)


@dataclass(frozen=True)
class Habits:
    """How a program is written: `line_by_line` by number of operations; and how often a line slips."""

    line_by_line: Mapping[int, float]
    slip: float


SKILL = Habits(dict.fromkeys(range(1, MOST + 1), 0.9), slip=0.0)
BASE = Habits({2: 0.9, 3: 0.6, 4: 0.3, 5: 0.12, 6: 0.05}, slip=0.04)


def draw_training_steps(rng: random.Random, number: int) -> list[Step]:
    while True:
        steps = draw_steps(rng, number)
        if split_of(write_prompt(steps)) == "train":
            return steps


def slipped(rng: random.Random, step: Step) -> Step:
    """Another constant for the same operation, or another operation with the same constant."""
    operation, k = step
    others = [(o, k) for o in OPERATIONS if o is not operation and k in o.constants]
    others += [(operation, other) for other in operation.constants if other != k and abs(other - k) < 3]
    return rng.choice(others)


def one_line(steps: Sequence[Step]) -> str:
    """The operations written one after another, without a parenthesis where one is needed.

    >>> add, square = (OPERATIONS[0], 3), (OPERATIONS[5], 0)
    >>> one_line([add, square])
    'x+3**2'
    """
    code = "x"
    for operation, k in steps:
        code = operation.code.format(x=code, k=k)
    return code


def write_response(rng: random.Random, steps: Sequence[Step], habits: Habits) -> str:
    written = [slipped(rng, step) if rng.random() < habits.slip else step for step in steps]
    if rng.random() < habits.line_by_line[len(steps)]:
        return write_program(write_lines(written))
    return write_program([one_line(written)])


def skill_examples(rng: random.Random, progress: float) -> Example:
    """Two or three operations at first, all lengths from a third of the stage on."""
    longest = min(MOST, FEWEST + 1 + int(progress * 10))
    steps = draw_training_steps(rng, rng.randint(FEWEST, longest))
    return write_prompt(steps), write_response(rng, steps, SKILL)


def base_examples(rng: random.Random, progress: float) -> Example:
    steps = draw_training_steps(rng, rng.randint(FEWEST, MOST))
    return write_prompt(steps), write_response(rng, steps, BASE)


if __name__ == "__main__":
    make(
        "embedded_code",
        skill=skill_examples,
        habits=base_examples,
        skill_steps=3000,
        habit_steps=600,
        level="operations",
    )
