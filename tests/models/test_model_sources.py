"""What `model=` takes: a full model, an adapter, a run, a checkpoint; and what it says of anything else."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hardwon.algorithms import ALGORITHMS, resolve
from hardwon.cli import app
from hardwon.models.critic import Critic
from hardwon.models.paths import find_model, origin_of, packaged_path, resolve_model
from hardwon.models.policy import Policy
from hardwon.run import Run


def weights(policy):
    return policy.causal_lm.state_dict()


def same(a, b):
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        torch.testing.assert_close(tensor, b[name], atol=1e-6, rtol=1e-6)


def differ(a, b):
    return any(not torch.equal(tensor, b[name]) for name, tensor in a.items())


def save_adapted(model, path, seed=0):
    """A LoRA policy over `model` that was trained a little, saved: merged, and the adapter beside it."""
    torch.manual_seed(seed)
    policy = Policy.load(model, device="cpu", lora_rank=2)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
    policy.save(path)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run directory as a finished LoRA run leaves it, with a checkpoint."""
    path = tmp_path_factory.mktemp("runs") / "a"
    config = resolve("da3po", {"lora_rank": 2, "eval_problems": 4, "eval_samples": 1}).model_dump(mode="json")
    with Run.create(path, config) as held:
        held.checkpoint(3, lambda folder: save_adapted("embedded", folder / "model"))
        held.publish(path / "checkpoints/iteration-000003/model")
    return path


PLACES = ["", "model", "model/adapter", "checkpoints/iteration-000003", "checkpoints/iteration-000003/model"]


@pytest.mark.parametrize("place", PLACES)
def test_every_place_of_a_run_is_the_model_that_it_trained(run, place):
    trained = Policy.load(run / "model", device="cpu")
    assert differ(weights(trained), weights(Policy.load("embedded", device="cpu")))
    policy = Policy.load(run / place, device="cpu")
    same(weights(policy), weights(trained))
    assert policy.tokenizer.get_vocab() == trained.tokenizer.get_vocab()


@pytest.mark.parametrize("place", PLACES)
def test_it_has_the_settings_of_the_packaged_model_that_it_descends_from(run, place):
    """And in every method: it is as small as the packaged model, and has learnt the same task."""
    for name in ALGORITHMS:
        expected = resolve(name).model_dump(exclude={"model"})
        assert resolve(name, {"model": str(run / place)}).model_dump(exclude={"model"}) == expected


def test_the_origin_goes_on_to_children_and_critics(run, tmp_path):
    assert origin_of(str(run)) == "embedded"
    child = save_adapted(run, tmp_path / "child", seed=1)
    assert origin_of(str(child)) == origin_of(str(child / "adapter")) == "embedded"
    Critic.load(run, "cpu").save(tmp_path / "critic")
    assert origin_of(str(tmp_path / "critic")) == "embedded"
    Policy.load("embedded_code", device="cpu").save(tmp_path / "code")
    assert resolve("dapo", {"model": str(tmp_path / "code")}).task == "tiny_programs"
    assert origin_of("org/some-model") is None


def test_another_small_model_does_not_get_them(tmp_path):
    model = shutil.copytree(packaged_path("embedded"), tmp_path / "other")
    config = json.loads((model / "config.json").read_text())
    del config["hardwon_origin"]
    (model / "config.json").write_text(json.dumps(config))
    settings = {"model": str(model), "task": "math"}
    assert resolve("da3po", settings).model_dump() | {"max_new_tokens": 20480, "overlong_buffer": 4096} == (
        resolve("da3po", {**settings, "model": "org/some-model"}).model_dump() | {"model": str(model)}
    )


