"""Rollout tokens/s of HFGenerator beside transformers' generate and continuous batching.

    python benchmarks/generator.py [--threads 2] [--repeats 5] [--continuous]

All engines sample the same number of rollouts from the same prompts with the same weights, in
alternating runs of one process. Only tokens up to and including EOS count. The limit is the
machine's fp32 matmul rate / (2 x parameters), which leaves attention out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from hardwon.data import Request, Sampling
from hardwon.models.generator_hf import HFGenerator
from hardwon.models.policy import Policy
from hardwon.models.prompts import encode_prompt
from hardwon.tasks import chain_arithmetic

Engine = Callable[[list[Request], Sampling], int]  # tokens sampled


def embedded_workload(prompts: int, group: int) -> tuple[Policy, list[Request]]:
    policy = Policy.load("embedded", device="cpu")
    problems = chain_arithmetic.load(train_size=prompts).problems("train")
    prefixes = [encode_prompt(policy.tokenizer, problem) for problem in problems]
    return policy, [Request(p, tuple(range(i * group, (i + 1) * group))) for i, p in enumerate(prefixes)]


def random_workload(prompts: int, group: int) -> tuple[Policy, list[Request]]:
    """A 0.86 M-parameter Llama on the embedded prompts; a token ends its response with probability 1/100."""
    embedded, requests = embedded_workload(prompts, group)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return Policy(LlamaForCausalLM(config), embedded.tokenizer), requests


def hardwon_engine(policy: Policy, workers: int) -> Engine:
    generator = HFGenerator(policy, workers=workers)

    def run(requests: list[Request], sampling: Sampling) -> int:
        return sum(len(sample.ids) for group in generator.generate(requests, sampling) for sample in group)

    return run


def generate_engine(policy: Policy, cache: str) -> Engine:
    def run(requests: list[Request], sampling: Sampling) -> int:
        rows = [request.prefix_ids for request in requests for _ in request.seeds]
        longest = max(map(len, rows))
        ids_BL = torch.zeros(len(rows), longest, dtype=torch.long)
        mask_BL = torch.zeros_like(ids_BL)
        for i, row in enumerate(rows):
            ids_BL[i, longest - len(row) :] = torch.tensor(row)
            mask_BL[i, longest - len(row) :] = 1
        output = policy.model.generate(
            ids_BL, attention_mask=mask_BL, generation_config=generation_config(policy, sampling, cache)
        )
        new = output[:, longest:]
        ended = torch.isin(new, torch.tensor(sorted(policy.eos_ids))).cumsum(1)
        return int((ended - torch.isin(new, torch.tensor(sorted(policy.eos_ids))).long() == 0).sum())

    return run


def continuous_engine(policy: Policy) -> Engine:
    def run(requests: list[Request], sampling: Sampling) -> int:
        rows = [list(request.prefix_ids) for request in requests for _ in request.seeds]
        config = generation_config(policy, sampling, None)
        outputs = policy.model.generate_batch(inputs=rows, generation_config=config)
        return sum(len(output.generated_tokens) for output in outputs.values())

    return run


def generation_config(policy: Policy, sampling: Sampling, cache: str | None) -> GenerationConfig:
    return GenerationConfig(
        max_new_tokens=sampling.max_new_tokens,
        do_sample=True,
        temperature=sampling.temperature,
        top_k=0,
        eos_token_id=sorted(policy.eos_ids),
        pad_token_id=0,
        cache_implementation=cache,
        disable_compile=True,
    )


def matmul_rate(threads: int) -> float:
    """FLOP/s of a fp32 matmul on one core, times the cores used."""
    torch.set_num_threads(1)
    a = torch.randn(1024, 1024)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - start)
    torch.set_num_threads(threads)
    return threads * 2 * 1024**3 / min(times)


def measure(engine: Engine, requests: list[Request], sampling: Sampling) -> float:
    start = time.perf_counter()
    tokens = engine(requests, sampling)
    return tokens / (time.perf_counter() - start)


def compare(name: str, policy: Policy, requests: list[Request], args: argparse.Namespace) -> None:
    sampling = Sampling(args.max_new_tokens)
    engines = {
        "hardwon": hardwon_engine(policy, args.threads),
        "generate, dynamic cache": generate_engine(policy, "dynamic"),
        "generate, static cache": generate_engine(policy, "static"),
    }
    rates: dict[str, list[float]] = {key: [] for key in engines}
    for engine in engines.values():
        measure(engine, requests[:4], sampling)  # warm up
    for _ in range(args.repeats):
        for key, engine in engines.items():
            rates[key].append(measure(engine, requests, sampling))
    if args.continuous:  # far slower, so on a sixteenth of the prompts
        few = requests[: max(1, len(requests) // 16)]
        rates["continuous batching"] = [measure(continuous_engine(policy), few, sampling)]
    parameters = sum(p.numel() for p in policy.model.parameters())
    limit = matmul_rate(args.threads) / (2 * parameters)
    rows = sum(len(request.seeds) for request in requests)
    print(f"\n{name}: {parameters / 1e6:.2f} M parameters, {rows} rollouts, {args.threads} threads")
    ours = statistics.median(rates["hardwon"])
    for key, values in rates.items():
        rate = statistics.median(values)
        spread = f"{min(values):,.0f} to {max(values):,.0f}"
        print(f"  {key:26s}{rate:10,.0f} tokens/s ({spread}); hardwon is {ours / rate:6.2f} x")
    print(f"  {'matmul limit':26s}{limit:10,.0f} tokens/s; hardwon reaches {ours / limit:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--continuous", action="store_true", help="also transformers' generate_batch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    compare("embedded", *embedded_workload(args.prompts, args.group), args)
    compare("random Llama", *random_workload(args.prompts, args.group), args)


if __name__ == "__main__":
    main()
