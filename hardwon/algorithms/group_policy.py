"""da3po and the group-relative family, online: sample groups, compare within each, update, repeat.

da3po is arXiv 2608.27982: dapo (arXiv 2503.14476) with Direct Advantage Amplification. What the
members of the family differ in is in group_recipes.py, and what an update does in group_update.py;
this file has the settings and the loop that they share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from hardwon.algorithms.group_metrics import Clock, describe, figures
from hardwon.algorithms.group_recipes import RECIPES, Recipe
from hardwon.algorithms.group_update import Row, has_loss, make_rows, update
from hardwon.config import OnlineSettings, OnlyWith, OptimizerSettings
from hardwon.data import Group, Problem, State, Verdict
from hardwon.dynamic_sampling import DynamicSampler, Fill, ProblemStream, keep_all, keep_varied
from hardwon.evaluate import evaluate_and_record
from hardwon.form import no_answer_hint
from hardwon.functional.objectives import cispo, clipped, gspo
from hardwon.functional.reward_shaping import soft_overlong_punishment
from hardwon.models.parallel import any_rank, divided_like, gathered, shard, world
from hardwon.models.policy import Policy
from hardwon.optimization import Optimizer, learning_rate_at
from hardwon.progress import Display, Interrupt
from hardwon.rollouts import Reward, sample_groups
from hardwon.run import Run
from hardwon.sharded_state import load_state, save_state
from hardwon.stored_prompts import PROMPTS
from hardwon.tasks.splits import fingerprint
from hardwon.workbench import SharedSettings, Workbench, base_reward, check_same_data, open_workbench

# Published number of updates of an iteration (arXiv 2503.14476).
UPDATES = 16

Amplification = Literal["none", "daa", "symmetric", "ungated", "shrink_incorrect", "mirrored", "exact"]


ANY_FACTOR = ("daa", "symmetric", "ungated", "shrink_incorrect", "mirrored")


class Config(SharedSettings, OptimizerSettings, OnlineSettings):
    """Settings of the group-relative family. Defaults are dapo's published ones unless marked ours."""

    algorithm: str = "da3po"
    prompts_per_iteration: int = Field(512, gt=0)
    group_size: int = 16
    updates_per_iteration: int = Field(
        UPDATES, gt=0, description="mini-batches of an iteration; default 16 or the nearest that divides"
    )
    epochs_per_iteration: int = Field(1, gt=0, description="passes over the mini-batches")
    clip_low: float | None = Field(0.2, gt=0, description="null: the recipe has no bounds")
    clip_high: float | None = Field(0.2, gt=0)
    dual_clip: float | None = Field(
        None, gt=1, description="bound for negative advantages; public recipe: 10"
    )
    kl_coef: float = Field(0.0, ge=0)
    mismatch_cap: float | None = Field(
        None,
        gt=0,
        description="cap of the importance weight trainer/generator (public recipes: 2); generator=vllm: 2",
    )
    amplification: Amplification = "none"
    amplification_factor: Annotated[float, OnlyWith(amplification=ANY_FACTOR)] = Field(
        2.0, gt=0, description="lambda"
    )
    amplification_threshold: Annotated[
        float, OnlyWith(amplification=("daa", "symmetric", "shrink_incorrect", "mirrored"))
    ] = Field(0.5, ge=0, le=1, description="tau, strict")
    amplify_by: Annotated[
        Literal["verdict", "reward"],
        OnlyWith(amplification=("daa", "ungated", "shrink_incorrect", "mirrored", "exact")),
    ] = Field("verdict", description="what makes a response count as correct; the paper leaves it open")
    dynamic_sampling: bool = False
    max_rounds: Annotated[int, OnlyWith(dynamic_sampling=True)] = Field(10, gt=0)
    max_age: Annotated[int, OnlyWith(dynamic_sampling=True), OnlyWith(on_shortfall="skip")] = Field(
        1, ge=0, description="iterations that a surplus group may wait (ours)"
    )
    on_shortfall: Literal["train", "skip", "fail"] = Field(
        "train", description="what to do with a short batch after max_rounds (ours)"
    )
    overlong: Literal["none", "punish", "filter"] = "none"
    overlong_buffer: Annotated[int, OnlyWith(overlong="punish")] = Field(
        4096, gt=0, description="tokens; default a fifth of max_new_tokens, as published"
    )

    @model_validator(mode="before")
    @classmethod
    def _follow(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Defaults that follow from other settings; what is given stays as it is.

        vLLM's log-probs are not quite the trainer's: with it the correction is on unless set to null.
        """
        derived: dict[str, Any] = {"mismatch_cap": 2.0} if given.get("generator") == "vllm" else {}
        tokens, prompts = (
            whole(given.get(name, cls.model_fields[name].default))
            for name in ("max_new_tokens", "prompts_per_iteration")
        )
        if tokens:
            derived["overlong_buffer"] = published_buffer(tokens)
        if prompts:
            derived["updates_per_iteration"] = nearest_divisor(prompts, UPDATES)
        return {**derived, **given}

    @model_validator(mode="after")
    def _check(self) -> Config:
        fewest = RECIPES[self.algorithm].min_group_size
        if self.group_size < fewest:
            raise ValueError(
                f"group_size={self.group_size}: an advantage compares the rollouts of one prompt, and "
                f"{self.algorithm} needs at least {fewest}; the nearest valid choice is {fewest}"
            )
        prompts, updates = self.prompts_per_iteration, self.updates_per_iteration
        if prompts % updates:
            raise ValueError(
                f"updates_per_iteration={updates} does not divide prompts_per_iteration={prompts}; "
                f"the nearest valid choice is {nearest_divisor(prompts, updates)}"
            )
        if RECIPES[self.algorithm].kl_in_reward and self.kl_coef and self.amplification != "none":
            raise ValueError(
                f"amplification={self.amplification}: {self.algorithm} has its KL in the reward and so an "
                "advantage a token, which amplification does not cover; set kl_coef=0 or amplification=none"
            )
        check_bounds(self, RECIPES[self.algorithm])
        check_shape(self, RECIPES[self.algorithm])
        if self.overlong == "punish" and self.overlong_buffer > self.max_new_tokens:
            raise ValueError(
                f"overlong_buffer={self.overlong_buffer} is longer than "
                f"max_new_tokens={self.max_new_tokens}; the published proportion would be "
                f"{published_buffer(self.max_new_tokens)}"
            )
        return self


def whole(value: Any) -> int | None:
    """A positive whole number of settings that are not validated yet; None for anything else."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if number and value >= 1 and value == value // 1 else None


def published_buffer(max_new_tokens: int) -> int:
    """Tokens of soft overlong punishment: 4096 of 20480 (arXiv 2503.14476)."""
    return max(max_new_tokens // 5, 1)


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of `number` that is closest to `wanted`, the smaller of two.

    >>> nearest_divisor(512, 16), nearest_divisor(4, 16), nearest_divisor(24, 10)
    (16, 4, 8)
    """
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: abs(d - wanted))


def check_bounds(config: Config, recipe: Recipe) -> None:
    """ValueError for a bound that the recipe's loss does not have, lacks, or cannot have."""
    for name, value in (("clip_low", config.clip_low), ("clip_high", config.clip_high)):
        published = recipe.settings[name]
        if published is None and value is not None and name in config.model_fields_set:
            having = ", ".join(n for n, r in RECIPES.items() if r.settings[name] is not None)
            raise ValueError(
                f"{name}={value}: the loss of {config.algorithm} has no bounds; leave {name} out. These have "
                f"them: {having}"
            )
        if published is not None and value is None:
            raise ValueError(f"{name}=null: {config.algorithm} has this bound; its paper's is {published}")
    bounds_the_ratio = recipe.objective in (clipped, gspo, cispo)
    if bounds_the_ratio and config.clip_low is not None and config.clip_low > 1:
        raise ValueError(
            f"clip_low={config.clip_low}: {config.algorithm} bounds the ratio, which is never below 0, from "
            "below by 1 - clip_low; the nearest valid choice is 1.0"
        )
    if config.dual_clip and recipe.objective is not clipped:
        having = ", ".join(n for n, r in RECIPES.items() if r.objective is clipped)
        raise ValueError(
            f"dual_clip={config.dual_clip}: {config.algorithm} has no clipped loss to cap. "
            f"These have: {having}"
        )


def check_shape(config: Config, recipe: Recipe) -> None:
    """ValueError for a shape of the reward where only verdicts are read."""
    if not recipe.by_verdict or (config.amplification != "none" and config.amplify_by == "reward"):
        return
    for name, value, plain in (
        ("reward_from", config.reward_from, "verdict"),
        ("overlong", "none" if config.overlong == "filter" else config.overlong, "none"),
    ):
        if value != plain:
            having = ", ".join(n for n, r in RECIPES.items() if not r.by_verdict)
            raise ValueError(
                f"{name}={value}: {config.algorithm} reads the verdict alone, so this does nothing; leave "
                f"{name} out. These read the reward: {having}"
            )


VERIFIER_FAILED = "nothing is learned. `hardwon check` tries gold answers and shows the error"
SHORTFALL = ("kept", "rounds", "all_wrong", "all_correct")

# Settings of ours for the packaged models, over the papers': a run of minutes on two CPU cores.
EMBEDDED: Mapping[str, Any] = {
    "iterations": 250,
    "prompts_per_iteration": 64,
    "group_size": 8,
    "updates_per_iteration": 1,
    "learning_rate": 1e-4,
    "warmup_iterations": 10,
    "eval_problems": 512,
}


@dataclass(frozen=True)
class Trainer:
    """What the loop carries from one iteration to the next."""

    config: Config
    recipe: Recipe
    bench: Workbench
    reference: Policy | None
    optimizer: Optimizer
    prompts: DynamicSampler


def train(config: Config, run: Run, display: Display) -> Path:
    """Train until `config.iterations`, from the run's newest checkpoint if it has one.

    Returns the directory of the trained model in the Hugging Face format. On Ctrl-C or SIGTERM the
    iteration is finished and saved, then KeyboardInterrupt is raised. FloatingPointError after
    several non-finite gradients in a row; RuntimeError for a short batch with on_shortfall=fail.
    """
    trainer, start = prepare(config, run)
    evaluate = partial(evaluate_and_record, trainer.bench, run, config)
    if start == 1:
        run.log(0, evaluate(0))
    display.begin(config.algorithm, config.iterations, start - 1)
    with Interrupt(display) as interrupt:
        for iteration in range(start, config.iterations + 1):
            metrics = iterate(trainer, run, iteration)
            last = iteration == config.iterations
            if last or (config.eval_every and iteration % config.eval_every == 0):
                metrics |= evaluate(iteration)
            run.log(iteration, metrics)
            warn_of_short_batch(trainer, iteration, metrics, display)
            display.update(iteration, figures(metrics))
            stop = any_rank(interrupt.requested)
            if last or stop or iteration % config.checkpoint_every == 0:
                checkpoint(trainer, run, iteration, metrics.get("eval/mean@1"))
            if stop and not last:
                raise KeyboardInterrupt
    finished = run.latest_checkpoint()
    assert finished is not None, "the last iteration writes a checkpoint"
    return run.publish(finished.path / "model")


def iterate(trainer: Trainer, run: Run, iteration: int) -> dict[str, float]:
    """One iteration, in the order of the paper's algorithm box."""
    config, policy, clock = trainer.config, trainer.bench.policy, Clock()
    fill = trainer.prompts.fill(iteration)
    groups = trainable(trainer, fill)
    clock.lap("rollout")
    rows, advantages_PG = make_rows(groups, trainer.recipe, config, policy, trainer.reference)
    steps = []
    for progress, mini_batch in mini_batches(rows, config, iteration):
        rate = learning_rate_at(config, iteration - 1 + progress, config.iterations)
        steps.append(update(policy, trainer.optimizer, mini_batch, trainer.recipe, config, rate))
    trainer.bench.generator.load_weights(policy)
    clock.lap("update")
    record_rollouts(trainer, run, iteration, fill, groups, advantages_PG)
    return describe(fill, groups, steps, clock) | {
        "skipped_steps": trainer.optimizer.bad_steps,
        "learning_rate": learning_rate_at(config, iteration - 1, config.iterations),
    }


def prepare(config: Config, run: Run) -> tuple[Trainer, int]:
    """Everything the loop needs, as it was in the run's newest checkpoint, and the next iteration."""
    recipe, saved = RECIPES[config.algorithm], run.latest_checkpoint()
    # With LoRA the saved model has its adapters merged in; training goes on from base and adapters.
    weights = saved.path / "model" if saved and not config.lora_rank else None
    bench = open_workbench(config, weights=weights, reward=reward_of(config))
    bench.prompts.keep(run.path / PROMPTS, bench.train + bench.held_out)
    reference = Policy.load(config.model, bench.policy.dtype, config.device) if config.kl_coef else None
    if reference is not None and world().size > 1:
        shard(reference, reference.dtype)
    optimizer = Optimizer(bench.policy.model, config)

    def draw(problems: list[Problem], iteration: int) -> list[Group]:
        return sample_groups(
            [State(p) for p in problems],
            sampler=bench.sampler,
            sampling=config.sampling,
            num_samples=config.group_size,
            iteration=iteration,
        )

    prompts = DynamicSampler(
        ProblemStream(bench.train, config.seed),
        draw,
        keep=keep_varied if config.dynamic_sampling else keep_all,
        num_groups=config.prompts_per_iteration,
        max_rounds=config.max_rounds if config.dynamic_sampling else 1,
        max_age=config.max_age,
    )
    trainer = Trainer(config, recipe, bench, reference, optimizer, prompts)
    if saved:
        restore(trainer, saved.path / "state")
    return trainer, saved.iteration + 1 if saved else 1


def reward_of(config: Config) -> Reward:
    """The reward that training uses: the verdict or the verifier's score, less soft overlong punishment."""
    base = base_reward(config)
    if config.overlong != "punish":
        return base

    def punished(verdict: Verdict, length: int, truncated: bool) -> float:
        punishment = soft_overlong_punishment(
            torch.tensor(length), config.max_new_tokens, config.overlong_buffer
        )
        return base(verdict, length, truncated) + float(punishment)

    return punished


def trainable(trainer: Trainer, fill: Fill) -> list[Group]:
    """The groups of a batch to train on; what becomes of a short one is `on_shortfall`."""
    config, missing = trainer.config, trainer.config.prompts_per_iteration - len(fill.groups)
    if not missing or config.on_shortfall == "train":
        return fill.groups
    if config.on_shortfall == "fail":
        hint = form_hint(trainer, fill.metrics)
        raise RuntimeError(f"{shortfall(config, fill.metrics)}. {hint} Or set on_shortfall=train or skip")
    trainer.prompts.put_back(fill.groups)
    return []


def warn_of_short_batch(
    trainer: Trainer, iteration: int, metrics: Mapping[str, float], display: Display
) -> None:
    """Say that too few groups carried a signal: at iterations 1, 2, 4, 8, ..., so a log stays readable."""
    if iteration & (iteration - 1):
        return
    config, groups = trainer.config, int(metrics["groups_trained"])
    if groups < config.prompts_per_iteration:
        display.print(f"iteration {iteration}: trained on {groups} groups; {shortfall(config, metrics)}")
    if math.isnan(metrics["success_rate"]):
        display.print(f"iteration {iteration}: the verifier failed on every response: {VERIFIER_FAILED}")
    if hint := form_hint(trainer, metrics):
        display.print(f"iteration {iteration}: {hint}")


def form_hint(trainer: Trainer, metrics: Mapping[str, float]) -> str:
    """Why nothing is right, where no response has an answer. A user's reward says nothing of answers."""
    if trainer.config.has_reward_functions:
        return ""
    counts = (int(metrics[f"dynamic_sampling/{name}"]) for name in ("answered", "judged"))
    return no_answer_hint(trainer.bench.task, trainer.bench.train[0], *counts)


def shortfall(config: Config, metrics: Mapping[str, float]) -> str:
    """Why a batch is short, and what would help: the filter, or data with too few problems."""
    count = {name: f"{metrics[f'dynamic_sampling/{name}']:.0f}" for name in SHORTFALL}
    wanted = f"prompts_per_iteration={config.prompts_per_iteration}"
    if not config.dynamic_sampling:
        return f"{wanted}, and the data has only {count['kept']} problems. Lower it, or add problems"
    return (
        f"only {count['kept']} of {wanted} groups were varied in {count['rounds']} of "
        f"max_rounds={config.max_rounds} ({count['all_wrong']} all wrong, {count['all_correct']} all "
        "correct). More rounds, problems of another difficulty or a larger group_size would help"
    )


def mini_batches(
    rows: Sequence[Sequence[Row]], config: Config, iteration: int
) -> Iterator[tuple[float, list[Row]]]:
    """The rows of each update, with the share of the iteration that is done before it.

    Groups stay whole and are dealt out in an order of their own each epoch; a short batch has
    updates as large as a full one, and so fewer of them.
    """
    size = config.prompts_per_iteration // config.updates_per_iteration
    starts = range(0, len(rows), size)
    for epoch in range(config.epochs_per_iteration):
        order = np.random.default_rng([config.seed, iteration, epoch]).permutation(len(rows))
        for number, start in enumerate(starts):
            done = (epoch + number / len(starts)) / config.epochs_per_iteration
            yield done, [row for p in order[start : start + size] for row in rows[p]]


def record_rollouts(
    trainer: Trainer,
    run: Run,
    iteration: int,
    fill: Fill,
    groups: list[Group],
    advantages_PG: torch.Tensor,
) -> None:
    """Store what was trained on, and what never will be; a carried group is stored when its time comes."""
    everything = groups + fill.dropped
    trained = np.zeros((len(everything), trainer.config.group_size), bool)
    for p, group in enumerate(groups):
        trained[p] = [has_loss(rollout, trainer.config) for rollout in group.rollouts]
    advantages = np.full(trained.shape, np.nan)
    advantages[: len(groups)] = advantages_PG.numpy()
    run.save_rollouts(iteration, everything, np.where(trained, advantages, np.nan), trained=trained)


def checkpoint(trainer: Trainer, run: Run, iteration: int, metric: float | None) -> None:
    """Save all that the next iteration depends on; sampling needs no generator state (see rollout_seed)."""
    bench = trainer.bench

    def write(path: Path) -> None:
        bench.policy.save(path / "model")
        state: dict[str, Any] = {
            "optimizer": trainer.optimizer.state_dict(),
            "prompts": trainer.prompts.state_dict(),
            "problems": fingerprint(bench.train),
        }
        if trainer.config.lora_rank:
            parameters = bench.policy.model.named_parameters()
            state["adapters"] = {name: gathered(p.detach()) for name, p in parameters if p.requires_grad}
        save_state(path / "state", state)

    run.checkpoint(iteration, write, metric)


def restore(trainer: Trainer, path: Path) -> None:
    """The reverse of `checkpoint`; ValueError if the problems are not those of the run."""
    state = load_state(path, trainer.bench.policy.device.type)
    check_same_data(trainer.config, state["problems"], trainer.bench.train)
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.prompts.load_state_dict(state["prompts"])
    parameters = dict(trainer.bench.policy.model.named_parameters())
    with torch.no_grad():
        for name, value in state.get("adapters", {}).items():
            parameters[name].copy_(divided_like(value, parameters[name]))
    trainer.bench.generator.load_weights(trainer.bench.policy)
