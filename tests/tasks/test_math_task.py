"""The math task proves itself: gold answers of every accepted form earn full reward."""

import json

import pytest

from hardwon.tasks import load_task

ANSWERS = [
    "7",
    "-3.5",
    "\\frac{1}{2}",
    "2\\sqrt{3}",
    "(1,2)",
    "x=5",
    "\\text{Monday}",
    "1,000",
    "[0, 1)",
    "50\\%",
]
ANSWERS += ["steps... \\boxed{\\pi}", "6*7=42\n#### 42"]


def write(path, answers):
    path.write_text(
        "".join(json.dumps({"prompt": f"q{i}", "answer": a}) + "\n" for i, a in enumerate(answers))
    )
    return str(path)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    task = load_task(
        "math", data=write(tmp_path_factory.mktemp("math") / "m.jsonl", ANSWERS), verifier_workers=1
    )
    yield task
    task.close()


def test_gold_answers_earn_full_reward(task):
    problems = task.problems("train") + task.problems("test")
    assert len(problems) == len(ANSWERS)
    verdicts = task.verify([(problem, task.gold(problem)) for problem in problems])
    assert [v.outcome for v in verdicts] == ["correct"] * len(ANSWERS)


def test_other_responses_do_not(task):
    problem = next(p for p in task.problems("train") + task.problems("test") if p.answer == "7")
    texts = [
        "\\boxed{8}",
        "",
        "7",
        "\\boxed{7} wait \\boxed{8}",
        "\\boxed{6 or 7}",
        "{" * 10_000,
        "\\boxed{" * 500,
    ]
    assert [v.outcome for v in task.verify([(problem, text) for text in texts])] == ["wrong"] * len(texts)


def test_unparsable_gold_is_refused_by_row(tmp_path):
    path = write(tmp_path / "bad.jsonl", ["7", "\\frac{", "8"])
    with pytest.raises(
        ValueError, match=r"bad.jsonl: 1 bad row\n  row 2, the gold answer .* can't be parsed"
    ):
        load_task("math", data=path)


def test_load_task_names_what_is_wrong():
    with pytest.raises(ValueError, match="did you mean 'math'"):
        load_task("maths")
    with pytest.raises(ValueError, match="task='math' needs data=<file or data set>"):
        load_task("math")
    with pytest.raises(ValueError, match="takes no 'verifier_second'; did you mean 'verifier_seconds'"):
        load_task("math", data="x.jsonl", verifier_second=3)
