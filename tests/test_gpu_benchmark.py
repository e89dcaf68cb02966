"""benchmarks/gpu.py on the CPU: what it finds that does not depend on the device, and that it goes on."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu") / "gpu.json"
    words = [sys.executable, SCRIPT, "--device", "cpu", "--small", "--out", out]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cpu, torch" in done.stdout  # the table's title names the card
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("gpu_benchmark", SCRIPT)
    module = sys.modules["gpu_benchmark"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("part", ["agreement", "fsdp"])
def test_float32_agrees_exactly_and_bfloat16_within_its_rounding(report, part):
    found = report["parts"][part]["differences"]
    assert all(value < 1e-6 for value in found["float32"].values())
    # bfloat16 has 8 bits: errors of a few 2^-8 in the gradients, and never none.
    assert 1e-4 < found["bfloat16"]["gradients"] < 0.05
    assert 1e-4 < found["bfloat16"]["log_probs"] < 0.1


def test_chunks_take_a_fraction_of_the_memory_of_full_logits(report):
    """512 x 1000 float32 logits are 1.95 MiB, and several such tensors live at once; a chunk is 1/8 of it."""
    found = report["parts"]["logits"]
    assert found["full"]["peak_mib"] > 3 * 1.95
    assert found["chunked"]["peak_mib"] < found["full"]["peak_mib"] / 3
    assert found["relative_difference"] < 1e-6


def test_the_real_loop_trained(report):
    found = report["parts"]["training"]
    assert found["iterations"] == 2  # of 3, the first warms up
    assert found["rollout_tokens_per_second"] > 0 and found["update_tokens_per_second"] > 0
    assert found["update_mfu"] is None  # a CPU has no peak to hold it against
    # Embedding 1000 x 56; a layer: q and o 56 x 56, k and v 56 x 8, biases 56 + 8 + 8, an MLP 3 x 56 x 112,
    # two norms; and the last norm.
    layer = 2 * 56 * 56 + 2 * 56 * 8 + 72 + 3 * 56 * 112 + 2 * 56
    assert found["parameters"] == 1000 * 56 + 2 * layer + 56


def test_a_resumed_run_ends_with_the_same_bits(report):
    found = report["parts"]["resume"]["as shipped"]
    assert found["bit_equal"] and found["largest_difference"] == 0
    assert found["largest_change_by_training"] > 1e-6


def test_a_part_that_breaks_is_reported_and_the_others_go_on(script, monkeypatch):
    def breaks(bench):
        raise ValueError("out of luck")

    monkeypatch.setattr(
        script,
        "PARTS",
        {
            "breaks": breaks,
            "over": lambda b: {"over_tolerance": ["x"]},
            "fine": lambda b: {"over_tolerance": []},
        },
    )
    console = Console(file=io.StringIO())
    found = script.run_parts(script.Bench(script.SMALL, "cpu", Path()), ["breaks", "over", "fine"], console)
    assert [part["ok"] for part in found.values()] == [False, False, True]
    assert found["breaks"]["error"] == "ValueError: out of luck"


def test_live_bytes_counts_what_lives_at_one_time(script):
    with script.LiveBytes() as live:
        a = torch.zeros(256)
        b = a + 1
        del a
        c = b + 1
    # 256 float32 are 1024 bytes: a and b, then b and c.
    assert live.peak == 2048 and live.now == 2048
    assert len(c) == 256


def test_a_difference_over_its_tolerance_is_named(script):
    found = {"float32": {"log_probs": 0.0, "loss": float("nan"), "gradients": 0.5}}
    assert script.check(found)["over_tolerance"] == [
        "float32 loss: nan > 0.0001",
        "float32 gradients: 0.5 > 0.001",
    ]
