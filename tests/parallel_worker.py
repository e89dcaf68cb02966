"""What test_parallel.py runs under torchrun, and in its own process to compare with.

torchrun --nproc-per-node N parallel_worker.py all FOLDER | results FILE | die RUN | steps RUN | ...
"""

from __future__ import annotations

import functools
import io
import itertools
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from hardwon.algorithms import direct_advantage, find, group_policy, resolve
from hardwon.algorithms.group_recipes import RECIPES
from hardwon.algorithms.group_update import batches_of, make_rows, score, update
from hardwon.data import Group, Problem, Rollout, Sample, State, Verdict
from hardwon.models.parallel import barrier, copy_trained, gathered, processes, shard, whole_copy, world
from hardwon.models.policy import Policy
from hardwon.optimization import Optimizer
from hardwon.progress import Display
from hardwon.run import Run, open_together
from hardwon.workbench import resolve_dtype

COMMON = {
    "device": "cpu",
    "max_new_tokens": 24,
    "group_size": 4,
    "max_grad_norm": 100.0,
}

# name -> recipe, settings, groups. Micro-batches hold about two rows: ranks have several, not equally many.
CASES = {
    "token_mean": ("dapo", {}, 3),
    "sequence_mean": ("grpo", {"kl_coef": 0.0}, 3),
    "sequence_mean_token_sum": ("dr_grpo", {}, 3),
    "masked rows": ("dapo", {"overlong": "filter"}, 3),
    "masked rows, sequence_mean": ("grpo", {"kl_coef": 0.0, "overlong": "filter"}, 3),
    "masked rows, sequence_mean_token_sum": ("dr_grpo", {"overlong": "filter"}, 3),
    "kl in the loss": ("grpo", {"kl_coef": 0.1}, 2),
    "kl in the reward": ("reinforce_pp", {"kl_coef": 0.1}, 2),
    "generator mismatch": ("cispo", {"mismatch_cap": 2.0}, 2),
    "gspo": ("gspo", {}, 2),
    "gmpo": ("gmpo", {}, 2),
    "sapo": ("sapo", {}, 2),
    "gpg": ("gpg", {}, 2),
    "fewer rows than ranks": ("dapo", {}, 1),
    "lora": ("dapo", {"lora_rank": 2}, 2),
    "gradient checkpointing": ("dapo", {"gradient_checkpointing": True}, 2),
}


# Of this one, one process rounds other values: autocast leaves the weights of norms in float32.
BFLOAT16 = ("dapo", {"dtype": "bfloat16", "gradient_checkpointing": True}, 3)


def make_groups(number: int, group_size: int = 4) -> list[Group]:
    """Groups with responses of 1 to 24 random tokens, of which some are cut short and one has no verdict."""
    random = np.random.default_rng(number)
    groups = []
    for p in range(number):
        rollouts = []
        for g in range(group_size):
            ids = random.integers(3, 100, size=random.integers(1, 25))
            outcome = "error" if (p, g) == (0, 3) else ("wrong", "correct")[g % 2]
            sample = Sample(ids, random.normal(-7, 0.1, len(ids)).astype(np.float32), bool(g))
            rollouts.append(
                Rollout(sample, "", Verdict(outcome), {"wrong": -1.0, "correct": 1.0}.get(outcome, np.nan))
            )
        prompt_ids = tuple(random.integers(3, 100, size=3 + p).tolist())
        groups.append(Group(State(Problem(str(p), "", "")), prompt_ids, tuple(rollouts), 1))
    return groups


def load(config) -> Policy:
    torch.manual_seed(0)
    policy = Policy.load(
        "embedded",
        device="cpu",
        dtype=resolve_dtype(config),
        lora_rank=config.lora_rank,
        gradient_checkpointing=config.gradient_checkpointing,
    )
    with torch.no_grad():  # an adapter that is new does nothing, and has no gradient in one half
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    return policy


