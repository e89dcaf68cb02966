"""Names that LeetCode and LiveCodeBench give to every program, without an import in it.

They import many modules whole before the program runs. Here they are only searched for names that the
program reads and nobody defines, so that most programs pay nothing.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Iterable
from typing import Any

# Of a name that several of them define, the last one's is taken; a module's own name comes before all.
MODULES = (
    *("typing", "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random"),
    *("statistics", "itertools", "functools", "operator", "io", "sys", "json", "sortedcontainers"),
)
RECURSION_LIMIT = 50_000  # LiveCodeBench's; LeetCode's is higher still


def provide(module: types.ModuleType, code: types.CodeType) -> None:
    """Put what the code reads, and neither Python nor the program defines, into its module."""
    sys.setrecursionlimit(RECURSION_LIMIT)
    for name in read(code) - defined(code) - set(dir(builtins)):
        for value in given(name):
            setattr(module, name, value)


def read(code: types.CodeType) -> set[str]:
    """Global names that it reads, also within functions and classes."""
    import dis  # here, since most programs run without

    own = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_NAME", "LOAD_GLOBAL")}
    inner = [read(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return own.union(*inner)


def defined(code: types.CodeType) -> set[str]:
    import dis

    return {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_NAME"}


def given(name: str) -> list[Any]:
    """The value for a name in a list, or nothing."""
    if name in MODULES:
        return load(name)
    for known in reversed(MODULES):
        for module in load(known):
            if name in public(module):
                return [getattr(module, name)]
    return []


def public(module: types.ModuleType) -> Iterable[str]:
    """What `from module import *` gives."""
    names: Iterable[str] = getattr(module, "__all__", None) or [n for n in dir(module) if n[:1] != "_"]
    return names


def load(name: str) -> list[types.ModuleType]:
    try:
        return [__import__(name)]
    except ImportError:  # sortedcontainers, where it is not installed
        return []
