"""Monte-Carlo labelling with and without a prefill shared by a state's completions, side by side in one run.

    python benchmarks/labelling.py [--states 48] [--completions 16] [--steps 8] [--repeats 3]

States lie at every step boundary of solutions of `--steps` steps to chain arithmetic, and `--completions`
completions are sampled from each. Shared is what `sample_groups` does: one prefill a distinct prefix. Not
shared is what an engine without prefix sharing does: each completion prefills its own prefix (here by
making each an entry of its own in the generator's plan). Samples must be the same: a rounding difference
between batches of another shape may turn one that stands on a knife's edge, so the share of equal ones is
printed and at least 98 % is asserted. Prefill tokens are counted where they are computed, without padding.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from hardwon.data import Request, Sample, Sampling, State
from hardwon.models import generator_hf
from hardwon.models.decoding import Decoder
from hardwon.models.generator_hf import HFGenerator
from hardwon.models.policy import Policy
from hardwon.models.prompts import encode_prompt
from hardwon.rollouts import rollout_seed
from hardwon.steps.split import StepSplitter
from hardwon.tasks.chain_arithmetic import load

PROMPT_COPIES = {"short": 1, "long": 8}


@contextmanager
def counted_prefill() -> Iterator[list[int]]:
    """Tokens of the prefixes that are prefilled within."""
    counts: list[int] = []
    original = Decoder._prefill

    def counting(self: Decoder, prefixes: list[tuple[int, ...]]) -> object:
        counts.append(sum(map(len, prefixes)))
        return original(self, prefixes)

    Decoder._prefill = counting  # type: ignore[method-assign, assignment]
    try:
        yield counts
    finally:
        Decoder._prefill = original  # type: ignore[method-assign]


@contextmanager
def no_sharing() -> Iterator[None]:
    """Every sample of a request becomes an entry of its own, with a prefill of its own."""
    original = generator_hf.plan

    def plan(requests: list[Request], max_rows: int) -> list[generator_hf.Entry]:
        return [
            generator_hf.Entry(entry.prefix_ids, (slot,), (seed,))
            for entry in original(requests, max_rows)
            for slot, seed in zip(entry.slots, entry.seeds, strict=True)
        ]

    generator_hf.plan = plan  # type: ignore[assignment]
    try:
        yield
    finally:
        generator_hf.plan = original


def make_requests(
    policy: Policy, num_states: int, steps: int, completions: int, copies: int
) -> list[Request]:
    """States along gold solutions of so many steps; the prompt stands `copies` times before each."""
    task = load(min_terms=steps + 1, max_terms=steps + 1)
    splitter = StepSplitter(policy.tokenizer, task.split_steps)
    requests: list[Request] = []
    for problem in task.problems("train"):
        ids = tuple(policy.tokenizer(task.gold(problem), add_special_tokens=False)["input_ids"])
        prompt_ids = encode_prompt(policy.tokenizer, problem)
        for end in [0, *splitter.ends(ids)[:-1]]:
            seeds = tuple(rollout_seed(0, 1, State(problem, ids[:end]), i) for i in range(completions))
            requests.append(Request(prompt_ids * copies + ids[:end], seeds))
            if len(requests) == num_states:
                return requests
    raise ValueError(f"--states {num_states}: the task has only {len(requests)}")


def run_once(
    generator: HFGenerator, requests: list[Request], shared: bool
) -> tuple[float, int, list[list[Sample]]]:
    """Seconds, prefill tokens and samples of one labelling."""
    with counted_prefill() as counts:
        start = time.perf_counter()
        if shared:
            samples = generator.generate(requests, Sampling(max_new_tokens=40))
        else:
            with no_sharing():
                samples = generator.generate(requests, Sampling(max_new_tokens=40))
        return time.perf_counter() - start, sum(counts), samples


def share_equal(first: list[list[Sample]], second: list[list[Sample]]) -> float:
    pairs = [(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True)]
    return statistics.mean(np.array_equal(a.ids, b.ids) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("states", 48), ("completions", 16), ("steps", 8), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    policy = Policy.load("embedded", device="cpu")
    generator = HFGenerator(policy)
    for kind, copies in PROMPT_COPIES.items():
        requests = make_requests(policy, options.states, options.steps, options.completions, copies)
        mean_prefix = statistics.mean(len(r.prefix_ids) for r in requests)
        print(
            f"{kind} prompts: {options.states} states along solutions of {options.steps} steps, prefixes of "
            f"{mean_prefix:.0f} tokens on average, {options.completions} completions each"
        )
        results: dict[bool, list[float]] = {True: [], False: []}
        tokens: dict[bool, int] = {}
        run_once(generator, requests, shared=True)  # warm-up
        for _ in range(options.repeats):  # interleaved, so that both meet the same machine
            _, _, first = outcome = run_once(generator, requests, shared=True)
            results[True].append(outcome[0])
            tokens[True] = outcome[1]
            _, _, second = outcome = run_once(generator, requests, shared=False)
            results[False].append(outcome[0])
            tokens[False] = outcome[1]
            equal = share_equal(first, second)
            assert equal >= 0.98, f"sharing changed {1 - equal:.1%} of the samples"
        for shared, name in ((False, "own prefill each"), (True, "shared prefill")):
            median = statistics.median(results[shared])
            print(
                f"  {name:17s} {tokens[shared]:8d} prefill tokens  {median:6.2f} s (median of "
                f"{options.repeats}, {min(results[shared]):.2f} to {max(results[shared]):.2f})  "
                f"{options.states / median:7.1f} states/s"
            )
        ratio = statistics.median(results[False]) / statistics.median(results[True])
        fewer = tokens[False] / tokens[True]
        print(
            f"  {fewer:.1f} times fewer prefill tokens, {ratio:.2f} times as fast, {equal:.2%} samples equal"
        )


if __name__ == "__main__":
    main()
