"""Unit tests of rows: inputs with outputs, in the forms in which data sets write them.

    {"inputs": [...], "outputs": [...], "fn_name"}   APPS, TACO, PRIME: lists side by side
    [{"input", "output", "type"}, ...]               DeepCoder, LiveCodeBench, open-r1: one object each
    ["assert f(1) == 2", ...] and test code          see asserts.py

each as it is, as JSON text, or packed (verifiers/unpickle.py).
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardwon.tasks.layouts.layout import BadRowError, at, from_json, is_list
from hardwon.verifiers.code import CallTests, StdinTests
from hardwon.verifiers.unpickle import unpack
from hardwon.verifiers.worker_pool import WorkerPool

PACKED = re.compile(r"e[AFJN][A-Za-z0-9+/]+={0,2}")  # base64 of zlib, by zlib's four levels
UNPACK_SECONDS = 60.0
STDIN, CALL = "standard input", "a function"
KINDS = {
    "stdin": STDIN, "stdin_stdout": STDIN, "stdio": STDIN, "standard": STDIN,
    "functional": CALL, "function_call": CALL, "call": CALL, "call_based": CALL,
}  # fmt: skip
NAMES = ("fn_name", "func_name", "function_name", "metadata.func_name", "metadata.fn_name")


@dataclass(frozen=True)
class Case:
    """One test; `name` is of the function that it calls, None for a program that reads standard input."""

    name: str | None
    input: Any
    output: Any


@functools.cache
def unpacker() -> WorkerPool:
    return WorkerPool(unpack, seconds=UNPACK_SECONDS, num_workers=1, sealed=True)


def end_unpacker() -> None:
    """Ends the worker that unpacked tests, if one was started."""
    if unpacker.cache_info().currsize:
        unpacker().close()
        unpacker.cache_clear()


def content(column: str, value: Any) -> Any:
    """A column's value, out of JSON text and out of its packing."""
    while isinstance(value, str):
        if PACKED.fullmatch(value):
            (reply,) = unpacker().run([(value,)])
            if reply.kind != "done":
                raise BadRowError(column, f"can't be unpacked ({reply.kind}: {reply.value})")
            value = reply.value
            continue
        if value.lstrip()[:1] not in ("{", "["):
            return value
        try:
            value = from_json(value)
        except (ValueError, RecursionError) as error:
            raise BadRowError(column, f"not JSON ({error})") from error
    return value


def cases_in(column: str, value: Any, row: Any = None) -> list[Case]:
    """The cases of a column; the function's name may stand in the case, beside the cases or in the row."""
    value = content(column, value)
    if isinstance(value, Mapping):
        one, several = ("input", "output"), ("inputs", "outputs")
        names = several if "inputs" in value or "outputs" in value else one
        inputs, outputs = (list_in(column, value, name) for name in names)
        if names == several and not inputs:
            raise BadRowError(f"{column}.inputs", "a list of tests is wanted, found none")
        if len(inputs) != len(outputs):
            raise BadRowError(f"{column}.{names[1]}", f"{len(outputs)} outputs for {len(inputs)} inputs")
        name = function_name(value) or None
        return [Case(name, given, wanted) for given, wanted in zip(inputs, outputs, strict=True)]
    if not is_list(value) or not all(isinstance(item, Mapping) for item in value):
        raise BadRowError(column, f"tests are wanted, as an object or a list of objects, found {value!r:.80}")
    return [case_of(f"{column}.{number}", item, row) for number, item in enumerate(value)]


def list_in(column: str, value: Mapping[str, Any], name: str) -> list[Any]:
    found = value.get(name)
    if not is_list(found):
        raise BadRowError(f"{column}.{name}", f"a list of tests is wanted, found {found!r:.80}")
    assert found is not None
    return list(found)


def function_name(value: Any) -> str | None:
    for path in NAMES:
        name = at(value, path)
        if isinstance(name, str) and name.strip():
            return name.strip()
    return None


def case_of(place: str, item: Mapping[str, Any], row: Any) -> Case:
    kind = item.get("testtype") or item.get("type")
    name = function_name(item) or function_name(row)
    if kind is None:
        kind = "functional" if name else "stdin"
    if not isinstance(kind, str) or kind not in KINDS:
        raise BadRowError(place, f"a test of type {kind!r}; known are {', '.join(KINDS)}")
    if "input" not in item or "output" not in item:
        raise BadRowError(place, f"'input' and 'output' are wanted, found {', '.join(map(str, item))}")
    if KINDS[kind] == STDIN:
        return Case(None, item["input"], item["output"])
    if name is None:
        raise BadRowError(place, f"a test of {CALL} without its name ({', '.join(NAMES)})")
    return Case(name, item["input"], item["output"])


def tests_of(column: str, cases: Sequence[Case]) -> StdinTests | CallTests:
    """One kind of tests for the verifier; the same case twice counts once."""
    names = {case.name for case in cases}
    if not cases:
        raise BadRowError(column, "a list of tests is wanted, found none")
    if len(names) > 1:
        raise BadRowError(column, f"one program or function is wanted, found {sorted(map(str, names))}")
    (name,) = names
    if name is None:
        pairs = dict.fromkeys((as_lines(case.input), as_lines(case.output)) for case in cases)
        inputs, outputs = zip(*pairs, strict=True)
        return StdinTests(inputs, outputs)
    called = [call_of(column, case) for case in cases]
    return CallTests(name, tuple(given for given, _ in called), tuple(wanted for _, wanted in called))


def as_lines(value: Any) -> str:
    """A standard input or output that is given as a list is its lines."""
    return "\n".join(map(as_lines, value)) if is_list(value) else str(value)


def call_of(column: str, case: Case) -> tuple[list[Any], Any]:
    """Arguments and result. LiveCodeBench writes both as text, with one argument in each line."""
    if isinstance(case.input, str):
        lines = [line for line in case.input.split("\n") if line.strip()]
        return [value_of(column, line) for line in lines], value_of(column, case.output)
    if not is_list(case.input):
        raise BadRowError(f"{column}.inputs", f"a list of arguments is wanted, found {case.input!r:.80}")
    return list(case.input), case.output


def value_of(column: str, value: Any) -> Any:
    """Data as it is; text as the value that it writes, in JSON or in Python."""
    if not isinstance(value, str):
        return value
    for parse in (from_json, ast.literal_eval):
        try:
            return parse(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    raise BadRowError(column, f"a value is wanted, found the text {value!r:.80}")
