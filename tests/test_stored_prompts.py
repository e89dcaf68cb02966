"""A run asks what it asked on its first day, whatever the chat template would write today."""

from __future__ import annotations

import datetime
import importlib
import io
import shutil

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from transformers.utils import chat_template_utils

from hardwon import commands
from hardwon.algorithms import find, resolve
from hardwon.config import TaskSettings
from hardwon.data import Problem
from hardwon.models.paths import packaged_path
from hardwon.progress import Display
from hardwon.records import read_rollouts
from hardwon.run import Run
from hardwon.stored_prompts import PROMPTS, StoredPrompts
from hardwon.workbench import open_workbench

PROBLEMS = [Problem("a", "1+1", "2"), Problem("b", "2+2", "4"), Problem("a", "3+3", "6")]


def lengths(problem: Problem) -> tuple[int, ...]:
    return tuple(range(len(problem.id + str(problem.prompt))))


def refuse(problem: Problem) -> tuple[int, ...]:
    raise AssertionError(f"{problem.id} is rendered a second time")


# ------------------------------------------------------------------------------------------- the file


def test_what_is_kept_is_never_rendered_again(tmp_path):
    StoredPrompts(lengths).keep(tmp_path / PROMPTS, PROBLEMS)
    again = StoredPrompts(refuse)
    again.keep(tmp_path / PROMPTS, PROBLEMS)
    assert [again(problem) for problem in PROBLEMS] == [lengths(problem) for problem in PROBLEMS]
    assert [path.name for path in tmp_path.iterdir()] == [PROMPTS]


def test_new_problems_are_added_and_the_old_ones_stay(tmp_path):
    StoredPrompts(lengths).keep(tmp_path / PROMPTS, PROBLEMS[:1])
    other = StoredPrompts(lambda problem: (7,))
    other.keep(tmp_path / PROMPTS, PROBLEMS)
    assert other(PROBLEMS[0]) == (0, 1, 2, 3) and other(PROBLEMS[1]) == (7,)
    assert pq.read_table(tmp_path / PROMPTS)["problem_id"].to_pylist() == ["a", "b", "a"]


def test_a_prompt_that_fails_leaves_no_file(tmp_path):
    def fails(problem):
        raise ValueError(f"problem {problem.id}: too long")

    with pytest.raises(ValueError, match="problem a: too long"):
        StoredPrompts(fails).keep(tmp_path / PROMPTS, PROBLEMS)
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_named(tmp_path):
    StoredPrompts(lengths).keep(tmp_path / PROMPTS, PROBLEMS)
    whole = (tmp_path / PROMPTS).read_bytes()
    (tmp_path / PROMPTS).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=f"{PROMPTS} can't be read .* take it away"):
        StoredPrompts(lengths).keep(tmp_path / PROMPTS, PROBLEMS)


def test_without_a_file_prompts_are_rendered_when_asked_for(tmp_path):
    prompts = StoredPrompts(lengths)
    prompts.load(tmp_path / PROMPTS)
    assert prompts(PROBLEMS[0]) == (0, 1, 2, 3)


# --------------------------------------------------------------------------- a template with today's date

DATED = "{{ bos_token }}{{ strftime_now('%d') }}.{% for m in messages %}{{ m.content }}\n{% endfor %}"
SETTINGS = {
    "task": "chain_arithmetic", "task_options": {"train_size": 32}, "max_prompt_tokens": 64,
    "max_new_tokens": 8, "prompts_per_iteration": 8, "iterations": 2, "updates_per_iteration": 1,
    "warmup_iterations": 0, "checkpoint_every": 1, "eval_every": 0, "eval_problems": 4, "eval_samples": 1,
}  # fmt: skip
METHODS = {
    "grpo": {"group_size": 2},
    "ppo": {"updates_per_iteration": 2},
    "sft": {"solutions_per_problem": 8},
}


@pytest.fixture
def today(monkeypatch):
    """`today(17)` makes it the 17th for chat templates."""

    def set_day(day):
        class Day(datetime.datetime):
            @classmethod
            def now(cls, tz=None):
                return cls(2026, 5, day)

        monkeypatch.setattr(chat_template_utils, "datetime", Day)

    return set_day


@pytest.fixture
def dated_model(tmp_path):
    path = tmp_path / "model"
    shutil.copytree(packaged_path("embedded"), path)
    (path / "chat_template.jinja").write_text(DATED)
    return path


