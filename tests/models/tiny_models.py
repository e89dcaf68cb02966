"""Tiny random models with a byte-like character tokenizer, made in memory."""

from __future__ import annotations

import copy

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from hardwon.models.policy import Policy

CHARACTERS = "0123456789+-=abcdefgh \n.?"
SPECIAL = ["<pad>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>"]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a\n{% endif %}"
)


def make_tokenizer(chat_template: str | None = CHAT, **special: str) -> PreTrainedTokenizerFast:
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, "<unk>", *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.decoder = decoders.Fuse()
    names = special or {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.chat_template = chat_template
    return fast


SIZES = {"vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
COMMON = {
    **SIZES,
    "intermediate_size": 48,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "head_dim": 8,
}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
CONFIGS = {
    "llama": LlamaConfig(**COMMON, **IDS),
    "qwen3": Qwen3Config(**COMMON, **IDS),
    "mistral_sliding": MistralConfig(**COMMON, **IDS, sliding_window=7),
    "gemma3_sliding": Gemma3TextConfig(
        **COMMON, **IDS, sliding_window=7, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt2": GPT2Config(vocab_size=31, n_embd=32, n_layer=2, n_head=4, n_positions=256, **IDS),
}


def make_policy(name: str = "llama", seed: int = 0, **kwargs: object) -> Policy:
    """A random model whose distributions are far from uniform, so that mistakes show."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name]))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6.0)
    return Policy(model, make_tokenizer(), **kwargs)
