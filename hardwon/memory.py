"""How much memory a process takes, phase by phase, from the model's config alone (docs/scaling.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from hardwon.functional.log_probs import MAX_LOGITS
from hardwon.hardware import GIB, Hardware
from hardwon.models.decoding import PREFILL_TOKENS
from hardwon.models.generator_hf import CACHE_SHARE, CPU_CACHE_GIB, MAX_BATCH_ROWS
from hardwon.models.paths import from_pretrained

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Parts = dict[str, float]  # GiB by part

PARTS = (
    "weights", "weights copy", "reference", "gradients", "optimizer", "critic", "fitted model", "vLLM",
    "key/value cache", "activations", "logits", "gathered layers", "overhead",
)  # fmt: skip

# What a process takes beside its tensors: CUDA context, libraries, NCCL (ours).
CONTEXT_GIB = 1.5
# Of everything else, what an allocator cannot use (ours).
FRAGMENTATION = 0.05
# As hardwon.offline.solutions has it, which stands above this module.
ROLLOUTS_A_WRITE = 2048
# What vLLM's engine takes of its share beside weights, keys and values, and how many rows it decodes at once.
VLLM_OVERHEAD_GIB, VLLM_MAX_ROWS = 3.0, 256


@dataclass(frozen=True)
class Shape:
    """The sizes that memory and time depend on.

    computed        parameters that every token is multiplied with: all but an untied input embedding
    outside_layers  parameters that are in no layer: embedding, head, last norm
    attention       heads times head size
    head_norms      queries and keys are normalised, head by head
    lora_per_rank   parameters that a rank of adapters adds
    kv_per_token    elements of keys and values, all layers
    """

    parameters: int
    computed: int
    outside_layers: int
    layers: int
    hidden: int
    intermediate: int
    attention: int
    head_norms: bool
    vocabulary: int
    lora_per_rank: int
    kv_per_token: int
    context: int


def load_shape(model: str) -> Shape:
    """Sizes of `model` from its config; no weights are read, and a directory may hold nothing else."""
    return shape_of(from_pretrained(AutoConfig.from_pretrained, model))


def shape_of(config: PreTrainedConfig) -> Shape:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text, parameters = config.get_text_config(), sum(p.numel() for p in model.parameters())
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings().weight
    linear = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not head]
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return Shape(
        parameters=parameters,
        computed=parameters - (0 if head.weight is embedding else embedding.numel()),
        outside_layers=parameters - sum(p.numel() for layer in layers for p in layer.parameters()),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        attention=text.num_attention_heads * size,
        head_norms=any(name.endswith("q_norm") for name, _ in model.named_modules()),
        vocabulary=text.vocab_size,
        lora_per_rank=sum(m.in_features + m.out_features for m in linear),
        kv_per_token=2 * text.num_hidden_layers * kv_heads * size,
        context=getattr(text, "max_position_embeddings", None) or 2**31,
    )


def phases(shape: Shape, config: Any, hardware: Hardware, dtype: str) -> dict[str, Parts]:
    """GiB by part of one process, in each phase of a run; the run's peak is the largest total.

    `load` opens model and generator, `sample` is every rollout, `update` the policy's optimizer steps. The
    offline methods `evaluate` what they fitted beside what they trained, direct advantage fits its `critic`,
    and ppo updates both at once. ValueError if no response fits, or for devices that cannot be used.
    """
    states = _States(shape, config, processes(config, hardware), dtype)
    engine = {k: v for k, v in sampling(shape, config, hardware, dtype).items() if k == "vLLM"}
    named = {
        "load": states.load() | engine,
        "sample": states.policy(moments=True) | sampling(shape, config, hardware, dtype),
    }
    algorithm, update = config.algorithm, states.policy(gradients=True, moments=True)
    if algorithm == "ppo":
        update |= states.critic(trained=True)
    if algorithm == "direct_advantage":
        named["sample"] = states.policy() | sampling(shape, config, hardware, dtype)
        named["critic"] = (
            states.policy() | states.critic(trained=True) | states.forward_backward(checkpointing=False)
        )
        update |= states.critic(trained=False)
    named["update"] = update | states.forward_backward(checkpointing=config.gradient_checkpointing)
    if algorithm in ("direct_advantage", "sft", "dpo"):
        frozen = states.critic(trained=False) if algorithm == "direct_advantage" else {}
        fitted = {"fitted model": 4 * shape.parameters / GIB}
        generator = sampling(shape, config, hardware, dtype)
        named["evaluate"] = states.policy(moments=True) | frozen | fitted | generator
    return {name: _with_overhead(parts, hardware) for name, parts in named.items()}


def processes(config: Any, hardware: Hardware) -> int:
    """How many of the devices train. vLLM's engine serves one process; a server has the devices beside it."""
    if config.generator == "hf" or hardware.count == 1:
        return hardware.count
    if config.vllm_server is not None:
        return 1
    raise ValueError(
        f"generator=vllm with {hardware}: its engine serves one process; name 1x{hardware.name}, set "
        "vllm_server to let the others serve, or use generator=hf"
    )


