"""Unit tests of rows that are code: assert statements, HumanEval's check, unittest's and pytest's style.

All become AssertTests: setup, the names of the functions under test, and one statement for each test.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence, Set
from typing import Any

from hardwon.tasks.layouts.layout import BadRowError, LeftOutError, is_list
from hardwon.verifiers.code import AssertTests
from hardwon.verifiers.module_tests import module_tests
from hardwon.verifiers.programs import parsed

TestFunction = ast.FunctionDef | ast.AsyncFunctionDef


def coded_tests(column: str, source: str, *, names: Sequence[str] = (), prompt: str = "") -> AssertTests:
    """Tests in any of the styles; `names` are the functions under test where the row names them.

    `prompt` is code that the program continues, and that tests of HumanEval's style see.
    """
    tree = parse_python(column, source)
    functions = {node.name for node in tree.body if isinstance(node, TestFunction)}
    if "check" in functions and not names:
        raise BadRowError("entry_point", "is missing: which function do the tests check?")
    if "check" in functions:
        return check_tests(column, source, names[0], prompt)
    if any(name.startswith("test") for name in functions) or any(map(has_tests, tree.body)):
        return file_tests(column, source, names, prompt)
    statements = [ast.unparse(node) for node in tree.body]
    setup = [text for text in statements if not text.startswith("assert")]
    return assert_tests(column, [text for text in statements if text.startswith("assert")], "\n".join(setup))


def check_tests(column: str, source: str, name: str, prompt: str) -> AssertTests:
    """HumanEval, and LeetCode's `Solution().mul`, whose method is found by its name."""
    parse_python(column, source)
    function = name.rpartition(".")[2]
    if not function.isidentifier():
        raise BadRowError("entry_point", f"the name of a function is wanted, found {name!r:.80}")
    setup = f"{prompt}\n\n{source}" if parsed(prompt) else source
    return AssertTests(setup, (function,), (f"check({function})",), prompt, provided="." in name)


def assert_tests(column: str, tests: Any, setup: str = "", solution: str = "") -> AssertTests:
    """MBPP. The functions under test are the names that neither Python nor the tests define.

    A name that the row's own solution imports, as some tests use `isclose`, is imported for the tests: a
    program that brought its own would judge itself.
    """
    if not is_list(tests) or not tests or not all(isinstance(test, str) for test in tests):
        raise BadRowError(column, f"a list of assert statements is wanted, found {tests!r:.80}")
    defined = names_in(parse_python(column, setup), ast.Store) | set(dir(builtins))
    used: dict[str, None] = {}
    for test in tests:
        tree = parse_python(column, test)
        used |= dict.fromkeys(sorted(names_in(tree, ast.Load) - names_in(tree, ast.Store) - defined))
    if not used:
        raise BadRowError(column, "the tests call no function of the program")
    borrowed = imports_of(solution, set(used))
    names = tuple(name for name in used if name not in borrowed)
    if not names:  # the solution is an import
        return AssertTests(setup, tuple(used), tuple(tests))
    return AssertTests("\n".join([setup, *dict.fromkeys(borrowed.values())]), names, tuple(tests))


def has_tests(node: ast.stmt) -> bool:
    """Whether it is a class with test methods."""
    methods = node.body if isinstance(node, ast.ClassDef) else []
    return any(isinstance(m, TestFunction) and m.name.startswith("test") for m in methods)


def file_tests(column: str, source: str, names: Sequence[str], prompt: str) -> AssertTests:
    """KodCode's in pytest's style, and BigCodeBench's in unittest's. Left out where they want more."""
    try:
        tests = module_tests(source, names=names, prompt=prompt)
    except ValueError as error:
        raise LeftOutError(column, str(error)) from error
    if not tests.names:
        raise BadRowError(column, "the tests don't say which function they test")
    return tests


def imports_of(program: str, names: Set[str]) -> dict[str, str]:
    """For those of `names` that the program imports at its top level: the import statement."""
    tree = parsed(program) or ast.Module([], [])
    statements = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    return {
        name: ast.unparse(node) for node in statements for name in sorted(names & names_in(node, ast.Store))
    }


def parse_python(name: str, source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise BadRowError(name, f"not Python code ({error})") from error


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
