"""Several sources in one run: each has its share, its verifier and its metrics (known fault 53)."""

import json

import jinja2
import pytest

from hardwon.dynamic_sampling import ProblemStream
from hardwon.models.prompts import PromptForm, encode_prompt
from hardwon.models.tokens import load_tokenizer
from hardwon.tasks import load_task
from hardwon.tasks.mixture import joined_template, load_mixture
from hardwon.tasks.task import Task

CHAIN = {"task": "chain_arithmetic", "name": "chain", "task_options": {"train_size": 50}}


def shorter(completions, **columns):
    """A reward of the user: how short the response is, with a score that is neither 1 nor -1."""
    return [1 / (1 + len(text)) for text in completions]


@pytest.fixture
def files(tmp_path):
    """file(name, number): a file of sums whose answers are whole numbers."""

    def write(name, number, first=0):
        path = tmp_path / f"{name}.jsonl"
        rows = [{"prompt": f"{name} {i}?", "answer": i} for i in range(first, first + number)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


@pytest.fixture
def load():
    """load_task whose tasks are closed at the end of the test."""
    opened = []

    def load_it(*words, **named):
        opened.append(load_task(*words, **named))
        return opened[-1]

    yield load_it
    for task in opened:
        task.close()


def test_each_problem_is_judged_by_the_task_of_its_source(files, load):
    """A boxed answer is right in the file and wrong in the embedded task, whose last line is the answer."""
    task = load("math", data=[{"data": files("sums", 40), "weight": 3}, CHAIN])
    assert task.name == "mixture of sums, chain"
    problems = {p.source: p for p in task.problems("train")}
    assert set(problems) == {"sums", "chain"} and problems["sums"].id.startswith("sums/")
    pairs = [(p, text) for p in problems.values() for text in (f"\\boxed{{{p.answer}}}", f"={p.answer}.")]
    boxed_sum, line_sum, boxed_chain, line_chain = task.verify(pairs)
    assert boxed_sum.correct and line_chain.correct and not boxed_chain.correct
    assert task.verify(pairs[::-1])[::-1] == [boxed_sum, line_sum, boxed_chain, line_chain]
    assert all(v.correct for v in task.verify([(p, task.gold(p)) for p in task.problems("test")]))


def test_weights_are_shares_whatever_the_sizes(files, load):
    """3 to 1, though the second has more problems: of every eight in a row, six and two, within one."""
    task = load("math", data=[{"data": files("sums", 40), "weight": 3}, CHAIN])
    stream = ProblemStream(task.problems("train"), seed=0)
    order = [stream.take(1)[0].source for _ in range(200)]
    for start in range(192):
        assert abs(order[start : start + 8].count("sums") - 6) <= 1


def test_the_weight_of_rows_holds_within_a_source(tmp_path, load):
    rows = [{"prompt": f"q{i}", "answer": i} for i in (0, 0, 0, 1)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"row_weights": "rows", "held_out_fraction": 0}
    source = {"data": str(tmp_path / "rows.jsonl"), "task_options": options, "weight": 4}
    with pytest.warns(UserWarning, match="4 rows are 2 distinct problems"):
        task = load("math", data=[source, CHAIN])
    assert [p.weight for p in task.problems("train")[:2]] == [3, 1]
    assert sum(p.weight for p in task.problems("train")) == pytest.approx(5)
    assert any(n.startswith("rows: ") and "4 rows are 2 distinct problems" in n for n in task.notes)
    assert "rows: 80.0% of what is asked, 2 problems" in task.notes


def test_the_first_held_out_problems_are_of_all_sources(files, load):
    """A run evaluates the first `eval_problems`: three sources take turns until the small ones end."""
    sources = [files("a", 40), {"data": files("b", 80)}, CHAIN]  # 5 % are 2 and 4; the chain has 512
    test = load("math", data=sources).problems("test")
    assert [p.source for p in test[:8]] == ["a", "b", "chain", "a", "b", "chain", "b", "chain"]


def test_eval_data_is_sources_too(files, load):
    """`sums` has its own evaluation, `other` is for evaluation only, and `plain` trains on all it has."""
    task = load(
        "math",
        data=[{"data": files("sums", 20)}, {"data": files("plain", 20)}],
        eval_data=[
            {"data": files("sums_test", 3), "name": "sums"},
            {"data": files("other", 4, first=7)},
        ],
    )
    train, test = task.problems("train"), task.problems("test")
    assert [sum(p.source == name for p in train) for name in ("sums", "plain")] == [20, 20]
    assert sorted(p.source for p in test) == ["other"] * 4 + ["sums"] * 3
    assert len({p.id for p in train + test}) == 47
    verdicts = task.verify([(p, task.gold(p)) for p in test])
    assert all(v.correct for v in verdicts)


def test_no_prompt_of_one_source_is_held_out_in_another(files, load):
    with pytest.warns(UserWarning, match="sums: 5 problems left out"):
        task = load(
            "math",
            data=[{"data": files("sums", 20)}, CHAIN],
            eval_data=[{"data": files("sums", 20) + "[:5]", "name": "test"}],
        )
    train, test = ({p.prompt for p in task.problems(split)} for split in ("train", "test"))
    assert not train & test and len(test) == 5
    with pytest.raises(ValueError, match="source 'sums': all its prompts are held out"):
        load(
            "math",
            data=[{"data": files("sums", 20)}, CHAIN],
            eval_data=[{"data": files("sums", 20), "name": "test"}],
        )


def test_a_reward_is_of_its_source_alone(files, load):
    """Training reads scores where functions judge; the other sources keep their +1 and -1."""
    sources = [{"data": files("a", 20), "reward": f"{__name__}:shorter"}, {"data": files("b", 20)}]
    gym = {"task": "reasoning_gym:chain_sum", "task_options": {"train_size": 3, "test_size": 2}}
    gym["task_options"]["verifier_workers"] = 1
    for reward_from, scores in (("verdict", {"a": 1 / 3, "b": None}), ("score", {"a": 1 / 3})):
        task = load("math", data=[*sources, gym], reward_from=reward_from)
        one = {p.source: p for p in task.problems("train")}
        verdicts = dict(zip(one, task.verify([(p, "ab") for p in one.values()]), strict=True))
        assert verdicts["a"].score == pytest.approx(scores["a"])
        assert verdicts["b"].score is None
        assert (verdicts["reasoning_gym:chain_sum"].score is None) == (reward_from == "verdict")


def test_a_prompt_is_worded_as_its_source_says():
    own = {"a": "{{ prompt }} In a box.", "b": None, 'c "d"': "Q: {{ prompt }}"}
    template = jinja2.Template(joined_template(own))
    worded = {name: template.render(prompt="1+1?", source_name=name) for name in own}
    assert worded == {"a": "1+1? In a box.", "b": "1+1?", 'c "d"': "Q: 1+1?"}
    assert joined_template({"a": "x", "b": "x"}) == "x"
    assert joined_template({"a": None, "b": None}) is None


def test_a_model_is_asked_in_the_words_of_the_source(files, load):
    """Mathematics asks for a box; the chain is asked as it is."""
    task = load("math", data=[files("sums", 40), CHAIN])
    tokenizer = load_tokenizer("embedded")
    form = PromptForm(template=task.prompt_template, chat=False)
    one = {problem.source: problem for problem in task.problems("train")}
    asked = {name: tokenizer.decode(encode_prompt(tokenizer, p, form)) for name, p in one.items()}
    assert "final answer within" in asked["sums"] and "final answer within" not in asked["chain"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"data": "A", "wieght": 2}], "data, source 1: unknown setting 'wieght'; did you mean 'weight'"),
        ([{"data": "A"}, {"data": "A", "weight": 0}], "data, source 2: weight=0"),
        ([{"data": "A"}, "A"], "data, source 2: another source is also named 'a'; give one of them a `name`"),
        ([{"data": "A"}, 3], "data, source 2: a name or a mapping with `data` is wanted, found 3"),
        ([{"data": "A"}, {"data": "nowhere.jsonl"}], "source 'nowhere': data='nowhere.jsonl': no such file"),
        ([{"data": "A"}, {"data": "A", "name": "x", "task": "maths"}], "source 'x': task='maths' is unknown"),
        ([{"data": "A", "task_options": {"seconds": 1}}], "source 'a': task='math' takes no 'seconds'"),
    ],
)
def test_faults_name_the_source(files, data, message):
    path = files("a", 20)
    data = [
        path if one == "A" else {**one, "data": path} if isinstance(one, dict) and one["data"] == "A" else one
        for one in data
    ]
    with pytest.raises(ValueError, match=message):
        load_task("math", data=data)


def test_what_a_paired_evaluation_has_no_place_for_is_refused(files):
    evaluated = {"data": files("a", 2), "task": "math"}
    with pytest.raises(ValueError, match=r"eval_data, source 'a': it is judged as .* so `task` has no place"):
        load_task("math", data=[{"data": files("a", 20)}], eval_data=[evaluated])


def test_a_source_that_fails_closes_the_others(files, monkeypatch):
    """No worker process of the first stays behind when the second can't be loaded."""
    closed = []

    def load_one(spec, **options):
        if spec == "bad":
            raise ValueError("no")
        return Task(spec, lambda _: [], lambda _: [], str, close=lambda: closed.append(spec))

    with pytest.raises(ValueError, match="source 'bad': no"):
        load_mixture(load_one, "good", data=[{"name": "good"}, {"name": "bad", "task": "bad"}])
    assert closed == ["good"]
