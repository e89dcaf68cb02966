"""Settings, data, model text and files of a run, drawn at random: a clear ValueError or a result."""

from __future__ import annotations

import contextlib
import json
import time
import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hardwon.algorithms import resolve
from hardwon.algorithms.group_policy import Config
from hardwon.checkpoints import latest_checkpoint, load_state, save_state, write_checkpoint
from hardwon.config import parse_words, read_yaml
from hardwon.data import Problem, Sample
from hardwon.evaluate import load_evaluation
from hardwon.json_lines import read_json_lines
from hardwon.models.paths import packaged_path
from hardwon.models.policy import Policy
from hardwon.records import read_config, read_metrics, read_rollouts, visible
from hardwon.run import Run
from hardwon.tasks import load_task
from hardwon.tasks.layouts.code import CODE
from hardwon.tasks.layouts.layout import BadRowError
from hardwon.tasks.layouts.math import MATH
from hardwon.tasks.layouts.reader import Reader, code_problem, math_problem, reward_problem
from hardwon.tasks.splits import load_problems
from hardwon.tasks.task import split_lines
from hardwon.verifiers.answers import final_answer, gold_answer, last_answer_line, last_tagged
from hardwon.verifiers.programs import extract_code

pytestmark = pytest.mark.faults
many = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
few = settings(many, max_examples=60)


@contextlib.contextmanager
def clear_error(*words: str):
    """No error, or a ValueError that says something, and one of `words`; any other gets through."""
    message = None
    try:
        yield
    except ValueError as error:
        message = str(error)
    assert message is None or (message and any(word in message for word in words or ("",)))


# --------------------------------------------------------------------------------------------- settings

KEYS = st.sampled_from(
    [*Config.model_fields, "task_options.train_size", "task_options", "lerning_rate", "a.b"]
)
VALUES = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.text(max_size=20),
    st.sampled_from(
        [
            "",
            "null",
            "[1, 2]",
            "{a: 1}",
            "{",
            "[[",
            "!!python/object/apply:os.system [id]",
            "*a",
            "&a [*a]",
            "|",
            *[
                "2001-99-99",
                "1:99",
                "0x",
                "1e999",
                "'",
                "~",
                "<<: 1",
                "? x",
                "- 1",
                "%",
                "@",
                "\t",
                "9" * 5000,
            ],
        ]
    ),
)
WORDS = st.lists(
    st.one_of(
        st.tuples(KEYS, VALUES).map("=".join),
        st.tuples(st.text(max_size=8), VALUES).map("=".join),
        st.text(max_size=10),
    ),
    max_size=5,
)


@many
@given(WORDS)
def test_words_of_the_command_line(words):
    """Settings, or a ValueError; a YAML tag never makes an object."""
    with clear_error():
        resolve("da3po", parse_words(words))


@many
@given(st.text(max_size=10))
def test_names_of_algorithms(name):
    with clear_error("unknown algorithm"):
        resolve(name, {})


YAML_TEXT = st.one_of(
    st.lists(st.tuples(KEYS, VALUES).map(": ".join), max_size=5).map("\n".join),
    st.text(max_size=60),
    st.text("{}[]:,-?&*!|>'\"%@ \n\tab1", max_size=60),
)