def test_responses_end_where_the_models_context_does(tmp_path):
    """The packaged model's context is 1024; 2048 + 20480 are the published lengths."""
    model = shutil.copytree(packaged_path("embedded"), tmp_path / "other")
    config = json.loads((model / "config.json").read_text())
    del config["hardwon_origin"]
    (model / "config.json").write_text(json.dumps(config))
    at = {"model": str(model), "task": "math"}
    assert resolve("dapo", at).max_new_tokens == 1024 // 2
    assert resolve("dapo", at).overlong_buffer == 512 // 5
    assert resolve("sft", at, {"max_prompt_tokens": 100}).max_new_tokens == 1024 - 100
    assert resolve("ppo", at, {"max_new_tokens": 5000}).max_new_tokens == 5000  # given: the prompts decide
    assert resolve("dapo", {"max_prompt_tokens": 1000}).max_new_tokens == 40  # never longer than the default
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32768}))
    assert resolve("dapo", at).max_new_tokens == 20480


def test_adapters_of_adapters_are_merged_from_the_inside(run, tmp_path):
    child = save_adapted(run / "model/adapter", tmp_path / "child", seed=1)
    same(weights(Policy.load(child / "adapter", device="cpu")), weights(Policy.load(child, device="cpu")))
    found = find_model(child / "adapter")
    assert found.base == str(packaged_path("embedded"))
    assert found.adapters == (run / "model/adapter", child / "adapter")


def test_an_adapter_names_a_packaged_base_by_its_name(run):
    """A path would lead nowhere on another machine."""
    assert (
        json.loads((run / "model/adapter/adapter_config.json").read_text())["base_model_name_or_path"]
        == "embedded"
    )


def test_an_adapter_of_another_tool_with_a_tokenizer_of_its_own(run, tmp_path):
    import peft

    base = Policy.load("embedded", device="cpu")
    config = peft.LoraConfig(r=3, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    other = peft.get_peft_model(base.causal_lm, config)
    other.save_pretrained(tmp_path / "adapter")
    base.tokenizer.chat_template = "{{ messages[0]['content'] }}"
    base.tokenizer.save_pretrained(tmp_path / "adapter")
    policy = Policy.load(tmp_path / "adapter", device="cpu")
    assert policy.tokenizer.chat_template == "{{ messages[0]['content'] }}"
    merged = other.merge_and_unload().state_dict()
    same(weights(policy), merged)


def test_a_merged_adapter_is_saved_as_a_full_model(run, tmp_path):
    policy = Policy.load(run / "model/adapter", device="cpu")
    policy.save(tmp_path / "full")
    assert not (tmp_path / "full/adapter").exists()
    same(weights(Policy.load(tmp_path / "full", device="cpu")), weights(policy))


@pytest.mark.parametrize("place", ["", "model/adapter"])
def test_a_critic_begins_as_any_of_them(run, place):
    expected = Critic.load(run / "model", "cpu").model.state_dict()
    same(Critic.load(run / place, "cpu").model.state_dict(), expected)


def test_training_goes_on_from_an_adapter_with_new_ones(run, tmp_path):
    few = [
        "iterations=1", "prompts_per_iteration=4", "group_size=4", "eval_problems=4", "eval_samples=1",
        "warmup_iterations=0", "task_options.train_size=16", "lora_rank=2", "kl_coef=0.1",
    ]  # fmt: skip
    done = invoke("train", "grpo", f"model={run / 'model/adapter'}", f"run={tmp_path / 'b'}", *few)
    assert done.exit_code == 0, done.output
    trained = weights(Policy.load(tmp_path / "b", device="cpu"))
    same(trained, weights(Policy.load(tmp_path / "b/model/adapter", device="cpu")))
    assert differ(trained, weights(Policy.load(run, device="cpu")))


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


@pytest.mark.parametrize("place", PLACES)
def test_check_and_dry_run_take_it(run, place):
    small = ["task_options.train_size=16", "eval_problems=4"]
    for words in ([], ["--dry-run", "--hardware", "1xA100-40GB"]):
        done = invoke("check", "da3po", f"model={run / place}", *small, *words)
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize("place", ["", "model/adapter", "checkpoints/iteration-000003"])
def test_evaluate_takes_it(run, place, tmp_path):
    words = ["eval_problems=4", "eval_samples=1", "--out", tmp_path / "e.json"]
    done = invoke("evaluate", run / place, *words)
    assert done.exit_code == 0, done.output
    evaluation = json.loads((tmp_path / "e.json").read_text())
    assert evaluation["task"] == "chain_arithmetic" and evaluation["sampling"]["max_new_tokens"] == 40


def test_an_offline_run_that_was_stopped_after_a_repetition_has_that_policy(run, tmp_path):
    Run.create(tmp_path / "run", resolve("direct_advantage").model_dump(mode="json")).close()
    with pytest.raises(ValueError, match="has no trained model yet"):
        resolve_model(tmp_path / "run")
    shutil.copytree(run / "model", tmp_path / "run/steps/iteration-1/policy")
    assert resolve_model(tmp_path / "run") == str(tmp_path / "run/steps/iteration-1/policy")


# ------------------------------------------------------------------------------------- what is none


def adapter(path, base=None, **config):
    path.mkdir(parents=True)
    config |= {"base_model_name_or_path": base}
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


def copy_below(path):
    shutil.copytree(packaged_path("embedded"), path / "inner")
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p.mkdir() or p, "holds no model: .* It holds nothing"),
        (copy_below, "It holds inner; did you mean .*inner"),
        (adapter, "adapter that does not say of which model: write base_model_name_or_path"),
        (lambda p: adapter(p, str(p)), "is an adapter of itself"),
        (
            lambda p: adapter(p, "embeded"),
            "base is not here.*did you mean 'embedded'.*Correct base_model",
        ),
        (lambda p: adapter(p, "/gone/model"), "its base is not here: model=/gone/model does not exist"),
        (lambda p: adapter(p, "embedded"), "cannot be merged into its base"),
        (lambda p: adapter(p, "embedded", peft_type="NONE"), "cannot be merged into its base"),
    ],
)
def test_what_is_no_model_is_named_with_what_was_found(tmp_path, make, message):
    path = make(tmp_path / "m")
    with pytest.raises(ValueError, match=message):
        Policy.load(path, device="cpu")


