"""Text to token ids and back, and the only place where sequences shift by one.

Shapes: `B` responses, `L` tokens of the padded input, `T` = L - 1 columns that judge a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hardwon.data import TokenBatch
from hardwon.models.paths import from_pretrained, tokenizer_source


def load_tokenizer(model: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of `"embedded"`, a directory or a hub name; ValueError if there is none."""
    tokenizer: PreTrainedTokenizerBase = from_pretrained(
        AutoTokenizer.from_pretrained, model, tokenizer_source(model)
    )
    return tokenizer


def eos_ids(tokenizer: PreTrainedTokenizerBase, *configs: Any) -> frozenset[int]:
    """Every token id that ends a response.

    Collected from the tokenizer, from `eos_token_id` (an int or a list) of each model or generation
    config, and from what the chat template writes after an assistant's message (`<|im_end|>`,
    `<|eot_id|>`, ...). ValueError if there is none: then no response could ever end.
    """
    found: set[int] = set()
    for source in (tokenizer, *configs):
        value = getattr(source, "eos_token_id", None)
        found.update([value] if isinstance(value, int) else value or ())
    found.update(_end_of_turn(tokenizer))
    if not found:
        raise ValueError("neither the tokenizer nor the model's config names an EOS token: set eos_token_id")
    return frozenset(found)


def _end_of_turn(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The special token that the chat template writes directly after an assistant's message, if any."""
    if tokenizer.chat_template is None:
        return []
    marker = "a reply"
    messages = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": marker}]
    try:
        text = str(tokenizer.apply_chat_template(messages, tokenize=False))
    except (TemplateError, ValueError):  # a template for other roles only: nothing to learn from it
        return []
    _, found, rest = text.rpartition(marker)
    first = tokenizer(rest, add_special_tokens=False)["input_ids"][:1] if found else []
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return [i for i in first if i in special]


def decode_response(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> str:
    """Text of a response, without the EOS and any other special token."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """A token to fill padding with: pad, else EOS, else 0. Masks say what is padding, never this id."""
    candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(i for i in candidates if i is not None)


Values = Sequence[int] | Sequence[float] | np.ndarray


class Scored(NamedTuple):
    """One response on its way into a batch; `log_probs` and `advantages` have a value per response token."""

    prompt_ids: Values
    response_ids: Values
    log_probs: Values
    advantages: Values


def collate(
    sequences: Sequence[tuple[Values, Values, Values, Values]],
    pad_id: int,
    eos: frozenset[int] = frozenset(),
) -> TokenBatch:
    """Right-padded batch of `(prompt_ids, response_ids, log_probs, advantages)`.

    The log-prob of a token is computed from the position before it, so response token j of a
    prompt with p tokens stands in column p - 1 + j. EOS is part of the response and of the loss;
    what follows the first of the `eos` ids is left out.
    """
    rows = [_cut(Scored(*sequence), eos) for sequence in sequences]
    longest = max((len(row.prompt_ids) + len(row.response_ids) for row in rows), default=1)
    ids_BL = np.full((len(rows), longest), pad_id, dtype=np.int64)
    attention_BL = np.zeros((len(rows), longest), dtype=np.int64)
    response_BT = np.zeros((len(rows), longest - 1), dtype=np.float32)
    log_probs_BT, advantages_BT = np.zeros_like(response_BT), np.zeros_like(response_BT)
    for b, row in enumerate(rows):
        prompt, total = len(row.prompt_ids), len(row.prompt_ids) + len(row.response_ids)
        ids_BL[b, :prompt] = row.prompt_ids
        ids_BL[b, prompt:total] = row.response_ids
        attention_BL[b, :total] = 1
        columns = slice(prompt - 1, total - 1)
        response_BT[b, columns] = 1
        log_probs_BT[b, columns] = row.log_probs
        advantages_BT[b, columns] = row.advantages
    arrays = (ids_BL, attention_BL, response_BT, log_probs_BT, advantages_BT)
    return TokenBatch(*(torch.from_numpy(array) for array in arrays))


def _cut(row: Scored, eos: frozenset[int]) -> Scored:
    if len(row.prompt_ids) == 0:
        raise ValueError("a response needs at least one prompt token before it")
    sizes = {len(row.response_ids), len(row.log_probs), len(row.advantages)}
    if len(sizes) != 1:
        raise ValueError(
            f"{len(row.response_ids)} response tokens with {len(row.log_probs)} log-probs and "
            f"{len(row.advantages)} advantages: give one of each per token"
        )
    if not eos:
        return row
    end = next(
        (j + 1 for j, token in enumerate(row.response_ids) if int(token) in eos), len(row.response_ids)
    )
    return row._replace(
        response_ids=row.response_ids[:end], log_probs=row.log_probs[:end], advantages=row.advantages[:end]
    )
