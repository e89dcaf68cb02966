"""One optimizer step, whatever the loss: packing, schedule, clipping, and a guard against NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hardwon.config import OptimizerSettings

# Consecutive steps with a non-finite gradient after which a run stops (ours).
MAX_BAD_STEPS = 5


def pack(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices in micro-batches of similar length, each at most `max_tokens` padded tokens.

    A sequence longer than the budget stands alone.
    """
    batches: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        longest = lengths[index]  # sorted, so the newest is the longest of its batch
        if not batches or longest * (len(batches[-1]) + 1) > max_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


def learning_rate_at(settings: OptimizerSettings, done: float, total: int) -> float:
    """Learning rate after `done` of `total` iterations; fractions are updates within an iteration.

    The horizon is counted in what is trained, so the schedule ends with the run however many
    prompts dynamic sampling drops. Warm-up is linear and begins above 0.
    """
    warmup = settings.warmup_iterations
    rate = settings.learning_rate
    if done < warmup:
        return rate * (math.floor(done) + 1) / (warmup + 1)
    left = 1 - (done - warmup) / max(total - warmup, 1)
    match settings.learning_rate_schedule:
        case "linear":
            return rate * left
        case "cosine":
            return rate * (1 - math.cos(math.pi * left)) / 2
        case _:
            return rate


class Optimizer:
    """AdamW with gradient clipping; a step whose gradient is not finite is skipped and counted."""

    def __init__(self, model: nn.Module, settings: OptimizerSettings):
        self.max_grad_norm = settings.max_grad_norm
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        decay = [p for p in self.parameters if p.ndim > 1]
        rest = [p for p in self.parameters if p.ndim <= 1]
        self.adamw = torch.optim.AdamW(
            [{"params": decay, "weight_decay": settings.weight_decay}, {"params": rest, "weight_decay": 0.0}],
            lr=settings.learning_rate,
            betas=(0.9, settings.adam_beta2),
            fused=True,
        )
        self.bad_steps = self.bad_in_a_row = 0

    def step(self, learning_rate: float) -> float:
        """Apply the accumulated gradients and clear them; returns the norm before clipping.

        Raises FloatingPointError after MAX_BAD_STEPS non-finite gradients in a row; weights
        and optimizer state never see one.
        """
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm))
        if math.isfinite(norm):
            for group in self.adamw.param_groups:
                group["lr"] = learning_rate
            self.adamw.step()
            self.bad_in_a_row = 0
        else:
            self.bad_steps += 1
            self.bad_in_a_row += 1
        self.adamw.zero_grad(set_to_none=True)
        if self.bad_in_a_row >= MAX_BAD_STEPS:
            raise FloatingPointError(
                f"{self.bad_in_a_row} steps in a row had a gradient that is not finite (last norm {norm}); "
                "the weights are those before them. Lower learning_rate "
                f"(now {learning_rate:g}), or try dtype=float32"
            )
        return norm

    def state_dict(self) -> dict[str, Any]:
        return {
            "adamw": self.adamw.state_dict(),
            "bad_steps": self.bad_steps,
            "bad_in_a_row": self.bad_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adamw.load_state_dict(state["adamw"])
        self.bad_steps, self.bad_in_a_row = state["bad_steps"], state["bad_in_a_row"]


def add_stats(total: dict[str, Tensor], part: Iterable[tuple[str, Tensor]]) -> None:
    """Add the sums of one micro-batch to those of the step."""
    for key, value in part:
        total[key] = total[key] + value if key in total else value
