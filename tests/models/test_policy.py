from __future__ import annotations

import json

import pytest
import torch
from tiny_models import CONFIGS, make_policy, make_tokenizer
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, GraniteConfig

from hardwon.data import Sampling
from hardwon.models.paths import from_pretrained, resolve_model
from hardwon.models.policy import Policy
from hardwon.models.tokens import collate

SCORED = [((1, 8, 9), (10, 11, 2), (0, 0, 0), (0, 0, 0)), ((1,), (12, 13), (0, 0), (0, 0))]
SAMPLING = Sampling(max_new_tokens=8)


def batch():
    return collate(SCORED, pad_id=2)  # pad = EOS: only masks tell them apart


@pytest.mark.parametrize("name", CONFIGS)
def test_log_probs_are_the_log_softmax_of_the_models_own_logits(name):
    policy = make_policy(name)
    log_probs_BT, entropy_BT = policy.log_probs(batch(), SAMPLING)
    for b, (prompt, response, _, _) in enumerate(SCORED):
        ids = torch.tensor([[*prompt, *response]])
        full = policy.model(ids).logits[0].log_softmax(-1)
        for t in range(ids.shape[1] - 1):
            is_response = t >= len(prompt) - 1
            expected = full[t, ids[0, t + 1]] if is_response else torch.tensor(0.0)
            torch.testing.assert_close(log_probs_BT[b, t], expected, atol=1e-5, rtol=0)
            entropy = -(full[t].exp() * full[t]).sum() if is_response else torch.tensor(0.0)
            torch.testing.assert_close(entropy_BT[b, t], entropy, atol=1e-5, rtol=0)


def test_padding_and_neighbours_change_nothing(policy):
    alone = policy.log_probs(collate(SCORED[1:], pad_id=0), SAMPLING)[0]
    wide = collate([SCORED[1], ((1,) * 20, (3,), (0,), (0,))], pad_id=5)
    torch.testing.assert_close(policy.log_probs(wide, SAMPLING)[0][0, :2], alone[0], atol=1e-6, rtol=0)


def test_temperature_is_applied_to_scores(policy):
    # Fault 21: without it on-policy ratios are about 2. Dividing all logits by a large temperature
    # makes every one of the 31 tokens equally likely: log(1/31) = -3.434.
    log_probs_BT, _ = policy.log_probs(batch(), Sampling(8, temperature=1e6))
    torch.testing.assert_close(log_probs_BT[0, 2:], torch.full((3,), -3.43399), atol=1e-4, rtol=0)


def test_gradients_reach_the_weights_and_a_fully_masked_batch_has_a_path(policy):
    policy.log_probs(batch(), SAMPLING)[0].sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.model.parameters())
    policy.model.zero_grad()
    empty = collate([((1, 8), (), (), ())], pad_id=0)
    policy.log_probs(empty, SAMPLING)[0].sum().backward()
    assert all(p.grad is None or (p.grad == 0).all() for p in policy.model.parameters())


def test_gradient_checkpointing_gives_the_same_gradients(tmp_path):
    make_policy().save(tmp_path)
    gradients = []
    for on in (False, True):
        policy = Policy.load(tmp_path, device="cpu", gradient_checkpointing=on)
        layer = policy.model.model.layers[0].mlp
        calls = []
        layer.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        policy.log_probs(batch(), SAMPLING)[0].sum().backward()
        assert len(calls) == (2 if on else 1)  # the backward pass computes the layer again
        gradients.append(layer.up_proj.weight.grad)
    torch.testing.assert_close(*gradients)


