"""Your own reward functions: on your own data (`custom`), or in place of any other task's verifier."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from hardwon.data import Problem
from hardwon.tasks.layouts.answers import gold_texts
from hardwon.tasks.layouts.reader import Reader, reward_problem
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
    columns: Mapping[str, str] | None = None,
    row_function: str | None = None,
    reward_threshold: float = THRESHOLD,
    reward_seconds: float = SECONDS,
    encode: Encode | None = None,
) -> Task:
    """Problems of `data`, judged by `reward` as in with_reward. Their answers may be anything, or missing."""
    reader = Reader(reward_problem, columns, row_function)
    splits = load_splits(
        data, eval_data, held_out_fraction=held_out_fraction, row_weights=row_weights, convert=reader
    )
    verifier = make_verifier(
        (splits["train"] or splits["test"])[0], reward, reward_threshold, reward_seconds, encode
    )
    return Task(
        "custom",
        lambda split: list(splits[split]),
        verifier.verify,
        answer_itself,
        close=verifier.close,
        notes=(*reader.notes, *splits.notes),
    )


def answer_itself(problem: Problem) -> str:
    """The data's answer as a response; whether it earns reward is for the user's functions to say.

    Of several right answers the first; other data as JSON text. ValueError where the row has none.
    """
    if problem.answer is None:
        raise ValueError(f"problem {problem.id!r} has no answer to try")
    try:
        return problem.answer if isinstance(problem.answer, str) else gold_texts(problem.answer)[0]
    except ValueError:
        return json.dumps(problem.answer, default=str)


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
