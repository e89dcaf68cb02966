"""PPO (arXiv 1707.06347): online, with a critic of tokens that is trained together with the actor.

A baseline of direct advantage, which trains its critic alone. The reward comes at the last token; advantages
are GAE's, normalised over the batch. The critic's logit is the value itself: returns are +1 and -1.

Shapes: `B` responses, `T` tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from hardwon.checkpoints import load_state, save_state
from hardwon.config import OnlineSettings, OptimizerSettings
from hardwon.data import Group, State, TokenBatch
from hardwon.dynamic_sampling import ProblemStream
from hardwon.evaluate import evaluate_and_record
from hardwon.functional.actor_critic import gae, value_loss
from hardwon.functional.masked import token_mean
from hardwon.functional.objectives import clipped
from hardwon.models.critic import Critic
from hardwon.models.tokens import pad_id
from hardwon.optimization import Optimizer, learning_rate_at
from hardwon.progress import Display, Interrupt
from hardwon.rollouts import sample_groups
from hardwon.run import Run
from hardwon.scoring import Span, micro_batches
from hardwon.stored_prompts import PROMPTS
from hardwon.tasks.splits import fingerprint
from hardwon.workbench import SharedSettings, Workbench, base_reward, check_same_data, open_workbench


class Config(SharedSettings, OptimizerSettings, OnlineSettings):
    """Settings of PPO. Defaults are common ones of PPO for language models, marked ours where not."""

    algorithm: str = "ppo"
    prompts_per_iteration: int = Field(512, gt=0, description="(ours)")
    samples_per_prompt: int = Field(1, gt=0)
    updates_per_iteration: int = Field(4, gt=0, description="mini-batches of an epoch")
    epochs_per_iteration: int = Field(1, gt=0)
    clip: float = Field(0.2, gt=0, le=1)
    value_clip: float = Field(0.2, gt=0)
    gae_lambda: float = Field(1.0, ge=0, le=1)
    critic_learning_rate: float = Field(5e-6, gt=0)
    max_new_tokens: int = Field(2048, gt=0)


# Settings of ours for the packaged models, at the budget of sampled tokens of direct advantage.
EMBEDDED: Mapping[str, Any] = {
    "iterations": 50,
    "prompts_per_iteration": 256,
    "samples_per_prompt": 4,
    "updates_per_iteration": 2,
    "micro_batch_tokens": 2048,
    "gae_lambda": 0.95,
    "learning_rate": 1e-4,
    "critic_learning_rate": 5e-4,
    "warmup_iterations": 5,
    "eval_problems": 512,
}


@dataclass(frozen=True)
class Trainer:
    """What the loop carries from one iteration to the next."""

    config: Config
    bench: Workbench
    critic: Critic
    actor_optimizer: Optimizer
    critic_optimizer: Optimizer
    prompts: ProblemStream
    totals: dict[str, float]

    @property
    def parts(self) -> dict[str, tuple[nn.Module, Optimizer]]:
        return {
            "actor": (self.bench.policy.model, self.actor_optimizer),
            "critic": (self.critic.model, self.critic_optimizer),
        }


@dataclass(frozen=True)
class Row:
    """A response with what the update needs at each of its tokens."""

    span: Span
    values: Tensor
    advantages: Tensor
    returns: Tensor


def train(config: Config, run: Run, display: Display) -> Path:
    """Train until `config.iterations`, from the run's newest checkpoint if it has one.

    Returns the directory of the trained model in the Hugging Face format. On Ctrl-C or SIGTERM the iteration
    is finished and saved, then KeyboardInterrupt is raised.
    """
    trainer, start = prepare(config, run)
    if start == 1:
        run.log(0, evaluate_and_record(trainer.bench, run, config, 0))
    display.begin("ppo", config.iterations, start - 1)
    with Interrupt(display) as interrupt:
        for iteration in range(start, config.iterations + 1):
            metrics = iterate(trainer, iteration)
            last = iteration == config.iterations
            if last or (config.eval_every and iteration % config.eval_every == 0):
                metrics |= evaluate_and_record(trainer.bench, run, config, iteration)
            run.log(iteration, metrics)
            shown = {k: f"{metrics[k]:.3f}" for k in ("success_rate", "explained_variance", "entropy")}
            display.update(iteration, shown)
            if last or interrupt.requested or iteration % config.checkpoint_every == 0:
                checkpoint(trainer, run, iteration)
            if interrupt.requested and not last:
                raise KeyboardInterrupt
    finished = run.latest_checkpoint()
    assert finished is not None, "the last iteration writes a checkpoint"
    return run.publish(finished.path / "model")


def prepare(config: Config, run: Run) -> tuple[Trainer, int]:
    """Everything the loop needs, as it was in the run's newest checkpoint, and the next iteration."""
    bench = open_workbench(config, reward=base_reward(config))
    bench.prompts.keep(run.path / PROMPTS, bench.train + bench.held_out)
    critic = Critic.from_policy(bench.policy)
    critic_settings: OptimizerSettings = config.model_copy(
        update={"learning_rate": config.critic_learning_rate}
    )
    trainer = Trainer(
        config,
        bench,
        critic,
        Optimizer(bench.policy.model, config),
        Optimizer(critic.model, critic_settings),
        ProblemStream(bench.train, config.seed),
        {"tokens/generated": 0.0, "tokens/trained": 0.0},
    )
    saved = run.latest_checkpoint()
    if saved is None:
        return trainer, 1
    state = load_state(saved.path / "state")
    check_same_data(config, state["problems"], bench.train)
    for name, (model, optimizer) in trainer.parts.items():
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for key, value in state[name]["weights"].items():
                parameters[key].copy_(value)
        optimizer.load_state_dict(state[name]["optimizer"])
    trainer.prompts.load_state_dict(state["prompts"])
    trainer.totals.update(state["totals"])
    return trainer, saved.iteration + 1


