"""Generate, verify, reward: from states to groups of rollouts."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hardwon.data import Group, Problem, Request, Rollout, Sample, Sampling, State, Verdict
from hardwon.models.parallel import divided
from hardwon.models.stopping import cut_at_stop
from hardwon.models.tokens import decode_response

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hardwon.models.generator import Generator
    from hardwon.tasks import Task

Reward = Callable[[Verdict, int, bool], float]  # verdict, length in tokens, truncated -> reward


def outcome_reward(verdict: Verdict, length: int, truncated: bool) -> float:
    """+1 for a correct answer and -1 otherwise (arXiv 2503.14476, equation 7)."""
    return 1.0 if verdict.correct else -1.0


def score_reward(verdict: Verdict, length: int, truncated: bool) -> float:
    """The verifier's own score; +1/-1 where it gave none."""
    return outcome_reward(verdict, length, truncated) if verdict.score is None else verdict.score


def rollout_seed(seed: int, iteration: int, state: State, index: int) -> int:
    """A 64-bit seed of its own for each (run, iteration, state, rollout).

    It depends on nothing else, so a sample is the same in any batch and after any resume.
    """
    key = repr((seed, iteration, state.problem.id, state.prefix_ids, index)).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Sampler:
    """What it takes to turn a state into judged rollouts, kept together for every caller."""

    generator: Generator
    task: Task
    tokenizer: PreTrainedTokenizerBase
    encode: Callable[[Problem], tuple[int, ...]]
    seed: int
    reward: Reward = outcome_reward


def sample_groups(
    states: Sequence[State], *, sampler: Sampler, sampling: Sampling, num_samples: int, iteration: int
) -> list[Group]:
    """`num_samples` judged rollouts from every state; a group each, in the order of `states`.

    A rollout's text is the whole response: the state's prefix and what was sampled after it. Several
    ranks, which must all call with the same states, divide them and all get every group.
    """
    sample = partial(
        _sample_groups, sampler=sampler, sampling=sampling, num_samples=num_samples, iteration=iteration
    )
    return divided(states, sample)


def _sample_groups(
    states: Sequence[State], *, sampler: Sampler, sampling: Sampling, num_samples: int, iteration: int
) -> list[Group]:
    prompts = [sampler.encode(state.problem) for state in states]
    requests = [
        Request(
            prompt_ids + state.prefix_ids,
            tuple(rollout_seed(sampler.seed, iteration, state, i) for i in range(num_samples)),
            len(state.prefix_ids),
        )
        for prompt_ids, state in zip(prompts, states, strict=True)
    ]
    samples = sampler.generator.generate(requests, sampling)
    texts = [
        [text_of(sampler, sampling, (*state.prefix_ids, *sample.ids.tolist())) for sample in group]
        for state, group in zip(states, samples, strict=True)
    ]
    verdicts = iter(
        sampler.task.verify(
            [(s.problem, text) for s, group in zip(states, texts, strict=True) for text in group]
        )
    )
    return [
        Group(
            state,
            prompt_ids,
            tuple(
                _rollout(sample, text, next(verdicts), len(state.prefix_ids), sampler.reward)
                for sample, text in zip(group, group_texts, strict=True)
            ),
            iteration,
        )
        for state, prompt_ids, group, group_texts in zip(states, prompts, samples, texts, strict=True)
    ]


def text_of(sampler: Sampler, sampling: Sampling, ids: Sequence[int]) -> str:
    """What a response says: its text without special tokens, up to a stop string."""
    return cut_at_stop(decode_response(sampler.tokenizer, ids), sampling.stop)


def _rollout(sample: Sample, text: str, verdict: Verdict, prefix_length: int, reward: Reward) -> Rollout:
    value = math.nan
    if not verdict.is_error:
        value = reward(verdict, prefix_length + len(sample.ids), not sample.finished)
        if not math.isfinite(value):
            verdict, value = Verdict("error", message=f"the reward {value} is not finite"), math.nan
    return Rollout(sample, text, verdict, value)
