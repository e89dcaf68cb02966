"""No scorer of reasoning_gym runs what a model wrote."""

import re
from pathlib import Path

import pytest

reasoning_gym = pytest.importorskip("reasoning_gym")

from hardwon.verifiers import reasoning_gym as scorers  # noqa: E402
from hardwon.verifiers.harmless import FORMULAS, LITERALS, is_formula  # noqa: E402

SOURCES = Path(reasoning_gym.__file__).parent
NAMES = ["string_insertion", "spiral_matrix", "binary_matrix", "n_queens", "simple_integration"]
NAMES += ["intermediate_integration", "polynomial_multiplication", "puzzle24", "countdown"]


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_that_is_a_program_is_not_run(name, tmp_path):
    mark = tmp_path / "ran"
    entry = scorers.dataset(name, '{"size": 4, "seed": 0}')[0]
    for program in (f"__import__('pathlib').Path({str(mark)!r}).touch()", f"open({str(mark)!r}, 'w')"):
        for text in (program, f"[{program}]", f"1 + ({program} or 1)"):
            grade = scorers.grade(name, '{"size": 4, "seed": 0}', entry, f"<answer>{text}</answer>")
            assert not grade["correct"]
    assert not mark.exists()


@pytest.mark.parametrize("name", NAMES)
def test_gold_answers_still_earn_full_reward(name):
    for entry in scorers.dataset(name, '{"size": 8, "seed": 1}'):
        answer = scorers.gold(entry)
        if answer is not None:
            assert scorers.grade(name, '{"size": 8, "seed": 1}', entry, f"<answer>{answer}</answer>")[
                "correct"
            ]


def test_every_scorer_that_evaluates_an_answer_is_in_the_list():
    """Of the installed version: a new one has to be looked at."""
    pattern = re.compile(r"(?<![\w.])eval\((answer|user\w*|predicted\w*)\)|parse_expr\(answer")
    found = {
        str(file.relative_to(SOURCES)).removesuffix(".py").replace("/", ".")
        for file in SOURCES.rglob("*.py")
        if pattern.search(file.read_text())
    }
    assert found == set(LITERALS) | set(FORMULAS)


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("3*x**2 + sin(x)/2 + C", True),
        ("(8 - 4) * 6.5", True),
        ("x.__class__", False),
        ("exec('1')", False),
        ("sin('1')", False),
        ("lambda: 1", False),
        ("__import__", False),
        ("x**2 or x", False),
        ("Integral(x, x)", False),
        ("[1 for x in y]", False),
        ("f'{1}'", False),
        ("x = 1", False),
        ("1" * 3000, False),
        ("\uff45xec(1)", False),  # a letter that Python reads as e
    ],
)
def test_what_is_a_formula(text, harmless):
    assert is_formula(text) is harmless
