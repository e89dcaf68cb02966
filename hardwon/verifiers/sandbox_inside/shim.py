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
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn

import kernel
import plain


def main(control: int) -> None:
    job = json.loads(read_exactly(int.from_bytes(read_exactly(8), "big")))
    if job.get("provided"):
        import provided  # noqa: F401  while its file can still be read
    silence = os.open(os.devnull, os.O_RDWR)
    seal(**job["seal"])
    for name in ("exit", "quit"):  # the interpreter starts without `site`, which adds them
        setattr(builtins, name, sys.exit)
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)  # numbers of any length are read and printed; CPU time is bounded
    sys.argv[:] = ["solution.py"]
    sys.path[:] = job["path"]
    sys.meta_path.append(Packages(job["packages"]))
    os.write(control, b"ready\n")
    if job["mode"] == "program":
        os.close(control)
        os.close(silence)
        run_program(job["source"], "__main__", provided_names=job.get("provided", False))
        return
    lines = os.fdopen(os.dup(0), "rb")
    os.dup2(silence, 0)
    if job["mode"] == "functions":
        answer_calls(job, lines, control)
    else:
        run_checks(job, lines, control)


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


class Packages:
    """Finds the packages that the sandbox opens, where they lie; their directory itself stays closed."""

    def __init__(self, origins: dict[str, str]) -> None:
        self.origins = origins

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name not in self.origins:
            return None
        from importlib.util import spec_from_file_location

        return spec_from_file_location(name, self.origins[name])


def run_program(source: str, name: str, *, provided_names: bool) -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module
    code = compile_as_file(source, "solution.py")
    if provided_names:
        import provided

        provided.provide(module, code)
    exec(code, module.__dict__)
    return module


def compile_as_file(source: str, name: str) -> types.CodeType:
    """As if it stood in a file: without this module's `from __future__`; a byte order mark is allowed."""
    return compile(source.removeprefix("\ufeff"), name, "exec", dont_inherit=True)


def send(control: int, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(control, data) :]


def answer_calls(job: dict[str, Any], lines: BinaryIO, control: int) -> None:
    """For each line {"id", "name", "arguments"} reply {"id", "value"} or {"id", "raised", "message"}.

    With "changed" the value is not what the function returned, but the argument of that index after the call.
    """
    try:
        module = run_program(job["source"], "solution", provided_names=job.get("provided", False))
    except BaseException as error:  # sys.exit too: whatever it does, it has no functions to offer
        send(control, {"raised": type(error).__name__, "message": str(error)[:500]})
        return
    plain.classes = vars(module)
    send(control, {"value": None})
    for line in lines:
        call = json.loads(line)
        try:
            arguments, keywords = plain.loads(call["arguments"])
            value = find(module, call["name"])(*arguments, **keywords)
            if call.get("changed") is not None:
                value = arguments[call["changed"]]
            reply = {"value": plain.dumps(value)}
        except BaseException as error:
            reply = {"raised": builtin_name(type(error)), "message": str(error)[:500]}
        send(control, {**reply, "id": call["id"]})


def builtin_name(kind: type[BaseException]) -> str:
    """Of the nearest builtin class: all that is known of an exception on the other side."""
    return next(c.__name__ for c in kind.__mro__ if getattr(builtins, c.__name__, None) is c)


def find(module: types.ModuleType, name: str) -> Callable[..., Any]:
    """A function of the module, or a method of a new object, as in "Solution().twoSum".

    The class `Solution` need not be named, as many collections leave it out.
    """
    outer, dot, inner = name.rpartition(".")
    if not dot and not hasattr(module, name) and hasattr(module, "Solution"):
        outer, inner = "Solution", name
    holder = getattr(module, outer.removesuffix("()"))() if outer else module
    return getattr(holder, inner)


def run_checks(job: dict[str, Any], lines: BinaryIO, control: int) -> None:
    """Run the setup, then each test, with the names bound to functions that live in the other process.

    Sends {"passed", "message"} for each test. {"fault"} means that the tests themselves are broken:
    they failed before the model's program had any part in it, or pass what is not plain data.
    """
    calls = Calls(lines, control)
    plain.classes = namespace = {"__name__": "tests"}
    if job["module"]:
        sys.modules[job["module"]] = StandIn(job["module"], calls)
    attempt(job["setup"], namespace, calls)
    namespace.update(dict(calls.named(name) for name in job["names"]))
    for test in job["tests"]:
        message = attempt(test, namespace, calls)
        send(control, {"passed": message is None, "message": message or ""})


class Calls:
    """Functions whose bodies run in the other process; plain data goes and comes."""

    def __init__(self, lines: BinaryIO, control: int) -> None:
        self.lines, self.control, self.made = lines, control, 0

    def named(self, name: str) -> tuple[str, Any]:
        """What a test reads, and its value: for "Solution().twoSum" a class with that one method."""
        outer, _, inner = name.rpartition(".")
        if not outer:
            return name, self.function(name)
        outer = outer.removesuffix("()")
        return outer, type(outer, (), {inner: staticmethod(self.function(name))})

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


class StandIn(types.ModuleType):
    """The program's module, as tests import it: each of its names is a function of the other process."""

    def __init__(self, name: str, calls: Calls) -> None:
        super().__init__(name)
        self.__calls = calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__calls.function(name)


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
