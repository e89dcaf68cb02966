"""Low-rank adapters through peft: add them, and write them merged and alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hardwon.models.parallel import gathered, gathered_weights, world


def has_adapters(model: Any) -> bool:
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def add_adapters(model: Any, rank: int, base: str | None = None) -> Any:
    """Adapters of this rank on all linear layers but the head; alpha = 2 * rank, no dropout (ours).

    `base` is how the saved adapters name the model that they belong to; default where it was loaded from.
    """
    if rank < 0:
        raise ValueError(f"lora_rank={rank} must be 0 (train all weights) or more")
    peft = _import_peft(f"lora_rank={rank}")
    config = peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    adapted = peft.get_peft_model(model, config)
    if base is not None:
        config.base_model_name_or_path = base
    return adapted


def merge_adapter(model: Any, path: Path) -> Any:
    """The full model that `model` becomes with the adapter in the directory `path` merged in."""
    peft = _import_peft(f"model={path}, an adapter,")
    try:
        adapted = peft.PeftModel.from_pretrained(model, str(path), local_files_only=True)
        return adapted.merge_and_unload()
    except Exception as error:  # of many kinds: files that lack, shapes that differ, kinds that do not merge
        raise ValueError(
            f"model={path}: this adapter cannot be merged into its base {model.name_or_path}: {error}"
        ) from error


def _import_peft(who: str) -> Any:
    try:
        import peft
    except ImportError as error:
        raise ValueError(f"{who} needs the package peft: pip install 'hardwon[lora]'") from error
    return peft


def save_merged(model: Any, path: Path) -> None:
    """Write merged weights to `path` and the adapters to `path/adapter`; `model` itself is not touched.

    Merging and unmerging in place would leave rounding in the weights that train on.
    """
    merged, adapted = merged_state_dict(model), gathered_weights(model)
    if world().is_main:
        model.get_base_model().save_pretrained(path, state_dict=merged)
        # Embeddings are never trained; asked to find out, peft looks for the base on the network.
        model.save_pretrained(path / "adapter", state_dict=adapted, save_embedding_layers=False)


@torch.no_grad()
def merged_state_dict(model: Any) -> dict[str, torch.Tensor]:
    """Weights of the model without adapters that computes what `model` computes with them.

    With several ranks all must call, and rank 0 alone gets them.
    """
    from peft.tuners.lora import LoraLayer

    base = model.get_base_model()
    merged: dict[str, torch.Tensor] = {}
    for name, tensor in gathered_weights(base).items():
        if ".lora_" not in name:
            merged[name.replace(".base_layer.", ".")] = tensor
    adapted: list[tuple[str, Any]] = [(n, m) for n, m in base.named_modules() if isinstance(m, LoraLayer)]
    for name, module in adapted:
        delta = sum(gathered(module.get_delta_weight(adapter)) for adapter in module.active_adapters)
        if merged:
            weight = merged[f"{name}.weight"]
            merged[f"{name}.weight"] = weight + torch.as_tensor(delta, device=weight.device)
    return merged
