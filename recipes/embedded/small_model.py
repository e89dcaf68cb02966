"""The small Llama that ships with the package: its tokenizer, its training, and what it scores.

A recipe beside this file draws examples (prompt, response) of its task in two stages, skill and
habits; `make` does the rest.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean

import torch
from rich.console import Console
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hardwon.commands import evaluate_both
from hardwon.config import build
from hardwon.models.paths import ORIGIN, PACKAGED, packaged_path
from hardwon.workbench import SharedSettings, open_workbench

Example = tuple[str, str]
"""Prompt and response."""
Draw = Callable[[random.Random, float], Example]
"""An example, given how much of the stage is done (0 to 1)."""

PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% else %}{{ '\\n' }}{% endif %}{% endfor %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character (printable ASCII and the line break), so any English task can be tried."""
    specials = [PAD, BOS, EOS, UNK]
    vocabulary = {token: index for index, token in enumerate([*specials, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    # Like Llama's, it puts a BOS before plain text; a rendered chat template brings its own.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    special = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        **special,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, max_new_tokens=40, **special)
    return model


def encode(tokenizer: PreTrainedTokenizerFast, batch: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Input ids (B, L), right-padded, and labels (B, L): -100 on the prompt and on the padding."""
    texts = [f"{prompt}\n{response}{EOS}" for prompt, response in batch]
    ids = tokenizer(texts, padding=True, return_tensors="pt")["input_ids"]
    # BOS and a line break belong to the prompt.
    prompt_lengths = torch.tensor([[len(prompt) + 2] for prompt, _ in batch])
    ignored = (ids == tokenizer.pad_token_id) | (torch.arange(ids.shape[1]) < prompt_lengths)
    return ids, ids.masked_fill(ignored, -100)


def fit(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    draw: Draw,
    *,
    steps: int,
    batch_size: int,
    peak_lr: float,
    seed: int,
) -> None:
    """Cross-entropy on response tokens; AdamW, 50 steps of warm-up, cosine decay to 2 % of the peak."""
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for step in range(steps):
        decay = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = peak_lr * min(1.0, (step + 1) / 50) * decay
        ids, labels = encode(tokenizer, [draw(rng, step / steps) for _ in range(batch_size)])
        # Right padding needs no mask: no response token can attend to it.
        logits = model(input_ids=ids, use_cache=False).logits
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 200 == 199:
            print(f"  step {step + 1}/{steps}  loss {loss.item():.3f}", flush=True)


def measure(path: Path, settings: Mapping[str, object], level: str) -> dict[str, object]:
    """Success on the held-out problems: at temperature 1, greedily, and by `level` of Problem.info."""
    config = build(SharedSettings, settings, {"model": str(path), "eval_problems": 512, "eval_samples": 16})
    bench = open_workbench(config)
    try:
        evaluations = evaluate_both(bench, config, Console())
    finally:
        bench.task.close()
    rates = (evaluations["sampled"].num_correct_P / config.eval_samples).tolist()
    by_level = defaultdict(list)
    for problem, rate in zip(bench.held_out, rates, strict=True):
        by_level[problem.info[level]].append(rate)
    quantiles = {f"{q} %": sorted(rates)[round(q / 100 * (len(rates) - 1))] for q in (5, 25, 50, 75, 95)}
    return {
        "mean@1, temperature 1": round(mean(rates), 3),
        "mean@1, greedy": round(evaluations["greedy"].mean_at_k().value, 3),
        f"mean@1 by {level}": {n: round(mean(by_level[n]), 3) for n in sorted(by_level)},
        "success rate quantiles over problems": quantiles,
        "problems never solved in 16 samples": rates.count(0.0),
    }


def make(
    name: str,
    *,
    skill: Draw,
    habits: Draw,
    skill_steps: int,
    habit_steps: int,
    level: str,
) -> None:
    """Train the packaged model called `name` from nothing, write it, and print what it scores."""
    parser = argparse.ArgumentParser(description=f"Make the packaged model {name!r}.")
    parser.add_argument("--output", type=Path, default=packaged_path(name), help="where to write the model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skill-steps", type=int, default=skill_steps, help="optimizer steps, first stage")
    parser.add_argument("--habit-steps", type=int, default=habit_steps, help="optimizer steps, second stage")
    args = parser.parse_args()

    torch.set_num_threads(1)  # sums in another order would give another model
    torch.manual_seed(args.seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters; stage 1, skill", flush=True)
    fit(model, tokenizer, skill, steps=args.skill_steps, batch_size=64, peak_lr=3e-3, seed=args.seed)
    print("stage 2, habits", flush=True)
    fit(model, tokenizer, habits, steps=args.habit_steps, batch_size=128, peak_lr=3e-4, seed=args.seed + 1)
    setattr(model.config, ORIGIN, name)
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    print(json.dumps(measure(args.output, PACKAGED[name], level), indent=2))
