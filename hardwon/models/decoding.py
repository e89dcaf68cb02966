"""The batched decode loop behind `generator_hf`: rows come, grow by one token per step, and go.

Shapes: `E` distinct prefixes, `N` rows, `L` tokens of the longest prefix, `K` key/value heads,
`D` head size, `V` vocabulary, `C` columns of the cache.

One prefill serves all rows of a prefix. A row that ends leaves the batch at once: the last live
row moves into its place, so that live rows are always the first ones. Waiting prefixes enter when
enough rows are free. Prefixes are taken longest first, so a new one always fits left of the
shared column (see kv_cache).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import DynamicCache

from hardwon.data import Sampling
from hardwon.models.kv_cache import RowCache
from hardwon.models.policy import Policy
from hardwon.models.sampler import sample, uniforms
from hardwon.models.stopping import StopStrings

PREFILL_TOKENS = 16384  # padded tokens of one prefill pass, which bounds its memory


@dataclass(frozen=True)
class Entry:
    """A prefix and the samples that start from it: where each result goes, and its seed.

    `written_ids` are the tokens of the prefix that are the response's.
    """

    prefix_ids: tuple[int, ...]
    slots: tuple[int, ...]
    seeds: tuple[int, ...]
    written_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Drawn:
    """Tokens of one step: token n belongs at the end of the response in slot n."""

    slots_N: np.ndarray
    tokens_N: np.ndarray
    log_probs_N: Tensor


class Rows:
    """What is known of each live row, as arrays of which the first `count` entries are in use."""

    def __init__(self, capacity: int, length: int) -> None:
        self.count = 0
        self.slot = np.zeros(capacity, np.int64)
        self.token = np.zeros(capacity, np.int64)  # sampled, not yet in the cache
        self.position = np.zeros(capacity, np.int64)  # of `token` in its sequence
        self.drawn = np.zeros(capacity, np.int64)  # tokens sampled so far
        self.limit = np.zeros(capacity, np.int64)  # tokens at which the row is cut
        self.start = np.zeros(capacity, np.int64)  # its first column in the cache
        self.uniforms = np.zeros((capacity, length), np.float32)

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: array for name, array in vars(self).items() if isinstance(array, np.ndarray)}

    def append(self, **new: np.ndarray) -> None:
        added = len(new["slot"])
        for name, array in self.arrays().items():
            array[self.count : self.count + added] = new[name]
        self.count += added

    def move(self, target: np.ndarray, source: np.ndarray) -> None:
        for array in self.arrays().values():
            array[target] = array[source]


class Decoder:
    """Runs entries to their end on one thread; create one for each call.

    `kept` is the cache of an earlier call, used again if it fits: fresh memory costs a page fault
    every 4 KiB. What is left in it is never read. After `run`, `stopped` has the slots of the responses
    that a stop string ended.
    """

    def __init__(
        self,
        policy: Policy,
        sampling: Sampling,
        entries: Sequence[Entry],
        max_rows: int,
        kept: RowCache | None = None,
    ) -> None:
        self.policy, self.sampling = policy, sampling
        self.base = policy.causal_lm.base_model
        self.head = policy.head()
        self.device = policy.device
        self.waiting = list(entries)
        self.wanted = sum(len(entry.slots) for entry in entries)
        self.max_rows = min(max_rows, self.wanted)
        self.rows = Rows(self.max_rows, sampling.max_new_tokens)
        parameters = inspect.signature(self.base.forward).parameters
        self.cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self.is_eos = np.zeros(len(self.head[0]), bool)
        self.is_eos[[i for i in policy.eos_ids if i < len(self.is_eos)]] = True
        self.stops = StopStrings(policy.tokenizer, sampling.stop) if sampling.stop else None
        self.responses: dict[int, list[int]] = {}  # the tokens of each slot so far, for stop strings
        self.stopped: set[int] = set()
        self.kept = kept
        self.cache: RowCache | None = None
        self.history: list[Drawn] = []

    def run(self) -> list[Drawn]:
        while self.waiting or self.rows.count:
            if self.waiting and self._room_for_next():
                self._admit()
            if self.rows.count:
                self._step()
        return self.history

    def _room_for_next(self) -> bool:
        """Prefill pays in batches: wait until a quarter of the rows is free, or all that is wanted fits."""
        free = self.max_rows - self.rows.count
        quantum = min(self.max_rows // 4, self.wanted)
        return free >= max(quantum, len(self.waiting[0].slots))

    def _take_waiting(self) -> list[Entry]:
        """As many of the longest waiting prefixes as fit free rows and one prefill pass."""
        free, longest = self.max_rows - self.rows.count, len(self.waiting[0].prefix_ids)
        taken: list[Entry] = []
        while self.waiting and len(self.waiting[0].slots) <= free:
            if taken and (len(taken) + 1) * longest > PREFILL_TOKENS:
                break
            taken.append(self.waiting.pop(0))
            free -= len(taken[-1].slots)
        return taken

    def _admit(self) -> None:
        entries = self._take_waiting()
        logits_EV, states = self._prefill([entry.prefix_ids for entry in entries])
        counts = [len(entry.slots) for entry in entries]
        entry_of_row = np.repeat(np.arange(len(entries)), counts)
        lengths = np.repeat([len(entry.prefix_ids) for entry in entries], counts)
        slots = np.concatenate([entry.slots for entry in entries])
        self.wanted -= len(slots)
        if self.stops is not None:
            self.responses |= {slot: list(entry.written_ids) for entry in entries for slot in entry.slots}
        numbers = uniforms([seed for entry in entries for seed in entry.seeds], self.sampling.max_new_tokens)
        limits = np.minimum(self.sampling.max_new_tokens, self.policy.context_length - lengths)
        tokens = self._draw(logits_EV[torch.from_numpy(entry_of_row).to(self.device)], numbers[:, 0], slots)
        alive = ~self._ended(tokens, slots, limits <= 1)
        if alive.any():
            self._open_window(states, int(lengths[0]))
            assert self.cache is not None
            first, end = self.rows.count, self.cache.window.end
            chosen = torch.from_numpy(entry_of_row[alive]).to(self.device)
            self.cache.append_rows([state.index_select(0, chosen) for state in states])
            self.rows.append(
                slot=slots[alive],
                token=tokens[alive],
                position=lengths[alive],
                drawn=np.ones(alive.sum(), np.int64),
                limit=limits[alive],
                start=end - lengths[alive],
                uniforms=numbers[alive],
            )
            self._hide_left_of_start(first)

    def _prefill(self, prefixes: list[tuple[int, ...]]) -> tuple[Tensor, list[Tensor]]:
        """Logits after each prefix, and each layer's keys and values (E, K, L, D), pushed to the right.

        Padding is on the right, where causal attention never sees it: no mask, fastest kernels.
        """
        lengths = torch.tensor([len(prefix) for prefix in prefixes])
        longest = int(lengths.max())
        ids_EL = torch.zeros(len(prefixes), longest, dtype=torch.long)
        for row, prefix in zip(ids_EL, prefixes, strict=True):
            row[: len(prefix)] = torch.tensor(prefix)
        lengths, ids_EL = lengths.to(self.device), ids_EL.to(self.device)
        cache = DynamicCache()
        hidden_ELH = self._forward(input_ids=ids_EL, cache=cache)
        last_EH = hidden_ELH[torch.arange(len(prefixes), device=self.device), lengths - 1]
        columns_EL = torch.arange(longest, device=self.device) - (longest - lengths[:, None])
        index = columns_EL.clamp(min=0)[:, None, :, None]
        layers: Any = cache.layers
        states = [
            state.gather(2, index.expand(-1, state.shape[1], -1, state.shape[3]))
            for layer in layers
            for state in (layer.keys, layer.values)
        ]
        if self.policy.dtype == "bfloat16":  # autocast leaves rotated keys in float32; attention rounds them
            states = [state.bfloat16() for state in states]
        return linear(last_EH, *self.head), states

    def _forward(self, *, cache: DynamicCache | RowCache, **inputs: Tensor) -> Tensor:
        hidden_BLH: Tensor = self.base(**inputs, **{self.cache_argument: cache}, use_cache=True)[0]
        return hidden_BLH

    def _open_window(self, states: list[Tensor], longest: int) -> None:
        """Make the buffers on first use, and let an empty window end where the longest prefix does."""
        if self.cache is None:
            refills = bool(self.waiting)
            columns = longest + self.sampling.max_new_tokens * (2 if refills else 1)
            pairs = list(zip(states[::2], states[1::2], strict=True))
            reuse = self.kept is not None and self.kept.fits(pairs, self.max_rows, columns)
            self.cache = self.kept if reuse else RowCache(pairs, self.max_rows, columns)
            assert self.cache is not None
            self.cache.window.rows = 0
            self.mask = attention_mask(self.policy, self.max_rows, self.cache.columns, states[0].dtype)
        window = self.cache.window
        if not self.rows.count:
            window.start, window.end = 0, longest

    def _hide_left_of_start(self, first: int) -> None:
        """Attention masks of the rows from `first` on: hidden left of their start, open from there on."""
        assert self.cache is not None
        rows = slice(first, self.rows.count)
        start = torch.from_numpy(self.rows.start[rows]).to(self.device)
        hidden = torch.arange(self.cache.columns, device=self.device) < start[:, None]
        is_additive = self.mask.is_floating_point()
        self.mask[rows] = torch.where(hidden, -torch.inf, 0.0) if is_additive else ~hidden
        self.cache.window.start = int(self.rows.start[: self.rows.count].min())

    def _step(self) -> None:
        assert self.cache is not None
        rows, window = self.rows, self.cache.window
        if window.end == self.cache.columns:
            self._shift_left()
        live = slice(0, rows.count)
        window.end += 1
        mask = self.mask[live, window.start : window.end]
        if self.device.type == "cuda":  # the kernel there wants a mask that begins at a multiple of 16 bytes
            mask = mask.clone(memory_format=torch.contiguous_format)
        hidden_N1H = self._forward(
            input_ids=torch.from_numpy(rows.token[live, None]).to(self.device),
            position_ids=torch.from_numpy(rows.position[live, None]).to(self.device),
            attention_mask=mask[:, None, None] if mask.is_floating_point() else mask,
            cache=self.cache,
        )
        numbers = rows.uniforms[np.arange(rows.count), rows.drawn[live]]
        slots = rows.slot[live].copy()
        tokens = self._draw(linear(hidden_N1H[:, -1], *self.head), numbers, slots)
        rows.token[live] = tokens
        rows.position[live] += 1
        rows.drawn[live] += 1
        ended = self._ended(tokens, slots, rows.drawn[live] >= rows.limit[live])
        if ended.any():
            self._remove(ended)

    def _draw(self, logits_NV: Tensor, numbers: np.ndarray, slots: np.ndarray) -> np.ndarray:
        tokens_N, log_probs_N = sample(logits_NV, torch.from_numpy(numbers).to(self.device), self.sampling)
        tokens = tokens_N.cpu().numpy()
        self.history.append(Drawn(slots, tokens, log_probs_N))
        return tokens

    def _ended(self, tokens: np.ndarray, slots: np.ndarray, at_limit: np.ndarray) -> np.ndarray:
        """Which rows end with these tokens: at an EOS, at their limit or at a stop string."""
        ended: np.ndarray = self.is_eos[tokens] | at_limit
        if self.stops is not None:
            for n, (slot, token) in enumerate(zip(slots.tolist(), tokens.tolist(), strict=True)):
                response = self.responses[slot]
                response.append(token)
                if self.stops.completed_at(response, len(response)):
                    self.stopped.add(slot)
                    ended[n] = True
        return ended

    def _remove(self, ended: np.ndarray) -> None:
        """Close the gaps of ended rows with the last live ones."""
        assert self.cache is not None
        remaining = self.rows.count - int(ended.sum())
        target = np.flatnonzero(ended[:remaining])
        source = remaining + np.flatnonzero(~ended[remaining:])
        if len(target):
            self.rows.move(target, source)
            moved_to, moved_from = (torch.from_numpy(i).to(self.device) for i in (target, source))
            self.cache.move_rows(moved_to, moved_from)
            self.mask[moved_to] = self.mask[moved_from]
        self.rows.count = self.cache.window.rows = remaining
        if remaining:
            self.cache.window.start = int(self.rows.start[:remaining].min())

    def _shift_left(self) -> None:
        """The buffer's end is reached: move the window to its beginning, with room for waiting prefixes."""
        assert self.cache is not None
        window = self.cache.window
        longest_waiting = len(self.waiting[0].prefix_ids) if self.waiting else 0
        old_end = window.end
        distance = self.cache.shift(max(window.end - window.start, longest_waiting))
        live = slice(0, self.rows.count)
        self.rows.start[live] -= distance
        self.mask[live, : window.end] = self.mask[live, distance:old_end].clone()
        self.mask[live, window.end :] = 0.0 if self.mask.is_floating_point() else True


