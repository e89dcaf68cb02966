"""How long an iteration takes, stage by stage, estimated from sizes, hardware and stated assumptions.

Every efficiency here is an assumption until it is measured: `Assumptions` takes measured rates in its place.
docs/scaling.md has the formulas.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from hardwon.config import Settings
from hardwon.dynamic_sampling import MAX_ROUND_BATCHES
from hardwon.hardware import Hardware
from hardwon.memory import ROLLOUTS_A_WRITE, Shape, processes, rows_at_once, sampling_copy

StepSeconds = Callable[[int, float], float]  # rows, mean tokens cached a row -> seconds of a decode step

# Iterations, or writes of rollouts, that are drawn and averaged.
SIMULATED = 4


class Assumptions(Settings):
    """What an estimate takes for granted; all are ours. Measured rates replace them."""

    response_tokens: float | None = Field(
        None, gt=0, description="mean; default an eighth of max_new_tokens, or 400 if that is more"
    )
    length_spread: float = Field(0.8, ge=0, description="sigma of the log-normal lengths; 0: all alike")
    prompt_tokens: float = Field(150, gt=0, description="mean")
    accept_rate: float = Field(0.6, gt=0, le=1, description="groups that dynamic sampling keeps")
    problems: int = Field(7500, gt=0, description="of an offline method, where num_problems is not set")
    steps_per_solution: float = Field(10, gt=0)
    actions_per_state: float = Field(8, gt=0, description="distinct first steps of a state's completions")
    kept_states: float = Field(0.4, gt=0, le=1, description="whose advantages differ by min_gap")
    verify_seconds: float | None = Field(
        None, ge=0, description="of a core, a response; default 0.01 for math, 0.1 for code, else 0"
    )
    verify_cores: float = Field(8, gt=0, description="a process")
    prefill_mfu: float = Field(0.4, gt=0, le=1, description="share of the peak: prefill and scoring")
    update_mfu: float = Field(0.35, gt=0, le=1, description="share of the peak: forward and backward")
    decode_mfu: float = Field(0.5, gt=0, le=1, description="share of the peak: matrix products of a step")
    decode_bandwidth: float = Field(0.6, gt=0, le=1, description="share of the memory's bandwidth")
    layer_seconds: float | None = Field(
        None, ge=0, description="launches of a layer, a decode step; default 7e-4 with hf, 2e-5 with vllm"
    )
    link_efficiency: float = Field(0.7, gt=0, le=1)
    node_size: int = Field(8, gt=0, description="devices of a machine")
    between_nodes: float = Field(50e9, gt=0, description="bytes/s a device")
    server_link: float = Field(1.25e9, gt=0, description="bytes/s to a vLLM server")
    gather_rate: float = Field(1e9, gt=0, description="bytes/s of rollouts that every process receives")
    decode_tokens_per_s: dict[int, float] = Field(
        default_factory=dict, description="measured: tokens/s of a device by rows decoded together"
    )
    update_tokens_per_s: float | None = Field(None, gt=0, description="measured: of a device")
    prefill_tokens_per_s: float | None = Field(None, gt=0, description="measured: of a device")


class Stage(NamedTuple):
    """`seconds` an iteration; `work` says what is done and what bounds it."""

    name: str
    seconds: float
    work: str


# ------------------------------------------------------------------------------------------ arithmetic


def forward_flops(shape: Shape, length: float) -> float:
    """Of a token in a sequence of `length`: 2 a parameter, and attention over half the length on average."""
    return 2 * shape.computed + 4 * shape.layers * shape.attention * length / 2


def update_factor(*, lora: bool, checkpointing: bool) -> int:
    """Forward passes that an update costs: the gradient of activations and of weights are one each.

    3 in all (6 FLOPs a parameter and token), 2 where only adapters have gradients; 1 more to compute again.
    """
    return (2 if lora else 3) + checkpointing


def decode_step_seconds(
    rows: int,
    cached: float,
    *,
    shape: Shape,
    weight_bytes: float,
    kv_bytes: float,
    hardware: Hardware,
    dtype: str,
    layer_seconds: float,
    assumed: Assumptions,
) -> float:
    """A token for each of `rows` rows with `cached` tokens each: launches, then memory or products.

    A step reads all weights and all keys and values while it multiplies; the slower of the two counts.
    Measured rates replace all of it.
    """
    if assumed.decode_tokens_per_s:
        return _measured_step(rows, assumed.decode_tokens_per_s)
    memory = (weight_bytes + rows * cached * kv_bytes) / (hardware.bandwidth * assumed.decode_bandwidth)
    flops = rows * (2 * shape.computed + 4 * shape.layers * shape.attention * cached)
    return shape.layers * layer_seconds + max(memory, flops / (hardware.peak(dtype) * assumed.decode_mfu))


def _measured_step(rows: int, rates: Mapping[int, float]) -> float:
    """Seconds of a step: linear in rows between measured ones, below them constant, above in proportion."""
    points = sorted(rates)
    seconds = [n / rates[n] for n in points]
    within = float(np.interp(rows, points, seconds))
    return within * max(rows / points[-1], 1.0)


def decode_seconds(lengths: Sequence[int], rows: int, step: StepSeconds, prompt: float = 0.0) -> float:
    """Responses of these lengths on one device, `rows` at a time: where one ends, the next begins.

    Three of 2, 2 and 4 tokens on two rows with steps of a second: the third begins at 2 and ends at 6.
    """
    ends: list[int] = []
    now, started, seconds, waiting = 0, 0.0, 0.0, iter(lengths)
    begun: dict[int, list[int]] = {}
    while True:
        for length in waiting:
            heapq.heappush(ends, now + int(length))
            begun.setdefault(now + int(length), []).append(now)
            started += now
            if len(ends) == rows:
                break
        if not ends:
            return seconds
        live, until = len(ends), ends[0]
        age = now + (until - now) / 2 - started / live
        seconds += (until - now) * step(live, prompt + age)
        now = until
        while ends and ends[0] == now:
            heapq.heappop(ends)
        started -= sum(begun.pop(now))


def draw_lengths(
    generator: np.random.Generator, number: int, mean: float, spread: float, most: int
) -> np.ndarray:
    """Log-normal lengths of about this mean, at least 1 and at most `most`."""
    drawn = generator.lognormal(math.log(mean) - spread**2 / 2, spread, number)
    return np.clip(np.rint(drawn), 1, most).astype(int)


# ------------------------------------------------------------------------------------------ one run


@dataclass(frozen=True)
class Workload:
    """A run's settings, model and hardware, with what is assumed of them."""

    shape: Shape
    config: Any
    hardware: Hardware
    dtype: str
    assumed: Assumptions

    @property
    def trainers(self) -> int:
        return processes(self.config, self.hardware)

    @property
    def samplers(self) -> int:
        """Devices that sample: all that train, or those of a server, which has the rest."""
        server = self.config.generator == "vllm" and self.config.vllm_server is not None
        return max(self.hardware.count - 1, 1) if server else self.trainers

    @property
    def response_tokens(self) -> float:
        most = self.config.max_new_tokens
        return min(self.assumed.response_tokens or min(max(most / 8, 400), most / 2), most)

    @property
    def prompt_tokens(self) -> float:
        return min(self.assumed.prompt_tokens, self.config.max_prompt_tokens)

    @property
    def layer_seconds(self) -> float:
        """transformers launches each operation of a step by itself, vLLM a recorded graph of them."""
        default = 7e-4 if self.config.generator == "hf" else 2e-5
        return default if self.assumed.layer_seconds is None else self.assumed.layer_seconds

    @property
    def verify_seconds_each(self) -> float:
        default = max({"math": 0.01, "code": 0.1}.get(task, 0.0) for task in self.config.tasks)
        return default if self.assumed.verify_seconds is None else self.assumed.verify_seconds

    def rows(self, mean_new: float, prefix: float = 0.0) -> int:
        length = self.prompt_tokens + prefix + mean_new / 2
        return rows_at_once(self.shape, self.config, self.hardware, self.dtype, length)

    def step(self) -> StepSeconds:
        hf, width = self.config.generator == "hf", 2 if self.dtype == "bfloat16" else 4
        copied = sampling_copy(self.shape, self.config, self.trainers, self.dtype)
        weights = copied if hf and copied else width * self.shape.parameters
        if hf and not copied and self.dtype == "bfloat16":  # autocast converts frozen weights at every step
            weights = 8 * self.shape.parameters
        return partial(
            decode_step_seconds,
            shape=self.shape,
            weight_bytes=weights,
            kv_bytes=width * self.shape.kv_per_token,
            hardware=self.hardware,
            dtype=self.dtype,
            layer_seconds=self.layer_seconds,
            assumed=self.assumed,
        )

    def sample_seconds(self, lengths: np.ndarray, prefix: float, group: int) -> float:
        """A call of the generator on all devices: a barrier ends it, so the slowest device counts.

        Groups of `group` share a prefill of `prefix` tokens and stay on one device.
        """
        grouped, step = lengths.reshape(-1, group), self.step()
        rows = self.rows(float(lengths.mean()), prefix - self.prompt_tokens)
        slowest = 0.0
        for device in range(self.samplers):
            mine = grouped[device :: self.samplers]
            if len(mine):
                prefill = self.forward_seconds(len(mine) * prefix, prefix, devices=1)
                slowest = max(slowest, prefill + decode_seconds(mine.ravel().tolist(), rows, step, prefix))
        return slowest

    def verify_seconds(self, responses: float) -> float:
        return responses * self.verify_seconds_each / (self.assumed.verify_cores * self.trainers)

    def forward_seconds(self, tokens: float, length: float, devices: int | None = None) -> float:
        """Scoring or prefill of so many tokens in sequences of `length`."""
        devices = devices or self.trainers
        if self.assumed.prefill_tokens_per_s:
            return tokens / devices / self.assumed.prefill_tokens_per_s
        flops = tokens * forward_flops(self.shape, length)
        return flops / (devices * self.hardware.peak(self.dtype) * self.assumed.prefill_mfu)

    def update_seconds(self, tokens: float, length: float, steps: float, *, critic: bool = False) -> float:
        """Optimizer steps over `tokens` in all: the slower of products and, with several, of moving weights.

        Weights are gathered twice a micro-batch and their gradients reduced once; it all overlaps.
        """
        lora = bool(self.config.lora_rank) and not critic
        factor = update_factor(lora=lora, checkpointing=self.config.gradient_checkpointing and not critic)
        if self.assumed.update_tokens_per_s:
            products = tokens / self.trainers / self.assumed.update_tokens_per_s
        else:
            flops = tokens * factor * forward_flops(self.shape, length)
            products = flops / (self.trainers * self.hardware.peak(self.dtype) * self.assumed.update_mfu)
        a_step = tokens / steps / self.trainers / max(self.config.micro_batch_tokens, length)
        width = 2 if self.dtype == "bfloat16" else 4
        moved = self.shape.parameters * (2 * width + (0 if lora else 4))
        return max(products, steps * math.ceil(a_step) * self.moving_seconds(moved))

    def moving_seconds(self, total: float) -> float:
        """For every process to receive what it lacks of `total` bytes, or to send them."""
        n = self.trainers
        link = self.hardware.link if n <= self.assumed.node_size else self.assumed.between_nodes
        return total * (n - 1) / n / (link * self.assumed.link_efficiency)

    def refresh_seconds(self) -> float:
        """New weights for the generator: gathered, copied to the engine, or sent to a server."""
        weights = (2 if self.dtype == "bfloat16" else 4) * self.shape.parameters
        if self.config.generator == "hf":
            return self.moving_seconds(weights if not self.config.lora_rank else 0.0)
        if self.config.vllm_server is not None:
            return weights / self.assumed.server_link
        return 2 * weights / (self.hardware.bandwidth * self.assumed.decode_bandwidth)

    def gather_seconds(self, tokens: float) -> float:
        """Rollouts to every process, about 16 bytes per token: ids, log-probs and text."""
        return 16 * tokens / self.assumed.gather_rate if self.trainers > 1 else 0.0


