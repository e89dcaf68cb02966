"""How much memory a run takes, estimated from the model's config alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hardwon.functional.log_probs import MAX_LOGITS
from hardwon.models.paths import from_pretrained

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

GIB = 2**30
# Bytes that one layer keeps for its backward pass, per token and hidden unit and byte of precision
# (attention, norms, and a feed-forward of about 3 hidden sizes; measured on Llama and Qwen shapes).
ACTIVATIONS_PER_HIDDEN = 16


@dataclass(frozen=True)
class Shape:
    """The sizes that memory and time depend on."""

    parameters: int
    layers: int
    hidden: int
    kv_bytes_per_token: float  # at 2 bytes an element


def load_shape(model: str) -> Shape:
    """Sizes of `model` from its config; no weights are read."""
    return shape_of(from_pretrained(AutoConfig.from_pretrained, model))


def shape_of(config: PreTrainedConfig) -> Shape:
    with torch.device("meta"):
        causal_lm = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    parameters = sum(p.numel() for p in causal_lm.parameters())
    return Shape(
        parameters, text.num_hidden_layers, text.hidden_size, 4.0 * text.num_hidden_layers * heads * size
    )


def estimate(shape: Shape, config: Any, *, bytes_per_element: int, kv_limit_gib: float) -> dict[str, float]:
    """GiB by part, at the peak of a run with these settings on one device.

    Float32 weights, gradients and two AdamW moments for what is trained; with LoRA only adapters
    are. The key/value cache and the activations follow rows and tokens; logits are chunked.
    """
    trained = shape.parameters if not config.lora_rank else lora_parameters(shape, config.lora_rank)
    references = 1 if getattr(config, "kl_coef", 0) else 0
    length = config.max_prompt_tokens + config.max_new_tokens
    rows = getattr(config, "prompts_per_iteration", 64) * getattr(config, "group_size", 16)
    tokens = max(config.micro_batch_tokens, length)
    per_layer = tokens * shape.hidden * ACTIVATIONS_PER_HIDDEN * bytes_per_element
    kept = tokens * shape.hidden * bytes_per_element * shape.layers
    activations = kept + per_layer if config.gradient_checkpointing else per_layer * shape.layers
    cache = rows * length * shape.kv_bytes_per_token * bytes_per_element / 2
    return {
        "weights (float32)": 4 * shape.parameters * (1 + references) / GIB,
        "weights (bfloat16 copy)": (2 * shape.parameters if bytes_per_element == 2 else 0) / GIB,
        "gradients": 4 * trained / GIB,
        "optimizer": 8 * trained / GIB,
        "key/value cache": min(cache / GIB, kv_limit_gib),
        "activations": activations / GIB,
        "logits": 3 * 4 * MAX_LOGITS / GIB if shape.parameters > 1e7 else 0.0,
    }


def lora_parameters(shape: Shape, rank: int) -> int:
    """Adapters on the linear layers of a block: about 7 matrices of 2 * hidden * rank, wider in the MLP."""
    return shape.layers * rank * shape.hidden * 24


def available_gib(device: str) -> float:
    """Memory of the GPU, or what this machine has free."""
    if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()):
        return float(torch.cuda.get_device_properties(0).total_memory) / GIB
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":") for line in file)
    return int(fields["MemAvailable"].split()[0]) * 1024 / GIB