def test_an_unreadable_adapter_config_is_named(tmp_path):
    (adapter(tmp_path / "a") / "adapter_config.json").write_text("[")
    with pytest.raises(ValueError, match=r"adapter_config.json cannot be read"):
        resolve("da3po", {"model": str(tmp_path / "a")})


def test_an_adapter_of_another_architecture_is_refused(run, tmp_path):
    """Its weights are for layers of 96; these are of 32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    base = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))
    base.save_pretrained(tmp_path / "base")
    Policy.load("embedded", device="cpu").tokenizer.save_pretrained(tmp_path / "base")
    other = shutil.copytree(run / "model/adapter", tmp_path / "other")
    config = json.loads((other / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(
        json.dumps(config | {"base_model_name_or_path": str(tmp_path / "base")})
    )
    with pytest.raises(ValueError, match="this adapter cannot be merged into its base"):
        Policy.load(other, device="cpu")


def test_a_critic_is_no_policy(run, tmp_path):
    """Its transformer loads with any head, and would have trained from a model that no longer writes."""
    Critic.load(run, "cpu").save(tmp_path / "critic")
    with pytest.raises(ValueError, match="is a critic"):
        Policy.load(tmp_path / "critic", device="cpu")


def test_a_model_without_some_of_its_weights_is_refused(tmp_path):
    """transformers would draw them at random, and say so in a table among other lines."""
    from safetensors.torch import load_file, save_file

    model = Path(shutil.copytree(packaged_path("embedded"), tmp_path / "m"))
    tensors = load_file(model / "model.safetensors")
    lost = next(name for name in tensors if "down_proj" in name)
    save_file({k: v for k, v in tensors.items() if k != lost}, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=re.escape(f"lacks weights: {lost}")):
        Policy.load(model, device="cpu")
