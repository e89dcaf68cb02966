r"""Reasoning steps of a response, cut on its sampled token ids: text is never encoded again.

A splitter cuts text into steps. Tokens need not end where steps do: a token such as `".\n\n4"` may hold
the end of one step and the beginning of the next. Such a token belongs to the step that it ends, so the
boundary moves to the token's end; two boundaries inside one token become one. Whatever the tokenizer, the
steps of a response are its token ids in order, none lost and none twice. The tokens of a stop string are the
end of the last step, as an EOS is, and no step of their own.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from hardwon.config import load_function, nearest
from hardwon.models.stopping import cut_at_stop
from hardwon.models.tokens import decode_response
from hardwon.tasks.task import Task, split_lines

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Split = Callable[[str], list[str]]


def split_blank_lines(text: str) -> list[str]:
    r"""Steps are paragraphs, each with the blank lines after it.

    >>> split_blank_lines("a\nb\n\nc\r\n \r\nd")
    ['a\nb\n\n', 'c\r\n \r\n', 'd']
    """
    return split_after(r"\n[^\S\n]*\n\s*", text)


def split_after(pattern: str, text: str) -> list[str]:
    r"""Steps end after each match of a regular expression.

    >>> split_after(r"[.;]\s*", "a. b; c")
    ['a. ', 'b; ', 'c']
    """
    ends = [match.end() for match in re.finditer(pattern, text) if match.end() > match.start()]
    cuts = [0, *ends, *([len(text)] if not ends or ends[-1] < len(text) else [])]
    return [text[start:end] for start, end in pairwise(cuts) if end > start]


SPLITTERS: dict[str, Split] = {"line": split_lines, "blank_line": split_blank_lines}


def find_splitter(spec: str, task: Task) -> Split:
    """The splitter for `task` (the task's own), `line`, `blank_line`, `regex:<pattern>` or `module:function`.

    ValueError for one that does not exist.
    """
    kind, colon, rest = spec.partition(":")
    if spec == "task":
        return task.split_steps
    if spec in SPLITTERS:
        return SPLITTERS[spec]
    if kind == "regex" and rest:
        try:
            re.compile(rest)
        except re.error as error:
            raise ValueError(f"step_split={spec!r}: not a regular expression ({error})") from None
        return lambda text: split_after(rest, text)
    if colon:
        return load_function("step_split", spec)
    known = ["task", *SPLITTERS]
    raise ValueError(
        f"step_split={spec!r} is unknown{nearest(spec, known)}; known: {', '.join(known)}, "
        "regex:<pattern> and package.module:function"
    )


class StepSplitter:
    """Cuts token ids into steps with a splitter of text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, split: Split, stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.split, self.stop = tokenizer, split, tuple(stop)
        self._pieces: dict[int, str] = {}

    def ends(self, ids: Sequence[int]) -> list[int]:
        """Where each step ends, in tokens; the last is `len(ids)`. Empty for no tokens.

        Tokens without text (EOS) belong to the step before them. Raises ValueError if the splitter
        loses or changes text.
        """
        if not ids:
            return []
        whole = decode_response(self.tokenizer, ids)
        text = cut_at_stop(whole, self.stop)
        steps = self.split(text)
        if "".join(steps) != text:
            raise ValueError(
                f"the step splitter changed the text: its steps joined are {''.join(steps)!r}, not {text!r}; "
                "a splitter must return pieces whose concatenation is the text itself"
            )
        ends = self._token_ends(ids, whole, list(accumulate(map(len, steps)))[:-1])
        return [*sorted({end for end in ends if 0 < end < len(ids)}), len(ids)]

    def steps(self, ids: Sequence[int]) -> list[tuple[int, ...]]:
        """The ids of each step, end to end.

        With a character a token, `3\\n=3.<eos>` gives the ids of `3\\n` and those of `=3.<eos>`.
        """
        return [tuple(ids[start:end]) for start, end in pairwise([0, *self.ends(ids)])]

    def _token_ends(self, ids: Sequence[int], text: str, ends: list[int]) -> list[int]:
        """The fewest tokens that hold the first `end` characters of the text, for each end."""
        pieces = [self._piece(i) for i in ids]
        if "".join(pieces) == text:
            covered = list(accumulate(map(len, pieces)))
            return [bisect_left(covered, end) + 1 for end in ends]

        # Tokens that are no text of their own (parts of a character, a space that depends on its place):
        # what a number of tokens stands for is seen only by decoding them from the start.
        def holds(end: int) -> Callable[[int], bool]:
            return lambda n: decode_response(self.tokenizer, ids[:n]).startswith(text[:end])

        return [bisect_left(range(len(ids)), True, key=holds(end)) for end in ends]

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = decode_response(self.tokenizer, [token])
        return self._pieces[token]