def settings_of(method, model, path, **changes):
    own = {k: v for k, v in SETTINGS.items() if k in find(method).config.model_fields}
    return resolve(method, own, METHODS[method], {"model": str(model), "run": str(path)}, changes)


def train(config, run):
    with run:
        find(config.algorithm).train(
            config, run, Display(config.iterations, console=Console(file=io.StringIO()))
        )


def stored_ids(path):
    return pq.read_table(path / PROMPTS).to_pydict()


def test_a_run_resumed_on_another_day_is_the_undisturbed_run(dated_model, today, tmp_path):
    whole, broken, without = (tmp_path / name for name in ("whole", "broken", "without"))
    today(1)
    for path, iterations in ((whole, 2), (broken, 1), (without, 1)):
        config = settings_of("grpo", dated_model, path, iterations=iterations)
        train(config, Run.create(path, config.model_dump(mode="json")))
    (without / PROMPTS).unlink()
    today(2)
    for path in (broken, without):
        config = settings_of("grpo", dated_model, path)
        train(config, Run.resume(path, config.model_dump(mode="json"), may_change={"run", "iterations"}))
    assert stored_ids(whole) == stored_ids(broken) != stored_ids(without)
    rollouts = {path.name: read_rollouts(path).to_pandas() for path in (whole, broken, without)}
    assert rollouts["whole"].equals(rollouts["broken"])
    assert not rollouts["whole"].equals(rollouts["without"]), "the date is meant to change what is sampled"


def prompts_of(config, run):
    """The prompts of a method's problems, as it opens them; how many it keeps."""
    module = importlib.import_module(find(config.algorithm).train.__module__)
    with run:
        if hasattr(module, "prepare"):
            bench = module.prepare(config, run)[0].bench
        else:
            bench = module.open_offline(config, run, Display(1, console=Console(file=io.StringIO()))).bench
        bench.task.close()
    return [bench.prompts(problem) for problem in bench.train[:3] + bench.held_out]


@pytest.mark.parametrize(("method", "kept"), [("grpo", 32 + 4), ("ppo", 32 + 4), ("sft", 32 + 4)])
def test_every_method_opens_the_prompts_of_its_first_day(method, kept, dated_model, today, tmp_path):
    config = settings_of(method, dated_model, tmp_path / "run")
    values = config.model_dump(mode="json")
    today(1)
    first = prompts_of(config, Run.create(tmp_path / "run", values))
    today(2)
    assert prompts_of(config, Run.resume(tmp_path / "run", values)) == first
    assert len(stored_ids(tmp_path / "run")["ids"]) == kept


def test_evaluating_a_run_asks_what_the_run_asked(dated_model, today, tmp_path, monkeypatch):
    path, asked = tmp_path / "run", []
    today(1)
    config = settings_of("grpo", dated_model, path, iterations=1)
    train(config, Run.create(path, config.model_dump(mode="json")))

    def look(bench, config):
        asked.append([bench.prompts(problem) for problem in bench.held_out])
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "evaluate_both", look)
    today(2)
    for given in ({}, {"prompt_template": "{{ prompt }}"}):
        with pytest.raises(KeyboardInterrupt):
            commands.evaluate_command(str(path), given, None, Console(file=io.StringIO()))
    with pytest.raises(ValueError, match="model=embedded: the model to evaluate is the first word, here "):
        commands.evaluate_command(str(path), {"model": "embedded"}, None, Console(file=io.StringIO()))
    stored = {tuple(ids) for ids in stored_ids(path)["ids"]}
    assert set(asked[0]) <= stored
    assert not set(asked[1]) & stored, "another template is given, so the prompts are made anew, today"


def test_every_setting_that_says_how_rows_are_read_makes_prompts_anew():
    """Problems keep their ids where another column is their prompt, so a stored one would be a wrong one."""
    reading = set(TaskSettings.model_fields) - {"reward"}
    assert reading <= commands.PROMPT_SHAPING


# ------------------------------------------------------------------------------ two kinds of problems


def test_held_out_problems_may_have_a_template_of_their_own(tmp_path):
    config = settings_of(
        "grpo", "embedded", tmp_path, prompt_template="{{ prompt }}", eval_prompt_template="now {{ prompt }}"
    )
    bench = open_workbench(config)
    bench.task.close()
    train, held_out = (
        bench.policy.tokenizer.decode(bench.prompts(p[0])) for p in (bench.train, bench.held_out)
    )
    assert train == f"<bos>{bench.train[0].prompt}\n"
    assert held_out == f"<bos>now {bench.held_out[0].prompt}\n"
