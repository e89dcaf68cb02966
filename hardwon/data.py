"""The records that flow through hardwon, in the order in which one problem meets them.

    Problem -> State -> Sample -> Verdict -> reward -> Rollout -> Group -> TokenBatch

Shapes in names and docstrings: `B` responses, `T` tokens, `G` responses of a group,
`P` problems, `L` = T + 1 tokens of the padded input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

Message = Mapping[str, str]
Outcome = Literal["correct", "wrong", "timeout", "error"]


@dataclass(frozen=True)
class Problem:
    """A question with a checkable answer.

    `prompt` is text, or chat messages (`{"role": ..., "content": ...}`). `answer` is whatever the
    verifier reads: text, a number, a list of right answers, or for reward functions any data or None.
    `info` carries whatever else the verifier needs (unit tests, data source, difficulty). `source`
    names the part of a mixture that it is from; training asks a problem in proportion to its `weight`.

    >>> Problem("sum/1", "3+4=", "7").answer
    '7'
    """

    id: str
    prompt: str | Sequence[Message]
    answer: Any
    info: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    weight: float = 1.0


@dataclass(frozen=True)
class State:
    """A problem and the tokens written so far: a start for sampling, and what a critic judges.

    `prefix_ids` are the response tokens up to a step boundary; empty at the problem itself.
    """

    problem: Problem
    prefix_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; scoring applies the same. `temperature` 0 is greedy, `top_k` 0 is off.

    A response ends with the token that completes a `stop` string (see `hardwon.models.stopping`).
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """One prefix (prompt and any response tokens so far) and one 64-bit seed for each wanted sample.

    The last `num_written` tokens of the prefix are the response's: a stop string may begin in them.
    """

    prefix_ids: tuple[int, ...]
    seeds: tuple[int, ...]
    num_written: int = 0

    @property
    def written_ids(self) -> tuple[int, ...]:
        return self.prefix_ids[len(self.prefix_ids) - self.num_written :]


@dataclass(frozen=True)
class Sample:
    """Sampled token ids, with each token's log-prob under the sampling distribution.

    `ids` ends with the end-of-sequence token, or the one that completes a stop string, if `finished`;
    otherwise the length limit cut it.
    """

    ids: np.ndarray  # int64 (T,)
    log_probs: np.ndarray  # float32 (T,)
    finished: bool


@dataclass(frozen=True)
class Verdict:
    """A verifier's finding on one response.

    `correct` and `wrong` judge the answer; `timeout` is an answer that did not finish being
    checked (not correct); `error` is a failure of the verifier itself, which is left out of
    every statistic. `score` is the verifier's own grade, None where it gave none. `answer` is
    the answer that was read from the response, in one form however it is written, so that
    equal answers vote together; None if the response has no answer in the wanted form.
    """

    outcome: Outcome
    score: float | None = None
    message: str = ""
    answer: str | None = None

    @property
    def correct(self) -> bool:
        return self.outcome == "correct"

    @property
    def is_error(self) -> bool:
        return self.outcome == "error"


@dataclass(frozen=True)
class Rollout:
    """One sampled response with its verdict and the reward that training uses.

    `reward` is NaN where the verdict is `error`: such a row takes no part in its group.
    """

    sample: Sample
    text: str
    verdict: Verdict
    reward: float

    @property
    def length(self) -> int:
        return len(self.sample.ids)

    @property
    def truncated(self) -> bool:
        return not self.sample.finished


@dataclass(frozen=True)
class Group:
    """The rollouts from one state, and the training iteration whose policy sampled them."""

    state: State
    prompt_ids: tuple[int, ...]
    rollouts: tuple[Rollout, ...]
    iteration: int

    @property
    def judged(self) -> tuple[Rollout, ...]:
        """Rollouts that a verifier judged: all but those whose verdict is `error`."""
        return tuple(r for r in self.rollouts if not r.verdict.is_error)

    @property
    def success_rate(self) -> float:
        """Correct / judged, from verdicts and never from rewards; NaN if none was judged."""
        judged = self.judged
        return sum(r.verdict.correct for r in judged) / len(judged) if judged else math.nan


@dataclass(frozen=True)
class TokenBatch:
    """Right-padded sequences and what the loss needs at each response token.

    Column t of every `_BT` tensor judges token t+1 of `input_ids_BL`, as log-probs do, so
    T = L - 1 and nothing downstream shifts again. `response_mask_BT` is 1 on sampled tokens.
    """

    input_ids_BL: torch.Tensor
    attention_mask_BL: torch.Tensor
    response_mask_BT: torch.Tensor
    old_log_probs_BT: torch.Tensor
    advantages_BT: torch.Tensor
    reference_log_probs_BT: torch.Tensor | None = None
