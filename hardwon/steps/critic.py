"""Stage 3 of direct advantage: a critic fitted to Monte-Carlo counts alone, and how good it is.

The loss is the cross-entropy with the soft label correct / judged, averaged over the states of a step. The
critic stops, and is chosen, on states of problems that it never saw: states of one problem are alike, so
held-out states of seen problems would flatter it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardwon.config import OptimizerSettings
from hardwon.data import Problem, State
from hardwon.functional.objectives import critic_loss
from hardwon.models.critic import Critic
from hardwon.models.parallel import add_up, all_reduce_sum
from hardwon.models.policy import Policy
from hardwon.offline.fitting import Fit, Validation
from hardwon.optimization import pack_share
from hardwon.steps.critic_metrics import auc, bce, correlation, critic_report
from hardwon.steps.formats import JudgedSolution, from_math_shepherd, from_trl, read_parquet
from hardwon.steps.split import StepSplitter
from hardwon.steps.values import Labelled

Encode = Callable[[Problem], tuple[int, ...]]
Autocast = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Example:
    """A state as the critic reads it, prompt and prefix, and its counts."""

    ids: tuple[int, ...]
    correct: int
    judged: int
    depth: int


def examples_of(labelled: Iterable[Labelled], encode: Encode) -> list[Example]:
    return [
        Example(encode(e.state.problem) + e.state.prefix_ids, e.correct, e.judged, e.depth) for e in labelled
    ]


@dataclass(frozen=True)
class CriticModel:
    """A critic with the precision of its forward passes and the padded tokens that one may have."""

    critic: Critic
    autocast: Autocast
    max_tokens: int

    def logits(self, sequences: Sequence[Sequence[int]]) -> Iterable[tuple[list[int], Tensor]]:
        """Micro-batches: indices of the sequences, and their logits. Of several ranks each has its share.

        Where the others have more batches, a rank gets no logits, but a gradient path: it takes part.
        """
        for indices in pack_share([len(ids) for ids in sequences], self.max_tokens):
            with self.autocast():
                logits_B = self.critic.logits([sequences[i] for i in indices or [0]])
            yield indices, logits_B.float()[: len(indices)]

    @torch.no_grad()
    def values(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Values (S,) in (0, 1) of states given as prompt and prefix ids, on the CPU."""
        out = torch.zeros(len(sequences))
        for indices, logits_B in self.logits(sequences):
            out[indices] = logits_B.sigmoid().cpu()
        return add_up(out)

    def values_of(self, states: Sequence[State], encode: Encode) -> Tensor:
        return self.values([encode(state.problem) + state.prefix_ids for state in states])


def critic_fit(
    name: str,
    model: CriticModel,
    examples: Sequence[Example],
    held_out: Sequence[Example],
    settings: OptimizerSettings,
    *,
    batch_size: int,
    epochs: int,
    validations_per_epoch: int,
) -> Fit:
    """The fit of the critic to `examples`; an item is a state."""
    labels = np.array([e.correct / e.judged for e in held_out])

    def step(chosen: Sequence[int]) -> dict[str, float]:
        return accumulate(model, [examples[i] for i in chosen])

    def validate() -> Validation:
        loss = bce(model.values([e.ids for e in held_out]).double().numpy(), labels)
        return Validation(-loss, 0.0, {"validation_bce": loss})

    return Fit(
        name,
        model.critic.model,
        settings,
        sizes=[1] * len(examples),
        batch_size=batch_size,
        epochs=epochs,
        validations_per_epoch=validations_per_epoch,
        accumulate=step,
        validate=validate,
        save=model.critic.save,
    )


