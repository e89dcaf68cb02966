"""A vLLM server as the engine: completions over its own API, weights over a connection of ours."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from hardwon.models.generator_vllm import Completion, Job
from hardwon.models.policy import Policy
from hardwon.models.vllm_stream import TIMEOUT, WeightSource
from hardwon.models.vllm_weights import export_weights

CONNECTIONS = 256  # ours: as many sequences as vLLM runs at the same time by default
START = (
    "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs "
    "--worker-extension-cls hardwon.models.vllm_worker.WeightReceiver"
)


class ServerEngine:
    """Client of one server. ValueError if it is not there, or not started as training needs it."""

    def __init__(self, url: str, max_length: int) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"vllm_server={url} is not a URL such as http://127.0.0.1:8000")
        self.url, self.host = url.rstrip("/").removesuffix("/v1"), parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        # Servers of one's own are not behind a proxy, whatever the environment says.
        self.opener = build_opener(ProxyHandler({}))
        card = self._call("/v1/models")["data"][0]
        self.model = card["id"]
        self.max_length = min(max_length, card["max_model_len"])
        self._check_log_probs()

    def run(self, jobs: Sequence[Job]) -> list[Completion]:
        """All jobs, many at a time: the server batches them and shares what their prefixes share."""
        with ThreadPoolExecutor(min(CONNECTIONS, len(jobs))) as pool:
            return list(pool.map(self._complete, jobs))

    def load(self, policy: Policy) -> None:
        """The server's workers fetch the weights from this process; then its prefix cache is dropped."""
        weights = export_weights(policy)
        if policy.dtype == "bfloat16":
            weights = {name: tensor.bfloat16() for name, tensor in weights.items()}
        with WeightSource(weights, self._own_address()) as source:
            arguments = [source.host, str(source.port), source.token]
            self._call("/collective_rpc", {"method": "receive_hardwon_weights", "args": arguments})
        if not self._call("/reset_prefix_cache", {})["success"]:
            raise RuntimeError(
                f"the server at {self.url} did not drop its prefix cache, so samples would mix old and new "
                "weights: is someone else using it?"
            )

    def _complete(self, job: Job) -> Completion:
        body = {"model": self.model, "prompt": job.prefix_ids, "return_token_ids": True, **job.settings}
        choice = self._call("/v1/completions", body)["choices"][0]
        return Completion(choice["token_ids"], choice["logprobs"]["token_logprobs"])

    def _check_log_probs(self) -> None:
        """With one candidate a token's log-prob is 0, unless it is taken before the filter.

        The first token is left out: after padding, whose embedding is 0, all candidates may tie.
        """
        settings = {"max_tokens": 8, "temperature": 1.0, "top_k": 1, "logprobs": 0, "ignore_eos": True}
        if min(self._complete(Job((0,), settings)).log_probs[1:]) < -1e-4:
            raise ValueError(
                f"the server at {self.url} gives log-probs before temperature, top-p and top-k; start it "
                "with --logprobs-mode processed_logprobs"
            )

    def _own_address(self) -> str:
        """The address of this machine on the way to the server, at which the server can reach it."""
        with socket.create_connection((self.host, self.port), timeout=TIMEOUT) as connection:
            return str(connection.getsockname()[0])

    def _call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """GET, or POST with a body; ValueError that says what the server answered, if it did."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, {"Content-Type": "application/json"})
        # A response may take as long as it needs; only an update has a limit.
        timeout = None if path == "/v1/completions" else TIMEOUT
        try:
            with self.opener.open(request, timeout=timeout) as response:
                text = response.read()
        except HTTPError as error:
            raise ValueError(
                f"the server at {self.url} answered {path} with {error.code}: "
                f"{error.read().decode(errors='replace')[:500]}. It has to be started so: {START}"
            ) from error
        except (URLError, OSError) as error:
            raise ValueError(
                f"vllm_server={self.url} does not answer ({error}). Start it so: {START}"
            ) from error
        return json.loads(text) if text else None
