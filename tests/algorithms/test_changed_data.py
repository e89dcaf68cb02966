"""A run goes on with the problems that it began with, or not at all; in every method."""

import io
import json

import pytest
from rich.console import Console

from hardwon.algorithms import group_policy, ppo, resolve
from hardwon.offline.setup import open_offline
from hardwon.progress import Display
from hardwon.run import Run

SETTINGS = {
    "task": "math", "max_new_tokens": 4, "eval_problems": 2, "eval_samples": 1, "max_prompt_tokens": 40,
    "task_options": {"held_out_fraction": 0.2},
}  # fmt: skip
ONLINE = {"prompts_per_iteration": 4}
METHODS = {
    "da3po": ONLINE | {"group_size": 4}, "ppo": ONLINE, "sft": {"num_problems": 8},
    "dpo": {"num_problems": 8}, "direct_advantage": {"num_problems": 8},
}  # fmt: skip


def begin(name, config, run):
    """What `train` does first; in an online method also the checkpoint of an iteration, none sampled."""
    if name in ("da3po", "ppo"):
        module = {"da3po": group_policy, "ppo": ppo}[name]
        trainer, start = module.prepare(config, run)
        more = (None,) if name == "da3po" else ()
        module.checkpoint(trainer, run, start, *more)
    else:
        open_offline(config, run, Display(1, console=Console(file=io.StringIO())))


def write(path, problems):
    path.write_text("".join(json.dumps(p) + "\n" for p in problems))


def changed(problems):
    return {
        "another answer": [*problems[:-1], {**problems[-1], "answer": "77"}],
        "another prompt": [{**problems[0], "prompt": "1+1+1"}, *problems[1:]],
        "one less": problems[:-1],
        "another order": problems[::-1],
    }


@pytest.mark.parametrize("name", METHODS)
def test_a_run_resumes_on_the_same_problems_alone(name, tmp_path):
    data = tmp_path / "problems.jsonl"
    problems = [{"prompt": f"{i}+1", "answer": str(i + 1)} for i in range(40)]
    write(data, problems)
    config = resolve(name, SETTINGS, METHODS[name], {"data": str(data), "run": str(tmp_path / "run")})
    values = config.model_dump(mode="json")
    with Run.create(tmp_path / "run", values) as run:
        begin(name, config, run)
    for other in changed(problems).values():
        write(data, other)
        with (
            Run.resume(tmp_path / "run", values) as run,
            pytest.raises(ValueError, match=r"data='.*problems.jsonl' has changed since this run began"),
        ):
            begin(name, config, run)
    write(data, problems)
    with Run.resume(tmp_path / "run", values) as run:
        begin(name, config, run)