@many
@given(st.one_of(YAML_TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")), st.binary(max_size=60)))
def test_config_files(tmp_path, content):
    file = tmp_path / "recipe.yaml"
    file.write_bytes(content)
    with clear_error():
        resolve("da3po", read_yaml(file))


def test_a_deeply_nested_setting_is_an_error(tmp_path):
    """YAML that exhausts the stack of the parser."""
    with pytest.raises(ValueError, match="nested"):
        parse_words(["data=" + "[" * 100_000])
    (tmp_path / "deep.yaml").write_text("data: " + "[" * 100_000)
    with pytest.raises(ValueError, match="nested"):
        read_yaml(tmp_path / "deep.yaml")


# ------------------------------------------------------------------------------------------------- data

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
COLUMNS = st.sampled_from(
    [
        "id",
        "prompt",
        "answer",
        "solution",
        "reward_model",
        "data_source",
        "extra_info",
        "question",
        "input_output",
        *[
            "test",
            "entry_point",
            "test_list",
            "code",
            "canonical_solution",
            "test_setup_code",
            "test_imports",
        ],
    ]
)
CHAT = st.lists(st.fixed_dictionaries({"role": st.text(max_size=5), "content": JSON}), max_size=2)
LINES = st.one_of(JSON, st.lists(st.text(max_size=5)))
TESTS = st.fixed_dictionaries(
    {"inputs": LINES, "outputs": LINES}, optional={"fn_name": st.one_of(JSON, st.just("f"))}
)
CELL = st.one_of(
    JSON, CHAT, TESTS, TESTS.map(json.dumps), st.just("def f(x):\n    return x"), st.just("assert f(1)")
)
ROWS = st.lists(st.one_of(st.dictionaries(COLUMNS, CELL, max_size=6), JSON), min_size=1, max_size=4)


def loads_or_refuses(file, **options):
    with clear_error():
        problems = load_problems(str(file), **options)
        assert all(isinstance(p, Problem) and p.prompt for p in problems)


@pytest.mark.parametrize("problem_of", [math_problem, reward_problem, code_problem])
@many
@given(rows=ROWS)
def test_rows_of_data(tmp_path, problem_of, rows):
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    loads_or_refuses(file, convert=Reader(problem_of))


BESIDE = {"starter_code": CELL, "solutions": CELL, "code_prompt": CELL}
KNOWN = [(math_problem, layout) for layout in MATH] + [(reward_problem, layout) for layout in MATH]
KNOWN += [(code_problem, layout) for layout in CODE]


@pytest.mark.parametrize(
    ("problem_of", "layout"), KNOWN, ids=[f"{layout.name}-{reads.__name__}" for reads, layout in KNOWN]
)
@settings(many, max_examples=15)
@given(data=st.data())
def test_rows_that_look_like_a_known_layout(problem_of, layout, data):
    """Whatever stands in the columns of a layout: a problem, or an error that names a column."""
    marks = {mark.partition(".")[0]: CELL for mark in layout.marks}
    row = data.draw(st.fixed_dictionaries(marks, optional=BESIDE))
    with contextlib.suppress(BadRowError):
        problem = Reader(problem_of)(row, "x")
        assert problem is None or problem.prompt


@many
@given(
    st.sampled_from([".jsonl", ".json", ".parquet", ".csv", ".tsv", ".arrow", ".csv.gz", ".jsonl.zst"]),
    st.one_of(st.binary(max_size=80), st.text().map(str.encode)),
)
def test_files_of_data(tmp_path, suffix, content):
    file = tmp_path / f"data{suffix}"
    file.write_bytes(content)
    loads_or_refuses(file)


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_deeply_nested_data_is_an_error(tmp_path, suffix):
    file = tmp_path / f"data{suffix}"
    file.write_text("[" * 200_000)
    with pytest.raises(ValueError, match="nested"):
        load_problems(str(file))


# ------------------------------------------------------------------------------------------- model text

MARKS = [
    "\\boxed{", "\\fbox{", "{", "}", "\\", "\\{", "$", "$$", "Answer:", "the answer is ", "**", "\n", "\r\n",
    " ", "```", "```python\n", "````", "~~~", "<answer>", "</answer>", "<|im_end|>", "</s>", "\x00",
    "\x1b[2J", "\u202e", "\ud800", "\udfff", "\u2028", "\x85", "=7.", "=", "print(1)", "####", "\\frac{1}{0}",
    "9^9^9^9", "1e9999", "é" * 50,
]  # fmt: skip
PIECES = st.one_of(st.sampled_from(MARKS), st.text(st.characters(), max_size=8))  # with surrogates
MODEL_TEXT = st.one_of(
    st.lists(PIECES, max_size=30).map("".join),
    st.tuples(PIECES, st.integers(1, 3000)).map(lambda pair: pair[0] * pair[1]),
)
PROBLEM = Problem("p", "3+4", "7")


@many
@given(MODEL_TEXT)
def test_extractors(text):
    """A piece of the text or nothing."""
    for found in (final_answer(text), last_answer_line(text), last_tagged(text), gold_answer(text)):
        assert found is None or found in text
    assert isinstance(extract_code(text), str)
    assert "".join(split_lines(text)) == text
    assert all(c in "\n\t" or unicodedata.category(c)[0] != "C" for c in visible(text))


@pytest.fixture(scope="module")
def tasks():
    opened = {
        "chain_arithmetic": load_task("chain_arithmetic", train_size=8),
        "code": load_task("code"),
    }
    yield opened
    for task in opened.values():
        task.close()


@many
@given(MODEL_TEXT)
def test_the_arithmetic_verifier(tasks, text):
    (verdict,) = tasks["chain_arithmetic"].verify([(PROBLEM, text)])
    assert verdict.outcome in ("correct", "wrong")


@settings(few, max_examples=8)
@given(st.lists(MODEL_TEXT, min_size=4, max_size=4))
def test_the_code_verifier(tasks, texts):
    """In the sandbox. A text of the model alone is never the sandbox's or the verifier's failure."""
    problem = tasks["code"].problems("train")[0]
    for verdict in tasks["code"].verify([(problem, text) for text in texts]):
        assert verdict.outcome in ("correct", "wrong", "timeout"), verdict


MEGABYTES = [
    "\\boxed{",
    "{",
    "}",
    "\\",
    "answer is ",
    "$",
    "```\n",
    "`",
    "<answer>",
    "\n",
    "\x00",
    "=7.\n",
    "[",
    "####",
    "\ud800",
]


@pytest.mark.parametrize("piece", MEGABYTES)
def test_megabytes_take_a_second(tasks, piece):
    text = piece * (4_000_000 // len(piece))
    began = time.process_time()
    for extract in (final_answer, last_answer_line, last_tagged, gold_answer, extract_code, split_lines):
        extract(text)
    tasks["chain_arithmetic"].verify([(PROBLEM, text)])
    assert time.process_time() - began < 10


# ----------------------------------------------------------------------------------------- files of a run

DAMAGE = st.tuples(
    st.sampled_from(["flip", "cut", "insert", "repeat", "zero"]),
    st.floats(0, 1),
    st.integers(0, 255),
    st.integers(1, 64),
)


def damaged(content: bytes, damage) -> bytes:
    kind, share, byte, length = damage
    at = int(share * max(len(content) - 1, 0))
    middle = {
        "flip": bytes([content[at] ^ (byte or 1)]) if content else b"",
        "insert": bytes([byte]) * length + content[at : at + 1],
        "repeat": content[at : at + length] * 2,
        "zero": bytes(len(content[at : at + length])),
    }
    if kind == "cut":
        return content[:at]
    after = at + (length if kind in ("repeat", "zero") else 1)
    return content[:at] + middle[kind] + content[after:]


STATE = {
    "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "lr": 1e-4, "nan": float("nan")},
    "carried": [PROBLEM, Sample(np.array([1, 2]), np.array([-0.5, -1.0], np.float32), True), (1, None, "x")],
}


@many
@given(st.sampled_from(["state.json", "tensors.safetensors"]), DAMAGE)
def test_state_files(tmp_path, name, damage):
    save_state(tmp_path, STATE)
    (tmp_path / name).write_bytes(damaged((tmp_path / name).read_bytes(), damage))
    with clear_error("cannot be read"):
        assert isinstance(load_state(tmp_path), dict)


@few
@given(st.sampled_from(["manifest.json", "state/state.json", "state/tensors.safetensors"]), DAMAGE)
def test_checkpoints(tmp_path_factory, name, damage):
    """Damage is found: the checkpoint before is used. What a load returns is what was saved."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for iteration in (1, 2):
        write_checkpoint(folder, iteration, lambda path: save_state(path / "state", STATE), metric=0.5)
    file = folder / "iteration-000002" / name
    before, after = file.read_bytes(), damaged(file.read_bytes(), damage)
    file.write_bytes(after)
    found = latest_checkpoint(folder)
    if name != "manifest.json":
        assert found.iteration == (2 if before == after else 1)
    assert load_state(found.path / "state")["optimizer"]["lr"] == 1e-4


@settings(few, max_examples=25)
@given(
    st.sampled_from(["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]), DAMAGE
)
def test_models(tmp_path_factory, name, damage):
    folder = tmp_path_factory.mktemp("model")
    for file in packaged_path("embedded").iterdir():
        content = file.read_bytes()
        (folder / file.name).write_bytes(damaged(content, damage) if file.name == name else content)
    with clear_error("could not be loaded", str(folder)):
        Policy.load(folder, device="cpu")


RECORDS = (
    '{"iteration": 1, "elapsed_seconds": 0.5, "reward": 1.0}\n{"iteration": 2, "elapsed_seconds": 1.5}\n'
)


@many
@given(st.one_of(DAMAGE, JSON), st.sampled_from(["iteration", "elapsed_seconds"]))
def test_metrics(tmp_path_factory, damage, key):
    """Lines that are damaged are left out; a run with such lines can be read and resumed."""
    path = tmp_path_factory.mktemp("run") / "run"
    with Run.create(path, {"algorithm": "da3po"}):
        pass
    content = RECORDS.encode()
    if isinstance(damage, tuple):
        content = damaged(content, damage)
    else:
        content += json.dumps({"iteration": 3, "elapsed_seconds": 2.0, key: damage}).encode() + b"\n"
    (path / "metrics.jsonl").write_bytes(content)
    assert all(isinstance(m["iteration"], int) for m in read_metrics(path))
    with Run.resume(path) as run:
        assert run.elapsed_seconds >= 0


@many
@given(
    st.sampled_from(["config.yaml", "values.jsonl", "evaluation.json", "rollouts/iteration-000001.parquet"]),
    st.binary(max_size=100),
)
def test_other_files(tmp_path, name, content):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    read = {
        "config.yaml": lambda: read_config(tmp_path),
        "values.jsonl": lambda: read_json_lines(file),
        "evaluation.json": lambda: load_evaluation(file),
        "rollouts/iteration-000001.parquet": lambda: read_rollouts(tmp_path),
    }
    with clear_error():
        read[name]()