def accumulate(model: CriticModel, examples: Sequence[Example]) -> dict[str, float]:
    """Gradients of the mean loss over all states of the step, whatever the micro-batches."""
    correct = torch.tensor([e.correct for e in examples])
    judged = torch.tensor([e.judged for e in examples])
    total = 0.0
    for indices, logits_B in model.logits([e.ids for e in examples]):
        device = logits_B.device
        losses_B = critic_loss(logits_B, correct[indices].to(device), judged[indices].to(device))
        loss = losses_B.sum() / len(examples)
        loss.backward()
        total += float(loss.detach())
    return all_reduce_sum({"loss": total}) | {"tokens": float(sum(len(e.ids) for e in examples))}


def report(
    model: CriticModel, held_out: Sequence[Example], fresh: Sequence[Labelled], encode: Encode
) -> dict[str, Any]:
    """The figures of a fitted critic on unseen problems.

    `fresh_correlation` is with values that are independent of the labels it was chosen on;
    `label_correlation`, that of two independent labellings of the same states, is what noise allows.
    """
    values = model.values([e.ids for e in held_out]).double().numpy()
    correct, judged = np.array([(e.correct, e.judged) for e in held_out], float).T
    figures = critic_report(values, correct, judged, [e.depth for e in held_out])
    again = examples_of(fresh, encode)
    first = {e.ids: e.correct / e.judged for e in held_out}
    if again:
        labels = np.array([e.correct / e.judged for e in again])
        judged_again = model.values([e.ids for e in again]).double().numpy()
        correct, judged = np.array([(e.correct, e.judged) for e in again], float).T
        figures |= {
            "fresh_states": len(again),
            "fresh_correlation": correlation(judged_again, labels),
            "fresh_auc": auc(judged_again, correct, judged),
            "label_correlation": correlation(np.array([first[e.ids] for e in again]), labels),
        }
    return figures


def check_better_than_constant(figures: dict[str, Any], *, required: bool) -> None:
    """ValueError if the critic judges unseen problems no better than one number for all would."""
    if required and figures["bce"] >= figures["bce_constant"]:
        raise ValueError(
            f"the critic is no better than a constant on {figures['states']} states of unseen problems: "
            f"cross-entropy {figures['bce']:.4f}, best constant {figures['bce_constant']:.4f}. Its "
            "advantages would be noise. Raise num_problems, critic_epochs or critic_learning_rate, or set "
            "require_critic=false to go on"
        )


def read_outside_labels(
    path: str, policy: Policy, encode: Encode, keep: Callable[[Sequence[Problem]], None] | None = None
) -> list[Example]:
    """Others' labelled solutions as examples: .parquet, or .jsonl of TRL's or Math-Shepherd's format.

    Their text is encoded once, as a whole, and cut as in hardwon.steps.split. `keep` stores the prompts of
    their problems with the run. ValueError for another format.
    """
    file = Path(path)
    if file.suffix == ".parquet":
        solutions = read_parquet(file)
    elif file.suffix == ".jsonl":
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        solutions = [from_trl(row) if "completions" in row else from_math_shepherd(row) for row in rows]
    else:
        raise ValueError(f"critic_data={path!r}: give a .parquet or .jsonl file")
    if keep:
        keep([_outside_problem(solution) for solution in solutions])
    return [example for solution in solutions for example in _outside(solution, policy, encode)]


def _outside_problem(solution: JudgedSolution) -> Problem:
    return Problem("outside", solution.prompt, "")


def _outside(solution: JudgedSolution, policy: Policy, encode: Encode) -> list[Example]:
    """The state after each labelled step but the last, whose outcome is no state."""
    prompt_ids = encode(_outside_problem(solution))
    text = "".join(solution.steps)
    ids = tuple(policy.tokenizer(text, add_special_tokens=False)["input_ids"])
    ends = StepSplitter(policy.tokenizer, lambda _: list(solution.steps)).ends(ids)
    if len(ends) != len(solution.steps):  # two steps in one token: which counts belong where is not known
        return []
    return [
        Example(prompt_ids + ids[:end], correct, judged, depth)
        for depth, (end, correct, judged) in enumerate(
            zip(ends[:-1], solution.mc_correct, solution.mc_total, strict=False), 1
        )
        if judged
    ]
