"""NaN and infinity put into logits, rewards and gradients: no weight ever sees one, and the run says so."""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch
from fault_runner import error_of, patch, train_in_child
from safetensors.torch import load_file
from test_kills import ONLINE

from hardwon.records import read_metrics, read_rollouts

pytestmark = pytest.mark.faults
SHORT = {**ONLINE, "iterations": 2, "eval_every": 0}


def spoil(place, spoilt, numbers):
    """At the calls of these numbers, the result of `place` is `spoilt(result)`."""
    calls = itertools.count(1)

    def wrap(original):
        def call(*args, **kwargs):
            result = original(*args, **kwargs)
            return spoilt(result) if next(calls) in numbers else result

        return call

    patch(place, wrap)


def instead(value, result):
    return value


def with_value(value, result):
    log_probs_BT, entropy_BT = result
    return log_probs_BT * value, entropy_BT


def one_gradient(value, norm):
    """Put into a gradient before its norm is taken, as a kernel that overflows does."""

    def wrap(original):
        calls = itertools.count(1)

        def total_norm(gradients, *args, **kwargs):
            if next(calls) in norm:
                gradients[0].view(-1)[0] = value
            return original(gradients, *args, **kwargs)

        return total_norm

    patch("hardwon.optimization:nn.utils.get_total_norm", wrap)


def finite_weights(path):
    return all(bool(x.isfinite().all()) for x in load_file(path / "model/model.safetensors").values())


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
def test_in_the_logits_of_an_update(tmp_path, value):
    """Two calls of 1,000 are few enough to go on without: those steps are skipped and counted."""
    path = tmp_path / "run"
    setup = partial(spoil, "hardwon.models.policy:Policy.log_probs", partial(with_value, value), {2, 5})
    assert train_in_child("da3po", path, SHORT, setup) == 0
    assert finite_weights(path)
    assert read_metrics(path)[-1]["skipped_steps"] >= 1


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
def test_in_a_gradient(tmp_path, value):
    path = tmp_path / "run"
    assert train_in_child("da3po", path, SHORT, partial(one_gradient, value, {2, 5})) == 0
    assert finite_weights(path)
    assert read_metrics(path)[-1]["skipped_steps"] == 2


def test_in_every_gradient_the_run_stops_and_can_go_on(tmp_path):
    """Iteration 1 has four good steps, 2 has four bad ones, and the fifth in a row stops iteration 3."""
    path = tmp_path / "run"
    setup = partial(one_gradient, math.nan, range(5, 100))
    message = error_of("da3po", path, {**SHORT, "iterations": 3}, setup)
    assert message.startswith("FloatingPointError: 5 steps in a row had a gradient that is not finite")
    models = [path / f"checkpoints/iteration-00000{n}/model/model.safetensors" for n in (1, 2)]
    first, second = map(load_file, models)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert train_in_child("da3po", path, {**SHORT, "iterations": 3}) == 0
    assert finite_weights(path)
    assert read_metrics(path)[-1]["skipped_steps"] == 4


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_in_the_logits_of_the_generator(tmp_path, value):
    """Nothing can be sampled from them: an error that says so, not a random token."""

    def message():
        setup = partial(
            spoil, "hardwon.models.decoding:linear", partial(torch.full_like, fill_value=value), {9}
        )
        return error_of("da3po", tmp_path / "run", SHORT, setup)

    assert message().startswith("FloatingPointError: the model's logits are not finite")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_in_rewards(tmp_path, value):
    """A reward that is no number is left out of its group; the rest of the group is trained on."""
    path = tmp_path / "run"
    setup = partial(spoil, "hardwon.workbench:outcome_reward", partial(instead, value), range(1, 2000, 9))
    assert train_in_child("da3po", path, SHORT, setup) == 0
    assert finite_weights(path)
    assert read_metrics(path)[-1]["skipped_steps"] == 0
    rollouts = read_rollouts(path).to_pandas()
    spoilt = rollouts[rollouts["outcome"] == "error"]
    assert len(spoilt) and spoilt["reward"].isna().all() and not spoilt["trained"].any()
    groups = ["iteration", "problem_id"]
    mates = rollouts.merge(spoilt[groups].drop_duplicates(), on=groups)
    assert mates["trained"].any()