def near(policy: Policy, groups: list[Group], config) -> list[Group]:
    """The groups with log-probs that are not far from the policy's, so that some ratios are clipped."""
    rows = [row for rows in make_rows(groups, RECIPES["dapo"], config, policy, None)[0] for row in rows]
    scores = iter(score(policy, rows, config))
    out = []
    for group in groups:
        rollouts = [
            r
            if r.verdict.is_error
            else replace(
                r,
                sample=replace(
                    r.sample,
                    log_probs=next(scores) + np.float32(0.3) * np.sin(r.sample.ids, dtype=np.float32),
                ),
            )
            for r in group.rollouts
        ]
        out.append(replace(group, rollouts=tuple(rollouts)))
    return out


def case(recipe_name: str, settings: dict, num_groups: int) -> dict[str, torch.Tensor]:
    """Loss, gradients and weights of one update, and of a second whose rows all have advantage 0."""
    config = resolve(recipe_name, COMMON, {"micro_batch_tokens": 48}, settings)
    recipe, policy, reference = RECIPES[recipe_name], load(config), None
    if config.kl_coef:
        reference = load(config)
        with torch.no_grad():
            for parameter in reference.model.parameters():
                parameter.mul_(0.98)
    if world().size > 1:
        for sharded in [policy, reference] if reference else [policy]:
            shard(sharded, sharded.dtype)
    optimizer = Optimizer(policy.model, config)
    groups = near(policy, make_groups(num_groups), config.model_copy(update={"overlong": "none"}))
    if num_groups == 1:
        config = config.model_copy(update={"overlong": "none"})
    rows = [row for rows in make_rows(groups, recipe, config, policy, reference)[0] for row in rows]
    rows = rows[:1] if num_groups == 1 else rows
    out, step = {}, optimizer.step

    def recorded(learning_rate: float) -> float:
        for name, parameter in policy.model.named_parameters():
            if parameter.grad is not None:
                first = f"gradient {name}"  # the second update has one where the loss holds a KL
                out[f"second {first}" if first in out else first] = gathered(parameter.grad).clone()
        return step(learning_rate)

    optimizer.step = recorded
    metrics = update(policy, optimizer, rows, recipe, config, 1e-4)
    out |= {f"metric {name}": torch.tensor(value, dtype=torch.float64) for name, value in metrics.items()}
    nothing = [replace(row, advantages=np.zeros_like(row.advantages)) for row in rows]
    metrics = update(policy, optimizer, nothing, recipe, config, 0.0)
    out["loss without a signal"] = torch.tensor(metrics["loss"], dtype=torch.float64)
    out |= {f"weight {name}": gathered(p.detach()).clone() for name, p in policy.model.named_parameters()}
    return out


def copy_agrees(dtype: str) -> float:
    """Largest difference between log-probs of a sharded policy, which has moved, and of its whole copy."""
    config = resolve("dapo", COMMON)
    policy = Policy.load("embedded", device="cpu", dtype=dtype)
    whole = whole_copy(policy)
    if world().size > 1:
        shard(policy, dtype)
    rows = [
        row for rows in make_rows(make_groups(2), RECIPES["dapo"], config, policy, None)[0] for row in rows
    ]
    update(policy, Optimizer(policy.model, config), rows, RECIPES["dapo"], config, 1e-2)
    before = whole.log_probs(next(batches_of(rows, policy, 10_000))[1], config.sampling)[0]
    copy_trained(policy, whole)
    (_, batch), *_ = batches_of(rows, policy, 10_000)
    with torch.no_grad():
        a, b = (p.log_probs(batch, config.sampling)[0] for p in (policy, whole))
    assert (before - b).abs().max() > 0.1
    return float((a - b).abs().max())


def results() -> dict[str, dict[str, torch.Tensor]]:
    return {name: case(*values) for name, values in CASES.items()}


# --------------------------------------------------------------------------------------------- whole runs

TRAIN = {
    "device": "cpu", "iterations": 4, "prompts_per_iteration": 5, "group_size": 4, "updates_per_iteration": 5,
    "checkpoint_every": 1, "keep_checkpoints": 9, "eval_every": 0, "eval_problems": 7, "eval_samples": 1,
    "warmup_iterations": 0, "task_options": {"train_size": 64},
}  # fmt: skip