def stages(workload: Workload) -> list[Stage]:
    """The stages of one iteration. ValueError for hardware without rates, or a method without an estimate."""
    if not workload.hardware.bandwidth:
        raise ValueError(f"no rates are known of {workload.hardware.name}: name the nearest with --hardware")
    algorithm = workload.config.algorithm
    if algorithm == "direct_advantage":
        return _offline(workload)
    if algorithm in ("ppo", "sft", "dpo"):
        raise ValueError(
            f"time is estimated for da3po and its family and for direct_advantage, not {algorithm}"
        )
    return _online(workload)


def _online(work: Workload) -> list[Stage]:
    config, group = work.config, work.config.group_size
    rollout, verify, sampled, rounds = _rollout(work)
    trained = config.prompts_per_iteration * group
    length = work.prompt_tokens + work.response_tokens
    tokens = trained * length * config.epochs_per_iteration
    passes = (config.mismatch_cap is not None) + bool(config.kl_coef)
    scoring = work.forward_seconds(passes * trained * length, length)
    steps = config.updates_per_iteration * config.epochs_per_iteration
    out = [
        Stage("rollout", rollout, f"{amount(sampled)} responses, rounds: {rounds:.3g}, {_rows(work)}"),
        Stage("verify", verify, f"{work.assumed.verify_cores:g} cores a process"),
        Stage("gather", work.gather_seconds(sampled * work.response_tokens), "rollouts to all processes"),
        Stage("score", scoring, f"{amount(passes * trained)} responses scored once more"),
        Stage(
            "update", work.update_seconds(tokens, length, steps), f"{amount(tokens)} tokens in {steps} steps"
        ),
        Stage("refresh", work.refresh_seconds(), "new weights for the generator"),
        _evaluation(work, config.eval_every),
    ]
    return [stage for stage in out if stage.seconds > 0]


