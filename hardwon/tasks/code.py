"""Python programs judged by unit tests in a sandbox (verifiers/code.py, docs/sandbox.md).

Rows hold tests in one of the common layouts:

    input_output      {"inputs", "outputs"} as TACO and APPS have it, also as JSON text: standard input and
                      output, or with "fn_name" the arguments and results of a function
    test, entry_point code that defines check(candidate), as HumanEval has it, for a `prompt` to complete
    test_list         assert statements, as MBPP has it, with an optional test_setup_code
"""

from __future__ import annotations

import ast
import builtins
import json
import os
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from hardwon.data import Problem, Verdict
from hardwon.tasks.rows import HELD_OUT_FRACTION, BadRowError, column, load_splits
from hardwon.tasks.task import Task
from hardwon.verifiers import code
from hardwon.verifiers.code import AssertTests, CallTests, StdinTests, Tests, changed_argument
from hardwon.verifiers.sandbox_layers import Limits
from hardwon.verifiers.sandbox_probe import open_sandbox

PACKAGED = Path(__file__).with_name("code_problems.jsonl")
PACKAGED_HELD_OUT = 0.25

ID_COLUMNS = ("id", "task_id", "problem_id", "question_id")
PROMPT_COLUMNS = ("question", "prompt", "text")
SOLUTION_COLUMNS = ("canonical_solution", "solution", "code", "solutions")


def load(
    data: str | None = None,
    eval_data: str | None = None,
    seed: int = 0,
    *,
    held_out_fraction: float | None = None,
    partial_credit: bool = False,
    sandbox: str = "auto",
    unsafe_no_isolation: bool = False,
    cpu_seconds: int = 5,
    memory_mb: int = 1024,
    verifier_workers: int | None = None,
    packages: Sequence[str] | None = None,
) -> Task:
    """Problems of `data`, or the 26 small ones that come with the package.

    partial_credit       Verdict.score is the passed fraction of tests, which runs all of them; else no score
    sandbox              "auto" (the strongest layer that holds here), "N" or "L"
    unsafe_no_isolation  run programs with resource limits only
    cpu_seconds          of one run (ours); three times that by the clock
    memory_mb            address space of one run (ours)
    verifier_workers     runs at the same time; default: the machine's cores
    packages             what programs may import beside the standard library; default: numpy and
                         sortedcontainers, where they are installed

    The split depends on the prompts alone, so `seed` changes nothing. ValueError names bad rows, and a
    layer that does not hold.
    """
    if held_out_fraction is None:
        held_out_fraction = HELD_OUT_FRACTION if data else PACKAGED_HELD_OUT
    source = data or str(PACKAGED)
    return code_task(
        "code",
        load_splits(source, eval_data, held_out_fraction=held_out_fraction, convert=problem_of_row),
        gold=gold,
        partial_credit=partial_credit,
        sandbox=sandbox,
        unsafe_no_isolation=unsafe_no_isolation,
        limits=Limits(wall_seconds=3.0 * cpu_seconds, cpu_seconds=cpu_seconds, memory_bytes=memory_mb << 20),
        verifier_workers=verifier_workers,
        packages=packages,
    )


