"""What a vLLM server's workers do for the trainer. vLLM imports this, in the server: nothing else does.

The server is started with `--worker-extension-cls hardwon.models.vllm_worker.WeightReceiver`.
"""

from __future__ import annotations

from typing import Any

from hardwon.models.vllm_stream import fetch_weights
from hardwon.models.vllm_weights import keep_plain_weights

keep_plain_weights()  # vLLM imports this before it builds the model, which is when it has to be said


class WeightReceiver:
    """A method beside vLLM's own, which the trainer calls through /collective_rpc."""

    model_runner: Any

    def receive_hardwon_weights(self, host: str, port: str, token: str) -> int:
        """Load what the trainer serves at `host`; returns how many tensors the model took."""
        return len(self.model_runner.model.load_weights(fetch_weights(host, int(port), token)))
