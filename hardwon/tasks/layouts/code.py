"""The layouts of data sets whose answers are programs, judged by unit tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hardwon.tasks.layouts.asserts import assert_tests, check_tests, coded_tests
from hardwon.tasks.layouts.layout import (
    BadRowError,
    Finder,
    Layout,
    LeftOutError,
    Row,
    at,
    column_names,
    is_list,
    nearest_layouts,
    needed,
    pick,
    text_at,
)
from hardwon.tasks.layouts.prompts import Prompt, prompt_at, prompt_of
from hardwon.tasks.layouts.tests import cases_in, content, tests_of
from hardwon.verifiers import code
from hardwon.verifiers.code import AssertTests, CallTests, CheckerTests, StdinTests, Tests, changed_argument
from hardwon.verifiers.programs import parsed

PROMPTS = (
    ("question",),
    ("prompt",),
    ("problem", "description", "problem_description", "problem_statement", "instruction", "query"),
    ("messages",),
    ("text",),
)
SOLUTIONS = (
    ("canonical_solution",),
    ("solution",),
    ("code",),
    ("gold_standard_solution", "reference_solution", "ground_truth_solution", "completion"),
    ("solutions",),
    ("answer",),
)
TESTS = (
    ("tests",),
    ("test_cases", "unit_tests", "test_list", "input_output", "verification_info.test_cases", "test"),
    ("reward_model.ground_truth", "ground_truth"),
)
PYTHON3 = 3  # in the column solutions.language of code_contests
ALIASES = {"entry_point": ("entry_point", "fn_name", "func_name", "function_name")}


def any_tests(column: str, value: Any, row: Row) -> Tests:
    """Tests in any of the forms, by what is there."""
    value = content(column, value)
    if isinstance(value, Mapping):
        for name in ("functional", "assert_case", "test_code"):
            if value.get(name):
                return any_tests(f"{column}.{name}", value[name], row)
    if isinstance(value, str):
        entry = next((str(at(row, name)) for name in ALIASES["entry_point"] if at(row, name)), None)
        return coded_tests(column, value, names=[entry] if entry else [])
    if is_list(value) and value and all(isinstance(item, str) for item in value):
        return listed_asserts(column, row, value)
    return tests_of(column, cases_in(column, value, row))


def tests_at(*paths: str) -> Callable[[Row], Tests]:
    """The cases of several columns together (public and private tests), or tests in any form of one."""

    def read_tests(row: Row) -> Tests:
        if len(paths) == 1:
            return any_tests(paths[0], needed(row, paths[0]), row)
        found = [path for path in paths if at(row, path) not in (None, "")]
        return tests_of(paths[0], [case for path in found for case in cases_in(path, at(row, path), row)])

    return read_tests


def check_at(row: Row) -> Tests:
    """HumanEval and LeetCode: `test` defines check(candidate), and `prompt` is code before the answer."""
    return check_tests("test", *(text_at(row, name) for name in ("test", "entry_point", "prompt")))


def leetcode_tests(row: Row) -> Tests:
    if re.search(r"\b(list_node|tree_node)\(", text_at(row, "test")):
        raise LeftOutError("test", "its tests pass linked lists or trees")
    return check_at(row)


def code_at(row: Row) -> Tests:
    """KodCode and BigCodeBench: test functions and classes."""
    infos, entry = at(row, "test_info"), at(row, "entry_point")
    names = [at(info, "function_name") for info in infos] if is_list(infos) else []
    if entry:
        names = [text_at(row, "entry_point")]
    before = text_at(row, "code_prompt") if at(row, "code_prompt") else ""
    return coded_tests(
        "test", text_at(row, "test"), names=[str(name) for name in names if name], prompt=before
    )


def refuse_classes(tests: Tests, solution: str) -> None:
    """LeftOutError where a class is under test: only plain data crosses between a program and its tests."""
    tree = parsed(solution)
    if not isinstance(tests, AssertTests) or tree is None:
        return
    if {node.name for node in tree.body if isinstance(node, ast.ClassDef)} & set(tests.names):
        raise LeftOutError("tests", "its tests make objects of a class of the program")


def listed_asserts(column: str, row: Row, tests: Any) -> Tests:
    imports = at(row, "test_imports") or ()
    if not is_list(imports):
        raise BadRowError("test_imports", f"a list of import statements is wanted, found {imports!r:.80}")
    setup = "\n".join([*map(str, imports), str(at(row, "test_setup_code") or "")])
    return assert_tests(column, tests, setup, solution_text(row))


def mbpp_tests(row: Row) -> Tests:
    return listed_asserts("test_list", row, row["test_list"])


def no_checker(row: Row) -> Tests:
    """Codeforces. Where several outputs are right, a program compares, which can't be run here."""
    if at(row, "generated_checker"):
        raise LeftOutError("generated_checker", "a program decides which outputs are right")
    return tests_at("official_tests")(row)


def usual_prompt(row: Row) -> Prompt:
    path = pick(row, "prompt", PROMPTS)
    if path is None:
        known = ", ".join(name for tier in PROMPTS for name in tier)
        raise BadRowError(
            "prompt", f"is missing or empty; any of {known} will do, or columns={{prompt: ...}}"
        )
    prompt = prompt_at(row, path)
    return prompt.strip() if isinstance(prompt, str) else prompt


def solution_text(row: Row) -> str:
    """The row's own program, "" if it has none. Of several the first, of several languages Python's first."""
    path = pick(row, "answer", SOLUTIONS, lambda _: None)
    return program_text(path, at(row, path)) if path else ""