def code_task(
    name: str,
    splits: Mapping[str, Sequence[Problem]],
    *,
    gold: Callable[[Problem], str],
    partial_credit: bool = False,
    sandbox: str = "auto",
    unsafe_no_isolation: bool = False,
    limits: Limits | None = None,
    verifier_workers: int | None = None,
    packages: Sequence[str] | None = None,
) -> Task:
    """A task over problems whose `info["tests"]` are unit tests (verifiers/code.py).

    Of equal answers to one problem in one call only the first runs: the others get its verdict.
    """
    box = open_sandbox(
        sandbox, limits or Limits(), unsafe_no_isolation=unsafe_no_isolation, packages=packages
    )
    pool = ThreadPoolExecutor(verifier_workers or os.cpu_count() or 1, thread_name_prefix="code")

    def verify_one(pair: tuple[Problem, str]) -> Verdict:
        problem, text = pair
        return code.verify(box, problem.info["tests"], text, partial=partial_credit)

    def verify(pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        distinct = {(id(problem), text): (problem, text) for problem, text in pairs}
        verdicts = dict(zip(distinct, pool.map(verify_one, distinct.values()), strict=True))
        return [verdicts[id(problem), text] for problem, text in pairs]

    return Task(name, lambda split: list(splits[split]), verify, gold, close=pool.shutdown)


def gold(problem: Problem) -> str:
    """The row's own solution in a fenced block. ValueError if the row has none."""
    if not problem.answer:
        raise ValueError(f"problem {problem.id!r} has no solution column ({', '.join(SOLUTION_COLUMNS)})")
    return f"```python\n{problem.answer.rstrip()}\n```"


def problem_of_row(row: Mapping[str, Any], default_id: str) -> Problem:
    """A row of any of the layouts; BadRowError names the column. `answer` is the solution, "" without one."""
    given_id = next((row[name] for name in ID_COLUMNS if row.get(name) is not None), default_id)
    solution = solution_of_row(row)
    prompt, tests = prompt_and_tests(row)
    if solution:
        solution = code.program_for(tests, solution)
    return Problem(str(given_id), prompt, solution, {"tests": tests})


def prompt_and_tests(row: Mapping[str, Any]) -> tuple[str, Tests]:
    if row.get("input_output") is not None:
        tests = input_output_tests(row["input_output"])
        if isinstance(tests, CallTests):
            changed = changed_argument(str(row.get("starter_code") or ""), tests.name, tests.outputs)
            tests = replace(tests, changed=changed)
        return input_output_prompt(row, tests), tests
    if row.get("test_list") is not None:
        asserts = assert_tests(row)
        return f"{prompt_of_row(row)}\n\nFor example:\n{asserts.tests[0]}", asserts
    if row.get("test") is not None:
        checks = check_tests(row)
        return checks.prompt, checks
    raise BadRowError("input_output", "is missing, as are test and test_list: a row needs unit tests")


def prompt_of_row(row: Mapping[str, Any]) -> str:
    for name in PROMPT_COLUMNS:
        text = row.get(name)
        if isinstance(text, str) and text.strip():
            return text.strip()
    raise BadRowError("prompt", f"is missing or empty; any of {', '.join(PROMPT_COLUMNS)} will do")


def solution_of_row(row: Mapping[str, Any]) -> str:
    name = next((name for name in SOLUTION_COLUMNS if row.get(name)), None)
    if name is None:
        return ""
    solution = row[name]
    if name == "solutions" and isinstance(solution, str):
        solution = parse_json(name, solution)
    if isinstance(solution, Sequence) and not isinstance(solution, str) and solution:
        solution = solution[0]
    if not isinstance(solution, str):
        raise BadRowError(name, f"program text is wanted, found {solution!r:.80}")
    return solution


def parse_json(name: str, text: str) -> Any:
    try:
        return json.loads(text, parse_int=whole_number)
    except (ValueError, RecursionError) as error:
        raise BadRowError(name, f"not JSON ({error})") from error


def whole_number(digits: str) -> int:
    """Of any length: `int` reads no more than 4,300 digits."""
    return int(digits) if len(digits) < 1000 else int(Decimal(digits))


def input_output_prompt(row: Mapping[str, Any], tests: StdinTests | CallTests) -> str:
    prompt = prompt_of_row(row)
    if row.get("starter_code"):
        prompt += f"\n\n{row['starter_code']}"
    if isinstance(tests, CallTests):
        return prompt if tests.name in prompt else f"{prompt}\n\nName the function `{tests.name}`."
    return f"{prompt}\n\nWrite a Python program that reads standard input and prints to standard output."


def input_output_tests(content: Any) -> StdinTests | CallTests:
    """APPS and TACO. A stdin or stdout given as a list is its lines."""
    if isinstance(content, str):
        content = parse_json("input_output", content)
    if not isinstance(content, Mapping):
        raise BadRowError("input_output", f"an object is wanted, found {content!r:.80}")
    inputs, outputs = tests_in(content, "inputs"), tests_in(content, "outputs")
    if len(inputs) != len(outputs):
        raise BadRowError("input_output.outputs", f"{len(outputs)} outputs for {len(inputs)} inputs")
    if not content.get("fn_name"):
        return StdinTests(tuple(map(as_lines, inputs)), tuple(map(as_lines, outputs)))
    for arguments in inputs:
        if not isinstance(arguments, list):
            raise BadRowError(
                "input_output.inputs", f"a list of arguments is wanted, found {arguments!r:.80}"
            )
    return CallTests(text_in(content, "fn_name", "input_output."), tuple(inputs), tuple(outputs))


def tests_in(content: Mapping[str, Any], name: str) -> list[Any]:
    values = content.get(name)
    if not isinstance(values, list) or not values:
        raise BadRowError(f"input_output.{name}", f"a list of tests is wanted, found {values!r:.80}")
    return values


def text_in(row: Mapping[str, Any], name: str, parent: str = "") -> str:
    value = column(row, name)
    if not isinstance(value, str) or not value.strip():
        raise BadRowError(f"{parent}{name}", f"text is wanted, found {value!r:.80}")
    return value


def as_lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def check_tests(row: Mapping[str, Any]) -> AssertTests:
    """HumanEval. The test code also sees the prompt's imports and helpers."""
    prompt, test, name = (text_in(row, key) for key in ("prompt", "test", "entry_point"))
    parse_python("test", test)
    setup = f"{prompt}\n\n{test}" if is_python(prompt) else test
    return AssertTests(setup, (name,), (f"check({name})",), prompt, provided="." in name)


def assert_tests(row: Mapping[str, Any]) -> AssertTests:
    """MBPP. The functions under test are the names that neither Python nor the tests define.

    A name that the row's own solution imports, as some tests use `isclose`, is imported for the tests: a
    program that brought its own would judge itself.
    """
    tests = row["test_list"]
    if not isinstance(tests, Sequence) or isinstance(tests, str) or not tests:
        raise BadRowError("test_list", f"a list of assert statements is wanted, found {tests!r:.80}")
    imports = row.get("test_imports") or ()
    if not isinstance(imports, Sequence) or isinstance(imports, str):
        raise BadRowError("test_imports", f"a list of import statements is wanted, found {imports!r:.80}")
    setup = "\n".join([*map(str, imports), row.get("test_setup_code") or ""])
    defined = names_in(parse_python("test_setup_code", setup), ast.Store) | set(dir(builtins))
    used: dict[str, None] = {}
    for test in tests:
        tree = parse_python("test_list", test)
        used |= dict.fromkeys(sorted(names_in(tree, ast.Load) - names_in(tree, ast.Store) - defined))
    if not used:
        raise BadRowError("test_list", "the tests call no function of the program")
    borrowed = imports_of(solution_of_row(row), set(used))
    names = tuple(name for name in used if name not in borrowed)
    if not names:  # the solution is an import
        return AssertTests(setup, tuple(used), tuple(tests))
    return AssertTests("\n".join([setup, *dict.fromkeys(borrowed.values())]), names, tuple(tests))


def imports_of(program: str, names: Set[str]) -> dict[str, str]:
    """For those of `names` that the program imports at its top level: the import statement."""
    if not is_python(program):
        return {}
    statements = [node for node in ast.parse(program).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    return {
        name: ast.unparse(node) for node in statements for name in sorted(names & names_in(node, ast.Store))
    }


def parse_python(name: str, source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise BadRowError(name, f"not Python code ({error})") from error


def is_python(source: str) -> bool:
    try:
        parse_python("prompt", source)
    except BadRowError:
        return False
    return True


def names_in(tree: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """Names that the code reads (ast.Load) or gives a meaning to (ast.Store)."""
    names = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    }
    if context is ast.Load:
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names
