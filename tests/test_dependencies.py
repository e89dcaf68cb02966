"""What the package imports is what it declares, no more and no less."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import hardwon

ROOT = Path(hardwon.__file__).parent
PROJECT = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~! ]", r, maxsplit=1)[0].lower().replace("_", "-") for r in requirements} - {
        "hardwon"
    }


def imported(files: list[Path]) -> set[str]:
    """Distributions that these files import at any level, by name."""
    modules: set[str] = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.partition(".")[0])
    modules -= set(sys.stdlib_module_names) | {"hardwon"}
    owners = packages_distributions()
    return {owners.get(module, [module])[0].lower().replace("_", "-") for module in modules}


CORE = [p for p in ROOT.rglob("*.py") if "integrations" not in p.parts and "sandbox_inside" not in p.parts]


def test_every_core_dependency_is_imported_by_the_core():
    """accelerate once was not: only the TRL plug-in needs it."""
    assert names(PROJECT["dependencies"]) <= imported(CORE)


def test_every_package_that_is_imported_is_declared():
    extras = [r for group in PROJECT["optional-dependencies"].values() for r in group]
    # sympy comes with math-verify, markupsafe with jinja2, ray with verl, which has its own environment.
    comes_along = {"latex2sympy2-extended", "sympy", "markupsafe", "ray", "verl"}
    found = imported([p for p in ROOT.rglob("*.py") if "sandbox_inside" not in p.parts])
    assert found - comes_along <= names(PROJECT["dependencies"]) | names(extras)
