"""Tasks are found by name, and what is optional is missed only by those who ask for it."""

import importlib
import sys

import pytest

from hardwon.tasks import TASKS, load_task
from hardwon.tasks.task import split_lines


@pytest.mark.parametrize("module", sorted(TASKS.values()))
def test_every_name_has_a_module_with_a_load(module):
    assert callable(importlib.import_module(module).load)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "hardwon.tasks.reasoning_gym", raising=False)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(ImportError, match=r"pip install 'hardwon\[reasoning-gym\]'"):
        load_task("reasoning_gym:leg_counting")


@pytest.mark.parametrize("text", ["", "a", "a\n", "a\n\nb", "\n", "a\r\nb\u2028c\x0bd"])
def test_joined_steps_are_the_text(text):
    # Fault 29: no step loses anything; only "\n" ends a step.
    assert "".join(split_lines(text)) == text
    assert len(split_lines(text)) == text.count("\n") + bool(text and not text.endswith("\n"))
