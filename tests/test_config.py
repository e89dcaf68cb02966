"""Words and files into settings; every mistake names the setting, its value and the nearest choice."""

import re

import pytest

from hardwon.algorithms import ALGORITHMS, find, resolve
from hardwon.config import parse_words, read_yaml


def test_words_are_yaml_values():
    words = ["a=1", "b=1e-6", "c=[x, y]", "d.e=true", "f=", "g=Qwen/Qwen3-4B-Base"]
    assert parse_words(words) == {
        "a": 1,
        "b": 1e-6,  # YAML itself would read the text "1e-6"
        "c": ["x", "y"],
        "d": {"e": True},
        "f": None,
        "g": "Qwen/Qwen3-4B-Base",
    }


def test_text_stays_text():
    """Quoted numbers, names that Python would read as floats, patterns of files, and Jinja text."""
    texts = {"c": "nan", "d": "infinity", "e": "*.csv", "f": r"{{ prompt }} in \boxed{}", "g": "{% if x %}"}
    assert parse_words([f"{key}={text}" for key, text in texts.items()]) == texts
    assert parse_words(['a="5"', "b='1e5'"]) == {"a": "5", "b": "1e5"}
    assert parse_words(["a=-1E+2", "b=.5e-3"]) == {"a": -100.0, "b": 0.0005}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["learning_rate"], "expected key=value, got 'learning_rate'"),
        (["=3"], "expected key=value"),
        (["a=1", "a=2"], "'a' is given twice"),
        (["a=1", "a.b=2"], "'a.b' is given twice"),
        (["a=[1"], "not a YAML value"),
    ],
)
def test_words_that_are_no_settings(words, message):
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        parse_words(words)


@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        ({"learning_rat": 1e-6}, ["unknown setting 'learning_rat'", "'learning_rate'"]),
        ({"group_size": 1}, ["group_size=1", "nearest valid choice is 2"]),
        (
            {"prompts_per_iteration": 64, "updates_per_iteration": 7},
            ["updates_per_iteration=7", "64", "is 8"],
        ),
        ({"amplification": "symetric"}, ["amplification='symetric'", "did you mean 'symmetric'"]),
        ({"temperature": 0}, ["temperature=0", "greater than 0"]),
        ({"clip_low": "much"}, ["clip_low='much'", "number"]),
        ({"overlong_buffer": 99, "max_new_tokens": 40}, ["overlong_buffer=99", "max_new_tokens=40"]),
        ({"learning_rate": float("nan")}, ["learning_rate=nan"]),
    ],
)
def test_a_bad_setting_is_named_with_the_nearest_choice(settings, messages):
    with pytest.raises(ValueError, match=re.escape(messages[0])) as error:
        resolve("da3po", settings)
    for message in messages[1:]:
        assert message in str(error.value)


def test_an_unknown_algorithm_names_the_nearest():
    with pytest.raises(ValueError, match=r"'da3p'.*did you mean 'da3po'"):
        find("da3p")


def test_dual_clip_needs_a_clipped_loss():
    with pytest.raises(ValueError, match=r"dual_clip=10.0: gspo has no clipped loss"):
        resolve("gspo", {"dual_clip": 10.0})


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("da3po", {"clip_low": 1.5}, r"clip_low=1.5: .* nearest valid choice is 1.0"),
        ("cispo", {"clip_low": 2.0}, r"clip_low=2.0: .* nearest valid choice is 1.0"),
        ("ppo", {"clip": 1.5}, r"clip=1.5: .* less than or equal to 1"),
        ("grpo", {"clip_high": None}, r"clip_high=null: grpo has this bound; its paper's is 0.2"),
        ("sapo", {"clip_high": 0.3}, r"clip_high=0.3: the loss of sapo has no bounds; leave clip_high out"),
        ("gpg", {"clip_low": 0.1}, r"clip_low=0.1: the loss of gpg has no bounds"),
    ],
)
def test_clip_bounds_are_checked_before_anything_runs(algorithm, settings, message):
    with pytest.raises(ValueError, match=message):
        resolve(algorithm, settings)


def test_a_bound_of_the_log_ratio_may_be_wide():
    assert resolve("gmpo", {"clip_low": 1.5}).clip_low == 1.5  # ratios above e^-1.5


def test_a_run_without_bounds_resumes_with_what_it_stored():
    stored = resolve("sapo").model_dump()
    assert stored["clip_low"] is None
    assert resolve("sapo", stored).model_dump() == stored


def test_later_layers_win_and_embedded_settings_apply_to_the_embedded_model_alone():
    paper = resolve("da3po", {"model": "org/some-model", "task": "math"})
    assert (paper.clip_low, paper.clip_high, paper.group_size, paper.learning_rate) == (0.2, 0.28, 16, 1e-6)
    assert (paper.max_new_tokens, paper.overlong_buffer, paper.max_rounds) == (20480, 4096, 10)
    assert paper.amplification == "daa"
    embedded = resolve("da3po", {"group_size": 8}, {"group_size": 4})
    assert embedded.group_size == 4
    assert embedded.max_new_tokens < 100


def test_recipes_differ_as_their_papers_do():
    """dapo is grpo with clip-higher, token mean, no KL, dynamic sampling; da3po is dapo with DAA."""
    model = {"model": "org/some-model"}
    grpo, dapo, da3po = (resolve(name, model).model_dump() for name in ("grpo", "dapo", "da3po"))
    assert {k for k in dapo if dapo[k] != da3po[k]} == {"algorithm", "amplification"}
    changed = {k for k in grpo if grpo[k] != dapo[k]}
    assert changed == {"algorithm", "clip_high", "kl_coef", "dynamic_sampling", "overlong"}


@pytest.mark.parametrize(
    ("text", "message"),
    [("- a\n- b", "not a list"), ("a: [1", "is not YAML"), ("a: !!python/object:os.system x", "is not YAML")],
)
def test_a_config_file_that_is_none(tmp_path, text, message):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_yaml(path)


def test_a_config_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"none\.yaml.*No such file"):
        read_yaml(tmp_path / "none.yaml")


def test_scientific_numbers_in_a_file_are_numbers(tmp_path):
    (tmp_path / "c.yaml").write_text("learning_rate: 1e-6\n")
    assert resolve("da3po", read_yaml(tmp_path / "c.yaml")).learning_rate == 1e-6


def test_text_in_a_file_stays_text(tmp_path):
    (tmp_path / "c.yaml").write_text('system_prompt: "Answer: step by step"\nrun: "123"\n')
    assert read_yaml(tmp_path / "c.yaml") == {"system_prompt": "Answer: step by step", "run": "123"}


def test_amplification_needs_one_advantage_a_response():
    with pytest.raises(ValueError, match=r"amplification=daa: reinforce_pp has its KL in the reward"):
        resolve("reinforce_pp", {"amplification": "daa"})


def test_every_algorithm_resolves():
    for name in ALGORITHMS:
        assert resolve(name).algorithm == name
