"""One optimizer step, whatever the loss: packing, schedule, clipping, and a guard against NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hardwon.config import OptimizerSettings
from hardwon.models.parallel import divided_like, gathered, world

T = TypeVar("T")

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


def pack_share(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """The micro-batches of this rank: with one process, `pack`.

    Sequences are dealt out by length, so that ranks have equal work. Every rank has the same number of
    micro-batches, since each is a step that all take together: one that has fewer gets empty ones.
    """
    rank, size = world().rank, world().size
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    shares = [order[r::size] for r in range(size)]
    packed = [pack([lengths[i] for i in share], max_tokens) for share in shares]
    mine = [[shares[rank][i] for i in batch] for batch in packed[rank]]
    return mine + [[]] * (max(map(len, packed)) - len(mine))


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
            # On the CPU the fused step is one parallel region a group, which waits for a busy core.
            fused=self.parameters[0].device.type == "cuda",
        )
        self.bad_steps = self.bad_in_a_row = 0

    def step(self, learning_rate: float) -> float:
        """Apply the accumulated gradients and clear them; returns the norm before clipping.

        Raises FloatingPointError after MAX_BAD_STEPS non-finite gradients in a row; weights
        and optimizer state never see one.
        """
        total_norm = gathered(
            nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        )
        nn.utils.clip_grads_with_norm_(self.parameters, self.max_grad_norm, total_norm)
        norm = float(total_norm)
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
        order = [p for group in self.adamw.param_groups for p in group["params"]]
        moments = {
            index: {name: divided_like(value, order[index]) for name, value in values.items()}
            for index, values in state["adamw"]["state"].items()
        }
        self.adamw.load_state_dict({**state["adamw"], "state": moments})
        self.bad_steps, self.bad_in_a_row = state["bad_steps"], state["bad_in_a_row"]


def cpu_workers(device: torch.device) -> int:
    """Threads that share the micro-batches of a step: one a core on the CPU, none extra elsewhere.

    Several processes have one thread each: they take their micro-batches together, one after the other.

    Threads of one core each, on different micro-batches, beat one batch on all cores, and do not
    collapse when a neighbour takes a core, as a barrier after every small operation does.
    """
    return torch.get_num_threads() if device.type == "cpu" and world().size == 1 else 1


def accumulate(
    parameters: Sequence[Tensor], parts: Sequence[Callable[[], tuple[Tensor, T]]], workers: int
) -> list[T]:
    """Add the gradient of every part's loss to `.grad`; returns what the parts return beside it.

    A part computes `(loss, anything)`. Gradients are added in the order of the parts, whichever
    thread was first, so that the sum is the same bits every time.
    """
    if workers == 1 or len(parts) < 2:
        return [_backward(part) for part in parts]

    def work(part: Callable[[], tuple[Tensor, T]]) -> tuple[tuple[Tensor | None, ...], T]:
        loss, out = part()
        return torch.autograd.grad(loss, parameters, allow_unused=True), out

    outs = []
    # torch counts its threads per calling thread, so this leaves the caller's setting alone.
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for gradients, out in pool.map(work, parts):
            outs.append(out)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
    return outs


def _backward(part: Callable[[], tuple[Tensor, T]]) -> T:
    loss, out = part()
    loss.backward()
    return out


def add_stats(parts: Iterable[dict[str, Tensor]]) -> dict[str, float]:
    """The sums of all micro-batches."""
    total: dict[str, float] = {}
    for part in parts:
        for key, value in part.items():
            total[key] = total.get(key, 0.0) + float(value)
    return total
