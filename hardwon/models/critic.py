"""A model of the chance of success: value of a problem and the tokens written so far.

Shapes: `B` states, `L` tokens of the longest, `H` hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerBase

from hardwon.models import lora
from hardwon.models.parallel import gathered_weights, world
from hardwon.models.paths import find_model, from_pretrained
from hardwon.models.policy import Policy, resolve_device
from hardwon.models.tokens import load_tokenizer, pad_id


class Critic:
    """A transformer with one output, read at the last token of a state; its sigmoid is the value.

    The module is transformers' sequence classifier with one label, so a saved critic loads with
    `AutoModelForSequenceClassification`, and its logit there is the logit here.
    """

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.pad_id = pad_id(tokenizer)
        self.model.config.pad_token_id = self.pad_id  # transformers' own pooling asks for one
        if self.model.config.num_labels != 1:
            raise ValueError(f"a critic has one output, but this model has {self.model.config.num_labels}")

    @classmethod
    def load(cls, model: str | Path, device: str = "auto") -> Self:
        """Load a saved critic, or the transformer of any model that `Policy.load` takes, with a new head.

        A new head is zero, so that every value begins at 1/2.
        """
        if find_model(model).adapters:
            return cls.from_policy(Policy.load(model, device=device))
        config = from_pretrained(AutoConfig.from_pretrained, model)
        is_critic = any("SequenceClassification" in name for name in config.architectures or [])
        classifier, report = from_pretrained(
            AutoModelForSequenceClassification.from_pretrained,
            model,
            num_labels=config.num_labels if is_critic else 1,
            dtype=torch.float32,
            output_loading_info=True,
        )
        _check_report(model, is_critic, report)
        if not is_critic:
            torch.nn.init.zeros_(_head(classifier))
        return cls(classifier.to(resolve_device(device)), load_tokenizer(model))

    @classmethod
    def from_policy(cls, policy: Policy) -> Self:
        """A copy of the policy's transformer, adapters merged in, with a head of zeros; nothing is shared."""
        causal_lm = policy.causal_lm
        config = type(causal_lm.config).from_dict({**causal_lm.config.to_dict(), "num_labels": 1})
        make: Any = AutoModelForSequenceClassification.from_config
        classifier = make(config)
        merged = lora.has_adapters(policy.model)
        weights = lora.merged_state_dict(policy.model) if merged else causal_lm.state_dict()
        prefix = f"{causal_lm.base_model_prefix}."
        inner = {name.removeprefix(prefix): t for name, t in weights.items() if name.startswith(prefix)}
        classifier.base_model.load_state_dict(inner)
        torch.nn.init.zeros_(_head(classifier))
        return cls(classifier.to(policy.device), policy.tokenizer)

    def save(self, path: str | Path) -> None:
        """Write model, head and tokenizer in the Hugging Face format (safetensors); see `Policy.save`."""
        weights = gathered_weights(self.model)
        if world().is_main:
            self.model.save_pretrained(path, state_dict=weights)
            self.tokenizer.save_pretrained(path)

    @property
    def device(self) -> torch.device:
        parameter: Tensor = next(self.model.parameters())
        return parameter.device

    def logits(self, states: Sequence[Sequence[int]]) -> Tensor:
        """`logits_B` of success from each state (prompt and response token ids), for a BCE loss.

        The last token is found by length, not by comparing ids with a pad token, which may be EOS.
        """
        if not states or min(map(len, states)) == 0:
            raise ValueError("each state needs at least one token, and a batch at least one state")
        lengths = torch.tensor([len(state) for state in states])
        ids_BL = torch.full((len(states), int(lengths.max())), self.pad_id)
        for row, state in zip(ids_BL, states, strict=True):
            row[: len(state)] = torch.as_tensor(state)
        return self.score(ids_BL.to(self.device), lengths.to(self.device))

    def score(self, ids_BL: Tensor, lengths_B: Tensor) -> Tensor:
        """`logits_B` after the first `lengths_B` tokens of each row."""
        hidden_BLH = self.model.base_model(input_ids=ids_BL, use_cache=False)[0]
        rows = torch.arange(len(ids_BL), device=ids_BL.device)
        return linear(hidden_BLH[rows, lengths_B - 1], _head(self.model)).squeeze(1)

    def values(self, states: Sequence[Sequence[int]]) -> Tensor:
        """`values_B` in (0, 1): the estimated chance of success from each state."""
        return self.logits(states).sigmoid()


def _head(classifier: Any) -> Tensor:
    head = getattr(classifier, "score", None)
    if head is None or getattr(head, "bias", None) is not None:
        raise ValueError(
            f"{classifier.config.model_type} has no linear `score` head; use Llama, Qwen, Mistral, ..."
        )
    weight: Tensor = head.weight
    return weight


def _check_report(model: str | Path, is_critic: bool, report: dict[str, Any]) -> None:
    """A saved critic must bring its head; any other model brings everything but the head."""
    missing = {name for name in report["missing_keys"] if is_critic or not name.startswith("score")}
    if missing:
        raise ValueError(f"model={model} lacks weights that a critic needs: {sorted(missing)[:5]}")
