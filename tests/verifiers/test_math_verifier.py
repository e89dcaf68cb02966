r"""What math-verify 0.9 calls equal and the exact check refutes, and what both must go on accepting."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from math_verify import parse, verify

from hardwon.verifiers.math import canonical_answer, grade, grade_answer, parses
from hardwon.verifiers.worker_pool import Reply, WorkerPool, verdict

FALSE_POSITIVES = [  # gold, answer: all are True for math-verify (see the test below)
    ("1/3", "0.333333"),  # it rounds to six decimals
    ("\\frac{1}{3}", "0.3333333"),
    ("\\sqrt{2}", "1.41421356"),
    ("\\pi", "3.1415927"),
    ("0.5", "0.5000003"),
    ("10^{-7}", "0.0"),
    ("10\\%", "0.10000001"),
    ("\\{\\frac13,2\\}", "\\{0.333333,2\\}"),
    ("\\sqrt{2}\\cdot 10^{-20}", "\\sqrt{3}\\cdot 10^{-20}"),  # it takes a small difference for 0
    ("6", "6, 6"),  # sets collapse
    ("6", "6\\text{ or }6"),
    ("6", "[6,6]"),
    ("6", "5=6"),
    ("6", "x=5=6"),
    ("6", "6\\text{ (not 7)}"),  # it drops text
    ("5\\text{ cm}", "5\\text{ m}"),  # and units
    ("5\\text{ dollars}", "5\\text{ cents}"),
    ("2516_8", "2516_{9}"),  # and bases
    ("\\{1,2\\}", "(1,2)"),
    ("\\{1,2\\}", "(2,1)"),
]
WRONG = [
    ("e^{\\pi\\sqrt{163}}", "262537412640768744"),  # Ramanujan's constant ends in .99999999999925
    ("6", "6 or 7"),
    ("0.333333", "\\frac{0}{0}"),
    ("0.333333", "0.33\\frac{0}{0}"),
    ("6", "6, 7"),
    ("6", "\\pm 6"),
    ("6", "\\{6,7\\}"),
    ("6", "6;7"),
    ("12", "1,2"),
    ("1,2", "12"),
    ("67", "6 7"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "2,1"),
    ("(1,2)", "[1,2]"),
    ("x<2", "x\\le 2"),
    ("x=6", "y=6"),
    ("6", "6!"),
    ("6", "7 6"),
    ("6", "6 \\neq 7"),
    ("6", "?6"),
    ("3", "3x"),
    ("3x", "3"),
    ("2^{100}", "2^{100}+1"),
    ("0", "10^{-7}"),
    ("\\infty", "-\\infty"),
    ("\\frac{x}{3}", "0.333333x"),
    ("0<x<\\frac13", "0<x<0.333333"),
    ("\\text{Alice}", "\\text{Bob}"),
    ("\\sqrt{x^2}", "x"),
    ("1000000", "1000000.0000001"),
]
CORRECT = [
    ("7", "007"),
    ("1234", "1,234"),
    ("1\\,234", "1234"),
    ("10{,}000", "10000"),
    ("1,2", "2,1"),
    ("(1,2)", "1,2"),
    ("6", "6.0"),
    ("6", "6."),
    ("6", "x=6"),
    ("x=6", "6"),
    ("0.5", "\\frac{1}{2}"),
    ("1\\frac12", "1.5"),
    ("2\\sqrt{3}", "\\sqrt{12}"),
    ("x^2+2x+1", "(x+1)^2"),
    ("\\pm 6", "6,-6"),
    ("3\\pm\\sqrt{2}", "3+\\sqrt{2}, 3-\\sqrt{2}"),
    ("9", "9\\%"),
    ("9\\%", "9"),
    ("9.5", "9.5\\%"),
    ("0.09", "9\\%"),
    ("5\\text{ cm}", "5"),
    ("5", "5 cm"),
    ("36\\text{ inches}", "36 \\text{ in}"),
    ("\\$5", "5"),
    ("90^\\circ", "90"),
    ("2516_8", "2516_{8}"),
    ("2516_8", "2516"),
    ("y=0.5x+1", "2y=x+2"),
    ("x<2", "2>x"),
    ("[1,2)", "1\\le x<2"),
    ("\\{1,2\\}", "2,1"),
    ("2,3", "x=2 \\text{ or } x=3"),
    ("(2,3)", "x=2, y=3"),
    ("A", "\\text{(A)}"),
    ("\\text{Monday}", "\\text{monday}"),
    ("2+3i", "3i+2"),
    ("\\sin^2x+\\cos^2x", "1"),
    ("\\emptyset", "\\{\\}"),
    ("0.333333", "\\frac13"),
    ("0.333333", "0.3333334"),  # a gold decimal of six places is a rounded number
    ("\\text{two, or so", "\\text{two, or so"),  # equal text needs no judge
]


def math_verify_alone(gold, answer):
    gold, answer = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (gold, answer))
    return verify(gold, answer, timeout_seconds=None)


@pytest.mark.parametrize(("gold", "answer"), FALSE_POSITIVES)
def test_false_positives_of_math_verify_are_refuted(gold, answer):
    assert math_verify_alone(gold, answer)
    found = grade_answer(gold, answer)
    assert not found["correct"] and found["message"]


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_wrong(gold, answer):
    assert not grade_answer(gold, answer)["correct"]


@pytest.mark.parametrize(("gold", "answer"), CORRECT)
def test_correct(gold, answer):
    assert grade_answer(gold, answer)["correct"]


def test_an_interval_and_its_inequality_are_one_answer_in_either_role():
    # Fault 18: math-verify says False for the first and True for the second.
    assert not math_verify_alone("(0,12.5)", "0<x<12.5") and math_verify_alone("0<x<12.5", "(0,12.5)")
    assert grade_answer("(0,12.5)", "0<x<12.5")["correct"]
    assert grade_answer("0<x<12.5", "(0,12.5)")["correct"]


def test_the_last_box_wins_and_an_empty_one_is_no_answer():
    assert grade("7", "\\boxed{6} wait \\boxed{7}")["correct"]
    assert not grade("6", "\\boxed{6} wait \\boxed{7}")["correct"]
    assert "empty or not closed" in grade("6", "\\boxed{6} \\boxed{}")["message"]
    assert "no \\boxed" in grade("6", "6")["message"]
    assert grade("the sum is \\boxed{6}", "Answer: 6")["correct"]


def test_a_long_answer_is_refused_before_it_is_parsed():
    assert "2000 characters" in grade("6", "\\boxed{" + "6" * 2000 + "}")["message"]


@pytest.mark.parametrize("gold", ["", " ", "\\frac{", "\\boxed{}", "x=", "{"])
def test_gold_answers_that_do_not_parse(gold):
    assert not parses(gold)


def test_an_answer_that_takes_too_long_is_a_timeout():
    # Fault 17: 9^9^9^9^9 must not hold up the trainer, whatever math-verify makes of it.
    pool = WorkerPool(grade, seconds=1.0, num_workers=1)
    power = "9^9^9^9^9"
    slow = [("6", f"\\boxed{{{power}+1}}"), ("6.5", f"\\boxed{{{power}}}"), ("6", "\\boxed{6}")]
    found = [verdict(reply).outcome for reply in pool.run(slow)]
    pool.close()
    assert found[2] == "correct" and set(found[:2]) <= {"timeout", "wrong"}


fragments = st.sampled_from(
    [
        "\\frac",
        "\\sqrt",
        "\\text",
        "\\left",
        "\\right",
        "\\{",
        "\\}",
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        ",",
        "1",
        "2",
        "x",
        "=",
        "<",
        "^",
        "_",
        "+",
        "-",
        ".",
        "\\%",
        "\\pm",
        " ",
        "\\\\",
        "$",
        "\\infty",
        "\\cup",
        "é",
        "\x00",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(fragments, max_size=12))
def test_any_answer_gets_a_verdict(pieces):
    assert grade("\\frac{1}{2}", "\\boxed{" + "".join(pieces) + "}")["correct"] in (True, False)


@settings(max_examples=60, deadline=None)
@given(st.integers(-999, 999), st.integers(1, 99), st.integers(-999, 999), st.integers(1, 99))
def test_fractions_are_equal_exactly_when_they_are(a, b, c, d):
    found = grade_answer(f"\\frac{{{a}}}{{{b}}}", f"\\frac{{{c}}}{{{d}}}")
    assert found["correct"] == (a * d == b * c)


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("0.5", "1/2"),
        ("\\frac{1}{2}", "1/2"),
        ("x = 1/2", "1/2"),
        ("½", "1/2"),
        ("5e-1", "1/2"),
        ("50\\%", "1/2"),
        ("\\frac{2}{\\sqrt{8}}", "1/2*sqrt(2)"),
        ("2+3i", "2+3i"),
        ("3\\text{ km}", "3000 m"),
        ("(1, 2)", "(1,2)"),
        ("2, 1", "1,2"),
        ("\\text{Does not exist}", "does not exist"),
        ("\\textbf{(B)}\\ 12", "B"),
        ("(x+1)^2", "(x + 1)**2"),
    ],
)
def test_canonical_forms(answer, form):
    assert canonical_answer(answer) == form


def test_a_grade_carries_the_answer_and_a_response_without_one_none():
    assert grade("1/2", "\\boxed{0.7}")["answer"] == "7/10"
    assert verdict(Reply("done", grade("1/2", "\\boxed{0.5}"))).answer == "1/2"
    assert verdict(Reply("done", grade("1/2", "a half"))).answer is None
    assert verdict(Reply("done", grade("1/2", "\\boxed{}"))).answer is None
    assert len(grade("1/2", "\\boxed{" + "7" * 5000 + "}")["answer"]) == 200


def test_a_power_that_no_machine_can_write_costs_nothing_where_the_text_is_equal():
    assert grade("10^{10^{10}}", "\\boxed{10^{10^{10}}}") == {
        "correct": True, "message": "", "answer": "10^{10^{10}}"
    }  # fmt: skip
