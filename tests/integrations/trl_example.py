"""A tiny run of DA3POTrainer: a random Llama with a character tokenizer on a made-up task.

Also a program for several processes: `torchrun --nproc-per-node 2 trl_example.py OUTPUT JSON ...`
writes `result-RANK.json` with losses, metrics and a hash of the weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hardwon.integrations.trl import DA3POTrainer
from hardwon.integrations.trl_config import DA3POConfig

CHARACTERS = "0123456789+= "


def make_tokenizer() -> PreTrainedTokenizerFast:
    special = ["<pad>", "<bos>", "<eos>"]
    vocabulary = {token: i for i, token in enumerate([*special, "<unk>", *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.add_special_tokens(special)
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        padding_side="left",
    )


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=4 + len(CHARACTERS), **sizes, **ids))


def make_dataset(size: int = 12) -> Dataset:
    return Dataset.from_dict({"prompt": [f"{i}+1=" for i in range(size)], "target": list(range(size))})


def even_first_token(completion_ids: list[list[int]], target: list[int], **kwargs: Any) -> list[float]:
    """+1 if the first sampled token is even and -1 if not: about half of a random model's responses."""
    return [1.0 if ids[0] % 2 == 0 else -1.0 for ids in completion_ids]


def always_wrong(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    return [-1.0] * len(completion_ids)


def verl_like(completion_ids: list[list[int]], **kwargs: Any) -> list[dict[str, Any]]:
    """A shaped score (never above 0.5) beside the raw verdict."""
    return [{"score": 0.01 * len(ids), "acc": ids[0] % 2 == 0} for ids in completion_ids]


REWARDS = {f.__name__: f for f in (even_first_token, always_wrong, verl_like)}


def make_trainer(
    output: Path, reward: Any = even_first_token, size: int = 12, **settings: Any
) -> DA3POTrainer:
    defaults = {
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 6,
        "max_steps": 3,
        "learning_rate": 1e-2,
        "warmup_steps": 0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "overlong_buffer": 0,
        "seed": 3,
        "disable_tqdm": True,
    }
    config = DA3POConfig(output_dir=str(output), **{**defaults, **settings})
    return DA3POTrainer(make_model(), reward, config, make_dataset(size), processing_class=make_tokenizer())


def watch(trainer: DA3POTrainer) -> tuple[list[Any], list[Any]]:
    """Lists that fill: the problems of each round, and this rank's (advantage, tokens) of each batch."""
    rounds: list[Any] = []
    batches: list[Any] = []
    draw, generate = trainer.filler.draw, trainer._generate_and_score_completions

    def drawing(problems: list[Any], iteration: int) -> list[Any]:
        rounds.append([p.id for p in problems])
        return draw(problems, iteration)

    def generating(inputs: list[Any]) -> dict[str, Any]:
        batch = generate(inputs)
        lengths = batch["completion_mask"].sum(dim=1).tolist()
        batches.append(list(zip(batch["advantages"].tolist(), lengths, strict=True)))
        return batch

    trainer.filler.draw, trainer._generate_and_score_completions = drawing, generating
    return rounds, batches


def weights_hash(trainer: DA3POTrainer) -> str:
    model = trainer.accelerator.unwrap_model(trainer.model)
    digest = hashlib.sha256()
    for _, value in sorted(model.state_dict().items()):
        digest.update(value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    """Several trainings one after the other: JSON settings each, `run` among them names where to leave it."""
    for text in sys.argv[2:]:
        settings = json.loads(text)
        train_one(Path(sys.argv[1]) / settings.pop("run"), settings)


def train_one(output: Path, settings: dict[str, Any]) -> None:
    reward = REWARDS[settings.pop("reward", "even_first_token")]
    trainer = make_trainer(output, reward, **settings)
    # `accelerate launch` has been seen to run one process where two were asked for.
    assert trainer.accelerator.num_processes == int(os.environ["WORLD_SIZE"])
    rounds, batches = watch(trainer)
    trainer.train()
    result = {
        "log": trainer.state.log_history,
        "weights": weights_hash(trainer),
        "rounds": rounds,
        "batches": batches,
    }
    (output / f"result-{trainer.accelerator.process_index}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