def attention_mask(policy: Policy, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Mask buffer (rows, columns): additive where the model takes it ready-made, else 1 for visible.

    A model with sliding windows makes its own masks from the second kind.
    """
    slides = getattr(policy.causal_lm.config.get_text_config(), "sliding_window", None) is not None
    return torch.zeros(rows, columns, dtype=torch.long if slides else dtype, device=policy.device)


def check_supported(policy: Policy) -> None:
    """ValueError for a model whose state is not a plain key/value cache, or that takes no positions."""
    config = policy.causal_lm.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    other = kinds - {"full_attention", "sliding_attention"}
    if other:
        raise ValueError(
            f"{config.model_type} has {sorted(other)} layers; this generator needs plain attention"
        )
    if "position_ids" not in inspect.signature(policy.causal_lm.base_model.forward).parameters:
        raise ValueError(f"{config.model_type} takes no position_ids, which this generator needs")
    if config._attn_implementation not in ("sdpa", "eager"):
        raise ValueError(f"attention {config._attn_implementation} is not one of sdpa, eager")


def collect(history: Iterable[Drawn], num_slots: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Token ids and log-probs of every slot, in the order in which they were drawn.

    FloatingPointError if any was drawn from logits that are not finite.
    """
    steps = list(history)
    slots = np.concatenate([step.slots_N for step in steps])
    order = np.argsort(slots, kind="stable")
    ends = np.cumsum(np.bincount(slots, minlength=num_slots))[:-1]
    tokens = np.concatenate([step.tokens_N for step in steps])[order]
    log_probs = torch.cat([step.log_probs_N for step in steps]).float().cpu().numpy()[order]
    if np.isnan(log_probs).any():
        raise FloatingPointError(
            "the model's logits are not finite, so nothing can be sampled from it: go back to an earlier "
            "checkpoint and lower learning_rate, or try dtype=float32"
        )
    return np.split(tokens, ends), np.split(log_probs, ends)
