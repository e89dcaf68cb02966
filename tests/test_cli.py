"""The command line: what a user's mistake leaves behind, and what it says."""

import json

import pytest

from hardwon.algorithms import resolve
from hardwon.cli import MAY_CHANGE, main
from hardwon.run import Run


def said(capsys, monkeypatch, *words):
    """The message of `hardwon *words`, which ends with exit code 2."""
    monkeypatch.setattr("sys.argv", ["hardwon", *map(str, words)])
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def test_a_setting_found_wrong_late_leaves_no_run_directory(tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    message = said(capsys, monkeypatch, "train", "da3po", "task=maths", f"run={run}")
    assert "task='maths' is unknown; did you mean 'math'?" in message
    assert not run.exists()


def test_a_run_that_is_there_is_refused_and_kept(tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    Run.create(run, {"algorithm": "da3po"}).close()
    before = sorted(p.name for p in run.iterdir())
    message = said(capsys, monkeypatch, "train", "da3po", f"run={run}")
    assert "already holds a run" in message
    assert sorted(p.name for p in run.iterdir()) == before


def test_a_prompt_over_its_limit_is_named(tmp_path, capsys, monkeypatch):
    data, run = tmp_path / "d.jsonl", tmp_path / "run"
    rows = [{"prompt": f"{i}+" * 40, "answer": "1"} for i in range(30)]
    data.write_text("".join(json.dumps(r) + "\n" for r in rows))
    message = said(capsys, monkeypatch, "train", "da3po", "task=math", f"data={data}", f"run={run}")
    assert "max_prompt_tokens=64; raise it to at least" in message
    assert not run.exists()


def test_a_run_may_be_resumed_on_other_hardware(tmp_path):
    """A vLLM server that moved, or a GPU with less room, changes nothing of what is trained."""
    place = {"device": "cuda:1", "vllm_server": "http://b:8000", "vllm_gpu_memory": 0.3}
    before = resolve("da3po", {"generator": "vllm", "vllm_server": "http://a:8000"}).model_dump(mode="json")
    Run.create(tmp_path, before).close()
    Run.resume(tmp_path, {**before, **place}, may_change=MAY_CHANGE).close()
    with pytest.raises(ValueError, match="generator was 'vllm' and is now 'hf'"):
        Run.resume(tmp_path, {**before, "generator": "hf"}, may_change=MAY_CHANGE)


def test_show_of_no_run_says_so(tmp_path, capsys, monkeypatch):
    assert "is not a run directory" in said(capsys, monkeypatch, "show", tmp_path / "nope")
