"""Your own reward functions: on your own data (`custom`), or in place of any other task's verifier."""

from __future__ import annotations

import dataclasses

from hardwon.data import Problem
from hardwon.tasks.sources import Source
from hardwon.tasks.splits import HELD_OUT_FRACTION, RowWeights, load_splits
from hardwon.tasks.task import Task
from hardwon.verifiers.custom import SECONDS, THRESHOLD, CustomVerifier, Encode, columns_of, parse_rewards


def load(
    data: Source,
    reward: str,
    eval_data: Source | None = None,
    seed: int = 0,
    *,
    held_out_fraction: float = HELD_OUT_FRACTION,
    row_weights: RowWeights = "distinct",
    reward_threshold: float = THRESHOLD,
    reward_seconds: float = SECONDS,
    encode: Encode | None = None,
) -> Task:
    """Problems of `data` (tasks/splits.py; answers may be anything), judged by `reward` as in with_reward."""
    splits = load_splits(data, eval_data, held_out_fraction=held_out_fraction, row_weights=row_weights)
    verifier = make_verifier(
        (splits["train"] or splits["test"])[0], reward, reward_threshold, reward_seconds, encode
    )
    return Task(
        "custom",
        lambda split: list(splits[split]),
        verifier.verify,
        answer_itself,
        close=verifier.close,
        notes=splits.notes,
    )


def answer_itself(problem: Problem) -> str:
    """The data's answer as a response; whether it earns reward is for the user's functions to say."""
    return problem.answer


def make_verifier(
    example: Problem, reward: str, threshold: float, seconds: float, encode: Encode | None
) -> CustomVerifier:
    rewards = parse_rewards(reward, columns_of(example), with_ids=encode is not None)
    return CustomVerifier(rewards, threshold=threshold, seconds=seconds, encode=encode)


def with_reward(
    task: Task,
    reward: str,
    *,
    reward_threshold: float = THRESHOLD,
    reward_seconds: float = SECONDS,
    encode: Encode | None = None,
) -> Task:
    """`task` with its verifier replaced by the functions of `reward`: "package.module:function*weight,...".

    An answer is correct when the first function says so: by verl's `acc`, else by a score of at least
    `reward_threshold`. `encode` (text to token ids, no special tokens) is for functions that ask for
    completion_ids. ValueError for what can't be imported, or asks for what the data lacks.
    """
    verifier = make_verifier(
        (task.problems("train") or task.problems("test"))[0], reward, reward_threshold, reward_seconds, encode
    )

    def close() -> None:
        verifier.close()
        task.close()

    return dataclasses.replace(task, verify=verifier.verify, close=close)