def program_text(path: str, value: Any) -> str:
    found = content(path, value) if path == "solutions" else value
    if isinstance(found, Mapping):
        languages, texts = at(found, "language"), at(found, "solution")
        pairs = zip(languages, texts, strict=False) if is_list(languages) and is_list(texts) else ()
        found = next((text for language, text in pairs if language == PYTHON3), "")
    if is_list(found):
        found = found[0] if found else ""
    if not isinstance(found, str):
        raise BadRowError(path, f"program text is wanted, found {found!r:.80}")
    return found


def bigcodebench_prompt(row: Row) -> str:
    return text_at(row, "instruct_prompt" if at(row, "instruct_prompt") else "complete_prompt")


def codeforces_prompt(row: Row) -> str:
    parts = {"": "description", "Input\n": "input_format", "Output\n": "output_format"}
    return "\n\n".join(f"{head}{at(row, path)}" for head, path in parts.items() if at(row, path))


CODE = (
    Layout("leetcode", ("problem_description", "test", "entry_point", "prompt"), "problem_description",
           tests=leetcode_tests, test_columns=("test", "input_output")),
    Layout("bigcodebench", ("complete_prompt", "test", "entry_point"), bigcodebench_prompt,
           tests=code_at, test_columns=("test",)),
    Layout("kodcode", ("question", "test", "test_info"), "question", tests=code_at, test_columns=("test",)),
    Layout("mbpp", ("test_list",), usual_prompt, tests=mbpp_tests,
           test_columns=("test_list", "challenge_test_list", "test")),
    Layout("humaneval", ("prompt", "test", "entry_point"), "prompt", tests=check_at, test_columns=("test",)),
    Layout("livecodebench", ("question_content", "public_test_cases"), "question_content",
           tests=tests_at("public_test_cases", "private_test_cases"),
           test_columns=("public_test_cases", "private_test_cases")),
    Layout("code_contests", ("description", "public_tests"), "description",
           tests=tests_at("public_tests", "private_tests", "generated_tests"),
           test_columns=("public_tests", "private_tests", "generated_tests")),
    Layout("codeforces", ("description", "official_tests"), codeforces_prompt, tests=no_checker,
           test_columns=("official_tests",)),
    Layout("verifiable", ("prompt", "verification_info.test_cases"), "prompt",
           tests=tests_at("verification_info.test_cases"), test_columns=("verification_info",)),
    Layout("deepcoder", ("problem", "tests"), "problem", tests=tests_at("tests"), test_columns=("tests",)),
    Layout("acecode", ("question", "test_cases"), "question", tests=tests_at("test_cases"),
           test_columns=("test_cases",)),
    Layout("apps", ("input_output",), usual_prompt, tests=tests_at("input_output"),
           test_columns=("input_output",)),
    Layout("verl", ("prompt", "reward_model.ground_truth"), "prompt",
           tests=tests_at("reward_model.ground_truth"), test_columns=("reward_model",)),
)  # fmt: skip
"""The first that fits is taken, so a layout stands above those whose marks are among its own."""


find = Finder(CODE)


def code_layout(row: Row) -> Layout:
    """Of the table, else by the usual names of columns. BadRowError lists candidates, or nearest layouts."""
    found = find(row)
    if found:
        return found
    tests = pick(row, "tests", TESTS)
    if tests is None and any(name in column_names(row) for tier in TESTS for name in tier):
        raise LeftOutError("tests", "it has no tests")
    if tests is None:
        raise BadRowError(
            "tests",
            f"is missing; the row has {', '.join(column_names(row))}{nearest_layouts(row, CODE)}. "
            "Name the column with columns={tests: ...}, or rewrite rows with row_function",
        )
    return Layout(f"{pick(row, 'prompt', PROMPTS)} + {tests}", (tests,), usual_prompt, tests=tests_at(tests),
                  test_columns=(tests.partition(".")[0],))  # fmt: skip


def code_parts(row: Row, layout: Layout) -> tuple[Prompt, str, Tests]:
    """Prompt, own solution and tests of a row."""
    assert layout.tests is not None
    tests = layout.tests(row)
    if isinstance(tests, CallTests):
        changed = changed_argument(str(at(row, "starter_code") or ""), tests.name, tests.outputs)
        tests = replace(tests, changed=changed)
    prompt = prompt_of(row, layout)
    solution = solution_text(row)
    refuse_classes(tests, solution)
    return asked(prompt, tests, at(row, "starter_code")), code.program_for(tests, solution), tests


def asked(prompt: Prompt, tests: Tests, starter: Any) -> Prompt:
    """The prompt with what it leaves open: starter code, an example, the function's name, how to answer."""
    if not isinstance(prompt, str) or (isinstance(tests, AssertTests) and tests.prompt and not starter):
        return prompt  # messages are complete, and so is code to continue
    if isinstance(starter, str) and starter.strip() and starter.strip() not in prompt:
        prompt = f"{prompt}\n\n{starter}"
    if isinstance(tests, StdinTests | CheckerTests):
        told = "standard input" in prompt.lower() or "stdin" in prompt.lower()
        way = "Write a Python program that reads standard input and prints to standard output."
        return prompt if told else f"{prompt}\n\n{way}"
    name = tests.name if isinstance(tests, CallTests) else tests.names[0]
    if isinstance(tests, AssertTests) and tests.tests[0].startswith("assert"):
        return f"{prompt}\n\nFor example:\n{tests.tests[0]}"
    return prompt if name in prompt else f"{prompt}\n\nName the function `{name}`."