def _rollout(work: Workload) -> tuple[float, float, float, float]:
    """(decoding, verifying, responses, rounds) of an iteration, the mean of a few that are drawn."""
    config, generator = work.config, np.random.default_rng(0)
    wanted, group = config.prompts_per_iteration, config.group_size
    rate = work.assumed.accept_rate if config.dynamic_sampling else 1.0
    decoding = verifying = 0.0
    asked_for = rounds = carried = 0
    for _ in range(SIMULATED):
        kept, carried, tries = carried, 0, 0
        while kept < wanted and tries < (config.max_rounds if config.dynamic_sampling else 1):
            asked = min(math.ceil((wanted - kept) / rate), MAX_ROUND_BATCHES * wanted)
            lengths = draw_lengths(
                generator,
                asked * group,
                work.response_tokens,
                work.assumed.length_spread,
                config.max_new_tokens,
            )
            decoding += work.sample_seconds(lengths, work.prompt_tokens, group)
            verifying += work.verify_seconds(asked * group)
            asked_for, tries, kept = asked_for + asked, tries + 1, kept + int(generator.binomial(asked, rate))
        rounds, carried = rounds + tries, max(kept - wanted, 0)
    return (
        decoding / SIMULATED,
        verifying / SIMULATED,
        asked_for * group / SIMULATED,
        rounds / SIMULATED,
    )


