"""`check` says what was loaded, and proves that gold answers and tests work before a run begins."""

import contextlib
import json

from hardwon.algorithms import resolve
from hardwon.check import check, check_gold
from hardwon.cli import main
from hardwon.data import Problem, Verdict
from hardwon.tasks import Task


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_layout_and_the_columns_settings_are_shown(tmp_path):
    rows = [{"question": f"{n}+1?", "answer": f"<<>>\n#### {n + 1}", "other": 5} for n in range(4)]
    data = write(tmp_path / "g.jsonl", *rows)
    config = resolve("da3po", {"task": "math", "data": data})
    texts = [finding.text for finding in check(config)]
    assert "4 rows read as layout gsm8k" in texts and "4 of 4 earn full reward" in texts
    config = resolve(
        "da3po", {"task": "math", "data": data, "columns": {"prompt": "question", "answer": "other"}}
    )
    assert "4 rows read as layout prompt + answer" in [finding.text for finding in check(config)]


def test_data_for_evaluation_only_is_checked(tmp_path):
    """All problems are held out, so the first prompt is one of them."""
    data = write(tmp_path / "g.jsonl", *({"question": f"{n}+1?", "answer": n + 1} for n in range(4)))
    options = {"held_out_fraction": 1}
    found = list(check(resolve("da3po", {"task": "math", "data": data, "task_options": options})))
    assert "0 problems and 4 held out" in [finding.text for finding in found]
    assert [f.status for f in found if f.subject == "first prompt"] == ["ok"]
    assert not [f for f in found if f.status == "error"]


def made(golds, verdicts):
    """A task of problems "0", "1", ... with these gold answers (None: it has none) and these verdicts."""
    problems = [Problem(str(index), "p", gold) for index, gold in enumerate(golds)]

    def gold(problem):
        if problem.answer is None:
            raise ValueError(f"problem {problem.id} has no solution")
        return problem.answer

    def verify(pairs):
        assert [text for _, text in pairs] == [gold or "" for gold in golds]
        return [Verdict(outcome) for outcome in verdicts]

    task = Task("made", lambda split: problems, verify, gold)
    return [(finding.status, finding.text) for finding in check_gold(task, problems)]


def test_problems_without_a_gold_answer_do_not_hide_those_with_one():
    assert made(["a", None], ["correct", "wrong"]) == [
        ("ok", "1 of 1 earn full reward"),
        ("warning", "1 of 2 can't be tried: problem 1 has no solution"),
    ]
    ((status, text), _) = made(["a", None], ["wrong", "wrong"])
    assert status == "error" and text.startswith("1 of 2 do not pass") and "is 0: wrong" in text


def test_tests_that_cannot_run_are_found_without_any_solution():
    """Known fault 43: the check passed, and then every verdict was `error`."""
    ((status, text), (second, _)) = made([None, None], ["wrong", "error"])
    assert status == "error" and "the first is 1: error" in text and second == "warning"
    assert made([None], ["wrong"]) == [("warning", "1 of 1 can't be tried: problem 0 has no solution")]


def test_data_can_be_checked_before_an_algorithm_is_chosen(tmp_path, capsys, monkeypatch):
    data = write(
        tmp_path / "g.jsonl", *({"question": f"{n}+1?", "answer": f"#### {n + 1}"} for n in range(4))
    )
    monkeypatch.setattr("sys.argv", ["hardwon", "check", "task=math", f"data={data}"])
    with contextlib.suppress(SystemExit):
        main()
    assert "4 rows read as layout gsm8k" in capsys.readouterr().out
