"""Micro-batches of sequences, and their log-probs under a policy without a gradient.

Shapes: `B` sequences, `T` response tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hardwon.data import Sampling, TokenBatch
from hardwon.models.parallel import gather
from hardwon.models.policy import Policy
from hardwon.models.tokens import collate
from hardwon.optimization import pack_share


@dataclass(frozen=True)
class Span:
    """Tokens to score, `response_ids` after `prefix_ids`, with an old log-prob each if known."""

    prefix_ids: tuple[int, ...]
    response_ids: Sequence[int] | np.ndarray
    log_probs: np.ndarray | None = None

    @property
    def length(self) -> int:
        return len(self.prefix_ids) + len(self.response_ids)


def micro_batches(
    spans: Sequence[Span], pad_id: int, max_tokens: int
) -> Iterator[tuple[list[int], TokenBatch]]:
    """Spans of similar length together, at most `max_tokens` padded tokens each, with their indices.

    `old_log_probs_BT` holds the spans' log-probs, 0 where they are not known; advantages are 0. Of several
    ranks each has its share; where the others have more batches, it gets empty ones.
    """
    for indices in pack_share([span.length for span in spans], max_tokens):
        rows: list[Any] = []
        for span in (spans[i] for i in indices):
            zeros = np.zeros(len(span.response_ids), np.float32)
            known = zeros if span.log_probs is None else span.log_probs
            rows.append((span.prefix_ids, span.response_ids, known, zeros))
        yield indices, collate(rows, pad_id)


@torch.no_grad()
def score_spans(
    policy: Policy, spans: Sequence[Span], sampling: Sampling, pad_id: int, max_tokens: int
) -> list[np.ndarray]:
    """Log-probs of every response token under `policy`, a float32 array a span, in the order of `spans`."""
    out: dict[int, np.ndarray] = {}
    for indices, batch in micro_batches(spans, pad_id, max_tokens):
        log_probs_BT = policy.log_probs(batch, sampling)[0].float().cpu()
        for b, index in enumerate(indices):
            out[index] = log_probs_BT[b][batch.response_mask_BT[b].bool()].numpy()
    found = {index: values for part in gather(out) for index, values in part.items()}
    return [found[i] for i in range(len(spans))]
