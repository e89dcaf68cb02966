"""The vLLM generator. The mapping is tested everywhere, the engines where vLLM is installed."""

from __future__ import annotations

import copy
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from tiny_models import COMMON, IDS, make_policy, make_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from hardwon.algorithms import resolve
from hardwon.data import Request, Sampling
from hardwon.models.generator_vllm import (
    Completion,
    Job,
    VLLMGenerator,
    is_finished,
    make_jobs,
    sampling_settings,
    to_sample,
)
from hardwon.models.policy import Policy
from hardwon.models.stopping import StopStrings
from hardwon.models.tokens import collate
from hardwon.models.vllm_server import ServerEngine
from hardwon.models.vllm_stream import WeightSource, fetch_weights
from hardwon.models.vllm_weights import export_weights, head_size_of, widen, wider_heads, write_config
from hardwon.workbench import open_workbench

# vLLM and transformers differ by float32 rounding, summed over layers and sharpened by large logits.
TOLERANCE = 3e-4  # nats
REQUESTS = [Request((1, *range(6, 12 + i)), tuple(100 * i + j for j in range(4))) for i in range(4)]
CONFIGS = {
    "llama_tied": LlamaConfig(**{**COMMON, "head_dim": 32}, **IDS, tie_word_embeddings=True),
    "llama_tied_narrow_heads": LlamaConfig(**{**COMMON, "head_dim": 24}, **IDS, tie_word_embeddings=True),
    "llama_untied": LlamaConfig(**{**COMMON, "head_dim": 32}, **IDS, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**{**COMMON, "head_dim": 32}, **IDS),
}


def make(name: str) -> Policy:
    """A random model with log-probs far from uniform, and two EOS ids: <eos> and <|im_end|>."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name]))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)
    return Policy(model, make_tokenizer())


def ids_of(results) -> list[list[list[int]]]:
    return [[sample.ids.tolist() for sample in group] for group in results]


def largest_difference(policy, results, sampling, requests=REQUESTS) -> float:
    """Between sampled log-probs and those that `Policy.log_probs` finds for the same tokens."""
    rows = [
        (request.prefix_ids, sample.ids, sample.log_probs, np.zeros(len(sample.ids)))
        for request, group in zip(requests, results, strict=True)
        for sample in group
    ]
    batch = collate(rows, pad_id=0)
    with torch.no_grad():
        log_probs_BT, _ = policy.log_probs(batch, sampling)
    return float((log_probs_BT - batch.old_log_probs_BT).abs().max())


def change(policy: Policy) -> None:
    """An update of every weight, large enough to show in samples."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3 * parameter.std())


# The mapping, without vLLM


def test_a_job_a_seed_each_limited_by_the_context():
    """Prefixes of 5 and 18 tokens in a context of 20: room for min(10, 15) and min(10, 2) tokens."""
    requests = [Request((1,) * 5, (7, 8)), Request((2,) * 18, (9,)), Request((3,), ())]
    jobs = list(make_jobs(requests, Sampling(10), frozenset({4, 2}), 20))
    assert [(len(j.prefix_ids), j.settings["seed"], j.settings["max_tokens"]) for j in jobs] == [
        (5, 7, 10), (5, 8, 10), (18, 9, 2),
    ]  # fmt: skip


def test_every_setting_that_shapes_the_distribution_is_given():
    """A server fills what is missing from generation_config.json (Qwen2.5's repetition penalty of 1.05)."""
    settings = sampling_settings(Sampling(10, 0.7, 0.9, 20), frozenset({4, 2}), 2**64 - 1, 10)
    assert settings == {
        "max_tokens": 10, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "seed": 2**63 - 1, "stop_token_ids": [2, 4], "ignore_eos": True, "logprobs": 0,
    }  # fmt: skip
    stopping = sampling_settings(Sampling(10, 0.7, 0.9, 20, ("a", "b")), frozenset({4, 2}), 0, 10)
    assert stopping == settings | {"seed": 0, "stop": ["a", "b"], "include_stop_str_in_output": True}


