r"""Stop strings: a response ends with the token that completes one.

What counts is the text of the response's own tokens, so that every generator, batch and resume finds the
same end. The tokens stay as they were sampled, the completing one included: it is the response's end as an
EOS is, and training sees it. The text that is judged and recorded is cut before the stop string.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hardwon.models.tokens import decode_response

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PARTIAL = "\ufffd"  # what a character of which some bytes are missing decodes to
MARGIN = 8  # characters at the beginning of decoded text that may differ from what they are in the whole


def cut_at_stop(text: str, strings: Sequence[str]) -> str:
    """The text before the first stop string.

    >>> cut_at_stop("4.\\n\\nQuestion: 2+3=", ["\\n\\nQuestion:"])
    '4.'
    """
    starts = [text.find(string) for string in strings]
    return text[: min((start for start in starts if start >= 0), default=len(text))]


class StopStrings:
    """Finds the token that completes one of `strings`.

    A string that is a special token of the tokenizer, which text does not show, ends a response as a token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        special = {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.token_ids = frozenset(special[string] for string in strings if string in special)
        self.strings = tuple(strings)
        self._endings = frozenset(string[-1] for string in strings)
        self._longest = max(map(len, strings), default=0)
        self._anchor = tokenizer("a", add_special_tokens=False)["input_ids"][:1]
        self._may_complete: dict[int, bool] = {}

    def completed_at(self, ids: Sequence[int], end: int) -> bool:
        """Whether token `end` - 1 of a response completes a stop string, which none before it did."""
        token = ids[end - 1]
        if token in self.token_ids:
            return True
        if token not in self._may_complete:
            self._may_complete[token] = self._can_complete(token)
        return self._may_complete[token] and self._is_in_tail(ids, end)

    def end(self, written: Sequence[int], ids: Sequence[int]) -> int | None:
        """How many of `ids`, sampled after the response's first tokens `written`, it has; None: no stop."""
        whole, start = [*written, *ids], len(written)
        ends = range(start + 1, len(whole) + 1)
        return next((end - start for end in ends if self.completed_at(whole, end)), None)

    def _can_complete(self, token: int) -> bool:
        """Whether the token can add the last character of a stop string. Most cannot, and are not decoded."""
        before, after = (self._decode([*self._anchor, *more]) for more in ([], [token]))
        added = after.removeprefix(before)
        return PARTIAL in after or not after.startswith(before) or not self._endings.isdisjoint(added)

    def _is_in_tail(self, ids: Sequence[int], end: int) -> bool:
        """Decodes as few of the last tokens as a stop string can reach back to."""
        wanted = self._longest + MARGIN
        size = wanted
        while True:
            start = max(end - 1 - size, 0)
            before = self._decode(ids[start : end - 1]).rstrip(PARTIAL)
            if start == 0 or len(before) >= wanted:
                break
            size *= 2
        text = self._decode(ids[start:end])
        return any(text.find(s, max(len(before) - len(s) + 1, 0)) >= 0 for s in self.strings)

    def _decode(self, ids: Sequence[int]) -> str:
        return decode_response(self.tokenizer, ids)
