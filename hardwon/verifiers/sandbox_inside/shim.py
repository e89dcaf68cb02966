"""First thing that runs in the sandbox: raise the walls, say so, then run what was asked for.

    program     the model's program as __main__, on the stdin that follows the job
    functions   the model's program as a module whose functions answer calls, one JSON line each
    check       trusted test code, whose calls go out as JSON lines to such a module elsewhere

The job (length, then JSON) comes on descriptor 0; `control` is a pipe to the parent. Only data that
the model's program may know is ever in the same process: never an expected value.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn

import kernel
import plain

# Starter codes of APPS and TACO use these without an import, and so do right answers to them.
STARTER_NAMES = ("Any", "Dict", "List", "Optional", "Set", "Tuple", "Union")


def main(control: int) -> None:
    job = json.loads(read_exactly(int.from_bytes(read_exactly(8), "big")))
    silence = os.open(os.devnull, os.O_RDWR)
    seal(**job["seal"])
    for name in ("exit", "quit"):  # the interpreter starts without `site`, which adds them
        setattr(builtins, name, sys.exit)
    sys.argv[:] = ["solution.py"]
    sys.path[:] = job["path"]
    os.write(control, b"ready\n")
    if job["mode"] == "program":
        os.close(control)
        os.close(silence)
        run_program(job["source"], "__main__")
        return
    lines = os.fdopen(os.dup(0), "rb")
    os.dup2(silence, 0)
    if job["mode"] == "functions":
        known = {name: getattr(typing, name) for name in STARTER_NAMES} if job.get("starter") else {}
        answer_calls(job["source"], known, lines, control)
    else:
        run_checks(job["setup"], job["names"], job["tests"], lines, control)


def read_exactly(count: int) -> bytes:
    """Not one byte more: what follows on descriptor 0 belongs to the program."""
    data = b""
    while len(data) < count:
        chunk = os.read(0, count - len(data))
        if not chunk:
            raise EOFError("the job ended early")
        data += chunk
    return data


def seal(
    *,
    limits: dict[str, int],
    walls: list[str],
    uid: int,
    keep_reading: bool,
    tasks: int,
    readable: list[str],
    listable: list[str],
) -> None:
    """Raise the `walls`, in the order in which each still has the rights that it needs."""
    kernel.set_limits(**limits)
    if "user" in walls:
        kernel.drop_root(uid, keep_reading=keep_reading)
    if "own user namespace" in walls:
        kernel.own_user_namespace()
    if "tasks" in walls:
        kernel.limit_tasks(tasks)
    if "system calls" in walls:
        kernel.forbid_new_privileges()
    if "files" in walls:
        kernel.restrict_files(readable, listable, ".")  # nobody may not enter the directories above it
    if "system calls" in walls:
        kernel.restrict_system_calls()


def run_program(source: str, name: str, known: dict[str, Any] | None = None) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(known or {})
    sys.modules[name] = module
    exec(compile_as_file(source, "solution.py"), module.__dict__)
    return module


def compile_as_file(source: str, name: str) -> types.CodeType:
    """As if it stood in a file: without this module's `from __future__`; a byte order mark is allowed."""
    return compile(source.removeprefix("\ufeff"), name, "exec", dont_inherit=True)


def send(control: int, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(control, data) :]


def answer_calls(source: str, known: dict[str, Any], lines: BinaryIO, control: int) -> None:
    """For each line {"id", "name", "arguments"} reply {"id", "value"} or {"id", "raised", "message"}."""
    try:
        module = run_program(source, "solution", known)
    except BaseException as error:  # sys.exit too: whatever it does, it has no functions to offer
        send(control, {"raised": type(error).__name__, "message": str(error)[:500]})
        return
    send(control, {"value": None})
    for line in lines:
        call = json.loads(line)
        try:
            arguments, keywords = plain.loads(call["arguments"])
            value = find(module, call["name"])(*arguments, **keywords)
            reply = {"value": plain.dumps(value)}
        except BaseException as error:
            reply = {"raised": builtin_name(type(error)), "message": str(error)[:500]}
        send(control, {**reply, "id": call["id"]})


def builtin_name(kind: type[BaseException]) -> str:
    """Of the nearest builtin class: all that is known of an exception on the other side."""
    return next(c.__name__ for c in kind.__mro__ if getattr(builtins, c.__name__, None) is c)


def find(module: types.ModuleType, name: str) -> Callable[..., Any]:
    """A function of the module, or a method of its class `Solution`, as many collections write it."""
    if not hasattr(module, name) and hasattr(module, "Solution"):
        return getattr(module.Solution(), name)
    return getattr(module, name)


def run_checks(setup: str, names: list[str], tests: list[str], lines: BinaryIO, control: int) -> None:
    """Run `setup`, then each test, with `names` bound to functions that live in the other process.

    Sends {"passed", "message"} for each test. {"fault"} means that the tests themselves are broken:
    they failed before the model's program had any part in it, or pass what is not plain data.
    """
    calls = Calls(lines, control)
    namespace: dict[str, Any] = {"__name__": "tests"}
    attempt(setup, namespace, calls)
    namespace.update({name: calls.function(name) for name in names})
    for test in tests:
        message = attempt(test, namespace, calls)
        send(control, {"passed": message is None, "message": message or ""})


class Calls:
    """Functions whose bodies run in the other process; plain data goes and comes."""

    def __init__(self, lines: BinaryIO, control: int) -> None:
        self.lines, self.control, self.made = lines, control, 0

    def function(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            return self.call(name, arguments, keywords)

        call.__name__ = name
        return call

    def call(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        try:
            data = plain.dumps([list(arguments), keywords])
        except TypeError as error:
            if not self.made:
                self.fault(f"a test passes to {name} {error}")
            raise
        self.made += 1
        send(self.control, {"name": name, "arguments": data})
        reply = json.loads(self.lines.readline())
        if "raised" in reply:
            raise exception_named(reply["raised"], reply["message"])
        return plain.loads(reply["value"])

    def fault(self, message: str) -> NoReturn:
        send(self.control, {"fault": message})
        os._exit(0)


def exception_named(name: str, message: str) -> Exception:
    """The builtin exception of that name. Not one that ends a loop quietly, nor one that ends the test.

    Some want more arguments than a message (UnicodeDecodeError); their __init__ is left out.
    """
    kind = getattr(builtins, name, None)
    quiet = (StopIteration, StopAsyncIteration)
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, quiet):
        return RuntimeError(message)
    try:
        error = kind.__new__(kind, message)
    except TypeError:  # an ExceptionGroup holds others
        return RuntimeError(message)
    error.args = (message,)
    return error


def attempt(source: str, namespace: dict[str, Any], calls: Calls) -> str | None:
    """None if the source ran through, else what it raised."""
    try:
        exec(compile_as_file(source, "tests.py"), namespace)
        return None
    except BaseException as error:
        message = f"{type(error).__name__}: {str(error)[:500]}"
        if not calls.made:
            calls.fault(f"the tests failed before they called the program: {message}")
        return message
