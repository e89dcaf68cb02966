"""Reward manager for verl whose score is raw correctness: 1 correct, 0 not, NaN if the verifier failed.

    reward.reward_manager.source=importlib
    reward.reward_manager.module.path=pkg://hardwon.integrations.verl_reward
    reward.reward_manager.name=HardwonRewardManager

Answers are judged by hardwon's mathematical verifier in processes that can be killed. With
reward.custom_reward_function set, that function judges: its `acc`, or its score if it gives none. What a
score is worth (signs, overlong punishment) is the estimator's business; so verl's reward metrics read as
success rates.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from hardwon.data import Verdict
from hardwon.integrations.verl import load_settings
from hardwon.verifiers.math import grade
from hardwon.verifiers.worker_pool import WorkerPool, verdict

VERIFIER_SECONDS = 5.0
VERIFIER_WORKERS = 2  # of each reward worker; verl starts reward.num_workers (8) of those


class HardwonRewardManager(RewardManagerBase):
    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Any,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
    ) -> None:
        super().__init__(config, tokenizer, compute_score)
        custom = (config.reward.get("custom_reward_function") or {}).get("path")
        self.compute_score: Any = compute_score if custom else None
        self.correct_at_least = load_settings().correct_at_least
        self.pool = (
            None
            if custom
            else WorkerPool(grade, seconds=VERIFIER_SECONDS, num_workers=VERIFIER_WORKERS, sealed=True)
        )
        # The pool takes one batch at a time: requests that come in meanwhile are its next batch.
        self.waiting: list[tuple[tuple[str, str], asyncio.Future[Verdict]]] = []
        self.lock = asyncio.Lock()

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Judge one response (the last of a conversation): verl's `reward_score` and extra columns."""
        item = data[-1]
        ids = item.batch["responses"]
        length = int(item.batch["attention_mask"][-len(ids) :].sum())
        text = self.tokenizer.decode(ids[:length], skip_special_tokens=True)
        fields = item.non_tensor_batch
        if self.compute_score is None:
            judged = await self.verify(str(fields["reward_model"]["ground_truth"]), text)
        else:
            judged = await self.ask_custom_function(fields, text)
        score = math.nan if judged.is_error else float(judged.correct)
        extra = {
            "acc": judged.correct,
            "verifier_error": judged.is_error,
            "verifier_timeout": judged.outcome == "timeout",
        }
        return {"reward_score": score, "reward_extra_info": extra}

    async def verify(self, gold: str, text: str) -> Verdict:
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self.waiting.append(((gold, text), future))
        async with self.lock:
            batch, self.waiting = self.waiting, []
            if batch:
                await self._verify_batch(batch)
        return await future

    async def _verify_batch(self, batch: list[tuple[tuple[str, str], asyncio.Future[Verdict]]]) -> None:
        assert self.pool is not None
        run = partial(self.pool.run, [arguments for arguments, _ in batch])
        try:
            verdicts = [verdict(r) for r in await asyncio.get_running_loop().run_in_executor(None, run)]
        except RuntimeError as error:  # its processes cannot be started: nobody may wait for ever
            verdicts = [Verdict("error", message=str(error))] * len(batch)
        for (_, waiting), judged in zip(batch, verdicts, strict=True):
            waiting.set_result(judged)

    async def ask_custom_function(self, fields: Mapping[str, Any], text: str) -> Verdict:
        call = partial(
            self.compute_score,
            data_source=fields["data_source"],
            solution_str=text,
            ground_truth=fields["reward_model"]["ground_truth"],
            extra_info=fields.get("extra_info", {}),
        )
        try:
            if inspect.iscoroutinefunction(getattr(self.compute_score, "func", self.compute_score)):
                result = await call()
            else:
                result = await asyncio.get_running_loop().run_in_executor(None, call)
                result = await result if inspect.isawaitable(result) else result
        except Exception as error:  # a reward function's failure is not the model's
            return Verdict("error", message=f"{type(error).__name__}: {error}")
        score = result["score"] if isinstance(result, Mapping) else result
        acc = result.get("acc") if isinstance(result, Mapping) else None
        if score is None or math.isnan(score):
            return Verdict("error", message="the reward function gave no score")
        correct = bool(acc) if acc is not None else score >= self.correct_at_least
        return Verdict("correct" if correct else "wrong", float(score))
