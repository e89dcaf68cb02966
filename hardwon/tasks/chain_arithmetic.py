"""The embedded task: sums of signed one-digit terms, best solved line by line.

A problem is an expression; a response may reason freely, and its last line is the answer:

    3+7-5+8        the prompt
    10             a reasoning step: the running total after two terms
    5              and after three
    =13.           the last line: "=", the whole answer, a full stop

The full stop shows that the answer was not cut off. The number of terms is the difficulty
dial: each term is one more step that can go wrong. No running total is below zero. Whether
an expression belongs to the training or to the test set is a property of its own hash, so no
seed and no option can mix the two; the test set is the same for every seed.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice

from hardwon.data import Problem, Verdict
from hardwon.tasks.task import Split, Task
from hardwon.verifiers.answers import shortened

TEST_SIZE = 512
TEST_SHARE = 1 / 8
MAX_DIGIT = 9
SHORTEST, LONGEST = 4, 12


def load(seed: int = 0, *, min_terms: int = 4, max_terms: int = 9, train_size: int = 20_000) -> Task:
    """The task with `train_size` training problems drawn by `seed`, and 512 fixed test problems.

    The numbers of terms from `min_terms` to `max_terms` are equally frequent and alternate, so
    that the first problems of a split are as hard as the whole of it.
    Raises ValueError if the range or the size cannot be had.
    """
    _check_options(min_terms, max_terms, train_size)
    levels = range(min_terms, max_terms + 1)
    splits: dict[Split, list[Problem]] = {
        "train": list(islice(_problems("train", seed, levels), train_size)),
        "test": list(islice(_problems("test", 0, levels), TEST_SIZE)),
    }
    return Task(name="chain_arithmetic", problems=_lookup(splits), verify=verify, gold=gold)


def terms_of(expression: str) -> list[int]:
    """The signed terms, in order.

    >>> terms_of("3+7-5")
    [3, 7, -5]
    """
    return [int(term) for term in expression.replace("-", " -").replace("+", " ").split()]


def running_totals(terms: Sequence[int]) -> list[int]:
    """The totals after two terms, after three, ... and after all.

    >>> running_totals([3, 7, -5])
    [10, 5]
    """
    return [sum(terms[:count]) for count in range(2, len(terms) + 1)]


def write_solution(totals: Sequence[int]) -> str:
    """One total a line, the last one as the answer.

    >>> write_solution([10, 5])
    '10\\n=5.'
    """
    steps = "".join(f"{total}\n" for total in totals[:-1])
    return f"{steps}={totals[-1]}."


def gold(problem: Problem) -> str:
    """The worked solution of a problem: it earns full reward."""
    return write_solution(running_totals(terms_of(str(problem.prompt))))


def verify(pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
    """Judge responses by their last line; what stands above it is free, except further answers."""
    return [_judge(response, problem.answer) for problem, response in pairs]


_SEVERAL = Verdict("wrong", 0.0, "more than one answer")
_UNFINISHED = Verdict("wrong", 0.0, "no complete last line '=<answer>.'")


def _judge(response: str, answer: str) -> Verdict:
    if response.count("=") > 1:
        return _SEVERAL
    last_line = response[response.rfind("\n") + 1 :]
    if last_line == f"={answer}.":
        return Verdict("correct", 1.0, answer=answer)
    if not (last_line.startswith("=") and last_line.endswith(".")):
        return _UNFINISHED
    found = last_line[1:-1]
    return Verdict("wrong", 0.0, f"{found} is not {answer}", answer=shortened(found) or None)


def split_of(expression: str) -> Split:
    """The split that an expression belongs to, in every run and with every seed."""
    digest = hashlib.blake2b(expression.encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest) < TEST_SHARE * 2**64 else "train"


def draw_expression(rng: random.Random, num_terms: int) -> str:
    """Terms from -9 to 9 without 0, each uniform over those that keep the running total at 0 or above."""
    total = rng.randint(1, MAX_DIGIT)
    expression = str(total)
    for _ in range(num_terms - 1):
        term = rng.choice(_next_terms(total))
        total += term
        expression += f"{term:+d}"
    return expression


def count_expressions(num_terms: int) -> int:
    """How many expressions of `num_terms` terms there are.

    >>> count_expressions(1), count_expressions(2)
    (9, 126)
    """
    ways = Counter(range(1, MAX_DIGIT + 1))
    for _ in range(num_terms - 1):
        longer: Counter[int] = Counter()
        for total, count in ways.items():
            for term in _next_terms(total):
                longer[total + term] += count
        ways = longer
    return ways.total()


@cache
def _next_terms(total: int) -> list[int]:
    return [term for term in range(max(-MAX_DIGIT, -total), MAX_DIGIT + 1) if term]


def _problems(split: Split, seed: int, levels: range) -> Iterator[Problem]:
    """Endless distinct problems of a split; consecutive blocks hold each level once, shuffled."""
    rng = random.Random(f"chain_arithmetic/{split}/{seed}")
    seen: set[str] = set()
    while True:
        for num_terms in rng.sample(levels, len(levels)):
            expression = draw_expression(rng, num_terms)
            while expression in seen or split_of(expression) != split:
                expression = draw_expression(rng, num_terms)
            seen.add(expression)
            answer = str(sum(terms_of(expression)))
            yield Problem(f"chain_arithmetic/{expression}", expression, answer, {"terms": num_terms})


def _lookup(splits: dict[Split, list[Problem]]) -> Callable[[Split], list[Problem]]:
    def problems(split: Split) -> list[Problem]:
        if split not in splits:
            raise ValueError(f"split={split!r} does not exist: choose 'train' or 'test'")
        return splits[split]

    return problems


def _check_options(min_terms: int, max_terms: int, train_size: int) -> None:
    if not SHORTEST <= min_terms <= LONGEST:
        nearest = min(max(min_terms, SHORTEST), LONGEST)
        raise ValueError(f"min_terms={min_terms} is outside {SHORTEST}..{LONGEST}: nearest is {nearest}")
    if not min_terms <= max_terms <= LONGEST:
        nearest = min(max(max_terms, min_terms), LONGEST)
        raise ValueError(f"max_terms={max_terms} is outside {min_terms}..{LONGEST}: nearest is {nearest}")
    # Drawing distinct expressions stays quick while a level is at most three quarters used up.
    supply = count_expressions(min_terms) * (1 - TEST_SHARE)
    largest = int(0.75 * supply) * (max_terms - min_terms + 1)
    if not 1 <= train_size <= largest:
        nearest = min(max(train_size, 1), largest)
        raise ValueError(
            f"train_size={train_size} is outside 1..{largest}, the distinct expressions that "
            f"min_terms={min_terms} and max_terms={max_terms} leave: nearest is {nearest}"
        )
