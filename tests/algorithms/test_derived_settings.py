"""A default that depends on another setting follows it; what is given stays, or is refused."""

import json

import pytest

from hardwon.algorithms import ALGORITHMS, resolve
from hardwon.algorithms.group_recipes import RECIPES
from hardwon.cli import print_settings
from hardwon.config import non_default

HUB = {"model": "org/some-model", "task": "math"}
MODELS = [{}, {"model": "embedded_code"}, HUB]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_any_one_number_alone_is_enough(name, model):
    """The first thing that a newcomer changes: one size, smaller or larger, even or not."""
    fields = ALGORITHMS[name].config.model_fields
    sizes = {key: value for key, value in resolve(name, model).model_dump().items() if type(value) is int}
    sizes = {key: value for key, value in sizes.items() if key in fields and value > 0}
    assert {"max_new_tokens", "eval_problems"} < set(sizes)
    for key in set(sizes) - {"max_rounds", "overlong_buffer", "updates_per_iteration", "max_age"}:
        for number in (1, 3, 4, 7, 200, 1000):
            if key != "group_size" or number >= RECIPES[name].min_group_size:
                if key in ("kept_solutions", "num_problems") and number == 1:
                    continue  # a pair needs two, and a validation problem another one to train on
                assert getattr(resolve(name, model, {key: number}), key) == number


@pytest.mark.parametrize(
    ("given", "buffer"), [({}, 4096), ({"max_new_tokens": 200}, 40), ({"max_new_tokens": 3}, 1)]
)
def test_the_overlong_buffer_is_a_fifth_of_a_response(given, buffer):
    """4096 of 20480, as published."""
    for name in RECIPES:
        assert resolve(name, HUB, given).overlong_buffer == buffer


def test_a_buffer_that_is_given_stays():
    assert resolve("dapo", HUB, {"max_new_tokens": 200, "overlong_buffer": 2}).overlong_buffer == 2


def test_packaged_models_have_the_same_proportion():
    assert resolve("dapo").overlong_buffer == 40 // 5
    assert resolve("dapo", {"model": "embedded_code"}).overlong_buffer == 96 // 5
    assert resolve("dapo", {"max_new_tokens": 20}).overlong_buffer == 4


@pytest.mark.parametrize(
    ("prompts", "updates"), [(512, 16), (4, 4), (1, 1), (24, 12), (100, 20), (7, 7), (17, 17)]
)
def test_updates_are_the_nearest_number_that_divides(prompts, updates):
    """To the published 16. Of 24, 12 is as near as 24 is far; of 100, 20 is nearer than 10."""
    assert resolve("dapo", HUB, {"prompts_per_iteration": prompts}).updates_per_iteration == updates


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": 200, "overlong_buffer": 300}, "overlong_buffer=300 .* proportion would be 40"),
        ({"overlong_buffer": 30_000}, "overlong_buffer=30000 is longer than max_new_tokens=20480"),
        ({"prompts_per_iteration": 4, "updates_per_iteration": 3}, "updates_per_iteration=3 .* choice is 2"),
        ({"updates_per_iteration": 15}, "updates_per_iteration=15 does not divide .*=512; .* choice is 16"),
    ],
)
def test_what_is_given_and_impossible_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        resolve("da3po", HUB, settings)


@pytest.mark.parametrize("value", ["many", -4, 0, 2.5, None, True, [1]])
def test_a_value_that_is_no_size_is_the_only_one_complained_about(value):
    for key in ("max_new_tokens", "prompts_per_iteration"):
        if value is True:
            continue  # YAML's true is the number 1 to pydantic
        with pytest.raises(ValueError, match=f"^{key}=") as error:
            resolve("da3po", HUB, {key: value})
        assert "\n" not in str(error.value)


def test_a_size_in_scientific_notation_is_one_too():
    """`max_new_tokens=2e2` arrives as 200.0."""
    assert resolve("da3po", HUB, {"max_new_tokens": 200.0}).overlong_buffer == 40


def test_derived_values_are_shown_and_stored(capsys, tmp_path):
    config = resolve("da3po", HUB, {"max_new_tokens": 200, "prompts_per_iteration": 4})
    assert non_default(config).items() >= {"overlong_buffer": 40, "updates_per_iteration": 4}.items()
    print_settings(config, tmp_path)
    assert "overlong_buffer=40" in capsys.readouterr().out
    stored = json.loads(json.dumps(config.model_dump(mode="json")))
    assert resolve("da3po", stored) == config
