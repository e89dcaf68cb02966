"""Makes the embedded model: `python recipes/embedded_model.py` reproduces what ships in the package.

A Llama of 231,000 parameters with a character tokenizer learns chain_arithmetic in two stages:

1. Skill. Worked solutions, short expressions first, with some guesses among them: which term
   comes next, and how to add it to the running total.
2. Habits. What a base model does with the skill: it works short expressions out line by line
   and mostly guesses at long ones, and now and then a step slips. A worked solution of a long
   expression is right and rare, so its correct answers are hard-won, and reinforcement
   learning has something to find: that working it out pays, and how not to slip.

Test expressions are never trained on (`split_of`). Prints the success rates it ends with.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import hardwon
from hardwon.data import Problem
from hardwon.tasks import chain_arithmetic
from hardwon.tasks.chain_arithmetic import draw_expression, split_of, terms_of, write_solution

Example = tuple[str, str]  # expression, response
FEWEST, MOST = 4, 9
PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% else %}{{ '\\n' }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Habits:
    """How a response is written: worked out, or guessed after a few steps; and how often a step slips."""

    work_out: dict[int, float]  # probability that all steps are written, by number of terms
    guess_at_once: float  # of the guesses, how many come on the first line
    slip: float  # probability that a step is wrong; later steps go on from the wrong total
    spread: float  # standard deviation of a guess for each term that it skips


SKILL = Habits(dict.fromkeys(range(3, MOST + 1), 0.9), guess_at_once=0.5, slip=0.0, spread=1.5)
BASE = Habits({4: 0.98, 5: 0.8, 6: 0.5, 7: 0.25, 8: 0.1, 9: 0.04}, guess_at_once=0.7, slip=0.03, spread=1.5)


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


def draw_training_expression(rng: random.Random, num_terms: int) -> str:
    while True:
        expression = draw_expression(rng, num_terms)
        if split_of(expression) == "train":
            return expression


def write_response(rng: random.Random, expression: str, habits: Habits) -> str:
    """Totals line by line, with slips; unless it is worked out, a guess ends it early."""
    terms = terms_of(expression)
    steps = len(terms) - 1
    written = steps
    if rng.random() >= habits.work_out[len(terms)]:
        written = 0 if rng.random() < habits.guess_at_once else rng.randint(0, steps - 1)
    totals, total = [], terms[0]
    for term in terms[1 : written + 1]:
        total += term
        if rng.random() < habits.slip:
            total = max(0, total + rng.choice((-10, -2, -1, 1, 2, 10)))
        totals.append(total)
    if written < steps:
        skipped = terms[written + 1 :]
        totals.append(max(0, round(total + sum(skipped) + rng.gauss(0, habits.spread * len(skipped)))))
    return write_solution(totals)


def skill_examples(rng: random.Random, progress: float) -> Example:
    """Three or four terms at first, all lengths from a third of the stage on."""
    longest = min(MOST, FEWEST + int(progress * 15))
    expression = draw_training_expression(rng, rng.randint(3, longest))
    return expression, write_response(rng, expression, SKILL)


def base_examples(rng: random.Random, progress: float) -> Example:
    expression = draw_training_expression(rng, rng.randint(FEWEST, MOST))
    return expression, write_response(rng, expression, BASE)


def encode(tokenizer: PreTrainedTokenizerFast, batch: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Input ids (B, L), right-padded, and labels (B, L): -100 on the prompt and on the padding."""
    texts = [f"{expression}\n{response}{EOS}" for expression, response in batch]
    ids = tokenizer(texts, padding=True, return_tensors="pt")["input_ids"]
    # BOS, the expression and its line break are the prompt.
    prompt_lengths = torch.tensor([[len(expression) + 2] for expression, _ in batch])
    ignored = (ids == tokenizer.pad_token_id) | (torch.arange(ids.shape[1]) < prompt_lengths)
    return ids, ids.masked_fill(ignored, -100)


def fit(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    draw: Callable[[random.Random, float], Example],
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


@torch.no_grad()
def success_rates(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: list[Problem],
    *,
    samples: int,
    greedy: bool = False,
) -> list[float]:
    """The share of correct responses of each problem, sampled at temperature 1 or greedily."""
    prompts = [f"{problem.prompt}\n" for problem in problems]
    inputs = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    sampling = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0}
    model.eval()
    ids = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        num_return_sequences=samples,
        max_new_tokens=40,
        **sampling,
    )
    responses = tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    rows = [problem for problem in problems for _ in range(samples)]
    correct = [v.correct for v in chain_arithmetic.verify(list(zip(rows, responses, strict=True)))]
    return [sum(correct[i : i + samples]) / samples for i in range(0, len(correct), samples)]


def measure(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> dict[str, object]:
    """Success on the 512 test problems: all, greedy, by number of terms, and how they spread."""
    problems = chain_arithmetic.load(train_size=1).problems("test")
    rates = success_rates(model, tokenizer, problems, samples=16)
    greedy = success_rates(model, tokenizer, problems, samples=1, greedy=True)
    by_terms: dict[int, list[float]] = {n: [] for n in range(FEWEST, MOST + 1)}
    for problem, rate in zip(problems, rates, strict=True):
        by_terms[problem.info["terms"]].append(rate)
    ordered = sorted(rates)
    quantile = {f"{q} %": ordered[round(q / 100 * (len(rates) - 1))] for q in (5, 25, 50, 75, 95)}
    return {
        "mean@1, temperature 1": round(sum(rates) / len(rates), 3),
        "mean@1, greedy": round(sum(greedy) / len(greedy), 3),
        "mean@1 by terms": {n: round(sum(r) / len(r), 3) for n, r in by_terms.items()},
        "success rate quantiles over problems": quantile,
        "problems never solved in 16 samples": rates.count(0.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Make hardwon's embedded model.")
    packaged = Path(hardwon.__file__).parent / "models" / "embedded"
    parser.add_argument("--output", type=Path, default=packaged, help="where to write the model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skill-steps", type=int, default=4500, help="optimizer steps of the first stage")
    parser.add_argument("--habit-steps", type=int, default=600, help="optimizer steps of the second stage")
    args = parser.parse_args()

    torch.set_num_threads(1)  # sums in another order would give another model
    torch.manual_seed(args.seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters; stage 1, skill", flush=True)
    fit(model, tokenizer, skill_examples, steps=args.skill_steps, batch_size=64, peak_lr=3e-3, seed=args.seed)
    print("stage 2, habits", flush=True)
    fit(
        model,
        tokenizer,
        base_examples,
        steps=args.habit_steps,
        batch_size=128,
        peak_lr=3e-4,
        seed=args.seed + 1,
    )
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    print(json.dumps(measure(model, tokenizer), indent=2))


if __name__ == "__main__":
    main()
