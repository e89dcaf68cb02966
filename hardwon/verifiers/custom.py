"""`reward=package.module:function`, checked when loaded and called in killable processes."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Literal

from hardwon.config import load_function
from hardwon.data import Problem, Verdict
from hardwon.verifiers.answers import final_answer
from hardwon.verifiers.reward_functions import Response, Reward, judge
from hardwon.verifiers.values import canonical_text
from hardwon.verifiers.worker_pool import Reply, WorkerPool, verdict

THRESHOLD = 1.0  # ours: the score from which an answer counts as correct
SECONDS = 60.0  # ours
GIVEN_BY_TRL = {"prompts", "completions", "completion_ids", "log_extra", "log_metric"}

Encode = Callable[[str], Sequence[int]]


def parse_rewards(setting: str, columns: Collection[str] = (), *, with_ids: bool = False) -> list[Reward]:
    """The functions of "a.b:f*0.5,c.d:g", imported and recognised. ValueError says what is wrong with which.

    `columns` are what a function may ask for by name; `with_ids` is whether token ids can be given.
    """
    rewards = []
    for part in setting.split(","):
        match = re.fullmatch(r"\s*([\w.]+:\w+)\s*(?:\*\s*([-+.\deE]+))?\s*", part)
        if not match:
            raise ValueError(
                f"reward={setting!r}: 'package.module:function' or '...*weight' is wanted, found {part!r}"
            )
        path, weight = match.group(1), match.group(2) or "1"
        try:
            number = float(weight)
        except ValueError:
            raise ValueError(f"reward={setting!r}: {weight!r} is no weight") from None
        rewards.append(Reward(path, number, signature_kind(path, columns, with_ids)))
    return rewards


def signature_kind(path: str, columns: Collection[str], with_ids: bool) -> Literal["trl", "verl"]:
    """ "verl" or "trl", by the names of the function's parameters; ValueError for any other signature."""
    parameters = inspect.signature(load_function("reward", path)).parameters
    if {"solution_str", "ground_truth"} <= set(parameters):
        return "verl"
    if "completions" not in parameters:
        raise ValueError(
            f"reward={path!r} takes ({', '.join(parameters)}); wanted is TRL's (prompts, completions, "
            "completion_ids, **columns) or verl's (data_source, solution_str, ground_truth, extra_info)"
        )
    named = {n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    needed = {n for n in named if parameters[n].default is inspect.Parameter.empty}
    absent = sorted(needed - GIVEN_BY_TRL - set(columns))
    if absent:
        raise ValueError(f"reward={path!r} asks for {absent}; the data has the columns {sorted(columns)}")
    if "completion_ids" in needed and not with_ids:
        raise ValueError(f"reward={path!r} asks for completion_ids, which needs a tokenizer here")
    return "trl"


class CustomVerifier:
    """Verdicts by users' functions. TRL's get all responses in one call, verl's one each, in parallel.

    A function that raises or ends its process on a batch is called again on its halves, so that only the
    responses at fault are `error`. One that runs longer than `seconds` is ended: `timeout` for a single
    response, `error` for a batch, where no response can be blamed.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        *,
        threshold: float = THRESHOLD,
        seconds: float = SECONDS,
        num_workers: int | None = None,
        encode: Encode | None = None,
    ) -> None:
        self.batched = any(reward.kind == "trl" for reward in rewards)
        self.encode = encode
        # A user's function may hold a model: no memory limit, and one process where batches come whole.
        workers = num_workers or (1 if self.batched else None)
        function = functools.partial(judge, tuple(rewards), threshold)
        self.pool = WorkerPool(function, seconds=seconds, num_workers=workers, memory_bytes=None)

    def verify(self, pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        """A function that names no answer votes for what stands in the box or after "Answer:"."""
        responses = [self.response(problem, text) for problem, text in pairs]
        found = self.judged([responses] if self.batched and responses else [[r] for r in responses])
        return [
            verdict if verdict.answer else replace(verdict, answer=canonical_text(final_answer(text) or ""))
            for verdict, (_, text) in zip(found, pairs, strict=True)
        ]

    def response(self, problem: Problem, text: str) -> Response:
        ids = tuple(self.encode(text)) if self.encode else None
        return Response(problem.prompt, text, ids, problem.answer, columns_of(problem))

    def judged(self, batches: list[list[Response]]) -> list[Verdict]:
        replies = self.pool.run([(batch,) for batch in batches])
        verdicts: list[Verdict] = []
        for batch, reply in zip(batches, replies, strict=True):
            if reply.kind == "done":
                verdicts += [found_verdict(found) for found in reply.value]
            elif len(batch) == 1:
                verdicts.append(verdict(reply))
            elif reply.kind == "timeout":
                verdicts += [Verdict("error", message=f"the reward function was {reply.value}")] * len(batch)
            else:
                middle = len(batch) // 2
                verdicts += self.judged([batch[:middle], batch[middle:]])
        return verdicts

    def close(self) -> None:
        self.pool.close()


def columns_of(problem: Problem) -> dict[str, object]:
    return {"answer": problem.answer, **problem.info}


def found_verdict(found: dict[str, object]) -> Verdict:
    return (
        Verdict("error", message=str(found["error"])) if "error" in found else verdict(Reply("done", found))
    )
