"""The model that is trained: load, save, and score responses.

Shapes: `B` responses, `L` tokens of the padded input, `T` = L - 1, `N` response tokens of the
batch, `H` hidden size, `V` vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase
from transformers.modeling_layers import GradientCheckpointingLayer

from hardwon.data import Sampling, TokenBatch
from hardwon.functional.log_probs import token_log_probs
from hardwon.models import lora, parallel
from hardwon.models.paths import PACKAGED, find_model, from_pretrained, resolve_model
from hardwon.models.tokens import eos_ids, load_tokenizer

Dtype = Literal["float32", "bfloat16"]


class Policy:
    """A causal language model and its tokenizer.

    `model` is what is trained (with LoRA: the peft model, of which only adapters take gradients).
    Weights are float32; with `dtype="bfloat16"` the forward pass runs under autocast. The model
    stays in eval mode: dropout would make the ratio to the sampled log-probs differ from 1.
    """

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, dtype: Dtype = "float32") -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.dtype = dtype
        causal_lm = self.causal_lm
        check_logits_are_linear(causal_lm)
        self.eos_ids = eos_ids(tokenizer, causal_lm.config, causal_lm.generation_config)

    @classmethod
    def load(
        cls,
        model: str | Path,
        dtype: Dtype = "float32",
        device: str = "auto",
        lora_rank: int = 0,
        gradient_checkpointing: bool = False,
    ) -> Self:
        """Load what `hardwon.models.paths` finds; an adapter is merged into its base.

        `device="auto"` is the GPU if there is one. `lora_rank` > 0 trains adapters on every linear
        layer instead of the weights. ValueError for a model that does not exist or whose logits are
        not a linear map of its hidden states.
        """
        if dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype={dtype} is not one of float32, bfloat16")
        place = resolve_device(device)  # first: a wrong one is said before a model takes its time
        tokenizer = load_tokenizer(model)
        causal_lm = load_causal_lm(model).to(place)
        if gradient_checkpointing:
            causal_lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if lora_rank:
            base = str(model) if str(model) in PACKAGED else resolve_model(model)
            causal_lm = lora.add_adapters(causal_lm, lora_rank, base)
        return cls(causal_lm, tokenizer, dtype)

    def save(self, path: str | Path) -> None:
        """Write model and tokenizer in the Hugging Face format (safetensors).

        With LoRA the weights are written with the adapters merged in, so that any reader of the
        format can use them, and the adapters alone in `adapter/` beside them. Of several ranks, which
        must all call, the first one writes.
        """
        if lora.has_adapters(self.model):
            lora.save_merged(self.model, Path(path))
        else:
            weights = parallel.gathered_weights(self.causal_lm)
            if parallel.world().is_main:
                self.causal_lm.save_pretrained(path, state_dict=weights)
        if parallel.world().is_main:
            self.tokenizer.save_pretrained(path)

    @property
    def causal_lm(self) -> Any:
        """The transformers model, also where peft wraps it."""
        return self.model.get_base_model() if lora.has_adapters(self.model) else self.model

    @property
    def device(self) -> torch.device:
        parameter: Tensor = next(self.model.parameters())
        return parameter.device

    @property
    def context_length(self) -> int:
        """Most tokens that prompt and response may have together.

        With `longrope` the frequencies of all positions change where the longest sequence of a batch passes
        the length that the model was first trained with. Keys in the cache would be of the other kind, and a
        log-prob would depend on its neighbours, so there the context ends at that length.
        """
        config = self.causal_lm.config.get_text_config()
        return min(int(getattr(config, "max_position_embeddings", None) or 2**31), _longrope_begins(config))

    def head(self) -> tuple[Tensor, Tensor | None]:
        """`(weight_VH, bias_V or None)` of the layer that turns hidden states into logits."""
        layer = self.causal_lm.get_output_embeddings()
        return layer.weight, getattr(layer, "bias", None)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """The precision of every forward pass; training and generation share it, so log-probs agree."""
        if self.dtype == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def log_probs(self, batch: TokenBatch, sampling: Sampling) -> tuple[Tensor, Tensor]:
        """`(log_probs_BT, entropy_BT)` in nats of the response tokens, 0 elsewhere, on the policy's device.

        They are those of the sampling distribution (temperature, top-k, top-p), so that on-policy the
        ratio to the sampled log-probs is 1. Only log_probs carry a gradient. Hidden states are
        computed once for the whole batch, logits for response tokens alone and in chunks. Without rows
        (a rank that only takes part in the others' batch) the result is empty, with a gradient path.
        """
        mask_BT = batch.response_mask_BT.to(self.device).bool()
        length = max(int(batch.attention_mask_BL.any(dim=0).sum()), 1)  # trailing columns may be all padding
        ids_BL = batch.input_ids_BL[:, :length].to(self.device)
        selected_BT = mask_BT[:, : length - 1]
        if not len(ids_BL):  # one token whose prediction is not asked for
            ids_BL, selected_BT = ids_BL.new_zeros(1, 1), selected_BT.new_zeros(1, 0)
        # Padding is on the right and attention is causal, so no response token sees it: without a
        # mask the fastest attention kernels apply, and the result is the same.
        with self.autocast(), _checkpointed(self.causal_lm):
            log_probs_N, entropy_N = self.score(ids_BL, selected_BT, sampling)
        log_probs_BT = log_probs_N.new_zeros(mask_BT.shape).masked_scatter(mask_BT, log_probs_N)
        entropy_BT = entropy_N.new_zeros(mask_BT.shape).masked_scatter(mask_BT, entropy_N)
        return log_probs_BT, entropy_BT

    def score(self, ids_BL: Tensor, selected_BT: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
        """`(log_probs_N, entropy_N)` of the selected tokens, column t judging token t+1 of the input."""
        hidden_BLH = self.causal_lm.base_model(input_ids=ids_BL, use_cache=False)[0]
        weight_VH, bias_V = self.head()
        return token_log_probs(
            hidden_BLH[:, :-1][selected_BT],
            weight_VH,
            bias_V,
            ids_BL[:, 1:][selected_BT],
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
        )


def load_causal_lm(model: str | Path) -> Any:
    """The transformers model in float32, adapters merged in. ValueError if it is no language model."""
    found = find_model(model)
    causal_lm, report = from_pretrained(
        AutoModelForCausalLM.from_pretrained, model, found.base, dtype=torch.float32, output_loading_info=True
    )
    classifiers = [n for n in causal_lm.config.architectures or [] if n.endswith("Classification")]
    if classifiers:
        raise ValueError(f"model={model} is a critic or another {classifiers[0]}, which does not write text")
    if report["missing_keys"]:
        raise ValueError(f"model={model} lacks weights: {', '.join(sorted(report['missing_keys'])[:5])}")
    if getattr(causal_lm, "_hf_peft_config_loaded", False):
        raise ValueError(
            f"model={model} is an adapter on the hub: download it, and give the directory as model="
        )
    for path in found.adapters:
        causal_lm = lora.merge_adapter(causal_lm, path)
    return causal_lm


def _longrope_begins(config: Any) -> int:
    """Length from which a model with `longrope` takes its second set of frequencies; 2**31 if it has one."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]  # one a kind of layer
    lengths = [k["original_max_position_embeddings"] for k in kinds if k.get("rope_type") == "longrope"]
    return min(lengths, default=2**31)


def resolve_device(device: str) -> torch.device:
    """`auto` is the GPU if there is one; ValueError for a device that is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device={device}, but no GPU is visible: use device=cpu or device=auto")
    return torch.device(device)


@contextlib.contextmanager
def _checkpointed(model: nn.Module) -> Iterator[None]:
    """Let gradient checkpointing run in an eval model: transformers asks each layer for `training`.

    Only the layer's own flag is set, not its children's, so that dropout stays off.
    """
    layers = [
        m for m in model.modules() if isinstance(m, GradientCheckpointingLayer) and m.gradient_checkpointing
    ]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def check_logits_are_linear(model: Any) -> None:
    """ValueError if the model caps or scales its logits, because scoring multiplies by the head alone."""
    config = model.config.get_text_config()
    neutral = {"final_logit_softcapping": (None,), "logits_scaling": (None, 1.0), "logit_scale": (None, 1.0)}
    for name, values in neutral.items():
        value = getattr(config, name, None)
        if value not in values:
            raise ValueError(
                f"{config.model_type} transforms its logits ({name}={value}), which hardwon does not apply; "
                "use a model without it (Llama, Qwen, Mistral, ...)"
            )
    head = model.get_output_embeddings()
    if head is None:
        raise ValueError(
            f"{config.model_type} has no output layer that hardwon can find (get_output_embeddings)"
        )
    ids_1L = torch.arange(8, device=model.device)[None] % config.vocab_size
    with torch.inference_mode():
        expected = model(input_ids=ids_1L, use_cache=False).logits
        actual = head(model.base_model(input_ids=ids_1L, use_cache=False)[0])
    if not torch.allclose(actual, expected, rtol=1e-4, atol=1e-5):
        raise ValueError(
            f"{config.model_type} does more than a linear map to make logits, which hardwon does not apply"
        )
