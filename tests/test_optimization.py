"""Packing by tokens, a schedule that ends with the run, and steps that NaN cannot touch."""

import math

import pytest
import torch
from torch import nn

from hardwon.config import OptimizerSettings
from hardwon.optimization import MAX_BAD_STEPS, Optimizer, learning_rate_at, pack


def settings(**changes):
    return OptimizerSettings(**{"learning_rate": 1.0, "warmup_iterations": 0, "weight_decay": 0.0, **changes})


def test_pack_keeps_the_padded_size_within_the_budget():
    """Sorted lengths 2 3 5 8 8: 2 and 3 padded take 6, with 5 it would be 15 > 12; 5 alone; 8; 8."""
    lengths = [8, 2, 5, 3, 8]
    assert pack(lengths, 12) == [[1, 3], [2], [0], [4]]


def test_pack_loses_nothing_and_a_long_one_stands_alone():
    lengths = [100, 1, 1, 1]
    batches = pack(lengths, 3)
    assert sorted(i for batch in batches for i in batch) == [0, 1, 2, 3]
    assert batches[-1] == [0]


def test_warmup_is_linear_and_starts_above_zero():
    """Warm-up of 3: 1/4, 2/4, 3/4, then the full rate."""
    rates = [learning_rate_at(settings(warmup_iterations=3), i, 10) for i in range(5)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


@pytest.mark.parametrize(("schedule", "middle"), [("constant", 1.0), ("linear", 0.5), ("cosine", 0.5)])
def test_the_schedule_ends_with_the_run(schedule, middle):
    s = settings(learning_rate_schedule=schedule)
    assert learning_rate_at(s, 0, 100) == pytest.approx(1.0)
    assert learning_rate_at(s, 50, 100) == pytest.approx(middle)
    if schedule != "constant":
        assert learning_rate_at(s, 100, 100) == pytest.approx(0.0)


def test_weight_decay_spares_vectors():
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(1.0)
    optimizer = Optimizer(model, settings(weight_decay=0.5, learning_rate=0.1))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step(0.1)
    # AdamW decays by lr * weight_decay = 0.05; a zero gradient moves nothing else.
    assert torch.allclose(model.weight, torch.full((2, 2), 0.95))
    assert torch.equal(model.bias, torch.ones(2))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_gradient_is_skipped_and_counted(bad):
    model = nn.Linear(2, 1)
    optimizer = Optimizer(model, settings())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.weight.grad = torch.tensor([[bad, 1.0]])
    optimizer.step(0.1)
    assert optimizer.bad_steps == 1
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.weight.grad is None
    assert not optimizer.adamw.state  # the moments never saw it either


def test_several_in_a_row_stop_the_run_and_a_good_one_resets():
    model = nn.Linear(2, 1)
    optimizer = Optimizer(model, settings())

    def step(value):
        model.weight.grad = torch.full((1, 2), value)
        optimizer.step(0.1)

    for _ in range(MAX_BAD_STEPS - 1):
        step(math.nan)
    step(1.0)
    for _ in range(MAX_BAD_STEPS - 1):
        step(math.nan)
    with pytest.raises(FloatingPointError, match=r"5 steps in a row.*Lower learning_rate \(now 0\.1\)"):
        step(math.nan)
    assert torch.isfinite(model.weight).all()