def sampling(shape: Shape, config: Any, hardware: Hardware, dtype: str) -> Parts:
    """What the generator has while it samples."""
    if config.generator == "vllm" and config.vllm_server is None:
        return {"vLLM": config.vllm_gpu_memory * hardware.gib}
    if config.generator == "vllm":
        return {}
    width, length = _bytes(dtype), config.max_prompt_tokens + config.max_new_tokens
    cache = rows_at_once(shape, config, hardware, dtype) * row_bytes(shape, config, dtype)
    prefill = min(PREFILL_TOKENS, length * rows_wanted(config, hardware))
    return {
        "weights copy": sampling_copy(shape, config, processes(config, hardware), dtype) / GIB,
        "key/value cache": cache / GIB,
        "activations": prefill * width * (4 * shape.hidden + 3 * shape.intermediate) / GIB,
    }


def sampling_copy(shape: Shape, config: Any, num_processes: int, dtype: str) -> float:
    """Bytes of weights beside the trained ones that are sampled with.

    Several processes have a whole copy each; one computes with its own weights, of which autocast keeps a
    bfloat16 copy, if they are trained.
    """
    if num_processes > 1:
        return _bytes(dtype) * shape.parameters
    return 2 * shape.parameters if dtype == "bfloat16" and not config.lora_rank else 0


def row_bytes(shape: Shape, config: Any, dtype: str) -> float:
    """Keys and values of a row of generator=hf, which keeps room for a prompt and two responses."""
    return (config.max_prompt_tokens + 2 * config.max_new_tokens) * shape.kv_per_token * _bytes(dtype)