def checkpoint(trainer: Trainer, run: Run, iteration: int) -> None:
    state: dict[str, Any] = {
        "prompts": trainer.prompts.state_dict(),
        "problems": fingerprint(trainer.bench.train),
        "totals": trainer.totals,
    }
    for name, (model, optimizer) in trainer.parts.items():
        weights = {key: p for key, p in model.named_parameters() if p.requires_grad}
        state[name] = {"weights": weights, "optimizer": optimizer.state_dict()}

    def write(path: Path) -> None:
        trainer.bench.policy.save(path / "model")
        save_state(path / "state", state)

    run.checkpoint(iteration, write)


def iterate(trainer: Trainer, iteration: int) -> dict[str, float]:
    """Sample, judge, estimate advantages, update actor and critic."""
    config = trainer.config
    groups = sample_groups(
        [State(p) for p in trainer.prompts.take(config.prompts_per_iteration)],
        sampler=trainer.bench.sampler,
        sampling=config.sampling,
        num_samples=config.samples_per_prompt,
        iteration=iteration,
    )
    rows = make_rows(trainer, groups)
    rate = learning_rate_at(config, iteration - 1, config.iterations)
    steps = [update(trainer, batch, rate) for batch in mini_batches(rows, config, iteration)]
    trainer.bench.generator.load_weights(trainer.bench.policy)
    judged = [r for group in groups for r in group.judged]
    trainer.totals["tokens/generated"] += sum(r.length for g in groups for r in g.rollouts)
    trainer.totals["tokens/trained"] += sum(step["tokens"] for step in steps)
    names = [name for name in (steps[0] if steps else {}) if name != "tokens"]
    returns, values = torch.cat([r.returns for r in rows]), torch.cat([r.values for r in rows])
    return {
        "reward": float(np.mean([r.reward for r in judged])),
        "success_rate": float(np.mean([r.verdict.correct for r in judged])),
        "completions/mean_length": float(np.mean([r.length for r in judged])),
        "explained_variance": float(1 - (returns - values).var() / returns.var().clamp(min=1e-8)),
        **{name: float(np.mean([step[name] for step in steps])) for name in names},
        **trainer.totals,
        "learning_rate": rate,
    }


def make_rows(trainer: Trainer, groups: Sequence[Group]) -> list[Row]:
    """Responses with GAE advantages, normalised over all tokens of the batch."""
    rollouts = [(group, rollout) for group in groups for rollout in group.judged]
    spans = [Span(g.prompt_ids, tuple(r.sample.ids.tolist()), r.sample.log_probs) for g, r in rollouts]
    values = score_values(trainer, spans)
    values_BT = pad_sequence(values, batch_first=True)
    lengths_B = torch.tensor([len(v) for v in values])
    mask_BT = torch.arange(values_BT.shape[1]) < lengths_B[:, None]
    rewards_BT = torch.zeros_like(values_BT)
    rewards_BT[torch.arange(len(spans)), lengths_B - 1] = torch.tensor(
        [r.reward for _, r in rollouts], dtype=values_BT.dtype
    )
    advantages_BT, returns_BT = gae(rewards_BT, values_BT, mask_BT, lam=trainer.config.gae_lambda)
    known = advantages_BT[mask_BT]
    advantages_BT = (advantages_BT - known.mean()) / (known.std() + 1e-8)
    return [
        Row(span, values[b], advantages_BT[b, :n], returns_BT[b, :n])
        for b, (span, n) in enumerate(zip(spans, lengths_B.tolist(), strict=True))
    ]