def test_samples_keep_their_eos_and_say_if_they_ended():
    stops, job = StopStrings(make_tokenizer(), ()), Job((1,), {})
    assert is_finished(Completion([5, 6, 2], [-1.0, -2.0, -0.5]), job, frozenset({2, 4}), stops)
    assert not is_finished(Completion([5, 6], [-1.0, -2.0]), job, frozenset({2, 4}), stops)
    ended = to_sample(Completion([5, 6, 2], [-1.0, -2.0, -0.5]), finished=True, greedy=False)
    assert ended.finished and ended.ids.tolist() == [5, 6, 2] and ended.log_probs.tolist() == [-1, -2, -0.5]
    assert ended.ids.dtype == np.int64 and ended.log_probs.dtype == np.float32
    cut = to_sample(Completion([5, 6], [-1.0, -2.0]), finished=False, greedy=True)
    assert not cut.finished and cut.log_probs.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("request_", "sampling", "message"),
    [
        (Request((1,) * 20, (0,)), Sampling(5), "20 tokens, but needs 1 to 19"),
        (Request((), (0,)), Sampling(5), "0 tokens"),
        (Request((1,), (0,)), Sampling(0), "max_new_tokens=0"),
    ],
)
def test_bad_requests_are_named(request_, sampling, message):
    with pytest.raises(ValueError, match=message):
        list(make_jobs([request_], sampling, frozenset({2}), 20))


def test_a_tied_output_layer_is_left_out():
    assert "lm_head.weight" not in export_weights(make("llama_tied"))
    weights = export_weights(make("llama_untied"))
    assert "lm_head.weight" in weights and not any(w.requires_grad for w in weights.values())


def test_adapters_are_merged():
    pytest.importorskip("peft")
    policy = make("llama_untied")
    names = set(export_weights(policy))
    from hardwon.models import lora

    adapted = Policy(lora.add_adapters(policy.model, 2), policy.tokenizer)
    assert set(export_weights(adapted)) == names


