"""A power cut leaves no name of a file that is not whole: files are synced before they get their name."""

import ast
import io
import os
from pathlib import Path

import pytest
from rich.console import Console

import hardwon
from hardwon.algorithms import find, resolve
from hardwon.progress import Display
from hardwon.run import Run

ROOT = Path(hardwon.__file__).parent
TINY = {
    "eval_problems": 2, "eval_samples": 1, "warmup_iterations": 0, "task_options": {"train_size": 32},
}  # fmt: skip
OFFLINE = {"num_problems": 16, "solutions_per_problem": 8, "batch_size": 8}
RUNS = {
    "da3po": {"iterations": 1, "prompts_per_iteration": 4, "group_size": 4},
    "ppo": {"iterations": 1, "prompts_per_iteration": 4, "samples_per_prompt": 1},
    "sft": OFFLINE,
    "dpo": OFFLINE,
    "direct_advantage": OFFLINE | {"completions": 4, "kept_solutions": 2, "epochs": 1, "critic_epochs": 1,
                                   "fresh_states": 0, "require_critic": False, "min_gap": 0.0},
}  # fmt: skip


class Disk:
    """Watches renames and syncs; a file is safe while its last sync saw all of it."""

    def __init__(self, monkeypatch):
        self.synced, self.renamed, self.unsafe = {}, [], []
        self.real = {name: getattr(os, name) for name in ("fsync", "rename", "replace")}
        for name in self.real:
            monkeypatch.setattr(os, name, getattr(self, name))

    def fsync(self, descriptor):
        stat = os.fstat(descriptor)
        self.synced[stat.st_ino] = (stat.st_size, stat.st_mtime_ns)
        self.real["fsync"](descriptor)

    def rename(self, source, target, name="rename"):
        source = Path(source)
        for path in [source, *source.rglob("*")] if source.is_dir() else [source]:
            stat = path.stat()
            seen = self.synced.get(stat.st_ino)
            if seen is None or (path.is_file() and seen != (stat.st_size, stat.st_mtime_ns)):
                self.unsafe.append(f"{path} -> {target}")
        self.real[name](source, target)
        self.renamed.append(Path(target))

    def replace(self, source, target):
        self.rename(source, target, "replace")


@pytest.mark.parametrize("name", RUNS)
def test_what_is_renamed_was_synced_before(name, tmp_path, monkeypatch):
    config = resolve(name, TINY, RUNS[name], {"run": str(tmp_path / "run")})
    disk = Disk(monkeypatch)
    with Run.create(tmp_path / "run", config.model_dump(mode="json")) as run:
        find(name).train(config, run, Display(1, console=Console(file=io.StringIO())))
    expected = {"config.yaml", "model"} | ({"advantages.parquet", "critic"} if "direct" in name else set())
    assert expected <= {path.name for path in disk.renamed}
    # Rollouts are synced with the next checkpoint: those after it are cut away on resume.
    assert [line for line in disk.unsafe if "/rollouts/" not in line] == []
    assert all(path.parent.stat().st_ino in disk.synced for path in disk.renamed if path.exists())


def test_files_are_renamed_in_two_places_only():
    """Elsewhere `write_atomic` and `move_directory` do it, which sync."""
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and ast.unparse(node) in ("os.rename", "os.replace", "temporary.replace", "temporary.rename")
    }
    assert found == {"checkpoints.py", "run.py"}