def mini_batches(rows: Sequence[Row], config: Config, iteration: int) -> list[list[Row]]:
    out = []
    for epoch in range(config.epochs_per_iteration):
        order = np.random.default_rng([config.seed, iteration, epoch]).permutation(len(rows))
        out += [[rows[i] for i in part] for part in np.array_split(order, config.updates_per_iteration)]
    return [batch for batch in out if batch]


def token_values(critic: Critic, batch: TokenBatch) -> Tensor:
    """Values (B, T): column t judges the state before token t + 1, as log-probs do."""
    ids_BL = batch.input_ids_BL.to(critic.device)
    hidden_BLH = critic.model.base_model(input_ids=ids_BL, use_cache=False)[0]
    values_BT: Tensor = critic.model.score(hidden_BLH[:, :-1]).squeeze(-1).float()
    return values_BT


@torch.no_grad()
def score_values(trainer: Trainer, spans: Sequence[Span]) -> list[Tensor]:
    """Values of each response's tokens, on the CPU."""
    out = [torch.empty(0)] * len(spans)
    padding = pad_id(trainer.bench.policy.tokenizer)
    for indices, batch in micro_batches(spans, padding, trainer.config.micro_batch_tokens):
        with trainer.bench.policy.autocast():
            values_BT = token_values(trainer.critic, batch).cpu()
        for b, index in enumerate(indices):
            out[index] = values_BT[b][batch.response_mask_BT[b].bool()]
    return out


def update(trainer: Trainer, rows: Sequence[Row], learning_rate: float) -> dict[str, float]:
    """One step of the actor and one of the critic on a mini-batch; means over its tokens."""
    config, policy = trainer.config, trainer.bench.policy
    spans = [row.span for row in rows]
    num_tokens = sum(len(span.response_ids) for span in spans)
    totals = {"loss": 0.0, "value_loss": 0.0, "entropy": 0.0, "kl": 0.0}
    for indices, batch in micro_batches(spans, pad_id(policy.tokenizer), config.micro_batch_tokens):
        mask_BT = batch.response_mask_BT.to(policy.device)
        old_BT, advantages_BT, returns_BT, values_BT = (
            _scatter(parts, batch).to(policy.device)
            for parts in (
                [torch.from_numpy(np.array(rows[i].span.log_probs)) for i in indices],
                [rows[i].advantages for i in indices],
                [rows[i].returns for i in indices],
                [rows[i].values for i in indices],
            )
        )
        log_probs_BT, entropy_BT = policy.log_probs(batch, config.sampling)
        losses_BT, _ = clipped(
            log_probs_BT, old_BT, advantages_BT, mask_BT, clip_low=config.clip, clip_high=config.clip
        )
        with policy.autocast():
            new_values_BT = token_values(trainer.critic, batch)
        value_losses_BT = value_loss(new_values_BT, values_BT, returns_BT, clip=config.value_clip)
        loss = token_mean(losses_BT, mask_BT, num_tokens)
        critic_loss = token_mean(value_losses_BT, mask_BT, num_tokens)
        (loss + critic_loss).backward()  # they share no weights
        for name, value in (
            ("loss", loss),
            ("value_loss", critic_loss),
            ("entropy", token_mean(entropy_BT, mask_BT, num_tokens)),
            ("kl", token_mean(old_BT - log_probs_BT, mask_BT, num_tokens)),
        ):
            totals[name] += float(value.detach())
    share = config.critic_learning_rate / config.learning_rate
    norms = {
        "grad_norm": trainer.actor_optimizer.step(learning_rate),
        "critic_grad_norm": trainer.critic_optimizer.step(learning_rate * share),
    }
    return totals | norms | {"tokens": float(num_tokens)}


def _scatter(parts: Sequence[Tensor], batch: TokenBatch) -> Tensor:
    """A value per response token, row after row, in the columns of the batch."""
    mask_BT = batch.response_mask_BT.bool()
    return torch.zeros(mask_BT.shape).masked_scatter(mask_BT, torch.cat(list(parts)).float())
