"""Whole runs on a pretended GPU: nothing mixes devices, and what is learned is what the CPU learns."""

from __future__ import annotations

import io

import pytest
import torch
from pretend_gpu import OnGpu, pretend_gpu
from rich.console import Console
from safetensors.torch import load_file
from test_generator_hf import as_lists, make_requests
from tiny_models import make_policy

from hardwon.algorithms import find, resolve
from hardwon.data import Sampling
from hardwon.models.generator_hf import HFGenerator, default_cache_gib
from hardwon.models.policy import Policy
from hardwon.optimization import Optimizer, cpu_workers
from hardwon.progress import Display
from hardwon.run import Run

COMMON = {
    "checkpoint_every": 1, "eval_problems": 2, "eval_samples": 1,
    "dtype": "float32", "max_new_tokens": 16, "task_options": {"train_size": 16},
}  # fmt: skip
ONLINE = {"prompts_per_iteration": 3, "group_size": 4, "eval_every": 0}
OFFLINE = {
    "num_problems": 6, "solutions_per_problem": 6, "max_new_tokens": 40, "task_options": {"train_size": 64},
}  # fmt: skip
STEPS = {
    **OFFLINE, "completions": 2, "critic_batch_size": 6, "batch_size": 8, "require_critic": False,
    "validations_per_epoch": 1, "critic_epochs": 1, "fresh_states": 4, "min_gap": 0.0, "epochs": 1,
}  # fmt: skip
slow = pytest.mark.slow
RUNS = [
    pytest.param("da3po", ONLINE, id="da3po"),
    pytest.param("da3po", {**ONLINE, "mismatch_cap": 2.0}, id="generator mismatch"),
    pytest.param("grpo", {**ONLINE, "kl_coef": 0.1}, id="kl in the loss"),
    pytest.param("reinforce_pp", {**ONLINE, "kl_coef": 0.1}, id="kl in the reward", marks=slow),
    pytest.param("da3po", {**ONLINE, "lora_rank": 2}, id="lora", marks=slow),
    pytest.param("ppo", {"prompts_per_iteration": 8, "eval_every": 0}, id="ppo"),
    pytest.param("direct_advantage", STEPS, id="direct_advantage", marks=slow),
    pytest.param("dpo", OFFLINE, id="dpo"),
    pytest.param("sft", OFFLINE, id="sft"),
]


def train(path, algorithm, settings, device):
    """A run of one iteration that is resumed: to two where it has any number, else to its end."""
    values = {**COMMON, **settings, "run": str(path), "device": device}
    online = "prompts_per_iteration" in settings
    for number in (1, 2):
        config = resolve(algorithm, values, {"iterations": number} if online else {})
        settled = config.model_dump(mode="json")
        run = (
            Run.create(path, settled) if number == 1 else Run.resume(path, settled, may_change=["iterations"])
        )
        with run:
            model = find(algorithm).train(config, run, Display(1, console=Console(file=io.StringIO())))
    return load_file(model / "model.safetensors")


@pytest.mark.parametrize(("algorithm", "settings"), RUNS)
def test_a_run_on_a_gpu_learns_what_one_on_the_cpu_does(algorithm, settings, tmp_path):
    expected = train(tmp_path / "cpu", algorithm, settings, "cpu")
    with pretend_gpu():
        actual = train(tmp_path / "gpu", algorithm, settings, "auto")
    assert expected.keys() == actual.keys()
    for key, weights in expected.items():  # attention rounds otherwise, which Adam's first steps carry on
        torch.testing.assert_close(actual[key], weights, atol=5e-4, rtol=0)


def test_rows_that_begin_anywhere_are_decoded_on_a_gpu():
    """24 + 2 * 48 = 120 columns, a multiple of 8, so masks are taken as they are, and rows begin anywhere."""
    sampling, prefixes = Sampling(48), [(1, *range(6, 6 + n)) for n in (23, 22, 20, 17, 13, 9, 6, 3)]
    expected = HFGenerator(make_policy()).generate(make_requests(3, prefixes), sampling)
    with pretend_gpu():
        policy = make_policy()
        policy.model.to("cuda")
        generator = HFGenerator(policy, max_batch_rows=7)
        assert as_lists(generator.generate(make_requests(3, prefixes), sampling)) == as_lists(expected)
        assert isinstance(next(policy.model.parameters()), OnGpu)


def test_on_a_gpu_the_step_is_fused_in_one_thread_with_a_share_of_the_memory():
    with pretend_gpu(gib=8):
        policy = Policy.load("embedded")
        assert policy.device.type == "cuda"
        assert cpu_workers(policy.device) == HFGenerator(policy).workers == 1
        assert Optimizer(policy.model, resolve("da3po")).adamw.defaults["fused"]
        # 8 GiB, of which the weights (here 1 GiB) are taken: 0.4 * 7.
        assert default_cache_gib(policy.device) == pytest.approx(2.8)


@pytest.mark.parametrize(
    "mistake", [lambda a, b: a + b, lambda a, b: a @ b, lambda a, b: b.masked_fill(a > 0, 0)]
)
def test_the_pretended_gpu_refuses_what_a_real_one_does(mistake):
    with pretend_gpu():
        here, there = torch.ones(3), torch.ones(3, device="cuda")
        with pytest.raises(RuntimeError, match="same device"):
            mistake(there, here)
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert torch.equal(there[torch.tensor([0, 2])].cpu(), torch.ones(2))  # as an index the CPU's will do
