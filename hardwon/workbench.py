"""What both methods work with, put together from the settings: model, task, generator, problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hardwon.config import (
    EvaluationSettings,
    ModelSettings,
    RunSettings,
    SamplingSettings,
    TaskSettings,
)
from hardwon.data import Problem, Sampling
from hardwon.models.generator import Generator
from hardwon.models.generator_hf import HFGenerator
from hardwon.models.generator_vllm import VLLMGenerator
from hardwon.models.parallel import shard, whole_copy, world
from hardwon.models.paths import context_of
from hardwon.models.policy import Dtype, Policy
from hardwon.models.tokens import encode_prompt, load_tokenizer
from hardwon.rollouts import Reward, Sampler, outcome_reward, score_reward
from hardwon.tasks import Task, load_task
from hardwon.tasks.rows import fingerprint


class SharedSettings(ModelSettings, TaskSettings, SamplingSettings, RunSettings, EvaluationSettings):
    """The settings that all methods have."""

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.max_new_tokens, self.temperature, self.top_p, self.top_k)


def within_context(kind: type[SharedSettings], values: Mapping[str, Any]) -> dict[str, Any]:
    """A default for max_new_tokens that leaves the longest prompt its room in the context of a local model.

    Nothing where the context is not known, or where what `values` and the defaults say fits. The response has
    half of the context at least: prompts seldom are as long as they may be.
    """
    context = context_of(values.get("model"))
    prompt, response = (
        values.get(key, kind.model_fields[key].default) for key in ("max_prompt_tokens", "max_new_tokens")
    )
    if context is None or not isinstance(prompt, int) or not isinstance(response, int):
        return {}
    if prompt + response <= context:
        return {}
    return {"max_new_tokens": min(response, max(context - prompt, context // 2, 1))}


@dataclass(frozen=True)
class Workbench:
    """`train` and `held_out` are problems; `sampler` turns them into judged rollouts."""

    policy: Policy
    task: Task
    generator: Generator
    sampler: Sampler
    train: list[Problem]
    held_out: list[Problem]


def open_workbench(
    config: SharedSettings, *, weights: str | Path | None = None, reward: Reward = outcome_reward
) -> Workbench:
    """Load everything that `config` names; `weights` (a checkpoint) stand in for `config.model`.

    Problems are loaded first, so that bad data is refused before a model takes its time.
    """
    if world().size > 1 and config.generator != "hf":
        raise ValueError(
            f"generator={config.generator} samples for one process, and there are {world().size}: "
            "use generator=hf, or start without torchrun"
        )
    task = open_task(config)
    train, held_out = task.problems("train"), task.problems("test")[: config.eval_problems]
    torch.manual_seed(config.seed)  # new adapters are drawn at random
    policy = Policy.load(
        weights or config.model,
        dtype=resolve_dtype(config),
        device=config.device,
        lora_rank=config.lora_rank,
        gradient_checkpointing=config.gradient_checkpointing,
    )
    if world().size == 1:
        generator = open_generator(config, policy)
    else:
        generator = open_generator(config, whole_copy(policy))
        shard(policy, policy.dtype)
    encode = partial(
        encode_checked,
        policy=policy,
        chat_template=config.chat_template,
        system_prompt=config.system_prompt,
        max_prompt_tokens=config.max_prompt_tokens,
        max_new_tokens=config.max_new_tokens,
    )
    # A problem comes back in every epoch and every evaluation; its template is rendered once.
    prompts: dict[tuple[str, str], tuple[int, ...]] = {}

    def encode_once(problem: Problem) -> tuple[int, ...]:
        key = (problem.id, repr(problem.prompt))  # the two splits may use the same ids
        if key not in prompts:
            prompts[key] = encode(problem)
        return prompts[key]

    sampler = Sampler(generator, task, policy.tokenizer, encode_once, config.seed, reward)
    return Workbench(policy, task, generator, sampler, train, held_out)


def open_generator(config: SharedSettings, policy: Policy) -> Generator:
    """The generator that the settings name; ValueError if it cannot run here."""
    if config.generator == "hf":
        return HFGenerator(policy)
    return VLLMGenerator(
        policy,
        server=config.vllm_server,
        # A prefix is a prompt and at most one response's worth of steps; a response follows.
        max_length=config.max_prompt_tokens + 2 * config.max_new_tokens,
        gpu_memory_utilization=config.vllm_gpu_memory,
    )


def base_reward(config: Any) -> Reward:
    """The reward that an online method trains on: the verdict, or the score where that is asked for.

    `config` has OnlineSettings and TaskSettings. A reward function of the user's is always read as a score.
    """
    return score_reward if config.reward_from == "score" or config.reward else outcome_reward


def check_same_data(config: TaskSettings, stored: str, problems: Sequence[Problem]) -> None:
    """ValueError if the training problems of a resumed run are not those whose fingerprint it `stored`."""
    if stored != fingerprint(problems):
        raise ValueError(
            f"data={config.data!r} has changed since this run began: its order and what was sampled would "
            "not fit. Restore the data, or start a new run from the trained model"
        )


def open_task(config: SharedSettings) -> Task:
    """The task that the settings name, with the custom reward in place of its verifier if there is one."""
    options = dict(config.task_options)
    if config.reward is not None:
        tokenizer = load_tokenizer(config.model)
        encode = partial(tokenizer.encode, add_special_tokens=False)
        options |= {"reward": config.reward, "encode": encode}
    return load_task(config.task, data=config.data, eval_data=config.eval_data, seed=config.seed, **options)


def resolve_dtype(config: ModelSettings) -> Dtype:
    """`auto` is bfloat16 on a GPU that computes in it and float32 elsewhere: CPUs are slow in bfloat16."""
    if config.dtype != "auto":
        return config.dtype
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    return "bfloat16" if on_gpu and torch.cuda.is_bf16_supported(including_emulation=False) else "float32"


def encode_checked(
    problem: Problem,
    *,
    policy: Policy,
    chat_template: bool,
    system_prompt: str | None,
    max_prompt_tokens: int,
    max_new_tokens: int,
) -> tuple[int, ...]:
    """Prompt ids; ValueError if the prompt is over its limit or leaves the response no room."""
    ids = encode_prompt(policy.tokenizer, problem, chat_template=chat_template, system_prompt=system_prompt)
    if len(ids) > max_prompt_tokens:
        raise ValueError(
            f"problem {problem.id}: its prompt has {len(ids)} tokens, over "
            f"max_prompt_tokens={max_prompt_tokens}; raise it to at least {len(ids)} or take the problem out"
        )
    if len(ids) + max_new_tokens > policy.context_length:
        raise ValueError(
            f"problem {problem.id}: {len(ids)} prompt tokens and max_new_tokens={max_new_tokens} do not "
            f"fit the model's context of {policy.context_length}; the largest max_new_tokens for it is "
            f"{policy.context_length - len(ids)}"
        )
    return ids


def check_prompts(problems: Sequence[Problem], sampler: Sampler) -> None:
    """Encode every prompt once before anything runs, so that the bad one is found now and not at night."""
    for problem in problems:
        sampler.encode(problem)