def test_narrow_heads_are_padded_without_changing_attention(tmp_path):
    """Scores q.k / sqrt(size) of each head, and what the output projection makes of the values, stay."""
    policy = make("llama_tied_narrow_heads")
    assert (head_size_of(policy), wider_heads(policy), wider_heads(make("llama_tied"))) == (24, 32, None)
    x_TH = torch.randn(5, 32)

    def attention(size: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        weights = export_weights(policy, size)
        name = "model.layers.0.self_attn."
        q, k, v = (
            (x_TH @ weights[f"{name}{p}_proj.weight"].T).unflatten(1, (-1, size or 24)).movedim(1, 0)
            for p in "qkv"
        )
        k, v = k.repeat_interleave(2, dim=0), v.repeat_interleave(2, dim=0)  # 4 query heads, 2 of keys
        scores = q @ k.mT / (size or 24) ** 0.5
        return scores, v.movedim(0, 1).flatten(1) @ weights[f"{name}o_proj.weight"].T

    torch.testing.assert_close(attention(32), attention(None), rtol=1e-4, atol=1e-4)
    write_config(policy, tmp_path, 32)
    config = LlamaConfig.from_pretrained(tmp_path)
    assert config.head_dim == 32
    assert config.rope_parameters["partial_rotary_factor"] == 0.75  # the first 24 of 32 are rotated


def test_zeros_follow_each_head():
    """Two heads of 1 row widened to 4: queries are also doubled, since sqrt(4 / 1) = 2."""
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert widen("layers.0.self_attn.k_proj.weight", weight, 1, 2).tolist() == [
        [1, 2],
        [0, 0],
        [3, 4],
        [0, 0],
    ]
    assert widen("layers.0.self_attn.q_proj.weight", weight, 1, 4)[0].tolist() == [2, 4]
    assert widen("layers.0.self_attn.v_proj.bias", weight[0], 1, 2).tolist() == [1, 0, 2, 0]
    assert widen("layers.0.self_attn.o_proj.weight", weight, 1, 2).tolist() == [[1, 0, 2, 0], [3, 0, 4, 0]]
    assert widen("layers.0.mlp.up_proj.weight", weight, 1, 2) is weight


def test_heads_that_are_normalized_cannot_be_padded():
    policy = make("qwen3")
    policy.model.config.head_dim = 24
    with pytest.raises(ValueError, match="attention heads of 24"):
        wider_heads(policy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_arrive_over_the_connection_as_they_were(dtype):
    weights = {k: v.to(dtype) for k, v in export_weights(make_policy()).items()}
    weights["scalar"] = torch.tensor(3.0)
    with WeightSource(weights, "127.0.0.1") as source:
        for _ in range(2):  # every worker fetches its own
            received = dict(fetch_weights(source.host, source.port, source.token))
            assert received.keys() == weights.keys()
            assert all(torch.equal(received[k], weights[k]) for k in weights)
        with pytest.raises(EOFError):
            list(fetch_weights(source.host, source.port, "someone else"))


class FakeServer(BaseHTTPRequestHandler):
    """Answers as vLLM's API does; `log_probs` is what it says of every eight tokens."""

    log_probs: ClassVar = [-3.4, *[0.0] * 7]
    requests: ClassVar[list[dict]] = []

    def do_GET(self):
        self.answer({"data": [{"id": "m", "max_model_len": 50}]})

    def do_POST(self):
        self.requests.append(body := json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        count = min(body["max_tokens"], 8)
        choice = {"token_ids": [7] * count, "logprobs": {"token_logprobs": self.log_probs[:count]}}
        self.answer({"choices": [choice]})

    def answer(self, value):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def fake_server():
    with ThreadingHTTPServer(("127.0.0.1", 0), FakeServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_servers_answers_are_taken_as_they_come(fake_server):
    engine = ServerEngine(f"{fake_server}/v1", 100)
    assert engine.max_length == 50  # the shorter of the run's and the server's
    jobs = list(make_jobs([Request((1, 5), (3, 4))], Sampling(2), frozenset({2}), 50))
    completion = engine.run(jobs)[1]
    assert (completion.ids, completion.log_probs) == ([7, 7], [-3.4, 0.0])
    asked = sorted(FakeServer.requests[-2:], key=lambda body: body["seed"])
    assert [body["seed"] for body in asked] == [3, 4]
    assert asked[0]["prompt"] == [1, 5] and asked[0]["return_token_ids"] and asked[0]["ignore_eos"]


def test_log_probs_before_temperature_are_refused(fake_server, monkeypatch):
    """One candidate a token, and yet -0.2: a raw log-prob."""
    monkeypatch.setattr(FakeServer, "log_probs", [-0.2] * 8)
    with pytest.raises(ValueError, match="--logprobs-mode processed_logprobs"):
        ServerEngine(fake_server, 100)


def test_settings_reach_the_generator():
    with pytest.raises(ValueError, match="vllm_server=http://x does nothing in da3po with generator=hf"):
        resolve("da3po", {"vllm_server": "http://x"})
    with pytest.raises(ValueError, match="does not answer"):
        open_workbench(resolve("da3po", {"generator": "vllm", "vllm_server": "http://127.0.0.1:9"}))
    with pytest.raises(ValueError, match="is not a URL"):
        ServerEngine("localhost:8000", 100)


def test_with_vllm_the_mismatch_correction_is_on_unless_turned_off():
    assert resolve("da3po").mismatch_cap is None
    assert resolve("da3po", {"generator": "vllm"}).mismatch_cap == 2.0
    assert resolve("da3po", {"generator": "vllm", "mismatch_cap": 5.0}).mismatch_cap == 5.0
    assert resolve("da3po", {"generator": "vllm", "mismatch_cap": None}).mismatch_cap is None


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ValueError, match=r"pip install 'hardwon\[vllm\]'"):
        VLLMGenerator(make("llama_tied"))


class FakeLLM:
    """Notes what is asked of it, in order. No GPU was there to test on, so this holds the sequence."""

    def __init__(self, **settings):
        self.settings, self.calls = settings, []

    def generate(self, prompts, params, use_tqdm):
        self.calls.append("generate")
        output = SimpleNamespace(token_ids=[7, 2], logprobs=SimpleNamespace(logprobs=[-1.0, -2.0]))
        return [SimpleNamespace(outputs=[output]) for _ in prompts]

    def sleep(self, level):
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags):
        self.calls.append(f"wake {tags[0]}")

    def apply_model(self, function):
        self.calls.append("weights")

    def reset_prefix_cache(self):
        return self.calls.append("reset") or True


def test_on_a_gpu_the_engine_sleeps_between_calls(monkeypatch):
    """Weights are lost in its sleep, so they are copied at each waking, before there is a cache to fill."""
    policy = make("llama_tied_narrow_heads")
    monkeypatch.setattr(Policy, "device", torch.device("cuda:0"))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=FakeLLM, SamplingParams=dict))
    generator = VLLMGenerator(policy, max_length=100, gpu_memory_utilization=0.4)
    llm = generator.engine.llm
    assert llm.settings["gpu_memory_utilization"] == 0.4 and llm.settings["enable_sleep_mode"]
    assert "enforce_eager" not in llm.settings and llm.settings["max_model_len"] == 100
    for _ in range(2):
        assert generator.generate(REQUESTS[:1], Sampling(5))[0][0].ids.tolist() == [7, 2]
        generator.load_weights(policy)
    awake = ["wake weights", "weights", "reset", "wake kv_cache", "generate", "sleep 2"]
    assert llm.calls == ["sleep 2", *awake, *awake]
    monkeypatch.setattr(Policy, "device", torch.device("cuda:1"))
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES=1"):
        VLLMGenerator(policy)


