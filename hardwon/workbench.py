"""What both methods work with, put together from the settings: model, task, generator, problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hardwon.config import (
    EvaluationSettings,
    ModelSettings,
    PromptSettings,
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
from hardwon.models.prompts import PromptForm, encode_prompt
from hardwon.models.tokens import load_tokenizer
from hardwon.rollouts import Reward, Sampler, outcome_reward, score_reward
from hardwon.stored_prompts import Render, StoredPrompts, problem_key
from hardwon.tasks import Task, load_task
from hardwon.tasks.sources import read_rows
from hardwon.tasks.splits import fingerprint


class SharedSettings(
    ModelSettings, PromptSettings, TaskSettings, SamplingSettings, RunSettings, EvaluationSettings
):
    """The settings that all methods have."""

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.max_new_tokens, self.temperature, self.top_p, self.top_k, tuple(self.stop))

    @property
    def eval_sampling(self) -> Sampling:
        """As in training where no `eval_` setting says otherwise."""
        names = ("max_new_tokens", "temperature", "top_p", "top_k")
        given = {name: getattr(self, f"eval_{name}") for name in names}
        return replace(self.sampling, **{name: value for name, value in given.items() if value is not None})

    @property
    def longest_response(self) -> int:
        """Tokens of a response in training or evaluation, at most."""
        return max(self.max_new_tokens, self.eval_max_new_tokens or 0)


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
    """`train` and `held_out` are problems; `sampler` turns them into judged rollouts, from `prompts`."""

    policy: Policy
    task: Task
    generator: Generator
    sampler: Sampler
    prompts: StoredPrompts
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
    prompts = StoredPrompts(encoder(config, task, policy, held_out))
    sampler = Sampler(generator, task, policy.tokenizer, prompts, config.seed, reward)
    return Workbench(policy, task, generator, sampler, prompts, train, held_out)


def open_generator(config: SharedSettings, policy: Policy) -> Generator:
    """The generator that the settings name; ValueError if it cannot run here."""
    if config.generator == "hf":
        return HFGenerator(policy)
    return VLLMGenerator(
        policy,
        server=config.vllm_server,
        # A prefix is a prompt and at most one response's worth of steps; a response follows.
        max_length=config.max_prompt_tokens + max(2 * config.max_new_tokens, config.longest_response),
        reads_text=bool(config.stop),
        gpu_memory_utilization=config.vllm_gpu_memory,
    )


def base_reward(config: Any) -> Reward:
    """The reward that an online method trains on: the verdict, or the score where that is asked for.

    `config` has OnlineSettings and TaskSettings. A reward function of the user's is always read as a score.
    """
    return score_reward if config.reward_from == "score" or config.has_reward_functions else outcome_reward


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
    rows = {"columns": config.columns, "row_function": config.row_function}
    options |= {name: value for name, value in rows.items() if value is not None}
    if config.has_reward_functions:
        tokenizer = load_tokenizer(config.model)
        encode = partial(tokenizer.encode, add_special_tokens=False)
        options |= {"encode": encode} | ({"reward": config.reward} if config.reward else {})
    if config.sources:
        options |= {"reward_from": getattr(config, "reward_from", "verdict")}  # offline methods have none
    return load_task(config.task, data=config.data, eval_data=config.eval_data, seed=config.seed, **options)


def resolve_dtype(config: ModelSettings) -> Dtype:
    """`auto` is bfloat16 on a GPU that computes in it and float32 elsewhere: CPUs are slow in bfloat16."""
    if config.dtype != "auto":
        return config.dtype
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    return "bfloat16" if on_gpu and torch.cuda.is_bf16_supported(including_emulation=False) else "float32"


# -------------------------------------------------------------------------------------------------- prompts


def encoder(config: SharedSettings, task: Task, policy: Policy, held_out: Sequence[Problem]) -> Render:
    """From a problem to its prompt's ids: in the form of training, for `held_out` in that of evaluation."""
    form, eval_form = prompt_forms(config, task)
    evaluated = {problem_key(problem) for problem in held_out}

    def encode(problem: Problem) -> tuple[int, ...]:
        chosen = eval_form if problem_key(problem) in evaluated else form
        ids = encode_prompt(policy.tokenizer, problem, chosen)
        check_length(problem, len(ids), config, policy.context_length)
        return ids

    return encode


def prompt_forms(config: SharedSettings, task: Task) -> tuple[PromptForm, PromptForm]:
    """How prompts are put in training and in evaluation. ValueError for a bad template or example."""
    form = PromptForm(
        template=template_of(config.prompt_template, task),
        chat=config.chat_template,
        system_prompt=config.system_prompt,
        examples=read_examples(config.examples),
        arguments=config.chat_template_kwargs,
    )
    refuse_shown_answers(form.examples, task)
    if config.eval_prompt_template is None:
        return form, form
    template = template_of(config.eval_prompt_template, task)
    return form, replace(form, template=template, setting="eval_prompt_template")


def template_of(value: str, task: Task) -> str | None:
    """The template that a setting names: text, `auto` (the task's own) or `none`."""
    if value == "none":
        return None
    return task.prompt_template if value == "auto" else value


EXAMPLE_COLUMNS = {
    "prompt": ("prompt", "question", "problem"),
    "response": ("response", "solution", "answer"),
}


def read_examples(source: str | Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Worked examples as rows with `prompt` and `response`, from the setting or the file that it names."""
    if isinstance(source, str):
        return tuple(_example(row.number, row.content) for row in read_rows(source, "examples"))
    return tuple(_example(number, row) for number, row in enumerate(source, 1))


def _example(number: int, row: Any) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise ValueError(f"examples, row {number}: named columns are wanted, found {row!r:.80}")
    found = dict(row)
    for name, columns in EXAMPLE_COLUMNS.items():
        given = [row[column] for column in columns if row.get(column) is not None]
        if not given or not str(given[0]).strip():
            raise ValueError(
                f"examples, row {number}: no {name} (a column {' or '.join(columns)}); "
                f"the row has {', '.join(map(str, row)) or 'nothing'}"
            )
        found[name] = str(given[0])
    return found


def refuse_shown_answers(examples: Sequence[Mapping[str, Any]], task: Task) -> None:
    """ValueError for an example that is also a held-out problem: evaluation would see its answer."""
    if not examples:
        return
    shown = {" ".join(row["prompt"].split()): number for number, row in enumerate(examples, 1)}
    for problem in task.problems("test"):
        text = problem.prompt if isinstance(problem.prompt, str) else problem.prompt[-1]["content"]
        number = shown.get(" ".join(text.split()))
        if number is not None:
            raise ValueError(f"examples, row {number} is the held-out problem {problem.id}: take it out")


def check_length(problem: Problem, length: int, config: SharedSettings, context_length: int) -> None:
    """ValueError if the prompt is over its limit or leaves the response no room."""
    if length > config.max_prompt_tokens:
        raise ValueError(
            f"problem {problem.id}: its prompt has {length} tokens, over "
            f"max_prompt_tokens={config.max_prompt_tokens}; raise it to at least {length} or take the "
            "problem out"
        )
    if length + config.longest_response > context_length:
        raise ValueError(
            f"problem {problem.id}: {length} prompt tokens and max_new_tokens={config.longest_response} "
            f"do not fit the model's context of {context_length}; the largest max_new_tokens and "
            f"eval_max_new_tokens for it is {context_length - length}"
        )
