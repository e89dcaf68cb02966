"""Recipes hold the published numbers, and each plans offline on the hardware that its first lines name."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hardwon.algorithms import resolve
from hardwon.cli import app
from hardwon.config import read_yaml
from hardwon.hardware import GPUS, gpu_named, parse_hardware

RECIPES = Path(__file__).parents[1] / "recipes"
FILES = sorted(RECIPES.glob("*.yaml"))

# methods.md sections 1 and 2: dapo and da3po.
DA3PO = {
    "amplification": "daa", "amplification_factor": 2.0, "amplification_threshold": 0.5, "group_size": 16,
    "clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.0, "dynamic_sampling": True, "max_rounds": 10,
}  # fmt: skip
DAPO_17K = DA3PO | {
    "task": "math", "prompts_per_iteration": 512, "updates_per_iteration": 16, "max_new_tokens": 20480,
    "overlong": "punish", "overlong_buffer": 4096, "temperature": 1.0, "learning_rate": 1e-6,
    "learning_rate_schedule": "constant", "warmup_iterations": 20, "weight_decay": 0.1, "max_grad_norm": 1.0,
}  # fmt: skip
# Section 3: direct advantage.
STEPS = {
    "task": "math", "num_problems": 7500, "solutions_per_problem": 32, "kept_solutions": 6, "completions": 16,
    "min_gap": 0.1, "action_mean": "unique", "batch_size": 2048, "learning_rate": 5e-7,
    "critic_learning_rate": 5e-6, "critic_batch_size": 512, "critic_epochs": 1, "adam_beta2": 0.95,
    "max_new_tokens": 2048,
}  # fmt: skip
PUBLISHED = {
    "da3po_qwen3_4b": DAPO_17K | {"model": "Qwen/Qwen3-4B-Base"},
    "da3po_qwen3_8b": DAPO_17K | {"model": "Qwen/Qwen3-8B-Base"},
    "da3po_qwen2_5_1_5b_lora": DA3PO | {"model": "Qwen/Qwen2.5-1.5B-Instruct"},
    "direct_advantage_qwen2_5_math_7b": STEPS | {"model": "Qwen/Qwen2.5-Math-7B-Instruct"},
    "direct_advantage_llama3_1_8b": STEPS | {"model": "meta-llama/Llama-3.1-8B-Instruct"},
}


def algorithm_of(file):
    return "direct_advantage" if file.stem.startswith("direct_advantage") else "da3po"


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_every_recipe_resolves(file):
    resolve(algorithm_of(file), read_yaml(file))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings_are_written_out_and_take_effect(name):
    file = RECIPES / f"{name}.yaml"
    written, config = read_yaml(file), resolve(algorithm_of(file), read_yaml(file))
    for key, value in PUBLISHED[name].items():
        assert written[key] == getattr(config, key) == value, key
    if algorithm_of(file) == "direct_advantage":
        assert 0.01 <= written["beta"] <= 0.02


def commands(file):
    """`hardwon check ... --dry-run` lines of the comment at the head."""
    head = file.read_text().split("\nmodel:")[0]
    return [line.lstrip("# ").split() for line in head.splitlines() if "--dry-run" in line]


PLANNED = [(file.stem, words[1:]) for file in FILES for words in commands(file)]


def run(words):
    return CliRunner().invoke(app, words, env={"COLUMNS": "160", "HF_HUB_OFFLINE": "1"})


@pytest.mark.parametrize(("name", "words"), PLANNED, ids=lambda v: v if isinstance(v, str) else None)
def test_a_recipe_fits_the_hardware_that_it_names(name, words, monkeypatch):
    """Offline, with a config.json and nothing else: memory of a device, and time by stage."""
    monkeypatch.chdir(RECIPES.parent)
    done = run(words)
    assert done.exit_code == 0, done.output
    device = parse_hardware(words[words.index("--hardware") + 1])
    assert f"Memory of each {device.name}, GiB of {device.gib:.1f}" in done.output
    assert re.search(r"about [\d.]+ GiB of [\d.]+", done.output)
    stage = "label" if name.startswith("direct_advantage") else "rollout"
    assert re.search(rf"{stage} +│ +[\d.]+ (s|min|h|days|ms)", done.output)
    assert "none of them measured on a GPU" in done.output


def test_every_recipe_for_a_real_model_names_hardware():
    assert {name for name, _ in PLANNED} == set(PUBLISHED)


def dry_run(*words, recipe="da3po_qwen3_8b"):
    return run(["check", "da3po", "--config", str(RECIPES / f"{recipe}.yaml"), "--dry-run", *words])


def test_hardware_that_is_too_small_fails_and_says_what_would_help():
    done = dry_run("--hardware", "1xA100-40GB", "max_new_tokens=2048", "overlong=none")
    assert done.exit_code == 1
    assert "GiB of 39.4" in done.output and "lora_rank=16" in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hardware", "8xH100-80"], "H100-80GB"),
        (["--hardware", "8xH200-141GB", "--assume", "update_mfo=0.5"], "update_mfu"),
        (["--hardware", "8xH200-141GB", "model=nobody/knows"], "config.json"),
    ],
)
def test_what_is_not_known_names_the_nearest_or_the_remedy(words, message):
    done = dry_run(*words)
    assert done.exit_code != 0
    assert message in done.output + str(done.exception)


def test_measured_rates_come_by_word_or_by_file(tmp_path):
    file = tmp_path / "rates.yaml"
    file.write_text("update_tokens_per_s: 1000\n")
    for given in ("update_tokens_per_s=1000", str(file)):
        done = dry_run("--hardware", "8xH200-141GB", "--assume", given)
        assert "With measured update_tokens_per_s" in " ".join(done.output.split())


def test_the_name_that_a_driver_gives_finds_the_form_by_its_memory():
    assert gpu_named("NVIDIA A100-SXM4-80GB", 79.3).name == "A100-80GB"
    assert gpu_named("NVIDIA A100-SXM4-40GB", 39.4).name == "A100-40GB"
    assert gpu_named("NVIDIA GeForce RTX 4090", 23.6).name == "RTX-4090-24GB"
    assert gpu_named("NVIDIA GH200 480GB", 94.5).bandwidth == 0  # no H200


def test_names_of_hardware():
    assert str(parse_hardware("8xh100-80gb")) == "8xH100-80GB"
    assert parse_hardware("A100-40GB").count == 1
    assert parse_hardware("2xcpu").count == 2 and not parse_hardware("cpu").is_gpu
    for name in GPUS:
        assert parse_hardware(f"64x{name}").count == 64
    with pytest.raises(ValueError, match="hardware=0xH100-80GB is not known; did you mean 'H100-80GB'"):
        parse_hardware("0xH100-80GB")
    with pytest.raises(ValueError, match=r"hardware=8xTPU is not known\. Known, with a count"):
        parse_hardware("8xTPU")