def train(path: str, settings: dict = TRAIN) -> None:
    config = resolve("da3po", settings, {"run": path})
    values, exists = config.model_dump(mode="json"), (Path(path) / "config.yaml").exists()

    def open_run() -> Run:
        return (
            Run.resume(path, values, may_change=["iterations"])
            if exists
            else Run.create(path, values, keep_last=9)
        )

    with open_together(open_run) as run:
        find("da3po").train(config, run, Display(1, console=Console(file=io.StringIO())))


LORA = {**TRAIN, "iterations": 2, "prompts_per_iteration": 4, "updates_per_iteration": 2, "lora_rank": 2}

STEPS = {
    "device": "cpu", "num_problems": 12, "solutions_per_problem": 8, "completions": 4,
    "critic_batch_size": 12,
    "batch_size": 20, "require_critic": False, "checkpoint_every": 2, "eval_problems": 5, "eval_samples": 1,
    "validations_per_epoch": 1, "critic_epochs": 1, "fresh_states": 8, "min_gap": 0.0, "epochs": 1,
    "micro_batch_tokens": 64, "task_options": {"train_size": 64},
}  # fmt: skip


def train_steps(path: str) -> None:
    """Direct advantage, from where the run is."""
    config = resolve("direct_advantage", STEPS, {"run": path})
    values, exists = config.model_dump(mode="json"), (Path(path) / "config.yaml").exists()
    with open_together(lambda: Run.resume(path, values) if exists else Run.create(path, values)) as run:
        direct_advantage.train(config, run, Display(1, console=Console(file=io.StringIO())))


def die_in_steps(path: str) -> None:
    """Rank 1 is killed at the third step of the critic's fit, after its first checkpoint."""
    original, calls = Optimizer.step, itertools.count(1)

    def dying(self, learning_rate: float) -> float:
        if next(calls) == 3 and world().rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, learning_rate)

    Optimizer.step = dying
    train_steps(path)


def die(path: str) -> None:
    """Rank 1 is killed in the middle of iteration 3, when rank 0 waits for its groups."""
    original = group_policy.sample_groups

    @functools.wraps(original)
    def dying(*args, iteration: int, **kwargs):
        if iteration == 3 and world().rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, iteration=iteration, **kwargs)

    group_policy.sample_groups = dying
    train(path)


def moments(path: str, *, save_as: int | None = None) -> dict[str, torch.Tensor]:
    """Weights and optimizer state as they come out of a run's newest checkpoint; perhaps saved again."""
    config = resolve("da3po", TRAIN, {"run": path})
    with open_together(lambda: Run.resume(path)) as run:
        trainer, _ = group_policy.prepare(config, run)
        if save_as is not None:
            group_policy.checkpoint(trainer, run, save_as, None)
        state = trainer.optimizer.adamw.state_dict()["state"]
        out = {f"{i} {k}": gathered(v).clone() for i, values in state.items() for k, v in values.items()}
        parameters = trainer.bench.policy.model.named_parameters()
        return out | {name: gathered(p.detach()).clone() for name, p in parameters}


def save_results(path: str) -> None:
    found = results()
    found["bfloat16"] = case(*BFLOAT16)
    found["copies"] = {dtype: torch.tensor(copy_agrees(dtype)) for dtype in ("float32", "bfloat16")}
    if world().is_main:
        torch.save(found, path)


def save_moments(path: str, target: str) -> None:
    found = moments(path)
    if world().is_main:
        torch.save(found, target)


def everything(folder: str) -> None:
    """What two processes are compared by, in one start: most of the time goes into imports."""
    save_results(f"{folder}/results.pt")
    train(f"{folder}/run")
    train_steps(f"{folder}/steps")
    train(f"{folder}/lora", LORA)
    train(f"{folder}/lora-resumed", {**LORA, "iterations": 1})
    barrier()  # each rank looks whether there is a run
    train(f"{folder}/lora-resumed", LORA)


def main(what: str, *paths: str) -> None:
    tasks = {
        "all": everything, "results": save_results, "moments": save_moments, "die": die,
        "steps": train_steps, "die-in-steps": die_in_steps,
    }  # fmt: skip
    with processes("cpu"):
        assert world().size == int(os.environ["WORLD_SIZE"])
        tasks[what](*paths)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
