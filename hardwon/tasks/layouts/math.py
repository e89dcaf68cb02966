"""The layouts of data sets whose answers are compared: mathematics, multiple choice, short words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from hardwon.tasks.layouts.answers import comparable, says_its_answer
from hardwon.tasks.layouts.choice import CHOICES
from hardwon.tasks.layouts.layout import (
    BadRowError,
    Finder,
    Layout,
    Row,
    at,
    column_names,
    is_list,
    nearest_layouts,
    needed,
    pick,
    text_at,
)
from hardwon.tasks.layouts.prompts import conversation, joined

CONVERSATIONS = ("messages", "conversations", "conversation")
# Of one tier only one may be filled, or all say the same; a later tier is asked if those before are empty.
PROMPTS = (
    ("prompt",),
    ("question", "problem", "Question", "Problem", "query", "instruction", "problem_statement"),
    CONVERSATIONS,
    ("input", "text"),
)
ANSWERS = (
    ("reward_model.ground_truth",),
    ("answer", "Answer", "final_answer", "ground_truth", "expected_answer", "gt_answer", "gold_answer"),
    ("solution", "Solution"),
    ("target", "label", "output", "gold"),
)


def worked(path: str) -> Callable[[Row], Any]:
    """The answer is marked inside a worked solution. BadRowError where nothing marks it."""

    def read(row: Row) -> Any:
        solution = needed(row, path)
        if not says_its_answer(solution):
            raise BadRowError(path, "has no \\boxed{} and no ####, so its answer can't be told")
        return solution

    return read


def after_the_answer_is(row: Row) -> str:
    """MetaMathQA ends with "The answer is: 37"."""
    return text_at(row, "response").rpartition("The answer is:")[2].strip()


def without_unit(row: Row) -> str:
    """ASDiv writes "9 (apples)"."""
    return re.sub(r"\s*\([^()]*\)\s*$", "", text_at(row, "answer"))


def countdown_prompt(row: Row) -> str:
    numbers = needed(row, "nums")
    if not is_list(numbers):
        raise BadRowError("nums", f"a list of numbers is wanted, found {numbers!r:.80}")
    listed, target = ", ".join(map(str, numbers)), needed(row, "target")
    return (
        f"Combine the numbers {listed} with +, -, * and / so that the result is {target}. "
        "Use each number exactly once."
    )


MATH = (
    Layout("verl", ("prompt", "reward_model.ground_truth"), "prompt", "reward_model.ground_truth"),
    Layout("orz", ("0.value", "1.ground_truth.value"), "0.value", "1.ground_truth.value"),
    Layout("rlvr_messages", ("messages", "ground_truth"), conversation("messages"), "ground_truth"),
    *CHOICES,
    Layout("countdown", ("target", "nums"), countdown_prompt,
           lambda row: {"target": row["target"], "numbers": row["nums"]}),
    Layout("svamp", ("Body", "Question", "Answer"), joined("Body", "Question"), "Answer"),
    Layout("asdiv", ("body", "question", "answer"), joined("body", "question"), without_unit),
    Layout("olympiadbench", ("question", "final_answer", "solution"),
           joined("context", "question", between="\n\n"), "final_answer"),
    Layout("gsm8k", ("question", "answer"), "question", "answer",
           when=lambda row: "####" in str(row["answer"]) and "prompt" not in row and "problem" not in row),
    Layout("metamath", ("query", "response"), "query", after_the_answer_is,
           when=lambda row: "The answer is:" in str(row["response"])),
    Layout("numina_cot", ("problem", "solution", "messages"), "problem", worked("solution"),
           when=lambda row: at(row, "answer") is None),
    Layout("math", ("problem", "solution", "level", "type"), "problem", worked("solution"),
           when=lambda row: at(row, "answer") is None),
    Layout("math500", ("problem", "answer", "subject", "unique_id"), "problem", "answer"),
    Layout("openr1_math", ("problem", "answer", "generations"), "problem", "answer"),
    Layout("openmath", ("problem", "generated_solution", "expected_answer"), "problem", "expected_answer"),
    Layout("big_math", ("problem", "answer", "llama8b_solve_rate"), "problem", "answer"),
    Layout("aime", ("Problem", "Answer"), "Problem", "Answer"),
)  # fmt: skip
"""The first that fits is taken, so a layout stands above those whose marks are among its own."""


def plain_layout(row: Row, *, any_answer: bool) -> Layout:
    """By the usual names of columns, where no layout fits; with `any_answer` an answer is not needed.

    BadRowError lists the candidates where there are several, and the nearest layouts where there are none.
    """
    prompt = pick(row, "prompt", PROMPTS)
    answer = pick(row, "answer", ANSWERS, comparable)
    if prompt is None:
        raise BadRowError("prompt", missing(row, "prompt", PROMPTS))
    if answer is None and not any_answer:
        solution = "solution" in row and "answer" not in row
        raise BadRowError("solution" if solution else "answer", missing(row, "answer", ANSWERS))
    place = worked(answer) if answer in ("solution", "Solution") and not any_answer else answer
    return Layout(
        f"{prompt} + {answer}" if answer else prompt,
        (prompt,),
        conversation(prompt) if prompt in CONVERSATIONS else prompt,
        place,
    )


def missing(row: Row, role: str, tiers: Sequence[Sequence[str]]) -> str:
    names = column_names(row)
    if any(path in names for tier in tiers for path in tier):
        return "is empty"
    return (
        f"is missing; the row has {', '.join(names) or 'no columns'}{nearest_layouts(row, MATH)}. "
        f"Name the column with columns={{{role}: ...}}, or rewrite rows with row_function"
    )


find = Finder(MATH)


def math_layout(row: Row) -> Layout:
    return find(row) or plain_layout(row, any_answer=False)


def reward_layout(row: Row) -> Layout:
    """For rows that a user's reward function judges."""
    return find(row) or plain_layout(row, any_answer=True)
