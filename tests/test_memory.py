"""Memory estimates: sizes against public counts, parts by hand, activations against what autograd keeps."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from hardwon import memory
from hardwon.algorithms import resolve
from hardwon.hardware import GIB, parse_hardware
from hardwon.offline import solutions

MODELS = Path(__file__).parents[1] / "recipes" / "models"
H100 = parse_hardware("H100-80GB")


@pytest.mark.parametrize(
    ("name", "billions", "kv_kib"),
    [  # parameters as the model cards give them; bytes of keys and values: 4 x layers x heads x size
        ("Qwen3-4B-Base", 4.02, 4 * 36 * 8 * 128 / 1024),
        ("Qwen3-8B-Base", 8.19, 4 * 36 * 8 * 128 / 1024),
        ("Qwen2.5-Math-7B-Instruct", 7.62, 4 * 28 * 4 * 128 / 1024),
        ("Llama-3.1-8B-Instruct", 8.03, 4 * 32 * 8 * 128 / 1024),
        ("Qwen2.5-1.5B-Instruct", 1.54, 4 * 28 * 2 * 128 / 1024),
    ],
)
def test_sizes_are_the_public_ones(name, billions, kv_kib):
    shape = memory.load_shape(str(MODELS / name))
    assert shape.parameters / 1e9 == pytest.approx(billions, abs=0.006)
    assert 2 * shape.kv_per_token / 1024 == kv_kib


def test_an_embedding_that_is_also_the_head_is_computed_with_and_one_that_is_not_is_looked_up():
    tied, untied = (memory.load_shape(str(MODELS / n)) for n in ("Qwen3-4B-Base", "Qwen3-8B-Base"))
    assert tied.computed == tied.parameters
    assert untied.parameters - untied.computed == untied.vocabulary * untied.hidden


def phases(model="Qwen3-4B-Base", hardware=H100, algorithm="da3po", **settings):
    shape = memory.load_shape(str(MODELS / model))
    online = {"overlong": "none"} if algorithm == "da3po" else {}
    config = resolve(algorithm, {"model": model, "max_new_tokens": 1024}, online, settings)
    return shape, memory.phases(shape, config, hardware, "bfloat16")


def test_one_process_trains_with_sixteen_bytes_a_parameter_and_a_copy():
    """4 weights + 4 gradients + 8 moments, and 2 for the bfloat16 copy that autocast makes."""
    shape, found = phases()
    update = found["update"]
    states = update["weights"] + update["gradients"] + update["optimizer"]
    assert states == pytest.approx(16 * shape.parameters / GIB)
    assert update["weights copy"] == pytest.approx(2 * shape.parameters / GIB)


def test_eight_processes_hold_an_eighth_of_the_states_and_a_whole_copy_each():
    shape, found = phases(hardware=parse_hardware("8xH100-80GB"))
    update = found["update"]
    states = update["weights"] + update["gradients"] + update["optimizer"]
    assert states == pytest.approx(16 * shape.parameters / 8 / GIB)
    assert found["sample"]["weights copy"] == pytest.approx(2 * shape.parameters / GIB)


def test_adapters_alone_have_gradients_and_moments():
    """Rank 16: 16 x (in + out) parameters for every linear layer; counted on one Qwen3 layer by hand.

    q 2560+4096, k and v 2560+1024 each, o 4096+2560, gate and up 2560+9728 each, down 9728+2560; 36 layers.
    """
    shape, found = phases(lora_rank=16)
    by_hand = 36 * (2 * (2560 + 4096) + 2 * (2560 + 1024) + 3 * (2560 + 9728))
    assert shape.lora_per_rank == by_hand
    assert found["update"]["gradients"] == pytest.approx(4 * 16 * by_hand / GIB)
    assert found["update"]["optimizer"] == pytest.approx(8 * 16 * by_hand / GIB)


def test_checkpointing_trades_activations_and_a_chunk_bounds_logits():
    plain, saved = phases()[1]["update"], phases(gradient_checkpointing=True)[1]["update"]
    assert saved["activations"] < plain["activations"] / 5
    longer = phases(micro_batch_tokens=65536)[1]["update"]
    assert longer["logits"] == plain["logits"] == pytest.approx(12 * 2**26 / GIB)


def test_the_engine_of_vllm_takes_its_share_while_it_samples():
    found = phases(generator="vllm", vllm_gpu_memory=0.4)[1]
    assert found["sample"]["vLLM"] == pytest.approx(0.4 * H100.gib)
    assert "key/value cache" not in found["sample"]


def test_the_critic_is_trained_alone_and_then_frozen():
    shape, found = phases(
        "Qwen2.5-1.5B-Instruct", algorithm="direct_advantage", hardware=parse_hardware("2xH100-80GB")
    )
    assert found["critic"]["critic"] == pytest.approx(16 * shape.parameters / 2 / GIB)
    assert found["update"]["critic"] == pytest.approx(4 * shape.parameters / 2 / GIB)


def test_several_devices_and_an_engine_of_one_process_are_refused_by_name():
    with pytest.raises(ValueError, match="generator=vllm with 8xH100-80GB: its engine serves one process"):
        phases(generator="vllm", hardware=parse_hardware("8xH100-80GB"))


def test_an_offline_stage_asks_each_process_for_as_much_however_many_there_are():
    """Online the iteration's 64 x 16 rollouts are divided; offline a write grows with the processes."""
    online = resolve("da3po", {"model": "m", "prompts_per_iteration": 64, "group_size": 16})
    offline = resolve("direct_advantage", {"model": "m"})
    machines = [parse_hardware(f"{n}xH100-80GB") for n in (1, 8, 64)]
    assert [memory.rows_wanted(online, m) for m in machines] == [1024, 128, 16]
    assert {memory.rows_wanted(offline, m) for m in machines} == {solutions.ROLLOUTS_A_WRITE}


def test_no_room_for_one_row_names_what_to_lower():
    with pytest.raises(ValueError, match="lower max_new_tokens, or take larger hardware"):
        phases("Qwen3-8B-Base", max_new_tokens=40_000, hardware=parse_hardware("2xH100-80GB"))


COMMON = {"hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 4, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 64}  # fmt: skip


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config, Qwen3Config])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_are_what_autograd_keeps(kind, dtype):
    """Bytes that the hooks of autograd see for 256 tokens in 4 layers, parameters left out."""
    config = kind(**COMMON, head_dim=32)
    model, tokens = AutoModelForCausalLM.from_config(config).train(), 256
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage  # held, so that no address comes twice
        return x

    autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x), autocast:
        model.model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    copies = sum(2 * p.numel() for p in model.model.layers.parameters() if p.ndim > 1)
    counted = sum(s.nbytes() for s in kept.values()) - (copies if dtype == "bfloat16" else 0)
    said = tokens * memory.activation_bytes(memory.shape_of(config), dtype, 1, checkpointing=False)
    assert said == pytest.approx(counted, rel=0.2)
