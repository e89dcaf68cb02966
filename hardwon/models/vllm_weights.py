"""The policy's config and weights in the form in which vLLM loads them.

Shapes: `O` rows of a projection's weight = heads x head size, `H` hidden size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardwon.models import lora
from hardwon.models.policy import Policy

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # of vLLM's attention on CPU


def export_weights(policy: Policy, head_size: int | None = None) -> dict[str, Tensor]:
    """Weights by the names of a checkpoint, detached and not copied; adapters are merged in copies.

    A tied output layer is left out: vLLM shares the embedding's tensor, and loading both is where
    its own reload goes wrong. With `head_size` attention heads are widened to it.
    """
    model = policy.causal_lm
    weights = lora.merged_state_dict(policy.model) if lora.has_adapters(policy.model) else model.state_dict()
    if model.get_output_embeddings().weight is model.get_input_embeddings().weight:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("lm_head.")}
    weights = {name: tensor.detach() for name, tensor in weights.items()}
    if head_size is None:
        return weights
    narrow = head_size_of(policy)
    return {name: widen(name, tensor, narrow, head_size) for name, tensor in weights.items()}


def write_config(policy: Policy, directory: Path, head_size: int | None = None) -> None:
    """config.json, from which vLLM builds the model; the weights come later and never touch the disk."""
    policy.causal_lm.config.save_pretrained(directory)
    path = directory / "config.json"
    values = json.loads(path.read_text())
    # Only saved models name their class; without it vLLM takes some for models that embed text.
    values["architectures"] = [type(policy.causal_lm).__name__]
    if head_size is not None:
        values["head_dim"] = head_size
        values["rope_parameters"]["partial_rotary_factor"] = head_size_of(policy) / head_size
    path.write_text(json.dumps(values))


def head_size_of(policy: Policy) -> int:
    config = policy.causal_lm.config.get_text_config()
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def wider_heads(policy: Policy) -> int | None:
    """The head size for vLLM on CPU if it does not compute with the model's own; None if it does.

    ValueError for a model whose heads cannot be padded without changing what it computes.
    """
    size = head_size_of(policy)
    if size in CPU_HEAD_SIZES:
        return None
    config = policy.causal_lm.config.get_text_config()
    rope: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    wider = next((s for s in CPU_HEAD_SIZES if s > size), None)
    normalized = any(name.endswith("q_norm.weight") for name in policy.causal_lm.state_dict())
    if wider is None or normalized or rope.get("rope_type") != "default" or "partial_rotary_factor" in rope:
        raise ValueError(
            f"{config.model_type} has attention heads of {size}, and vLLM on CPU computes with "
            f"{', '.join(map(str, CPU_HEAD_SIZES))}; use generator=hf"
        )
    return wider


def widen(name: str, tensor: Tensor, narrow: int, wide: int) -> Tensor:
    """A projection of attention with every head padded by zeros from `narrow` to `wide`; others as they are.

    Zeros add nothing to a dot product, and the rotation stays on the first `narrow` numbers
    (partial_rotary_factor). The queries also make up for vLLM's scale, 1/sqrt(wide).
    """
    parts = name.split(".")
    if len(parts) < 2:
        return tensor
    match parts[-2]:
        case "q_proj":
            return _pad_rows(tensor, narrow, wide) * math.sqrt(wide / narrow)
        case "k_proj" | "v_proj":
            return _pad_rows(tensor, narrow, wide)
        case "o_proj" if tensor.ndim == 2:  # its inputs are the heads, so its columns are padded
            columns: Tensor = _pad_rows(tensor.T, narrow, wide).T
            return columns
    return tensor


def _pad_rows(tensor_O: Tensor, narrow: int, wide: int) -> Tensor:
    """Weight (O, H) or bias (O,) with `wide - narrow` zero rows after the rows of each head."""
    heads = tensor_O.reshape(-1, narrow, *tensor_O.shape[1:])
    padding = heads.new_zeros(len(heads), wide - narrow, *heads.shape[2:])
    padded: Tensor = torch.cat([heads, padding], dim=1)
    return padded.flatten(0, 1)


def keep_plain_weights() -> None:
    """On CPU, before vLLM builds a model: oneDNN keeps packed copies that new weights would not reach."""
    import vllm._custom_ops as operations

    operations._supports_onednn = False
