"""da3po inside TRL: a GRPOTrainer that fills its batch with groups that carry a signal, and amplifies.

TRL keeps what it does well: generation (also with vLLM), the model, the loss (`loss_type="dapo"`),
FSDP and DeepSpeed. This module replaces what happens between: which prompts are sampled, which groups
are kept, what their advantages are. Filling is hardwon.dynamic_sampling and every formula is in
hardwon.functional, as in hardwon's own loop.

How: `_generate_and_score_completions` is called by TRL once a generation batch. Here it calls the
original once a round, gathers the rows of all ranks, and lets each rank run the same DynamicSampler on
the same groups, so that all ranks do the same rounds; then each takes its share. The prompts come from
a stream of its own over `train_dataset` and the dataloader only counts steps, so an epoch, the learning
rate's horizon and `max_steps` count batches that were trained on, whatever was filtered.

Raw correctness, which filtering and amplification read, is kept apart from the reward: a reward
function says it by returning `{"score": float, "acc": bool}` for each response, as for verl; otherwise
a response is correct if the first reward function that scored it gave at least `correct_at_least`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

from hardwon.checkpoints import load_state, save_state
from hardwon.data import Group, Problem
from hardwon.dynamic_sampling import DynamicSampler, Fill, ProblemStream, keep_all, keep_varied
from hardwon.functional.advantages import standardized
from hardwon.functional.amplification import amplify
from hardwon.functional.reward_shaping import soft_overlong_punishment
from hardwon.integrations.trl_config import DA3POConfig
from hardwon.integrations.trl_rewards import reading_verdicts, verdict_of, weighted_reward
from hardwon.integrations.trl_rows import (
    Row,
    group_of,
    merged,
    num_loss_tokens,
    padded,
    rows_of,
    sampled_metrics,
    without_loss,
)


class DA3POTrainer(GRPOTrainer):
    """GRPOTrainer with bounded dynamic sampling and Direct Advantage Amplification (arXiv 2608.27982).

    Takes what GRPOTrainer takes, with `args` a DA3POConfig and `train_dataset` a map-style Dataset.
    """

    # TRL's attributes; their declared types are those of the base classes, not what TRL puts there.
    args: Any
    model: Any
    num_generations: Any
    pad_to_multiple_of: Any
    train_dataset: Any
    _logs: Any
    _buffered_inputs: Any
    _tag_names = ["trl", "da3po"]  # noqa: RUF012
    _name = "DA3PO"
    _paper = {  # noqa: RUF012
        "title": "Difficulty-aware Advantage Amplification Policy Optimization",
        "id": "2608.27982",
    }

    def __init__(
        self,
        model: Any,
        reward_funcs: Any,
        args: DA3POConfig,
        train_dataset: Dataset,
        *rest: Any,
        **kwargs: Any,
    ) -> None:
        _check_arguments(args, train_dataset, kwargs)
        functions = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        reward_funcs = [reading_verdicts(f) for f in functions]
        super().__init__(model, reward_funcs, args, train_dataset, *rest, **kwargs)
        batch_size, group_size = self.args.generation_batch_size, self.args.num_generations
        problems = [Problem(str(i), "", "") for i in range(len(train_dataset))]
        self.filler = DynamicSampler(
            ProblemStream(problems, args.seed),
            self._draw,
            keep=keep_varied if args.dynamic_sampling else keep_all,
            num_groups=batch_size // group_size,
            max_rounds=args.max_rounds if args.dynamic_sampling else 1,
            max_age=args.max_age,
        )
        # (problem id, iteration) -> the rows of each group that is in use or carried
        self.rows: dict[tuple[str, int], list[Row]] = {}
        self._round_metrics: list[tuple[int, dict[str, float]]] = []
        self.empty_batch = False
        self.data_fingerprint = fingerprint(train_dataset)
        self.add_callback(_StateCallback(self))

    # ------------------------------------------------------------------------------ filling a batch

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        iteration = self._step // (self.args.steps_per_generation * self.num_iterations) + 1
        self._round_metrics = []
        fill = self.filler.fill(iteration)
        missing = self.filler.num_groups - len(fill.groups)
        if missing and self.args.on_shortfall == "fail":
            raise RuntimeError(
                f"only {len(fill.groups)} of {self.filler.num_groups} groups were varied after "
                f"max_rounds={self.args.max_rounds}. Raise max_rounds, or set on_shortfall=train"
            )
        self.empty_batch = not fill.groups
        advantages_PG = self.advantages_of(fill.groups)
        self._log_fill(fill, advantages_PG)
        batch = self._share(fill, advantages_PG)
        in_use = {_key(g) for g in self.filler.carried}
        self.rows = {key: rows for key, rows in self.rows.items() if key in in_use}
        return batch

    def _draw(self, problems: list[Problem], iteration: int) -> list[Group]:
        """Groups of these problems from the policy as it is, the same on every rank."""
        size, num = self.args.generation_batch_size, self.num_generations
        repeated = [p for p in problems for _ in range(num)]
        rows: list[Row] = []
        for start in range(0, len(repeated), size):
            rows += self._generate_rows(repeated[start : start + size])
        groups = []
        for index, problem in enumerate(problems):
            group_rows = rows[index * num : (index + 1) * num]
            verdicts = [
                verdict_of(row["shown"]["rewards"].values(), row["acc"], self.args.correct_at_least)
                for row in group_rows
            ]
            rewards = [self._reward(row) for row in group_rows]
            groups.append(group_of(problem, group_rows, verdicts, rewards, iteration))
            self.rows[_key(groups[-1])] = group_rows
        return groups

    def _reward(self, row: Row) -> float:
        """The weighted sum of the reward functions and soft overlong punishment; NaN where none scored."""
        reward = weighted_reward(list(row["shown"]["rewards"].values()), self.reward_weights.tolist())
        if buffer := self.args.overlong_buffer:
            longest, length = self.args.max_completion_length, torch.tensor(len(row["completion_ids"]))
            reward += float(soft_overlong_punishment(length, longest, buffer))
        return reward

    def _generate_rows(self, problems: Sequence[Problem]) -> list[Row]:
        """One call of TRL's generation and scoring, with the rows of all ranks in the order of `problems`.

        Every rank must have as many rows, and all together whole groups: the last problem is repeated
        for that, and what came of the repetition is dropped.
        """
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        excess = len(problems) % math.lcm(world, self.num_generations)
        extra = math.lcm(world, self.num_generations) - excess if excess else 0
        everyone = [*problems, *[problems[-1]] * extra]
        share = len(everyone) // world
        inputs = [dict(self.train_dataset[int(p.id)]) for p in everyone[rank * share : (rank + 1) * share]]
        _clear(self._logs)
        before = {name: len(values) for name, values in self._metrics["train"].items()}
        output = super()._generate_and_score_completions(inputs)
        self._round_metrics.append((len(problems), self._take_metrics(before)))
        if self.args.max_age and "old_per_token_logps" not in output:
            # On-policy, TRL does without them; a carried group needs those it was sampled with.
            output["old_per_token_logps"] = self._score(output)
        pad_id = self._tokenizer.pad_token_id
        by_sequence = self.args.vllm_importance_sampling_mode.startswith("sequence")
        local = rows_of(
            output,
            stop_ids={*self.eos_token_ids, pad_id},
            pad_id=pad_id,
            scalars={"importance_sampling_ratio"} if by_sequence else (),
        )
        rows: list[Row] = gather_object(local)
        for index, row in enumerate(rows):
            row.update(self._logged(index, len(rows)))
        return rows[: len(problems)]

    @torch.no_grad()
    def _score(self, output: Mapping[str, Tensor]) -> Tensor:
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        with disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            log_probs: Tensor
            log_probs, _, _ = self._get_per_token_logps_and_entropies(
                self.model,
                ids,
                mask,
                output["completion_ids"].shape[1],
                batch_size=self.args.per_device_train_batch_size,
            )
        return log_probs

    def _logged(self, index: int, count: int) -> dict[str, Any]:
        """What TRL wrote down for a row of this call: text, rewards, and what reward functions added."""
        extra = {name: values[index] for name, values in self._logs["extra"].items() if len(values) == count}
        if "acc" not in extra and self._logs["extra"].get("acc"):
            raise ValueError("two reward functions return 'acc'; only one can say what is correct")
        shown = {
            "prompt": self._logs["prompt"][index],
            "completion": self._logs["completion"][index],
            "rewards": {name: values[index] for name, values in self._logs["rewards"].items()},
            "extra": {k: v if isinstance(v, (int, float, str)) else str(v) for k, v in extra.items()},
        }
        acc = extra.get("acc")
        return {"acc": None if acc is None else bool(acc), "shown": shown}

    def advantages_of(self, groups: Sequence[Group]) -> Tensor:
        """Standardised over each group (population std), then amplified: `advantages_PG`."""
        shape = (len(groups), self.num_generations)
        flat = [r for g in groups for r in g.rollouts]
        rewards_PG = torch.tensor([r.reward for r in flat], dtype=torch.float64).view(shape)
        correct_PG = torch.tensor([r.verdict.correct for r in flat], dtype=torch.bool).view(shape)
        lengths_PG = torch.tensor([r.length for r in flat]).view(shape)
        return amplify(
            standardized(rewards_PG, correct_PG, lengths_PG),
            correct_PG if self.args.amplify_by == "verdict" else rewards_PG > 0,
            torch.tensor([g.success_rate for g in groups], dtype=torch.float64),
            mode=self.args.amplification,
            factor=self.args.amplification_factor,
            threshold=self.args.amplification_threshold,
            num_judged_P=torch.tensor([len(g.judged) for g in groups]),
        )

    def _share(self, fill: Fill, advantages_PG: Tensor) -> dict[str, Tensor]:
        """This rank's rows, padded to a full batch with rows that have no loss, so that no rank waits."""
        rows, advantages = [], []
        for group, advantages_G in zip(fill.groups, advantages_PG.tolist(), strict=True):
            for row, rollout, advantage in zip(
                self.rows[_key(group)], group.rollouts, advantages_G, strict=True
            ):
                rows.append(without_loss(row) if rollout.verdict.is_error else row)
                advantages.append(advantage)
        total = num_loss_tokens(rows)
        size = self.args.generation_batch_size
        if len(rows) < size:
            any_rows = self.rows[_key((fill.groups or fill.sampled)[0])]
            spare = min(any_rows, key=lambda row: len(row["completion_ids"]))
            rows += [without_loss(spare)] * (size - len(rows))
            advantages += [0.0] * (size - len(advantages))
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        return padded(
            rows[rank::world],
            advantages[rank::world],
            num_items=total,
            pad_id=self._tokenizer.pad_token_id,
            pad_to_multiple_of=self.pad_to_multiple_of,
            device=self.accelerator.device,
        )

    # ------------------------------------------------------------------------------------- logging

    def _take_metrics(self, before: Mapping[str, int]) -> dict[str, float]:
        """Remove from TRL's metrics what one call added; `num_tokens` stays: it counts all sampled."""
        taken = {}
        for name, values in self._metrics["train"].items():
            added = values[before.get(name, 0) :]
            if added and name != "num_tokens":
                del values[before.get(name, 0) :]
                taken[name] = sum(added) / len(added)
        return taken

    def _log_fill(self, fill: Fill, advantages_PG: Tensor) -> None:
        """Metrics of the batch, once, and the table of the completions that are trained on."""
        rewards = {
            name: [row["shown"]["rewards"][name] for g in fill.sampled for row in self.rows[_key(g)]]
            for name in self.reward_func_names
        }
        metrics = merged(self._round_metrics)
        if fill.sampled:
            metrics |= sampled_metrics(fill.sampled, rewards)
        metrics |= fill.metrics | {"dynamic_sampling/empty_batches": float(not fill.groups)}
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)
        _clear(self._logs)
        for group, advantages_G in zip(fill.groups, advantages_PG.tolist(), strict=True):
            for row, advantage in zip(self.rows[_key(group)], advantages_G, strict=True):
                shown = row["shown"]
                self._logs["prompt"].append(shown["prompt"])
                self._logs["completion"].append(shown["completion"])
                self._logs["advantages"].append(advantage)
                for name, value in shown["rewards"].items():
                    self._logs["rewards"][name].append(value)
                for name, value in shown["extra"].items():
                    self._logs["extra"][name].append(value)

    # -------------------------------------------------------------------------------------- resume

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint:
            found = resume_from_checkpoint
            if found is True:
                found = get_last_checkpoint(self.args.output_dir)
            if found is not None:
                self.load_sampling_state(Path(found))
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def save_sampling_state(self, checkpoint: Path) -> None:
        """What TRL does not save: the place in the data, carried groups, and the batch in use."""
        save_state(
            self._state_path(checkpoint),
            {
                "filler": self.filler.state_dict(),
                "rows": self.rows,
                "step": self._step,
                "buffer": self._buffered_inputs,
                "empty_batch": self.empty_batch,
                "world_size": self.accelerator.num_processes,
                "data": self.data_fingerprint,
            },
        )

    def load_sampling_state(self, checkpoint: Path) -> None:
        """The reverse; ValueError where going on would not be the same run."""
        path = self._state_path(checkpoint)
        if not path.exists():
            raise ValueError(
                f"{checkpoint} has no {path.name}: it was not written by DA3POTrainer with as many processes"
            )
        state, world = load_state(path), self.accelerator.num_processes
        if state["data"] != self.data_fingerprint:
            raise ValueError(f"train_dataset is not the one that {checkpoint} was trained on; restore it")
        if state["world_size"] != world:
            raise ValueError(
                f"{checkpoint} was written by {state['world_size']} processes and there are {world} now: its "
                f"random states and its batch are per process. Resume with {state['world_size']} processes"
            )
        self.filler.load_state_dict(state["filler"])
        self.rows, self._step, self.empty_batch = state["rows"], state["step"], state["empty_batch"]
        device = self.accelerator.device
        self._buffered_inputs = [
            {name: value.to(device) for name, value in batch.items()} for batch in state["buffer"]
        ]

    def _state_path(self, checkpoint: Path) -> Path:
        return checkpoint / f"da3po_state_{self.accelerator.process_index}"