# With vLLM


@pytest.fixture(scope="module")
def _vllm():
    pytest.importorskip("vllm", reason="vLLM needs an environment of its own: docs/vllm.md")


@pytest.fixture(scope="module", params=list(CONFIGS))
def pair(request, _vllm):
    policy = make(request.param)
    return policy, VLLMGenerator(policy)


@pytest.mark.parametrize("sampling", [Sampling(24), Sampling(24, temperature=0.7, top_p=0.9, top_k=12)])
def test_sampled_log_probs_equal_scored_ones(pair, sampling):
    policy, generator = pair
    results = generator.generate(REQUESTS, sampling)
    assert largest_difference(policy, results, sampling) < TOLERANCE
    assert all(len({tuple(ids) for ids in group}) > 1 for group in ids_of(results))  # distinct seeds
    assert ids_of(generator.generate(REQUESTS, sampling)) == ids_of(results)  # equal seeds
    alone = generator.generate(REQUESTS[2:3], sampling)
    assert ids_of(alone) == ids_of(results)[2:3]


def test_any_eos_ends_a_response_and_stays_in_it(pair):
    policy, generator = pair
    assert policy.eos_ids == {2, 4}
    requests = [Request((1, 6 + i), tuple(range(40))) for i in range(8)]
    samples = [s for group in generator.generate(requests, Sampling(60)) for s in group]
    last = {int(s.ids[-1]) for s in samples if s.finished}
    assert last == {2, 4}
    for sample in samples:
        assert not set(sample.ids[:-1].tolist()) & policy.eos_ids
        assert sample.finished or len(sample.ids) == 60


def test_greedy_is_what_transformers_generates(pair):
    policy, generator = pair
    results = generator.generate(REQUESTS, Sampling(12, temperature=0.0))
    for request, (sample, *_) in zip(REQUESTS, results, strict=True):
        expected = policy.model.generate(
            torch.tensor([request.prefix_ids]), max_new_tokens=12, do_sample=False,
            eos_token_id=sorted(policy.eos_ids), pad_token_id=0,
        )  # fmt: skip
        assert sample.ids.tolist() == expected[0, len(request.prefix_ids) :].tolist()
        assert (sample.log_probs == 0).all()


def test_prefixes_may_hold_response_tokens_and_the_context_ends_a_response(pair):
    """Also beyond the 128 tokens of a cached block: the second call finds the prefix in the cache."""
    policy, generator = pair
    prefix = tuple(np.random.default_rng(0).integers(5, 31, 250).tolist())
    requests = [Request(prefix, tuple(range(6)))]
    for _ in range(2):
        results = generator.generate(requests, Sampling(40))
        assert max(len(s.ids) for s in results[0]) <= 256 - 250
        assert largest_difference(policy, results, Sampling(40), requests) < TOLERANCE


def test_new_weights_are_sampled_from(pair):
    """Long prefixes too, of which the cache holds keys and values of the old weights."""
    policy, generator = pair
    prefix = tuple(np.random.default_rng(0).integers(5, 31, 200).tolist())
    requests = [*REQUESTS, Request(prefix, (1, 2, 3))]
    before = generator.generate(requests, Sampling(24))
    for _ in range(2):
        change(policy)
        generator.load_weights(policy)
        after = generator.generate(requests, Sampling(24))
        assert ids_of(after) != ids_of(before)
        assert largest_difference(policy, after, Sampling(24), requests) < TOLERANCE


def test_the_trainers_threads_are_left_alone(pair):
    torch.set_num_threads(threads := torch.get_num_threads() + 1)
    assert torch.get_num_threads() == threads
    torch.set_num_threads(threads - 1)


