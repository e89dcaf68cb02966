"""A user's slip is one message that names it and exit code 2: no traceback, and no run directory."""

import os
import re

import pytest

from hardwon.cli import main

SLIPS = [
    (["da3p"], "unknown algorithm 'da3p'; did you mean 'da3po'?"),
    ([], "name an algorithm"),
    (["da3po", "learning_rate"], "expected key=value, got 'learning_rate'"),
    (["da3po", "learning_rat=1"], "unknown setting 'learning_rat'; did you mean 'learning_rate'?"),
    (["da3po", "model=embeded"], "there is no such directory here.*did you mean 'embedded'?"),
    (["da3po", "model=./nowhere"], "model=./nowhere does not exist"),
    (["da3po", "model={here}"], "holds no model: no config.json"),
    (["da3po", "model={file}"], "is a file; give the directory that holds config.json"),
    (["da3po", "model.size=3"], "model={'size': 3}: Input should be a valid string"),
    (["da3po", "model=5"], "model=5: Input should be a valid string"),
    (["da3po", "task.name=math"], "task={'name': 'math'}"),
    (["da3po", "run=[1]"], "run=[1]: Input should be a valid string"),
    (["da3po", "log_to=tensorbord"], "log_to='tensorbord': Input should be a valid list"),
    (["da3po", "log_to=[tensorbord]"], "log_to.0='tensorbord': Input should be 'tensorboard' or 'wandb'"),
    (["da3po", "task_options=3"], "task_options=3: Input should be a valid dictionary"),
    (["da3po", "group_size={}"], "group_size={}: Input should be a valid integer"),
    (["da3po", "max_new_tokens=many"], "max_new_tokens='many': Input should be a valid integer"),
    (["da3po", "algorithm=grpo"], "algorithm=grpo: these are settings of another one than da3po"),
    (["sft", "eval_every=5"], "eval_every=5: sft has no such setting; these have: da3po"),
    (["grpo", "max_rounds=5"], "max_rounds=5 does nothing in grpo with dynamic_sampling=false"),
    (["da3po", "data=x.jsonl"], "takes no 'data'"),
    (["da3po", "task=math", "data=x.jsonl"], "x.jsonl"),
    (["da3po", "reward=nowhere:f"], "nowhere"),
    (["da3po", "device=cuda:99"], "cuda:99"),
    (["da3po", "run={file}/run"], "cannot save the run directory at .*: Not a directory"),
    (["da3po", "--config", "{here}/none.yaml"], "none.yaml' cannot be read: No such file"),
    (["da3po", "--config", "{here}"], "cannot be read: Is a directory"),
    (["--resume", "{here}"], "is not a run directory: it has no config.yaml"),
    (["--resume", "{here}", "--config", "{file}"], "a run is resumed with its own settings"),
]


def words_of(template):
    """A pattern of a message in which `.*` stands for anything, and every other character for itself."""
    return ".*".join(re.escape(part) for part in template.split(".*"))


@pytest.mark.parametrize(("words", "message"), SLIPS, ids=lambda value: " ".join(value)[:40])
def test_a_slip_is_one_message(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here, file = tmp_path / "here", tmp_path / "file"
    here.mkdir()
    file.write_text("")
    filled = [w.replace("{here}", str(here)).replace("{file}", str(file)) for w in words]
    monkeypatch.setattr("sys.argv", ["hardwon", "train", *filled])
    with pytest.raises(SystemExit) as exit_info:
        main()
    said = " ".join(capsys.readouterr().err.split())
    assert exit_info.value.code == 2, said
    assert said.count("error: ") == 1 and "Traceback" not in said
    assert re.search(words_of(message), said), said
    runs = tmp_path / "runs"
    assert not runs.exists() or os.listdir(runs) == []
