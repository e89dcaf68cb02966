"""Sampling with vLLM: in this process, or on a server that gets each iteration's weights.

What a request becomes and what comes back is the same for both; how it gets there is in
vllm_engine.py and vllm_server.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hardwon.data import Request, Sample, Sampling
from hardwon.models.policy import Policy
from hardwon.models.stopping import StopStrings


class Completion(NamedTuple):
    """Token ids as sampled, the end-of-sequence token included, and a log-prob each."""

    ids: Sequence[int]
    log_probs: Sequence[float]


class Job(NamedTuple):
    """One rollout: its prefix, vLLM's sampling settings for it, and the response's tokens in the prefix."""

    prefix_ids: tuple[int, ...]
    settings: dict[str, Any]
    written_ids: tuple[int, ...] = ()

    def after(self, done: Completion) -> Job:
        """What is left of the job, with random numbers of its own."""
        count, ids = len(done.ids), tuple(done.ids)
        changed = {
            "max_tokens": self.settings["max_tokens"] - count,
            "seed": (self.settings["seed"] + count) & LARGEST_SEED,
        }
        return Job(self.prefix_ids + ids, self.settings | changed, self.written_ids + ids)


LARGEST_SEED = 2**63 - 1  # of the server's API


class Engine(Protocol):
    """`max_length` is the most tokens that prefix and response may have together."""

    max_length: int

    def run(self, jobs: Sequence[Job]) -> list[Completion]: ...

    def load(self, policy: Policy) -> None: ...


class VLLMGenerator:
    """Samples with vLLM; see `generator.Generator`.

    `server` is the URL of a running server (docs/vllm.md says how to start one); None runs the engine
    in this process, on the policy's device. `max_length` bounds prefix and response together, for which
    the engine keeps room (default: the model's context). `gpu_memory_utilization` is the engine's share
    of the GPU while it samples; between calls it gives all of it back. The engine in this process reads text,
    which stop strings need, only with `reads_text`.

    A sample is a function of its prefix, seed, settings and weights up to the rounding of batched
    matrix products: where two tokens are a hair apart, another batch may draw the other one.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        server: str | None = None,
        max_length: int | None = None,
        gpu_memory_utilization: float = 0.5,
        reads_text: bool = False,
    ) -> None:
        longest = min(max_length or policy.context_length, policy.context_length)
        self.engine = _open_engine(policy, server, longest, gpu_memory_utilization, reads_text)
        self.load_weights(policy)

    def load_weights(self, policy: Policy) -> None:
        """Sample from `policy`: its weights are copied into the engine, and its prefix cache is dropped."""
        self.policy = policy
        self.engine.load(policy)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Sample]]:
        """See `generator.Generator`. A response also ends, unfinished, at the engine's longest sequence."""
        stops = StopStrings(self.policy.tokenizer, sampling.stop)
        ending_ids = self.policy.eos_ids | stops.token_ids
        jobs = list(make_jobs(requests, sampling, ending_ids, self.engine.max_length))
        if not jobs:
            return [[] for _ in requests]
        completions = run_to_stop(self.engine, jobs, ending_ids, stops)
        greedy = sampling.temperature == 0
        samples = iter(
            to_sample(completion, is_finished(completion, job, ending_ids, stops), greedy)
            for job, completion in zip(jobs, completions, strict=True)
        )
        return [[next(samples) for _ in request.seeds] for request in requests]


def run_to_stop(
    engine: Engine, jobs: Sequence[Job], ending_ids: frozenset[int], stops: StopStrings
) -> list[Completion]:
    """Every job to its end, with nothing after a stop string.

    vLLM reads text in its context, so it may miss a stop string that begins in the prefix, and find one that
    the response's own text does not have (with its first space, say): such a response goes on.
    """
    found = engine.run(jobs)
    if not stops.strings:
        return found
    found = [until_stop(job, completion, stops) for job, completion in zip(jobs, found, strict=True)]
    early = [
        i
        for i, (job, completion) in enumerate(zip(jobs, found, strict=True))
        if len(completion.ids) < job.settings["max_tokens"]
        and not is_finished(completion, job, ending_ids, stops)
    ]
    if early:
        rest = run_to_stop(engine, [jobs[i].after(found[i]) for i in early], ending_ids, stops)
        for i, more in zip(early, rest, strict=True):
            found[i] = Completion([*found[i].ids, *more.ids], [*found[i].log_probs, *more.log_probs])
    return found


def until_stop(job: Job, completion: Completion, stops: StopStrings) -> Completion:
    end = stops.end(job.written_ids, completion.ids)
    return Completion(completion.ids[:end], completion.log_probs[:end])


def is_finished(completion: Completion, job: Job, ending_ids: frozenset[int], stops: StopStrings) -> bool:
    """Whether the last token ends the response: an EOS, or the token that completes a stop string."""
    if int(completion.ids[-1]) in ending_ids:
        return True
    response = [*job.written_ids, *completion.ids]
    return bool(stops.strings) and stops.completed_at(response, len(response))


def _open_engine(
    policy: Policy, server: str | None, max_length: int, memory: float, reads_text: bool
) -> Engine:
    if server is not None:
        from hardwon.models.vllm_server import ServerEngine

        return ServerEngine(server, max_length)
    from hardwon.models.vllm_engine import LocalEngine

    return LocalEngine(policy, max_length, memory, reads_text)


def make_jobs(
    requests: Sequence[Request], sampling: Sampling, ending_ids: frozenset[int], max_length: int
) -> Iterator[Job]:
    """A job for each seed, in order. ValueError for a prefix that leaves no room for a token."""
    if sampling.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={sampling.max_new_tokens} must be at least 1")
    for request in requests:
        length = len(request.prefix_ids)
        if not 0 < length < max_length:
            raise ValueError(
                f"a prefix has {length} tokens, but needs 1 to {max_length - 1}: the engine's context holds "
                f"{max_length} and a response needs at least 1"
            )
        room = min(sampling.max_new_tokens, max_length - length)
        for seed in request.seeds:
            settings = sampling_settings(sampling, ending_ids, seed, room)
            yield Job(request.prefix_ids, settings, request.written_ids)


def sampling_settings(sampling: Sampling, ending_ids: frozenset[int], seed: int, room: int) -> dict[str, Any]:
    """Settings by the names that SamplingParams and the server's API have in common.

    Every one that changes the distribution is given: otherwise a server takes some from the model's
    generation_config.json. Only our own EOS ids end a response, and stop strings.
    """
    settings = {
        "max_tokens": room,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": seed & LARGEST_SEED,
        "stop_token_ids": sorted(ending_ids),
        "ignore_eos": True,
        "logprobs": 0,  # of the sampled token alone
    }
    if sampling.stop:
        settings |= {"stop": list(sampling.stop), "include_stop_str_in_output": True}
    return settings


def to_sample(completion: Completion, finished: bool, greedy: bool) -> Sample:
    """The sample as it came. Greedy decoding has one possible outcome, so its log-probs are 0."""
    ids = np.asarray(completion.ids, np.int64)
    log_probs = np.asarray(completion.log_probs, np.float32)
    assert len(ids) == len(log_probs) > 0, f"vLLM gave {len(ids)} tokens and {len(log_probs)} log-probs"
    return Sample(ids, np.zeros_like(log_probs) if greedy else log_probs, finished)