@pytest.mark.usefixtures("_vllm")
def test_da3po_trains_end_to_end(tmp_path):
    """One update a batch is on-policy: the ratio to vLLM's own log-probs is 1, corrected or not."""
    from hardwon.algorithms import find
    from hardwon.progress import Display
    from hardwon.records import read_metrics
    from hardwon.run import Run

    settings = {
        "generator": "vllm", "iterations": 3, "prompts_per_iteration": 8, "group_size": 4, "eval_every": 0,
        "warmup_iterations": 0, "eval_problems": 32, "eval_samples": 1, "max_age": 0,
        "task_options": {"train_size": 64},
    }  # fmt: skip
    for cap in (2.0, None):
        config = resolve("da3po", settings, {"mismatch_cap": cap})
        path = tmp_path / f"cap-{cap}"
        with Run.create(path, config.model_dump(mode="json"), keep_last=1) as run:
            find("da3po").train(config, run, Display(config.iterations))
        metrics = read_metrics(path)
        assert metrics[0]["eval/mean@1"] > 0.1  # the embedded model solves a third of the problems
        for m in metrics[1:]:
            assert m["ratio"] == pytest.approx(1, abs=1e-3)
            assert m["grad_norm"] > 0


STOPPED = Sampling(40, stop=("8d", "+4", "e", "<|im_start|>"))


def assert_ends_at_stop_strings(policy, generator):
    """Each sample is the beginning of the one without stop strings, up to the token that completes one."""
    requests = [Request((1, 6 + i), tuple(range(20))) for i in range(8)]
    spanning = [Request((1, 6, 14), tuple(range(100, 180)), 1)]  # 8 is written, and d may follow
    whole = generator.generate(requests + spanning, replace(STOPPED, stop=()))
    results = generator.generate(requests + spanning, STOPPED)
    stops, num_stopped = StopStrings(policy.tokenizer, STOPPED.stop), 0
    for request, full, short in zip(requests + spanning, whole, results, strict=True):
        for a, b in zip(full, short, strict=True):
            end = stops.end(request.written_ids, a.ids.tolist())
            assert b.ids.tolist() == a.ids[:end].tolist()
            np.testing.assert_allclose(b.log_probs, a.log_probs[:end], atol=TOLERANCE)
            assert b.finished == (end is not None or a.finished)
            num_stopped += end is not None and end < len(a.ids)
    assert num_stopped > 20


@pytest.mark.usefixtures("_vllm")
def test_stop_strings_end_a_response():
    policy = make("llama_tied")
    assert_ends_at_stop_strings(policy, VLLMGenerator(policy, reads_text=True))


# A server


@pytest.fixture(scope="module")
def server(_vllm, tmp_path_factory):
    """`(url, policy)`: a server of the tied model on a free port, as docs/vllm.md starts it."""
    folder = tmp_path_factory.mktemp("server")
    policy = make("llama_tied")
    policy.save(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = (
        f"-m vllm.entrypoints.openai.api_server --model {folder / 'model'} --dtype float32 --enforce-eager "
        "--logprobs-mode processed_logprobs --host 127.0.0.1 "
        f"--worker-extension-cls hardwon.models.vllm_worker.WeightReceiver --port {port}"
    )
    settings = {
        "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCH_COMPILE_DISABLE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VLLM")} | settings
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, *command.split()], env=environment, stdout=out, stderr=out
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}", policy
    finally:
        process.terminate()
        process.wait(60)


def wait_for(url: str, process: subprocess.Popen, log) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(240):
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            opener.open(url).close()
            return
        except OSError:
            time.sleep(1)
    raise AssertionError(log.read_text()[-3000:])


def test_a_server_samples_and_takes_new_weights(server):
    url, policy = server
    generator = VLLMGenerator(policy, server=url)
    assert generator.engine.max_length == 256
    before = []
    for sampling in (Sampling(24), Sampling(24, temperature=0.7, top_p=0.9, top_k=12)):
        results = generator.generate(REQUESTS, sampling)
        assert largest_difference(policy, results, sampling) < TOLERANCE
        assert ids_of(generator.generate(REQUESTS, sampling)) == ids_of(results)
        assert {s.ids[-1] in policy.eos_ids for g in results for s in g if s.finished} <= {True}
        before.append(ids_of(results))
    assert_ends_at_stop_strings(policy, generator)
    change(policy)
    generator.load_weights(policy)
    after = generator.generate(REQUESTS, Sampling(24))
    assert ids_of(after) != before[0]
    assert largest_difference(policy, after, Sampling(24)) < TOLERANCE
