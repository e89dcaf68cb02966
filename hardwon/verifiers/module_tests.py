"""Test files as pytest and unittest run them, as tests that the sandbox runs without either's runner.

Each test becomes a statement: a function test_..., a method of a class Test..., or of a unittest.TestCase.
The program is the module that the file imports; its functions are reached as in all AssertTests.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from pathlib import Path

from hardwon.verifiers.code import AssertTests

SOLUTION_MODULES = ("solution", "main", "my_solution")  # what tests import the program from
PYTEST_NAMES = ("raises", "approx", "mark", "param")  # of pytest_names.py
PYTEST = """
import sys, types
_pytest = types.ModuleType("pytest")
exec({text!r}, vars(_pytest))
sys.modules["pytest"] = _pytest
"""
NOT_RUN = ("mark.skip", "mark.skipif", "mark.xfail", "unittest.skip", "unittest.expectedFailure")


def module_tests(source: str, *, names: Sequence[str] = (), prompt: str = "") -> AssertTests:
    """The tests of a file that imports the program, or uses its functions without an import.

    `names` are the functions under test where the row names them, and `prompt` is code that the program
    continues. Understood are plain tests, parametrize, raises and approx of pytest, setUp, setUpClass and
    setup_method. ValueError for what is not Python, has no test, uses more of pytest, or wants a fixture.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the tests are not Python code: {error}") from error
    tests = tuple(statement for node in tree.body for statement in statements(node))
    if not tests:
        raise ValueError("the tests have no function test_... and no class with such methods")
    pytest_used, of_pytest = uses_of(tree, ("pytest",))
    if unknown := sorted(of_pytest - {*PYTEST_NAMES}):
        raise ValueError(f"the tests use pytest.{unknown[0]}; of pytest there are {', '.join(PYTEST_NAMES)}")
    modules, imported = uses_of(tree, SOLUTION_MODULES)
    wanted = sorted({*names} | imported | unknown_names(tree))
    setup = PYTEST.format(text=Path(__file__).with_name("pytest_names.py").read_text("utf-8")) + source
    return AssertTests(
        setup if pytest_used else source, tuple(wanted), tests, prompt, module=modules[0] if modules else ""
    )


def uses_of(tree: ast.Module, modules: Sequence[str]) -> tuple[list[str], set[str]]:
    """Those of `modules` that the code imports, and what it takes from them: by import or as an attribute."""
    found: dict[str, None] = {}
    aliases: set[str] = set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module in modules:
            found[node.module] = None
            names |= {alias.name for alias in node.names} - {"*"}
        elif isinstance(node, ast.Import):
            here = [alias for alias in node.names if alias.name in modules]
            found |= dict.fromkeys(alias.name for alias in here)
            aliases |= {alias.asname or alias.name for alias in here}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            names.add(node.attr)
    return list(found), names


def statements(node: ast.stmt) -> Iterator[str]:
    """For each test that the node defines, the code that runs it."""
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test") and runs(node):
        yield call_of(node, node.name, node.args.args)
    if not isinstance(node, ast.ClassDef):
        return
    methods = {method.name: method for method in node.body if isinstance(method, ast.FunctionDef)}
    unit = any(ast.unparse(base).endswith("TestCase") for base in node.bases)
    for name, method in methods.items():
        if not (runs(node) and runs(method)):
            continue
        if name.startswith("test") and unit:
            yield f"{node.name}.setUpClass()\n{node.name}({name!r}).debug()"
        elif name.startswith("test") and node.name.startswith("Test"):
            call = call_of(method, f"_case.{name}", method.args.args[1:])
            yield f"_case = {node.name}()\n{prepared(methods)}{call}"


def runs(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Whether its decorators let it run."""
    return not any(
        ast.unparse(d).startswith((*NOT_RUN, *(f"pytest.{n}" for n in NOT_RUN))) for d in node.decorator_list
    )


def prepared(methods: dict[str, ast.FunctionDef]) -> str:
    if "setup_method" not in methods:
        return ""
    wanted = len(methods["setup_method"].args.args) - 1
    return f"_case.setup_method({', '.join(['None'] * wanted)})\n"


def call_of(test: ast.FunctionDef, name: str, parameters: list[ast.arg]) -> str:
    """A call for each combination of its parametrize decorators."""
    loops = ""
    arguments: dict[str, str] = {}
    for decorator in test.decorator_list:
        if not isinstance(decorator, ast.Call) or not ast.unparse(decorator.func).endswith("parametrize"):
            continue
        names, values = decorator.args[:2]
        given = names_of(names, test.name)
        variable = f"_value{len(arguments)}"
        loops += "    " * loops.count("\n") + f"for {variable} in {ast.unparse(values)}:\n"
        for index, parameter in enumerate(given):
            arguments[parameter] = variable if len(given) == 1 else f"{variable}[{index}]"
    required = parameters[: len(parameters) - len(test.args.defaults)]
    fixtures = [parameter.arg for parameter in required if parameter.arg not in arguments]
    if fixtures:
        raise ValueError(f"{test.name} wants the fixture {fixtures[0]!r}; only parametrize is understood")
    call = ", ".join(f"{parameter}={value}" for parameter, value in arguments.items())
    return f"{loops}{'    ' * loops.count(chr(10))}{name}({call})"


def names_of(node: ast.expr, test: str) -> list[str]:
    """Of "a, b" and of ["a", "b"]."""
    try:
        names = ast.literal_eval(node)
    except ValueError:
        names = None
    if isinstance(names, str):
        names = names.split(",")
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{test} has parameters whose names are not plain text")
    return [name.strip() for name in names]


def unknown_names(tree: ast.Module) -> set[str]:
    """Names that the code reads and nobody defines: the program's functions."""
    read: set[str] = set()
    known = {*dir(builtins), "__file__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else known).add(node.id)
        elif isinstance(node, ast.alias):
            known.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)):
            known.add(node.name or "")
        elif isinstance(node, ast.arg):
            known.add(node.arg)
    return read - known