class _StateCallback(TrainerCallback):
    """Saves with every checkpoint, and keeps an empty batch from moving the weights."""

    def __init__(self, trainer: DA3POTrainer) -> None:
        self.trainer = trainer

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.save_sampling_state(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.empty_batch:
            # Gradients of 0 would still decay the weights and follow the momentum; None skips them.
            self.trainer.model.zero_grad(set_to_none=True)


def fingerprint(dataset: Dataset) -> str:
    """sha256 of the number of rows and of a thousand of them, evenly spread."""
    digest = hashlib.sha256(str(len(dataset)).encode())
    for index in range(0, len(dataset), max(len(dataset) // 1000, 1)):
        digest.update(repr(sorted(dataset[index].items())).encode())
    return digest.hexdigest()


def _key(group: Group) -> tuple[str, int]:
    return group.state.problem.id, group.iteration


def _clear(logs: Any) -> None:
    for value in logs.values():
        if isinstance(value, dict):
            _clear(value)
        else:
            value.clear()


def _check_arguments(args: Any, train_dataset: Any, kwargs: Mapping[str, Any]) -> None:
    if not isinstance(args, DA3POConfig):
        raise ValueError(f"args is a {type(args).__name__}; DA3POTrainer takes a DA3POConfig")
    if not isinstance(train_dataset, Dataset):
        raise ValueError(
            f"train_dataset is a {type(train_dataset).__name__}; DA3POTrainer takes a datasets.Dataset, "
            "whose rows have places that a resumed run can return to"
        )
    for name in ("environment_factory", "rollout_func"):
        if kwargs.get(name) is not None:
            raise ValueError(f"{name} is not supported by DA3POTrainer; it samples single responses")
