"""The embedded generator: any transformers model with a plain key/value cache, on CPU or one GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from hardwon.data import Request, Sample, Sampling
from hardwon.models.decoding import Decoder, Drawn, Entry, check_supported, collect
from hardwon.models.kv_cache import RowCache
from hardwon.models.parallel import copy_trained, is_sharded
from hardwon.models.policy import Policy

KEEP_BYTES = 2**28  # a larger key/value cache is given back after each call


# Of a GPU's memory, when the weights are there; the rest is for the update (ours).
CACHE_SHARE = 0.4
CPU_CACHE_GIB = 4.0
MAX_BATCH_ROWS = 512


class HFGenerator:
    """Samples with the policy's own module, so that new weights are there at once.

    `max_batch_rows` responses grow at the same time, at most, and their keys and values take at
    most `kv_gib` GiB (default: `default_cache_gib`). On the CPU the rows are split over `workers` threads
    of one core each (default: as many as torch may use). Neither setting changes what is sampled.
    """

    def __init__(
        self,
        policy: Policy,
        max_batch_rows: int = MAX_BATCH_ROWS,
        kv_gib: float | None = None,
        workers: int | None = None,
    ) -> None:
        if max_batch_rows < 1:
            raise ValueError(f"max_batch_rows={max_batch_rows} must be at least 1")
        self.max_batch_rows = max_batch_rows
        self.kv_gib = kv_gib or default_cache_gib(policy.device)
        self.workers = workers or (torch.get_num_threads() if policy.device.type == "cpu" else 1)
        self.kept: list[RowCache | None] = []
        self.policy = policy
        self.load_weights(policy)

    def load_weights(self, policy: Policy) -> None:
        """Sample from `policy`: nothing is copied, its module is used as it is at each call.

        But a policy in shards is copied into the whole one that this generator samples with.
        """
        if is_sharded(policy):
            copy_trained(policy, self.policy)
            return
        check_supported(policy)
        self.policy = policy

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Sample]]:
        """See `generator.Generator`. A response also ends, unfinished, where the model's context does.

        ValueError if a prefix leaves no room for a token, or if the cache of one row exceeds `kv_gib`.
        """
        self._check(requests, sampling)
        num_slots = sum(len(request.seeds) for request in requests)
        if not num_slots:
            return [[] for _ in requests]
        longest = max(len(request.prefix_ids) for request in requests)
        max_rows = self._max_rows(longest + 2 * sampling.max_new_tokens)
        workers = min(self.workers, max_rows)
        entries = plan(requests, max_rows // workers)
        shares = [share for share in (entries[i::workers] for i in range(workers)) if share]
        kept = self.kept + [None] * workers
        decoders = [
            Decoder(self.policy, sampling, share, max_rows // workers, cache)
            for share, cache in zip(shares, kept, strict=False)
        ]
        history = self._run(decoders)
        caches = (decoder.cache for decoder in decoders)
        self.kept = [cache if cache and cache.num_bytes() <= KEEP_BYTES else None for cache in caches]
        tokens, log_probs = collect(history, num_slots)
        eos, stopped = self.policy.eos_ids, set().union(*(decoder.stopped for decoder in decoders))
        samples = [
            Sample(ids, values, int(ids[-1]) in eos or slot in stopped)
            for slot, (ids, values) in enumerate(zip(tokens, log_probs, strict=True))
        ]
        results = iter(samples)
        return [[next(results) for _ in request.seeds] for request in requests]

    def _run(self, decoders: list[Decoder]) -> list[Drawn]:
        if len(decoders) == 1:
            return self._run_one(decoders[0])
        # torch counts threads per calling thread, so this leaves the trainer's setting alone.
        with ThreadPoolExecutor(len(decoders), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return [drawn for history in pool.map(self._run_one, decoders) for drawn in history]

    def _run_one(self, decoder: Decoder) -> list[Drawn]:
        with torch.inference_mode(), self.policy.autocast():
            return decoder.run()

    def _check(self, requests: Sequence[Request], sampling: Sampling) -> None:
        if sampling.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={sampling.max_new_tokens} must be at least 1")
        context = self.policy.context_length
        for request in requests:
            if not 0 < len(request.prefix_ids) < context:
                raise ValueError(
                    f"a prefix has {len(request.prefix_ids)} tokens, but needs 1 to {context - 1}: "
                    f"the model's context holds {context} and a response needs at least 1"
                )

    def _max_rows(self, columns: int) -> int:
        config = self.policy.causal_lm.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        bytes_a_token = (
            2 * config.num_hidden_layers * heads * size * (2 if self.policy.dtype == "bfloat16" else 4)
        )
        fit = int(self.kv_gib * 2**30 / (bytes_a_token * columns))
        if fit < 1:
            needed = bytes_a_token * columns / 2**30
            raise ValueError(
                f"the key/value cache may take {self.kv_gib:.2f} GiB here and one response of {columns} "
                f"tokens takes {needed:.2f}: lower max_new_tokens"
            )
        return min(fit, self.max_batch_rows)


def default_cache_gib(device: torch.device) -> float:
    """On a GPU a share of what this process has left of it, on the CPU a constant.

    How many rows fit must not depend on neighbours, since the last bits of a log-prob depend on how many
    rows are computed together: a run that is resumed finds the same.
    """
    if device.type != "cuda":
        return CPU_CACHE_GIB
    left = torch.cuda.get_device_properties(device).total_memory - torch.cuda.memory_allocated(device)
    return CACHE_SHARE * left / 2**30


def plan(requests: Sequence[Request], max_rows: int) -> list[Entry]:
    """Requests as entries, longest first; equal prefixes share one, up to `max_rows` samples each."""
    samples: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, int]]] = defaultdict(list)
    slot = 0
    for request in requests:
        for seed in request.seeds:
            samples[tuple(request.prefix_ids), tuple(request.written_ids)].append((slot, seed))
            slot += 1
    entries = []
    for (prefix, written), members in samples.items():
        for i in range(0, len(members), max_rows):
            slots, seeds = zip(*members[i : i + max_rows], strict=True)
            entries.append(Entry(prefix, slots, seeds, written))
    return sorted(entries, key=lambda entry: -len(entry.prefix_ids))
