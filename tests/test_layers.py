"""The house: a module imports only from below, and algorithms not from one another."""

import ast
from pathlib import Path

import pytest

import hardwon

ROOT = Path(hardwon.__file__).parent

# A module or package and its layer. Inside one package the modules may use one another.
LAYERS = {
    "functional": 1, "data": 1, "statistics": 1, "config": 1, "form": 2, "json_lines": 3,
    "verifiers": 2, "tasks": 3, "models": 2, "checkpoints": 2, "records": 3, "progress": 2, "scoring": 4,
    "run": 4, "rollouts": 4, "optimization": 3, "memory": 3, "hardware": 2, "sharded_state": 3,
    "stored_prompts": 5, "dynamic_sampling": 5, "evaluate": 5, "workbench": 6, "plots": 6, "report": 9,
    "show": 7, "offline": 7, "steps": 8, "algorithms": 9, "integrations": 9,
    "cost": 8, "plan": 9, "plan_tables": 10, "check": 10, "commands": 11, "cli": 12, "__main__": 13,
}  # fmt: skip


def imports(path: Path) -> set[str]:
    """The modules of hardwon that a file imports at run time, by their first name."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in skipped:
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "hardwon" else []
            )
            found |= {name.split(".")[1] for name in names or [node.module] if name.startswith("hardwon.")}
    return found


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


FILES = [p for p in sorted(ROOT.rglob("*.py")) if p != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_come_from_below(path):
    own = name_of(path)
    assert own in LAYERS, f"give {own} a layer"
    for other in imports(path) - {own}:
        if other in LAYERS:
            assert LAYERS[other] < LAYERS[own], f"{own} imports {other}, which is not below it"


def test_algorithms_do_not_import_one_another():
    """Each may use its own files and what the floors below share."""
    families = ("group_", "direct_advantage", "ppo", "dpo", "sft")
    for path in (ROOT / "algorithms").glob("*.py"):
        family = next((name for name in families if path.stem.startswith(name)), None)
        if family is None:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.ImportFrom)
                and node.module
                and node.module.startswith("hardwon.algorithms.")
            ):
                other = node.module.split(".")[2]
                assert other.startswith(family), f"{path.stem} imports {other}"


def test_functional_needs_torch_alone():
    for path in (ROOT / "functional").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.Import):
                modules = [a.name for a in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                first = module.split(".")[0]
                assert first in {"torch", "hardwon", "__future__"} | set(
                    __import__("sys").stdlib_module_names
                )
                assert first != "hardwon" or module.startswith("hardwon.functional")
