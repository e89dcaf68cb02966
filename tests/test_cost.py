"""The cost model: arithmetic by hand, and what must hold whatever is assumed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hardwon import memory
from hardwon.algorithms import resolve
from hardwon.cost import (
    Assumptions,
    Workload,
    amount,
    decode_seconds,
    decode_step_seconds,
    draw_lengths,
    forward_flops,
    stages,
    update_factor,
)
from hardwon.hardware import Hardware, parse_hardware

MODELS = Path(__file__).parents[1] / "recipes" / "models"

# 1,000 parameters, all computed with; 2 layers of attention width 10; 40 elements of keys and values a token.
SHAPE = memory.Shape(
    parameters=1000, computed=1000, outside_layers=100, layers=2, hidden=10, intermediate=20, attention=10,
    head_norms=False, vocabulary=50, lora_per_rank=60, kv_per_token=40, context=4096,
)  # fmt: skip
# A toy device: 1e6 FLOP/s, 1e4 bytes/s.
TOY = Hardware("toy", 1.0, 1e6, 1e6, 1e4, 1e4)
EXACT = Assumptions(decode_mfu=1.0, decode_bandwidth=1.0)


def step(rows, cached, assumed=EXACT):
    return decode_step_seconds(
        rows, cached, shape=SHAPE, weight_bytes=2000, kv_bytes=80, hardware=TOY, dtype="bfloat16",
        layer_seconds=0.01, assumed=assumed,
    )  # fmt: skip


def test_flops_of_a_token_and_of_an_update():
    """2 x 1,000, and 4 x 2 layers x width 10 x half of 100 tokens."""
    assert forward_flops(SHAPE, 100) == 2000 + 4000
    assert update_factor(lora=False, checkpointing=False) == 3  # 6 FLOPs a parameter and token
    assert update_factor(lora=False, checkpointing=True) == 4  # 8, since a layer is computed twice
    assert update_factor(lora=True, checkpointing=False) == 2


def test_few_rows_wait_for_memory_and_many_for_products():
    """Launches 2 x 0.01. One row: 2,000 bytes / 1e4 = 0.2 s, over 2,000 FLOPs / 1e6 = 0.002 s.

    1,000 rows: 2e6 FLOPs / 1e6 = 2 s, over the same 0.2 s.
    """
    assert step(1, 0) == pytest.approx(0.02 + 0.2)
    assert step(1000, 0) == pytest.approx(0.02 + 2.0)
    assert step(1, 10) == pytest.approx(0.02 + (2000 + 10 * 80) / 1e4)  # ten cached tokens are read too


def test_measured_rates_take_the_place_of_all_that_is_assumed():
    """100 tokens/s with 10 rows: 0.1 s a step, also with fewer; 20 rows take twice as long."""
    measured = Assumptions(decode_tokens_per_s={10: 100.0})
    assert [step(rows, 10**6, measured) for rows in (1, 10, 20)] == pytest.approx([0.1, 0.1, 0.2])


def test_a_row_that_ends_makes_room_for_the_next():
    """Lengths 2, 2 and 4 on two rows, a second a step: the third begins at 2 and ends at 6."""
    assert decode_seconds([2, 2, 4], 2, lambda rows, cached: 1.0) == 6.0
    assert decode_seconds([2, 2, 4], 3, lambda rows, cached: 1.0) == 4.0  # the longest bounds it
    assert decode_seconds([2, 2, 4], 1, lambda rows, cached: 1.0) == 8.0


def test_the_tokens_in_the_cache_are_followed():
    """One row of 4 tokens behind a prompt of 10: on average 12 cached, so 4 steps of 12."""
    assert decode_seconds([4], 1, lambda rows, cached: cached, prompt=10.0) == pytest.approx(48)


def test_drawn_lengths_have_the_mean_and_the_bound():
    lengths = draw_lengths(np.random.default_rng(0), 100_000, 400, 0.8, 100_000)
    assert lengths.mean() == pytest.approx(400, rel=0.02)
    assert draw_lengths(np.random.default_rng(0), 1000, 400, 0.8, 500).max() == 500


def work(algorithm, hardware, assumed=None, **settings):
    config = resolve(algorithm, {"model": "some/model", "task": "math", "max_new_tokens": 2048}, settings)
    shape = memory.load_shape(str(MODELS / "Qwen2.5-1.5B-Instruct"))
    return Workload(shape, config, parse_hardware(hardware), "bfloat16", assumed or Assumptions())


ONLINE = {"overlong": "none"}


def seconds(workload):
    return {stage.name: stage.seconds for stage in stages(workload)}


def test_the_stages_of_both_methods():
    online = seconds(work("da3po", "2xH100-80GB", **ONLINE))
    assert list(online) == ["rollout", "verify", "gather", "update", "refresh", "evaluate"]
    offline = seconds(work("direct_advantage", "2xH100-80GB"))
    names = ["collect", "label", "critic", "select", "policy", "validate", "evaluate"]
    assert list(offline) == names
    assert max(offline, key=offline.get) == "label"


@pytest.mark.parametrize("algorithm", ["da3po", "direct_advantage"])
def test_more_devices_take_less_time_but_not_less_work(algorithm):
    settings = ONLINE if algorithm == "da3po" else {}
    totals = [sum(seconds(work(algorithm, f"{n}xH100-80GB", **settings)).values()) for n in (1, 2, 4, 8)]
    for i in range(3):
        assert 0.4 * totals[i] < totals[i + 1] < totals[i]


def test_products_of_an_update_by_hand():
    """Tokens x 3 x forward FLOPs / (peak x MFU), on one device, which moves no weights."""
    w = work("da3po", "H100-80GB", Assumptions(update_mfu=0.5), **ONLINE)
    by_hand = 1e6 * 3 * forward_flops(w.shape, 1000) / (989e12 * 0.5)
    assert w.update_seconds(1e6, 1000, 1) == pytest.approx(by_hand)
    measured = work("da3po", "H100-80GB", Assumptions(update_tokens_per_s=1e4), **ONLINE)
    assert measured.update_seconds(1e6, 1000, 1) == pytest.approx(100)


def test_fewer_accepted_groups_cost_more_rollouts():
    def rollout(rate):
        return seconds(work("da3po", "H100-80GB", Assumptions(accept_rate=rate), **ONLINE))["rollout"]

    assert rollout(0.3) > 1.5 * rollout(0.9)


def test_hardware_without_rates_and_methods_without_an_estimate_say_so():
    with pytest.raises(ValueError, match="not sft"):
        stages(work("sft", "H100-80GB"))
    unknown = work("da3po", "H100-80GB", **ONLINE)
    with pytest.raises(ValueError, match="no rates are known of X1"):
        stages(replace(unknown, hardware=Hardware("X1", 80.0, 0.0, 0.0, 0.0, 0.0)))


def test_amounts():
    assert [amount(n) for n in (7, 13_800, 2.22e7, 7.62e9)] == ["7", "13.8 k", "22.2 M", "7.62 G"]
