"""The seam between the loops and whatever samples tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hardwon.data import Request, Sample, Sampling
from hardwon.models.policy import Policy


class Generator(Protocol):
    """Samples responses; implementations: `generator_hf.HFGenerator`, `generator_vllm.VLLMGenerator`."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Sample]]:
        """One list a request, in the order of its seeds.

        A sample depends on its prefix, its seed, the sampling settings and the weights, and on
        nothing else in `requests`. Its log-probs are those of the sampling distribution.
        """
        ...

    def load_weights(self, policy: Policy) -> None:
        """Sample from `policy` as it is now."""
        ...
