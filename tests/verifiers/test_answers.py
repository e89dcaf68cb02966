"""Where the final answer is, and that nothing a model writes makes finding it slow or fail."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardwon.verifiers.answers import (
    final_answer,
    gold_answer,
    last_answer_line,
    last_boxed,
    last_tagged,
    shortened,
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{6} wait \boxed{7}", "7"),  # fault 18: the last box wins
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),  # escaped braces are symbols
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\fbox{3}", "3"),
        (r"\boxed{a \boxed{7}}", "7"),
        (r"\boxed {7}", "7"),
        (r"\boxed 7 follows", "7"),
        (r"so $\boxed 7$.", "7"),
        (r"\boxedness", None),
        (r"\boxed{}", ""),
        (r"\boxed{6} then \boxed{7", ""),  # cut while revising: no answer, and not the old one
        ("no box", None),
    ],
)
def test_last_box(text, answer):
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 42", "42"),
        ("The answer is 42.", "42"),
        ("**Final Answer:** $\\frac12$.", "\\frac12"),
        ("Answer: 6\nNo.\nAnswer: 7", "7"),
        ("the answer to this question is: 5", "5"),
        ("The answer is **73**.", "73"),
        ("**Answer:** 73. This follows from the sum being 146.", "73"),
        ("The answer is 73, because 70+3=73", "73"),
        ("The answer is \\(73\\).", "73"),
        ("Answer:\n\n73", "73"),
        ("The final answer is:\n$$73$$", "73"),
        ("Answer: B. Paris", "B. Paris"),
        ("The answer is 3.5 m", "3.5 m"),
        ("I like this answer\n", None),
        ("42", None),
    ],
)
def test_answer_line_is_read_where_there_is_no_box(text, answer):
    assert last_answer_line(text) == answer
    assert final_answer(text + r" \boxed{1}") == "1"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<think>\boxed{6}</think> \boxed{7}", "7"),
        (
            r"<think>\boxed{6}</think> The answer is 7.",
            "7",
        ),  # a box in thinking does not beat a line after it
        (r"is it \boxed{6}? </think> \boxed{7}", "7"),  # the opening tag stands in the prompt
        (r"<think>\boxed{6}</think>", None),
        (r"<think>\boxed{6}", None),
        (r"\boxed{6} <think> or 7", None),
        (r"<think>6</think> hm <think>7</think> \boxed{8}", "8"),
        ("It is so.\n\n**7**", "7"),  # a last line in bold, but no other bold text
        ("**Note**\nIt is 7.", None),
    ],
)
def test_what_is_thought_is_no_answer(text, answer):
    assert final_answer(text) == answer
    tagged = text.replace("\\boxed{", "<answer>").replace("}", "</answer>")
    if "boxed" in text and answer != "7":
        assert last_tagged(tagged) == answer


def test_a_shortened_answer_still_differs_from_another():
    assert shortened("7") == "7"
    one, other = shortened("7" * 300), shortened("7" * 300 + "8")
    assert len(one) == len(other) == 200 and one != other


def test_gold_answers_of_worked_solutions():
    assert gold_answer("so \\boxed{4}") == "4"
    assert gold_answer("6*7=42\n#### 42") == "42"
    assert gold_answer(" 42 ") == "42"
    assert gold_answer(1e-05) == "1e-05" and gold_answer(7) == "7"  # a number column, as JSON gives it


@pytest.mark.parametrize(
    "piece",
    [
        "\\boxed{",
        "\\boxed ",
        "<think>",
        "</think>",
        "answer: 7 ",
        "answer: \\(",
        " ",
        "**",
        "{",
        "}",
        "\\",
        "answer ",
        "answer: ",
        "$",
        "\x00",
        "\\boxed{}",
    ],
)
def test_a_megabyte_takes_no_time(piece):
    started = time.process_time()
    final_answer(piece * (1_000_000 // len(piece)))
    assert time.process_time() - started < 2


@given(
    st.lists(
        st.sampled_from(["\\boxed{", "{", "}", "\\", "answer", ": ", "is ", "\n", "7", "$", "é", "\x00"])
    )
)
def test_any_text_gives_an_answer_that_it_contains_or_none(pieces):
    text = "".join(pieces)
    answer = final_answer(text)
    assert answer is None or answer in text
