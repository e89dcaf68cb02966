"""Dynamic sampling as a replay buffer of verl's V1 trainer: range test, cap, carry-over.

    trainer.v1.sampler.custom_sampler.path=pkg://hardwon.integrations.verl_sampler
    trainer.v1.sampler.custom_sampler.name=DynamicReplayBuffer
    +trainer.v1.sampler.sampler_kwargs.max_rounds=10
    +trainer.v1.sampler.sampler_kwargs.max_age=1
    data.gen_batch_size=1                      # so that single prompts can be asked for

verl's own filter tests std == 0 of the score, never stops asking, and discards surplus groups. Here a
group is kept if its judged scores differ; prompts are asked for as far as those in flight will probably
not fill the batch, up to `max_rounds` batches; and surplus groups wait up to `max_age` steps. They keep
their `rollout_log_probs`: set algorithm.rollout_correction.rollout_is=token, so that the loss weighs
their age. A batch that stays short is filled up with groups that carry no signal (advantage 0), since
verl needs its mini-batches whole; `dynamic_sampling/shortfall` counts them.

For trainer_mode=sync. verl does not save the queue in that mode, so waiting groups are lost on resume.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from verl.trainer.ppo.v1 import replay_buffer
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from hardwon.dynamic_sampling import ACCEPT_RATE_MEMORY
from hardwon.functional.advantages import degenerate

DEFAULTS = {"max_rounds": 10, "max_age": 1}


def carries_signal(scores: Sequence[float]) -> bool:
    """Whether the judged scores of a group differ; NaN is a failed verifier."""
    return bool(scores) and not bool(degenerate(torch.tensor([list(scores)], dtype=torch.float64))[0])


class DynamicReplayBuffer(ReplayBuffer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.trainer_mode != "sync":
            raise ValueError(
                f"trainer.v1.trainer_mode={self.trainer_mode}: DynamicReplayBuffer is for 'sync', in which "
                "every response of a step is sampled before it is trained on"
            )
        given = dict(self.sampler_kwargs or {})
        unknown = [key for key in given if key not in DEFAULTS]
        if unknown:
            raise ValueError(f"unknown sampler_kwargs: {', '.join(unknown)}. Known: {', '.join(DEFAULTS)}")
        self.max_rounds, self.max_age = ({**DEFAULTS, **given}[key] for key in ("max_rounds", "max_age"))
        self.scores: dict[str, list[float]] = {}  # of groups that ended, by prompt
        self.ended = self.accepted = 0.0

    @property
    def accept_rate(self) -> float:
        return (self.accepted + 1) / (self.ended + 1)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, float]]:
        """`batch_size` groups that carry a signal, the oldest first, and the metrics of the search."""
        if partition_id == "val":
            found: tuple[Any, dict[str, float]] = super().sample(global_steps, partition_id, batch_size)
            return found
        counts = {"all_correct": 0, "all_wrong": 0, "expired": 0, "wasted_tokens": 0}
        asked, carried, spare = batch_size, None, []
        self._sync_metadata_from_transfer_queue()
        last_debug_time = time.time()
        while True:
            spare += self._judge(partition_id, counts)
            kept = self._kept(partition_id) - set(spare)
            if carried is None:
                carried = len(self._expire(global_steps, partition_id, kept, counts))
                kept = self._kept(partition_id) - set(spare)
            # Enough of the groups without a signal to fill any batch up; the rest make room.
            self._clear_groups(partition_id, set(spare[:-batch_size]))
            spare = spare[-batch_size:]
            in_flight = len(self.pending_keys[partition_id]) + len(self.running_keys[partition_id])
            more = self._missing(batch_size - len(kept), in_flight, self.max_rounds * batch_size - asked)
            if more:
                self.refill_fn(more)
                asked += more
            elif not in_flight:
                break
            else:
                last_debug_time = self._wait_for_next_poll(partition_id, last_debug_time)
            self._sync_metadata_from_transfer_queue()
        return self._take(partition_id, batch_size, kept, spare), {
            "dynamic_sampling/rounds": asked / batch_size,
            "dynamic_sampling/kept": min(len(kept), batch_size),
            "dynamic_sampling/shortfall": max(batch_size - len(kept), 0),
            "dynamic_sampling/carried": carried,
            "dynamic_sampling/accept_rate": self.accept_rate,
            **{f"dynamic_sampling/{name}": count for name, count in counts.items()},
        }

    def _missing(self, missing: int, in_flight: int, allowed: int) -> int:
        """Prompts to ask for now: what those in flight will probably leave missing, within the cap."""
        expected = missing - in_flight * self.accept_rate
        if missing <= 0 or expected <= 0:
            return 0
        return max(min(math.ceil(expected / self.accept_rate), allowed), 0)

    def _kept(self, partition_id: str) -> set[str]:
        return self.finished_keys[partition_id] | self.failure_keys[partition_id]

    def _judge(self, partition_id: str, counts: dict[str, int]) -> list[str]:
        """Read the scores of groups that ended since; returns those without a signal."""
        new = self._kept(partition_id) - self.scores.keys()
        keys = [key for key in self.partitions[partition_id] if key.split("_")[0] in new]
        found: dict[str, dict[str, float]] = {uid: {} for uid in new}
        if keys:
            data = replay_buffer.tq.kv_batch_get(
                keys=keys, partition_id=partition_id, select_fields=["rm_scores"]
            )
            for key, value in zip(keys, data["rm_scores"], strict=True):
                uid, session, _ = key.rsplit("_", 2)
                found[uid][session] = float(value.sum())
        dropped = []
        for uid, by_session in sorted(found.items()):
            scores = self.scores[uid] = list(by_session.values())
            keep = carries_signal(scores)
            self.ended = ACCEPT_RATE_MEMORY * self.ended + 1
            self.accepted = ACCEPT_RATE_MEMORY * self.accepted + keep
            if not keep:
                dropped.append(uid)
                judged = [score for score in scores if not math.isnan(score)]
                if judged:
                    counts["all_correct" if judged[0] > 0 else "all_wrong"] += 1
                counts["wasted_tokens"] += self._tokens(partition_id, uid)
        # A group without any response has nothing to train on, and nothing to fill a batch up with.
        empty = {uid for uid in dropped if not self.scores[uid]}
        self._clear_groups(partition_id, empty)
        return [uid for uid in dropped if uid not in empty]

    def _expire(
        self, global_steps: int, partition_id: str, kept: set[str], counts: dict[str, int]
    ) -> set[str]:
        """Clear groups that waited longer than `max_age` steps; returns the younger ones that waited."""
        born = self.prompt_global_steps[partition_id]
        waited = {uid for uid in kept if born[uid] < global_steps}
        expired = {uid for uid in waited if global_steps - born[uid] > self.max_age}
        counts["expired"] += len(expired)
        counts["wasted_tokens"] += sum(self._tokens(partition_id, uid) for uid in expired)
        self._clear_groups(partition_id, expired)
        return waited - expired

    def _tokens(self, partition_id: str, uid: str) -> int:
        tags = (tag for key, tag in self.partitions[partition_id].items() if key.split("_")[0] == uid)
        return sum(tag.get("response_len", 0) for tag in tags)

    def _take(self, partition_id: str, batch_size: int, kept: set[str], spare: list[str]) -> Any:
        """The batch, in the form in which verl wants it; clears what cannot be used later."""
        # Among groups of one step the random id decides: the first to finish would be the shortest.
        born = self.prompt_global_steps[partition_id]
        chosen = sorted(kept, key=lambda uid: (born[uid], uid))[:batch_size]
        filling = spare[: batch_size - len(chosen)]
        if not chosen and not filling:
            raise RuntimeError(
                "no prompt gave any response with a score; see the log of the rollout and reward workers"
            )
        unused = set(spare[len(filling) :])
        if self.max_age == 0:
            unused |= kept - set(chosen)
        self._clear_groups(partition_id, unused)
        batch = self._materialize_batch(partition_id, chosen + filling, dict(self.partitions[partition_id]))
        waiting = kept - set(chosen)
        self.scores = {uid: scores for uid, scores in self.scores.items() if uid in waiting}
        return batch
