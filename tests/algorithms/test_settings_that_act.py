"""Every setting that a user gives acts, or is an error that names where it would."""

import re

import pytest

from hardwon.algorithms import ALGORITHMS, resolve
from hardwon.commands import evaluate_command
from hardwon.config import OnlyWith, idle

# Setting, a value for it, words with which it acts, words with which it does not.
CONDITIONS = [
    ("vllm_server", "http://a:1", {"generator": "vllm"}, {}),
    ("vllm_gpu_memory", 0.4, {"generator": "vllm"}, {}),
    ("vllm_gpu_memory", 0.4, {"generator": "vllm"}, {"generator": "vllm", "vllm_server": "http://a:1"}),
    ("system_prompt", "Think.", {}, {"chat_template": False}),
    ("reward_from", "verdict", {}, {"reward": "a:b"}),
    ("overlong_buffer", 5, {"overlong": "punish"}, {"overlong": "none"}),
    ("overlong_buffer", 5, {"overlong": "punish"}, {"overlong": "filter"}),
    ("max_rounds", 3, {"dynamic_sampling": True}, {"dynamic_sampling": False}),
    ("max_age", 2, {"dynamic_sampling": True}, {"dynamic_sampling": False}),
    ("max_age", 2, {"dynamic_sampling": False, "on_shortfall": "skip"}, {"dynamic_sampling": False}),
    ("amplification_factor", 3.0, {"amplification": "ungated"}, {"amplification": "none"}),
    ("amplification_factor", 3.0, {"amplification": "daa"}, {"amplification": "exact"}),
    ("amplification_threshold", 0.4, {"amplification": "mirrored"}, {"amplification": "none"}),
    ("amplification_threshold", 0.4, {"amplification": "daa"}, {"amplification": "ungated"}),
    ("amplify_by", "reward", {"amplification": "exact"}, {"amplification": "none"}),
    ("amplify_by", "reward", {"amplification": "daa"}, {"amplification": "symmetric"}),
]
NAMES = sorted(ALGORITHMS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("key", "value", "on", "off"), CONDITIONS)
def test_a_setting_acts_under_its_condition_alone(name, key, value, on, off):
    """In every method: it is taken, refused with what it needs, or refused with the methods that have it."""
    config = ALGORITHMS[name].config
    if key not in config.model_fields:
        with pytest.raises(ValueError, match=f"{key}=.*{name} has no such setting; these have: ") as error:
            resolve(name, {key: value})
        having = str(error.value).partition("these have: ")[2].split(", ")
        assert having == [n for n, a in ALGORITHMS.items() if key in a.config.model_fields]
        return
    refused = {"reinforce_pp": {"amplification"}, "maxrl": {"overlong"}, "passk": {"overlong"}}
    if not on.keys() & refused.get(name, set()):  # those for a reason of their own
        assert getattr(resolve(name, {**on, key: value}), key) == value
    with pytest.raises(ValueError, match=f"{key}={re.escape(str(value))} does nothing in {name} with .*: it"):
        resolve(name, {**off, key: value})


def test_every_condition_is_tried_here():
    marked = {
        key
        for a in ALGORITHMS.values()
        for key, field in a.config.model_fields.items()
        if any(isinstance(mark, OnlyWith) for mark in field.metadata)
    }
    assert marked == {key for key, *_ in CONDITIONS}


@pytest.mark.parametrize("name", NAMES)
def test_defaults_and_what_a_run_stored_are_no_wishes(name):
    """A stored run has every setting, those that do nothing among them."""
    stored = resolve(name).model_dump(mode="json")
    assert idle(ALGORITHMS[name].config, {}, stored)  # vllm_gpu_memory at least
    assert resolve(name, stored).model_dump(mode="json") == stored
    with pytest.raises(ValueError, match="vllm_server=x does nothing"):
        resolve(name, stored, {"vllm_server": "x"})


def test_the_command_line_may_turn_off_what_a_file_sets_up():
    file = {"overlong": "punish", "overlong_buffer": 8}
    assert resolve("dapo", file, {"overlong": "none"}).overlong == "none"
    with pytest.raises(ValueError, match="overlong_buffer=8 does nothing"):
        resolve("dapo", {**file, "overlong": "none"})
    with pytest.raises(ValueError, match="overlong_buffer=8 does nothing"):
        resolve("dapo", {"overlong": "none"}, {"overlong_buffer": 8})


def test_nothing_asked_for_does_no_harm():
    assert resolve("grpo", {"vllm_server": None}).vllm_server is None


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("grpo", {"overlong_buffer": 8}, "with overlong=none: .* overlong=punish. These .* da3po, dapo$"),
        ("dapo", {"amplification_factor": 3}, "amplification=none: .* amplification=daa or .*: da3po$"),
        ("dapo", {"vllm_server": "x"}, "with generator=hf: it acts with generator=vllm$"),
        ("sft", {"eval_every": 5}, "eval_every=5: sft has no such setting; these have: da3po, .*, ppo$"),
        ("direct_advantage", {"eval_every": 5}, "eval_every=5: direct_advantage has no such setting"),
        ("dpo", {"reward_from": "score"}, "reward_from=score: dpo has no such setting"),
        ("dpo", {"iterations": 3}, "iterations=3: dpo has no such setting; .* direct_advantage, ppo$"),
        ("ppo", {"group_size": 4}, "group_size=4: ppo has no such setting; these have: da3po, "),
        ("da3po", {"epochs": 4}, "epochs=4: da3po has no such setting; .*: direct_advantage, dpo, sft$"),
        ("gspo", {"dual_clip": 10.0}, "These have: da3po, dapo, grpo, "),
        ("sapo", {"clip_high": 0.3}, "These have them: da3po, dapo, grpo, "),
        ("maxrl", {"reward_from": "score"}, "reward_from=score: .*maxrl.* verdict"),
        ("passk", {"overlong": "punish"}, "overlong=punish: .*passk.* verdict"),
        ("grpo", {"algorithm": "da3po"}, "algorithm=da3po: these are settings of another one than grpo"),
    ],
)  # fmt: skip
def test_messages_name_the_methods_that_have_it(name, settings, message):
    with pytest.raises(ValueError, match=message):
        resolve(name, settings)


@pytest.mark.parametrize("key", ["lora_rank", "checkpoint_every", "log_to", "run"])
def test_evaluation_takes_no_settings_of_training(key):
    with pytest.raises(ValueError, match=f"{key}=1: this is a setting of training"):
        evaluate_command("embedded", {key: 1}, None, None)


def test_evaluation_refuses_what_does_nothing():
    with pytest.raises(ValueError, match="vllm_server=x does nothing with generator=hf"):
        evaluate_command("embedded", {"vllm_server": "x"}, None, None)