def rows_wanted(config: Any, hardware: Hardware) -> int:
    """Rollouts that a process is asked for at a time; offline stages ask each for a write's worth."""
    if config.algorithm in ("direct_advantage", "sft", "dpo"):
        return ROLLOUTS_A_WRITE
    samples = getattr(config, "group_size", 0) or getattr(config, "samples_per_prompt", 1)
    return max(config.prompts_per_iteration * samples // processes(config, hardware), 1)


def cache_gib(shape: Shape, config: Any, hardware: Hardware) -> float:
    """What generator=hf may use for keys and values: a share of what is free once the model is loaded."""
    if not hardware.is_gpu:
        return CPU_CACHE_GIB
    loaded = 4 * shape.parameters * (2 if processes(config, hardware) > 1 else 1) / GIB
    return CACHE_SHARE * max(hardware.gib - CONTEXT_GIB - loaded, 0.0)


def rows_at_once(shape: Shape, config: Any, hardware: Hardware, dtype: str, mean_length: float = 0.0) -> int:
    """Responses that a sampling device decodes together; ValueError if there is no room for one.

    vLLM keeps room for what is there (`mean_length` tokens per row), generator=hf for the longest.
    """
    length = config.max_prompt_tokens + 2 * config.max_new_tokens
    if config.generator == "hf":
        room = cache_gib(shape, config, hardware)
        rows = int(room * GIB / row_bytes(shape, config, dtype))
        wanted, most = length, min(MAX_BATCH_ROWS, rows_wanted(config, hardware))
    else:
        share = config.vllm_gpu_memory if config.vllm_server is None else 0.9
        room = share * hardware.gib - 2 * shape.parameters / GIB - VLLM_OVERHEAD_GIB
        tokens = int(room * GIB / (shape.kv_per_token * _bytes(dtype)))
        rows = int(tokens / max(mean_length, 1.0)) if tokens >= length else 0
        wanted, most = length, VLLM_MAX_ROWS
    if rows < 1:
        needed = wanted * shape.kv_per_token * _bytes(dtype) / GIB
        raise ValueError(
            f"keys and values may take {max(room, 0.0):.1f} GiB on {hardware.name}, and one row of "
            f"max_prompt_tokens={config.max_prompt_tokens} and twice max_new_tokens={config.max_new_tokens} "
            f"takes {needed:.1f}: lower max_new_tokens, or take larger hardware"
        )
    return min(rows, most)


@dataclass(frozen=True)
class _States:
    """Parts of the memory of one of `num` processes."""

    shape: Shape
    config: Any
    num: int
    dtype: str

    def load(self) -> Parts:
        """Every process loads the whole model; several copy it once more before they divide it."""
        copies = {"weights copy": 4 * self.shape.parameters / GIB} if self.num > 1 else {}
        return {"weights": 4 * self.shape.parameters / GIB} | copies

    def policy(self, *, gradients: bool = False, moments: bool = False) -> Parts:
        rank, all_ = self.config.lora_rank, self.shape.parameters
        trained = self.shape.lora_per_rank * rank if rank else all_
        parts = {"weights": 4 * (all_ + (trained if rank else 0)) / self.num / GIB}
        if getattr(self.config, "kl_coef", 0):
            parts["reference"] = 4 * all_ / self.num / GIB
        if gradients:
            parts["gradients"] = 4 * trained / self.num / GIB
        if moments:
            parts["optimizer"] = 8 * trained / self.num / GIB
        return parts

    def critic(self, *, trained: bool) -> Parts:
        """Float32 weights, and 12 bytes more for gradient and moments where it is trained; no adapters."""
        return {"critic": (16 if trained else 4) * self.shape.parameters / self.num / GIB}

    def forward_backward(self, *, checkpointing: bool) -> Parts:
        shape, config = self.shape, self.config
        tokens = max(config.micro_batch_tokens, config.max_prompt_tokens + config.max_new_tokens)
        logits = min(tokens * shape.vocabulary, MAX_LOGITS)
        parts = {
            "activations": tokens * activation_bytes(shape, self.dtype, self.num, checkpointing) / GIB,
            "logits": 3 * 4 * logits / GIB,
        }
        if self.num > 1:
            layer = (shape.parameters - shape.outside_layers) / shape.layers
            gathered = (6 if self.dtype == "bfloat16" else 8) * (shape.outside_layers + 2 * layer)
            parts["gathered layers"] = gathered / GIB
            parts["weights copy"] = sampling_copy(shape, config, self.num, self.dtype) / GIB
        elif self.dtype == "bfloat16":
            parts["weights copy"] = 2 * shape.parameters / GIB
        return parts


def activation_bytes(shape: Shape, dtype: str, num_processes: int, checkpointing: bool) -> float:
    """Bytes a token that a forward pass keeps for the backward pass, all layers together.

    Counted with saved_tensors_hooks on Llama, Qwen2 and Qwen3 layers (tests/test_memory.py). FSDP2 computes
    in bfloat16 throughout; autocast keeps the residual stream in float32. With checkpointing each layer
    keeps its input, and one layer at a time the rest.
    """
    per_attention = {("float32", False): 10.2, ("float32", True): 20.3, ("bfloat16", False): 5.2}
    per_hidden, per_intermediate = (24, 16) if dtype == "float32" else (26 if num_processes == 1 else 16, 8)
    layer = (
        per_hidden * shape.hidden
        + per_attention.get((dtype, shape.head_norms), 12.8) * shape.attention
        + per_intermediate * shape.intermediate
    )
    if not checkpointing:
        return shape.layers * layer
    stream = 4 if dtype == "float32" or num_processes == 1 else 2
    return shape.layers * stream * shape.hidden + layer


def _bytes(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else 4


def _with_overhead(parts: Parts, hardware: Hardware) -> Parts:
    overhead = FRAGMENTATION * sum(parts.values()) + (CONTEXT_GIB if hardware.is_gpu else 0.0)
    parts = parts | {"overhead": overhead}
    return {part: parts[part] for part in PARTS if part in parts}