def test_saved_policy_is_what_transformers_loads(tmp_path, policy):
    policy.save(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    again = Policy.load(tmp_path, device="cpu")
    assert again.eos_ids == policy.eos_ids
    assert again.tokenizer.chat_template == policy.tokenizer.chat_template


def test_bfloat16_keeps_float32_weights_and_gives_close_scores(tmp_path, policy):
    policy.save(tmp_path)
    half = Policy.load(tmp_path, device="cpu", dtype="bfloat16")
    assert half.model.model.layers[0].mlp.up_proj.weight.dtype == torch.float32
    expected, _ = policy.log_probs(batch(), SAMPLING)
    actual, _ = half.log_probs(batch(), SAMPLING)
    assert not torch.equal(actual, expected)
    torch.testing.assert_close(actual.float(), expected, atol=0.3, rtol=0.1)


def test_lora_trains_adapters_only_and_saves_merged_weights(tmp_path, policy):
    pytest.importorskip("peft")
    policy.save(tmp_path / "base")
    adapted = Policy.load(tmp_path / "base", device="cpu", lora_rank=4)
    trainable = [name for name, p in adapted.model.named_parameters() if p.requires_grad]
    assert trainable and all("lora_" in name for name in trainable)
    with torch.no_grad():
        for name, parameter in adapted.model.named_parameters():
            if "lora_B" in name:  # zero at first, which would hide the adapter
                parameter.normal_(std=0.1)
    expected, _ = adapted.log_probs(batch(), SAMPLING)
    before = {name: p.clone() for name, p in adapted.model.named_parameters()}
    adapted.save(tmp_path / "merged")
    assert all(torch.equal(before[name], p) for name, p in adapted.model.named_parameters())
    merged = Policy.load(tmp_path / "merged", device="cpu")
    torch.testing.assert_close(merged.log_probs(batch(), SAMPLING)[0], expected, atol=1e-5, rtol=0)
    assert not torch.allclose(policy.log_probs(batch(), SAMPLING)[0], expected, atol=1e-2)
    assert json.loads((tmp_path / "merged/adapter/adapter_config.json").read_text())["r"] == 4


SMALL = {"vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
SMALL["intermediate_size"] = 8


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        (Gemma2Config(**SMALL, head_dim=8, num_key_value_heads=4), "final_logit_softcapping"),
        (GraniteConfig(**SMALL, logits_scaling=8.0), "logits_scaling"),
        (CohereConfig(**SMALL), "logit_scale"),
    ],
)
def test_models_that_transform_their_logits_are_refused(config, setting):
    with pytest.raises(ValueError, match=setting):
        Policy(AutoModelForCausalLM.from_config(config), make_tokenizer())


def test_a_logit_transform_that_no_setting_tells_of_is_found(policy):
    original = policy.model.forward

    def doubled(*args, **kwargs):
        output = original(*args, **kwargs)
        output.logits = 2 * output.logits
        return output

    policy.model.forward = doubled
    with pytest.raises(ValueError, match="linear map"):
        Policy(policy.model, policy.tokenizer)


@pytest.mark.parametrize("missing", ["./no/such", "/no/such", "~/no-such-model", "a/b/c", "runs/"])
def test_a_missing_path_is_never_asked_for_on_the_network(missing):
    with pytest.raises(ValueError, match="does not exist"):
        Policy.load(missing)


def test_a_path_below_an_existing_directory_is_a_path(tmp_path, monkeypatch):
    (tmp_path / "runs" / "one").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"runs/two does not exist; runs does, and holds \['one'\]"):
        resolve_model("runs/two")
    assert resolve_model("Qwen/Qwen3-4B-Base") == "Qwen/Qwen3-4B-Base"
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file"):
        resolve_model(tmp_path / "file")


def test_a_name_without_a_slash_is_never_asked_for_on_the_network(tmp_path, monkeypatch):
    (tmp_path / "first-run").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"model=nope: there is no such directory .* organisation/name$"):
        Policy.load("nope")
    with pytest.raises(ValueError, match="did you mean 'first-run'"):
        Policy.load("frist-run")


def test_a_hub_that_cannot_be_reached_is_said_in_one_line():
    def load(*args, **kwargs):
        raise OSError("cannot connect to the hub.\nCheck your connection or read our page.")

    with pytest.raises(ValueError, match=r"model=org/name could not .* cannot connect to the hub\.$"):
        from_pretrained(load, "org/name")


def test_a_directory_without_a_model_is_named(tmp_path):
    with pytest.raises(ValueError, match=str(tmp_path)):
        Policy.load(tmp_path)


def test_unknown_dtype_and_absent_gpu_name_the_choices(tmp_path, policy):
    policy.save(tmp_path)
    with pytest.raises(ValueError, match="float32, bfloat16"):
        Policy.load(tmp_path, dtype="float16")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device=cpu"):
            Policy.load(tmp_path, device="cuda")
