"""Tiny programs: code that a model of 231,000 parameters can learn to write, judged in the real sandbox.

A problem says in words what a function of one integer does; a response is the program:

    add 3, square, mod 7      the prompt: operations from left to right
    def f(x):                 a response, one operation a line
     x=x+3
     x=x**2
     return x%7

Any program that computes the same on twelve inputs is right: tasks/code.py runs it like all others. One
line is enough if its parentheses are right (`return (x+3)**2%7`) and wrong if they are not
(`return x+3**2%7`). The number of operations is the difficulty dial. As in chain_arithmetic, the
split that a problem belongs to is a property of its own hash, and the test set is the same for every seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from hardwon.data import Problem
from hardwon.tasks.chain_arithmetic import split_of
from hardwon.tasks.code import code_task
from hardwon.tasks.task import Split, Task
from hardwon.verifiers.code import CallTests
from hardwon.verifiers.sandbox_layers import Limits

TEST_SIZE = 256
FEWEST, MOST = 2, 6
INPUTS = (-23, -9, -4, -1, 0, 1, 2, 3, 5, 8, 14, 31)
# Fewer different results than this, and a constant program comes close.
DISTINCT_RESULTS = 4


@dataclass(frozen=True)
class Operation:
    """`words` of the prompt and `code` of the program, on `{x}` with the constant `{k}`."""

    words: str
    code: str
    apply: Callable[[int, int], int]
    constants: Sequence[int] = range(2, 10)


OPERATIONS = (
    Operation("add {k}", "{x}+{k}", lambda x, k: x + k),
    Operation("subtract {k}", "{x}-{k}", lambda x, k: x - k),
    Operation("times {k}", "{x}*{k}", lambda x, k: x * k),
    Operation("div {k}", "{x}//{k}", lambda x, k: x // k),
    Operation("mod {k}", "{x}%{k}", lambda x, k: x % k, range(5, 10)),
    Operation("square", "{x}**2", lambda x, k: x * x, (0,)),
    Operation("negate", "-{x}", lambda x, k: -x, (0,)),
    Operation("absolute", "abs({x})", lambda x, k: abs(x), (0,)),
    Operation("at least {k}", "max({x},{k})", max),
    Operation("at most {k}", "min({x},{k})", min),
)

Step = tuple[Operation, int]
"""An operation and its constant."""


def load(
    seed: int = 0,
    *,
    min_operations: int = FEWEST,
    max_operations: int = MOST,
    train_size: int = 5_000,
    sandbox: str = "auto",
    unsafe_no_isolation: bool = False,
    verifier_workers: int | None = None,
) -> Task:
    """The task with `train_size` training problems drawn by `seed`, and 256 fixed test problems.

    The numbers of operations are equally frequent and alternate. The last three settings are tasks/code.py's.
    Raises ValueError if the range or the size cannot be had.
    """
    check_options(min_operations, max_operations, train_size)
    levels = range(min_operations, max_operations + 1)
    splits = {
        "train": list(islice(problems("train", seed, levels), train_size)),
        "test": list(islice(problems("test", 0, levels), TEST_SIZE)),
    }
    return code_task(
        "tiny_programs",
        splits,
        gold=lambda problem: problem.answer,
        sandbox=sandbox,
        limits=Limits(wall_seconds=6.0, cpu_seconds=2),
        unsafe_no_isolation=unsafe_no_isolation,
        verifier_workers=verifier_workers,
    )


def write_prompt(steps: Sequence[Step]) -> str:
    return ", ".join(operation.words.format(k=k) for operation, k in steps)


def write_program(lines: Sequence[str]) -> str:
    """The function whose lines compute these expressions of x, the last of which it returns.

    >>> print(write_program(["x+3", "x**2"]), end="")
    def f(x):
     x=x+3
     return x**2
    """
    body = "".join(f" x={line}\n" for line in lines[:-1])
    return f"def f(x):\n{body} return {lines[-1]}\n"


def write_lines(steps: Sequence[Step]) -> list[str]:
    """One expression of x for each operation."""
    return [operation.code.format(x="x", k=k) for operation, k in steps]


def run(steps: Sequence[Step], x: int) -> int:
    """What the program should return for `x`."""
    for operation, k in steps:
        x = operation.apply(x, k)
    return x


def draw_steps(rng: random.Random, number: int) -> list[Step]:
    """Operations, no two neighbours of one kind, whose results on INPUTS differ enough to tell."""
    while True:
        steps: list[Step] = []
        while len(steps) < number:
            operation = rng.choice(OPERATIONS)
            if not steps or operation is not steps[-1][0]:
                steps.append((operation, rng.choice(operation.constants)))
        if len({run(steps, x) for x in INPUTS}) >= DISTINCT_RESULTS:
            return steps


def problems(split: Split, seed: int, levels: range) -> Iterator[Problem]:
    """Endless distinct problems of a split; consecutive blocks hold each level once, shuffled."""
    rng = random.Random(f"tiny_programs/{split}/{seed}")
    seen: set[str] = set()
    while True:
        for number in rng.sample(levels, len(levels)):
            steps = draw_steps(rng, number)
            while write_prompt(steps) in seen or split_of(write_prompt(steps)) != split:
                steps = draw_steps(rng, number)
            seen.add(write_prompt(steps))
            yield problem_of(steps)


def problem_of(steps: Sequence[Step]) -> Problem:
    tests = CallTests("f", tuple([x] for x in INPUTS), tuple(run(steps, x) for x in INPUTS))
    prompt, program = write_prompt(steps), write_program(write_lines(steps))
    return Problem(f"tiny_programs/{prompt}", prompt, program, {"tests": tests, "operations": len(steps)})


def check_options(min_operations: int, max_operations: int, train_size: int) -> None:
    for name, value, lowest in (
        ("min_operations", min_operations, FEWEST),
        ("max_operations", max_operations, max(min_operations, FEWEST)),
    ):
        if not lowest <= value <= MOST:
            nearest = min(max(value, lowest), MOST)
            raise ValueError(f"{name}={value} is outside {lowest}..{MOST}: nearest is {nearest}")
    # About 3,000 of two operations and 140,000 of three can be told apart.
    largest = (1_000 if min_operations == FEWEST else 20_000) * (max_operations - min_operations + 1)
    if not 1 <= train_size <= largest:
        nearest = min(max(train_size, 1), largest)
        raise ValueError(f"train_size={train_size} is outside 1..{largest}: nearest is {nearest}")
