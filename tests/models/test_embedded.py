"""The shipped model loads like any Hugging Face model and is as good, and as bad, as promised."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import hardwon
from hardwon.tasks import chain_arithmetic

EMBEDDED = Path(hardwon.__file__).parent / "models" / "embedded"


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(EMBEDDED)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype="auto").eval()


def prompt_ids(tokenizer, content: str) -> list[int]:
    messages = [{"role": "user", "content": content}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


@torch.no_grad()
def success_rates(model, tokenizer, problems, *, samples: int, seed: int) -> list[float]:
    prompts = [f"{problem.prompt}\n" for problem in problems]
    inputs = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    torch.manual_seed(seed)
    ids = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        do_sample=True,
        top_k=0,
        num_return_sequences=samples,
        max_new_tokens=40,
    )
    texts = tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    rows = [problem for problem in problems for _ in range(samples)]
    correct = [verdict.correct for verdict in chain_arithmetic.verify(list(zip(rows, texts, strict=True)))]
    return [sum(correct[i : i + samples]) / samples for i in range(0, len(correct), samples)]


def test_it_is_a_small_float32_safetensors_model(model):
    assert sum(path.stat().st_size for path in EMBEDDED.iterdir()) < 4 * 2**20
    assert (EMBEDDED / "model.safetensors").is_file()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert 200_000 < sum(parameter.numel() for parameter in model.parameters()) < 300_000


def test_model_and_tokenizer_agree(model, tokenizer):
    assert model.config.vocab_size == len(tokenizer) == 100
    for config in (model.config, model.generation_config):
        assert config.eos_token_id == tokenizer.eos_token_id
        assert config.bos_token_id == tokenizer.bos_token_id
        assert config.pad_token_id == tokenizer.pad_token_id
    specials = tokenizer.all_special_ids
    assert len(set(specials)) == 4, "padding, BOS, EOS and unknown are four different tokens"
    # The reader of generation_config must not find a filter that changes the sampling distribution.
    written = json.loads((EMBEDDED / "generation_config.json").read_text())
    assert written["temperature"] == 1.0 and "top_k" not in written and "top_p" not in written


def test_chat_template_gives_exactly_one_bos(tokenizer):
    ids = prompt_ids(tokenizer, "3+7-9")
    assert ids.count(tokenizer.bos_token_id) == 1 and ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids[1:]) == "3+7-9\n"
    # Plain text gets its BOS from the tokenizer: the same prompt either way.
    assert tokenizer("3+7-9\n")["input_ids"] == ids


def test_a_whole_conversation_is_prompt_then_response_then_eos(tokenizer):
    messages = [{"role": "user", "content": "3+7-9"}, {"role": "assistant", "content": "10\n=1."}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == f"{tokenizer.bos_token}3+7-9\n10\n=1.{tokenizer.eos_token}"


def test_every_printable_character_is_one_token_and_comes_back(tokenizer):
    text = "".join(chr(code) for code in range(32, 127)) + "\n\n  10\n=1. "
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text) and tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text
    assert [tokenizer.decode([i]) for i in ids] == list(text)


def test_other_characters_are_unknown_and_not_dropped(tokenizer):
    assert tokenizer("1→2", add_special_tokens=False)["input_ids"][1] == tokenizer.unk_token_id


def test_every_problem_and_every_gold_answer_survives_the_round_trip(tokenizer):
    task = chain_arithmetic.load(train_size=200)
    for problem in task.problems("train") + task.problems("test"):
        text = f"{problem.prompt}\n{task.gold(problem)}"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.unk_token_id not in ids and tokenizer.decode(ids) == text


def test_held_out_success_leaves_much_to_gain_and_something_to_start_from(model, tokenizer):
    """240 problems x 8 samples: the standard error is about 2 points, so 5 points of slack are safe."""
    problems = chain_arithmetic.load(train_size=1).problems("test")[:240]
    rates = success_rates(model, tokenizer, problems, samples=8, seed=0)
    assert 0.25 < sum(rates) / len(rates) < 0.55
    # Problems of all kinds: almost never solved, now and then, nearly always.
    terms = [problem.info["terms"] for problem in problems]
    by_terms = {n: [r for r, t in zip(rates, terms, strict=True) if t == n] for n in set(terms)}
    means = {n: sum(r) / len(r) for n, r in by_terms.items()}
    assert means[4] > 0.65 and 0.0 < means[9] < 0.15
    assert any(rate == 1.0 for rate in rates)
    assert sum(0 < rate < 0.5 for rate in rates) > 40, "hard-won groups, which da3po amplifies"


def test_the_model_for_code_writes_programs_and_knows_the_same_characters(tokenizer):
    """Greedily it writes the gold program of a short description."""
    from hardwon.models.paths import packaged_path

    path = packaged_path("embedded_code")
    code_tokenizer = AutoTokenizer.from_pretrained(path)
    assert code_tokenizer.get_vocab() == tokenizer.get_vocab()
    model = AutoModelForCausalLM.from_pretrained(path, dtype="auto").eval()
    ids = torch.tensor([prompt_ids(code_tokenizer, "add 3, square")])
    written = model.generate(ids, do_sample=False, max_new_tokens=96)[0, ids.shape[1] :]
    # The gold program of tasks/tiny_programs.py.
    expected = "def f(x):\n x=x+3\n return x**2\n"
    assert code_tokenizer.decode(written, skip_special_tokens=True) == expected