def _evaluation(work: Workload, every: int) -> Stage:
    """Held-out problems, sampled and greedy, shared out over the iterations between two evaluations."""
    config = work.config
    if not every:
        return Stage("evaluate", 0.0, "")
    generator = np.random.default_rng(1)
    draw = partial(draw_lengths, generator, mean=work.response_tokens, spread=work.assumed.length_spread)
    seconds = 0.0
    for samples in (config.eval_samples, 1):
        most = config.eval_sampling.max_new_tokens
        lengths = draw(config.eval_problems * samples, most=most)
        seconds += work.sample_seconds(lengths, work.prompt_tokens, samples)
    seconds += work.verify_seconds(config.eval_problems * (config.eval_samples + 1))
    return Stage(
        "evaluate",
        seconds / every,
        f"{config.eval_problems} problems" + (f" every {every} iterations" if every > 1 else ""),
    )


def _offline(work: Workload) -> list[Stage]:
    """Direct advantage: an iteration is all five stages."""
    config, assumed = work.config, work.assumed
    problems = config.num_problems or assumed.problems
    response, prompt = work.response_tokens, work.prompt_tokens
    kept = problems * min(config.kept_solutions, config.solutions_per_problem)
    states = kept * assumed.steps_per_solution
    states = min(states, config.max_label_states or states)
    if config.max_label_tokens:
        states = min(states, config.max_label_tokens / (config.completions * response / 2))
    length, train = prompt + response / 2, 1 - config.validation_share
    pairs = states * assumed.actions_per_state
    critic_tokens = states * train * length * config.critic_epochs
    pair_tokens = pairs * train * assumed.kept_states * length
    steps = math.ceil(states * train * config.critic_epochs / config.critic_batch_size)
    policy_steps = math.ceil(pairs * train * assumed.kept_states * config.epochs / config.batch_size)
    collect, label = problems * config.solutions_per_problem, states * config.completions
    judging = work.forward_seconds(pairs * length + pair_tokens, length)
    validation = problems * config.validation_share * config.eval_samples
    validation *= config.epochs * config.validations_per_epoch + 1
    return [
        Stage(
            "collect",
            _chunks(work, collect, prompt, response, config.solutions_per_problem),
            f"{amount(collect)} solutions to {amount(problems)} problems, {_rows(work)}",
        ),
        Stage(
            "label",
            _chunks(work, label, length, response / 2, config.completions),
            f"{amount(label)} completions of {amount(states)} states",
        ),
        Stage(
            "critic",
            work.update_seconds(critic_tokens, length, steps, critic=True),
            f"{amount(critic_tokens)} tokens, {steps} steps",
        ),
        Stage("select", judging, f"{amount(pairs)} steps judged, {amount(pairs * assumed.kept_states)} kept"),
        Stage(
            "policy",
            work.update_seconds(pair_tokens * config.epochs, length, policy_steps),
            f"{amount(pair_tokens * config.epochs)} tokens, {policy_steps} steps",
        ),
        Stage(
            "validate",
            _chunks(work, validation, prompt, response, config.eval_samples),
            f"{amount(validation)} responses",
        ),
        _evaluation(work, 1),
    ]


def _chunks(work: Workload, rollouts: float, prefix: float, mean: float, group: int) -> float:
    """Rollouts drawn a write at a time: one write is simulated, the others take as long."""
    size = max(ROLLOUTS_A_WRITE * work.trainers // group, 1) * group
    generator, most = np.random.default_rng(2), work.config.max_new_tokens
    writes = [draw_lengths(generator, size, mean, work.assumed.length_spread, most) for _ in range(SIMULATED)]
    seconds = sum(work.sample_seconds(lengths, prefix, group) for lengths in writes) / SIMULATED
    seconds += work.verify_seconds(size) + work.gather_seconds(size * mean)
    return rollouts / size * seconds


def _rows(work: Workload) -> str:
    return f"{work.rows(work.response_tokens)} at a time on a device"


def amount(number: float) -> str:
    """13800 is 13.8 k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.0f}"
