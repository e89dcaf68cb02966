"""`reasoning_gym:<dataset>`: every data set of that package, generated and scored in worker processes."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Sequence
from typing import Any

from reasoning_gym.factory import DATASETS

from hardwon.config import nearest
from hardwon.data import Problem, Verdict
from hardwon.tasks.splits import prompt_key
from hardwon.tasks.task import QUESTION_AND_ANSWER, Split, Task
from hardwon.verifiers import reasoning_gym as gym
from hardwon.verifiers.sandbox_inside import plain
from hardwon.verifiers.worker_pool import WorkerPool, verdict

INSTRUCTION = "\n\nThink step by step, then write only the final answer between <answer> and </answer>."
TEST_SEED = 900_000_000
"""Far from training seeds, because many data sets draw item i from `seed + i`."""

FIRST_TRIED = 8
"""If none of so many problems can be made, the others are not tried."""

MIXTURES = ("composite",)
NO_SOLUTION = {
    "boxnet": "its answers are plans in several rounds, and it gives no example",
    "rush_hour": "its puzzles come with the number of moves only",
}
"""Data sets that can be trained on but can't prove themselves: they come without a solution."""


def load(
    dataset: str,
    seed: int = 0,
    *,
    train_size: int = 1000,
    test_size: int = 200,
    verifier_seconds: float = 20.0,
    verifier_workers: int | None = None,
    **options: Any,
) -> Task:
    """`train_size` problems by `seed`, and `test_size` problems that are the same for every seed.

    `options` are the data set's own (its difficulty). Prompts that occur twice, or in the test set, are left
    out of training, so it may be smaller than asked. A problem that the package cannot make, or not in
    `verifier_seconds`, is left out, counted and said in `notes`. Generating takes from 0.1 ms (most) to 1 s
    (knight_swap) per problem. Sizes and seconds are ours.
    ValueError for unknown data sets, options and values.
    """
    if not 0 <= seed < TEST_SEED - train_size:
        raise ValueError(f"seed={seed}: from 0 to {TEST_SEED - train_size - 1} for task=reasoning_gym")
    if train_size < 1 or test_size < 1:
        raise ValueError(f"train_size={train_size}, test_size={test_size}: at least 1 each")
    check_options(dataset, options)
    pool = shared_pool(verifier_seconds, verifier_workers)
    config = json.dumps(options | {"seed": seed, "size": train_size}, sort_keys=True)
    test, untested = problems(
        pool, dataset, options | {"seed": TEST_SEED, "size": test_size}, f"{dataset}/test"
    )
    train, untrained = problems(
        pool, dataset, options | {"seed": seed, "size": train_size}, f"{dataset}/{seed}"
    )
    notes = (*notes_on("train", train_size, untrained), *notes_on("test", test_size, untested))
    for note in notes:
        warnings.warn(f"reasoning_gym:{dataset}, {note}", stacklevel=2)
    held_out = {prompt_key(p.prompt) for p in test}
    splits: dict[Split, list[Problem]] = {
        "train": [p for p in train if prompt_key(p.prompt) not in held_out],
        "test": test,
    }
    if not splits["train"]:
        raise ValueError(
            f"reasoning_gym:{dataset}: with {options} every training prompt is in the test set too"
        )

    def verify(pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        calls = [("grade", dataset, config, problem.info["entry"], text) for problem, text in pairs]
        return [verdict(reply) for reply in pool.run(calls)]

    return Task(
        f"reasoning_gym:{dataset}",
        lambda split: list(splits[split]),
        verify,
        gold_response,
        close=pool.close,
        prompt_template=QUESTION_AND_ANSWER,
        notes=notes,
    )


@functools.lru_cache(maxsize=1)
def shared_pool(seconds: float, num_workers: int | None) -> WorkerPool:
    """Shared by tasks of one process: the package takes seconds to import."""
    return WorkerPool(gym.work, seconds=seconds, num_workers=num_workers, sealed=True)


def check_options(dataset: str, options: dict[str, Any]) -> None:
    """ValueError that names the data set or the option, and the nearest known one."""
    if dataset in MIXTURES:
        raise ValueError(f"task='reasoning_gym:{dataset}' is a mixture of others: name one data set")
    if dataset not in DATASETS:
        raise ValueError(f"task='reasoning_gym:{dataset}' is unknown{nearest(dataset, DATASETS)}")
    config_class = DATASETS[dataset][1]
    known = [name for name in config_class.__dataclass_fields__ if name not in ("seed", "size")]
    for name in options:
        if name not in known:
            raise ValueError(f"reasoning_gym:{dataset} takes no {name!r}{nearest(name, known)}")
    try:
        config = config_class(**options)
        if hasattr(config, "validate"):
            config.validate()
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"reasoning_gym:{dataset} with {options}: {error}") from error


def problems(
    pool: WorkerPool, dataset: str, config: dict[str, Any], prefix: str
) -> tuple[list[Problem], dict[int, str]]:
    """The data set's problems, each prompt once, and why others could not be made, by their index.

    A worker makes them, so that hashing has the same seed. ValueError if none of the first FIRST_TRIED,
    or of all, can be made.
    """
    text, size = json.dumps(config, sort_keys=True), config["size"]
    found: dict[str, Problem] = {}
    failed: dict[int, str] = {}
    for indices in (range(min(FIRST_TRIED, size)), range(FIRST_TRIED, size)):
        replies = pool.run([("generate", dataset, text, index) for index in indices])
        for index, reply in zip(indices, replies, strict=True):
            if reply.kind != "done":
                failed[index] = str(reply.value)
                continue
            entry = plain.loads(reply.value)
            prompt = entry["question"] + INSTRUCTION
            problem = Problem(f"{prefix}/{index}", prompt, gym.gold(entry) or "", {"entry": entry})
            found.setdefault(prompt_key(prompt), problem)
        if not found:
            raise ValueError(f"reasoning_gym:{dataset} can't make any problem of {config}: {failed[0]}")
    return list(found.values()), failed


def notes_on(split: Split, size: int, failed: dict[int, str]) -> tuple[str, ...]:
    """What is said about problems that could not be made: how many, and the first one's reason."""
    if not failed:
        return ()
    number, them = ("1 problem is", "it") if len(failed) == 1 else (f"{len(failed)} problems are", "them")
    first, reason = next(iter(failed.items()))
    return (f"{split}: {number} left out of {size}, because reasoning_gym cannot make {them} "
            f"(number {first}: {reason}).",)  # fmt: skip


def gold_response(problem: Problem) -> str:
    answer = gym.gold(problem.info["entry"])  # may be empty: that of `ab` is, where all tokens vanish
    if answer is None:
        name = problem.id.partition("/")[0]
        reason = NO_SOLUTION.get(name, "it gives none for this one")
        raise ValueError(f"reasoning_gym:{name} has no solution to show: {reason}")
    return f"<answer>{answer}</answer>"
