"""Does a program pass its unit tests? The program runs in the sandbox; only a trusted side compares.

    StdinTests    one run for each input; the parent compares the printed text (verifiers/outputs.py)
    CallTests     one process answers calls with plain data; the parent compares the data
    CheckerTests  one run for each input; a trusted function in a second process looks at the printed text
    AssertTests   general test code runs in a second sandboxed process that holds the expected values
                  and reaches the program's functions through the parent, again with plain data

So a program that exits early, prints elsewhere, patches comparisons or walks frames gains nothing:
there is no expected value in its process, and no object of its making in the one that compares.
Nothing that a program does gives the verdict `error`: that is kept for a sandbox that does not
start and for tests that fail before they called the program.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hardwon.data import Outcome, Verdict
from hardwon.verifiers.answers import shortened
from hardwon.verifiers.outputs import same_data, same_text
from hardwon.verifiers.programs import completed, extract_code
from hardwon.verifiers.sandbox import Child, Run, Sandbox, SandboxError
from hardwon.verifiers.sandbox_inside import plain

SHOWN = 200  # characters of a value in a message
ROOM = 4  # a right program may put out so many times what is expected: longer numbers, more blanks
PATIENCE = 3  # runs of one program that may use up their time, where every test is run


@dataclass(frozen=True)
class StdinTests:
    """`inputs[i]` on stdin must print `outputs[i]`, by the rules of `outputs.same_text`.

    `provided`: the names of sandbox_inside.provided are there without an import.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    provided: bool = False

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class CallTests:
    """`name(*inputs[i])` must give `outputs[i]` as JSON data, by the rules of `outputs.same_data`; a tuple
    counts as a list.

    If every output is a list of one, as several collections wrap each expected value, its element will do.
    With `changed` the function is judged by what it made of its argument of that index, not by what it
    returns (see `changed_argument`).
    """

    name: str
    inputs: tuple[Sequence[Any], ...]
    outputs: tuple[Any, ...]
    changed: int | None = None
    provided: bool = True

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def accepted(self) -> list[list[Any]]:
        """For each test the values that are right."""
        wrapped = all(isinstance(output, list) and len(output) == 1 for output in self.outputs)
        return [[output, output[0]] if wrapped else [output] for output in self.outputs]


@dataclass(frozen=True)
class CheckerTests:
    """What the program prints for `inputs[i]` is right if the function `name` of `checker` returns True.

    The function gets the input and the printed text, and where there are `outputs` the i-th of them as well.
    """

    inputs: tuple[str, ...]
    checker: str
    outputs: tuple[str, ...] = ()
    name: str = "check"
    provided: bool = False

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class AssertTests:
    """Each of `tests` must run without an exception after `setup`; `names` are the program's functions, or
    methods as in "Solution().twoSum". `module` is a name by which the tests import the program, if they do.

    `prompt` is code that the program continues, if the problem is a function to complete.
    Arguments and results are plain data (sandbox_inside.plain): a change that the program makes to
    an argument is not seen by the test.
    """

    setup: str
    names: tuple[str, ...]
    tests: tuple[str, ...]
    prompt: str = ""
    module: str = ""
    provided: bool = False

    def __len__(self) -> int:
        return len(self.tests)


Tests = StdinTests | CallTests | CheckerTests | AssertTests


class BrokenTestsError(ValueError):
    """The tests are at fault: they failed before the program had any part in them."""


@dataclass(frozen=True)
class Result:
    """Of one test. `killed`: something outside the sandbox ended the program, so it deserves another try."""

    outcome: Outcome
    message: str = ""
    killed: bool = False


def changed_argument(starter: str, name: str, outputs: Sequence[Any]) -> int | None:
    """The index of the argument that the function `name` of a starter code is to change, None if it returns.

    The code says so by "Do not return anything, modify nums in-place", or by `-> None` where outputs are
    expected. Without a name in that sentence it is the first argument.

    >>> changed_argument("def put(self, k: int, a: List[int]) -> None: 'modify a in-place'", "put", [[1]])
    1
    """
    signature = re.search(rf"def\s+{re.escape(name)}\s*\(([^)]*)\)\s*(?:->\s*([^:]+))?:", starter)
    nothing = re.search(r"do not return anything", starter, re.IGNORECASE)
    if not signature:
        return None
    returns_none = (signature[2] or "").strip() == "None" and any(output is not None for output in outputs)
    if not nothing and not returns_none:
        return None
    parameters = signature[1]
    while re.search(r"\[[^\[\]]*\]", parameters):
        parameters = re.sub(r"\[[^\[\]]*\]", "", parameters)
    names = [parameter.partition(":")[0].strip() for parameter in parameters.split(",")]
    names = [name for name in names if name and name != "self"]
    said = re.search(r"modify\s+`?(\w+)`?\s+in[- ]?place", starter, re.IGNORECASE)
    return names.index(said[1]) if said and said[1] in names else 0


def program_for(tests: Tests, text: str) -> str:
    """The answer, or where it is the completion of a prompt, both together."""
    answer = extract_code(text)
    if not isinstance(tests, AssertTests) or not tests.prompt:
        return answer
    return completed(tests.prompt, tests.names[0], answer)


def verify(sandbox: Sandbox, tests: Tests, text: str, *, partial: bool = False) -> Verdict:
    """Verdict on one response: correct if all tests pass.

    The score is the passed fraction if `partial`, which runs every test; otherwise the first test that
    fails ends the matter. A sandbox that fails, or a program killed from outside, is tried once more.
    """
    program = program_for(tests, text)
    results: list[Result] = []
    for last_try in (False, True):
        try:
            results = run_tests(sandbox, tests, program, partial=partial)
        except SandboxError as error:
            if last_try:
                return Verdict("error", message=str(error))
        except BrokenTestsError as error:
            return Verdict("error", message=str(error))
        else:
            if not any(result.killed for result in results):
                break
    answer = shortened(extract_code(text).strip()) or None
    return replace(summarize(results, len(tests), partial=partial), answer=answer)


def summarize(results: Sequence[Result], total: int, *, partial: bool) -> Verdict:
    """One verdict from those on single tests; the first failure names the outcome."""
    passed = sum(result.outcome == "correct" for result in results)
    score = passed / total if partial else None
    for index, result in enumerate(results):
        if result.outcome != "correct":
            return Verdict(result.outcome, score, f"test {index + 1} of {total}: {result.message}")
    return Verdict("correct", score)


def run_tests(sandbox: Sandbox, tests: Tests, program: str, *, partial: bool) -> list[Result]:
    """Results in order, up to the first failure unless `partial`."""
    results: Generator[Result, None, None]
    if isinstance(tests, (StdinTests, CheckerTests)):
        results = run_printing(sandbox, tests, program)
    elif isinstance(tests, CallTests):
        results = run_calls(sandbox, tests, program)
    else:
        results = run_asserts(sandbox, tests, program)
    found: list[Result] = []
    with contextlib.closing(results):
        for result in results:
            found.append(result)
            if result.outcome != "correct" and not partial:
                break
    return found


def run_printing(
    sandbox: Sandbox, tests: StdinTests | CheckerTests, program: str
) -> Generator[Result, None, None]:
    late = 0
    expected = tests.outputs or [""] * len(tests)
    for given, output in zip(tests.inputs, expected, strict=True):
        if late == PATIENCE:
            yield Result("timeout", f"not run: {PATIENCE} tests before used up their time")
            continue
        run = sandbox.with_output(ROOM * len(output)).run_program(program, as_bytes(given), **provided(tests))
        if isinstance(tests, StdinTests):
            result = judge_run(run, output)
        else:
            result = ended_badly(run) or checked(sandbox, tests, given, run, output)
        late += result.outcome == "timeout"
        yield result


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def judge_run(run: Run, expected: str) -> Result:
    """A run is right if it ended by itself with status 0 and printed what was expected."""
    bad = ended_badly(run)
    if bad:
        return bad
    if same_text(as_bytes(expected), run.stdout):
        return Result("correct")
    printed = run.stdout.decode("utf-8", "replace")
    return Result("wrong", f"expected {show(expected)}, printed {show(printed)}")


def ended_badly(run: Run) -> Result | None:
    if run.ending != "exited":
        return failure(run.ending, run.message)
    if run.exit_code != 0:
        return Result("wrong", f"exit status {run.exit_code}: {tail(run.stderr)}")
    return None


def checked(sandbox: Sandbox, tests: CheckerTests, given: str, run: Run, output: str) -> Result:
    """The checker's finding on one run, in a process of its own. What it raises counts as no."""
    printed = run.stdout.decode("utf-8", "replace")
    arguments = [given, printed] + ([output] if tests.outputs else [])
    with sandbox.start({"mode": "functions", "source": tests.checker}) as child:
        loaded = load(child)
        if loaded.outcome != "correct":
            raise BrokenTestsError(f"the checker does not load: {loaded.message}")
        reply = ask(child, {"name": tests.name, "arguments": plain.dumps([arguments, {}])})
    if reply is None:
        return failure(child.ending, f"the checker: {child.message}")
    if reply.get("value") == "true":
        return Result("correct")
    reason = f": {reply['raised']}: {reply['message']}" if "raised" in reply else ""
    return Result("wrong", f"the checker refused {show(printed)}{reason}"[: 2 * SHOWN])


def failure(ending: str | None, message: str) -> Result:
    if ending == "timeout":
        return Result("timeout", message)
    return Result("wrong", message or "the program ended before it answered", killed=ending == "killed")


def tail(stderr: bytes) -> str:
    return stderr[-10 * SHOWN :].decode("utf-8", "replace").rstrip()[-SHOWN:]


def show(value: Any) -> str:
    try:
        text = repr(value[: SHOWN + 1] if isinstance(value, str) else value)
    except ValueError:  # Python writes no integers of over 4,300 digits
        text = plain.dumps(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def load(child: Child) -> Result:
    """Whether the program defined its functions without an exception."""
    line = child.receive()
    if line is None:
        return failure(child.ending, child.message)
    reply = parse(line)
    if "value" in reply:
        return Result("correct")
    return Result("wrong", f"{reply.get('raised')}: {reply.get('message')}"[:SHOWN])


def parse(line: bytes) -> dict[str, Any]:
    """A line of the conversation as an object; {} for anything else, since the program may write there."""
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return reply if isinstance(reply, dict) else {}


def run_calls(sandbox: Sandbox, tests: CallTests, program: str) -> Generator[Result, None, None]:
    room = max((longest(accepted) for accepted in tests.accepted), default=0)
    job = {"mode": "functions", "source": program, **provided(tests)}
    with sandbox.with_output(room).start(job) as child:
        loaded = load(child)
        for given, accepted in zip(tests.inputs, tests.accepted, strict=True):
            yield one_call(child, tests, given, accepted) if loaded.outcome == "correct" else loaded


def provided(tests: Tests) -> dict[str, bool]:
    return {"provided": True} if tests.provided else {}


def ask(child: Child, call: dict[str, Any]) -> dict[str, Any] | None:
    """The reply to a call; None if the process ended or met a limit before.

    It must name the call's `id`, which nobody knows before: what was written ahead answers nothing.
    """
    token = secrets.token_hex(8)
    child.send_line(json.dumps({**call, "id": token}).encode())
    line = child.receive()
    if line is None:
        return None
    reply = parse(line)
    if reply.get("id") == token:
        return reply
    return {"raised": "RuntimeError", "message": "the program wrote a reply to another call"}


def one_call(child: Child, tests: CallTests, given: Sequence[Any], accepted: Sequence[Any]) -> Result:
    call = {"name": tests.name, "arguments": plain.dumps([list(given), {}]), "changed": tests.changed}
    reply = ask(child, call)
    if reply is None:
        return failure(child.ending, child.message)
    if not isinstance(reply.get("value"), str):
        return Result("wrong", f"{reply.get('raised')}: {reply.get('message')}"[:SHOWN])
    if len(reply["value"]) > longest(accepted):
        return Result("wrong", f"expected {show(accepted[0])}, got {len(reply['value'])} characters")
    try:
        value = as_json(json.loads(reply["value"]))
        if any(same_data(right, value) for right in accepted):
            return Result("correct")
        return Result("wrong", f"expected {show(accepted[0])}, got {show(value)}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Result("wrong", "the result is not JSON data")


def longest(accepted: Sequence[Any]) -> int:
    """Characters that a right value can take, with the tags of tuples and the digits of floats.

    So a reply of megabytes costs the parent seconds only where such a value is wanted.
    """
    return 1000 + 20 * max(len(plain.dumps(value)) for value in accepted)


def as_json(tree: Any) -> Any:
    """JSON data from what `plain.encode` wrote. Dicts get text keys as in JSON, whose hashes nobody can
    choose, so that no reply can slow the parent down."""
    if isinstance(tree, list):
        return [as_json(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tuple":
        return as_json(content)
    if kind == "int":
        return int(content, 16)
    if kind == "dict":
        return {key if isinstance(key, str) else json.dumps(key): as_json(item) for key, item in content}
    raise ValueError(f"{kind} is not JSON data")


def run_asserts(sandbox: Sandbox, tests: AssertTests, program: str) -> Generator[Result, None, None]:
    patient = replace(sandbox, limits=replace(sandbox.limits, wall_seconds=2 * sandbox.limits.wall_seconds))
    names = ("setup", "names", "tests", "module")
    checks = {"mode": "check", **{name: getattr(tests, name) for name in names}}
    room = ROOM * (len(tests.setup) + sum(map(len, tests.tests)))
    sandbox, patient = sandbox.with_output(room), patient.with_output(room)
    with sandbox.start({"mode": "functions", "source": program, **provided(tests)}) as candidate:
        loaded = load(candidate)
        if loaded.outcome != "correct":
            yield from [loaded] * len(tests)
            return
        with patient.start(checks) as checker:
            checker.companion = candidate
            yield from converse(checker, candidate, len(tests))


def converse(checker: Child, candidate: Child, total: int) -> Generator[Result, None, None]:
    """Carry calls and replies between the two until every test has a result."""
    calls = done = 0
    while done < total:
        line = checker.receive()
        if line is None and calls == 0:
            raise BrokenTestsError(f"the tests ended before they called the program: {checker.message}")
        if line is None:
            yield from [failure(checker.ending, checker.message)] * (total - done)
            return
        message = parse(line)
        if "fault" in message:
            raise BrokenTestsError(message["fault"])
        if "passed" in message:
            done += 1
            yield Result("correct" if message["passed"] else "wrong", message["message"][:SHOWN])
            continue
        calls += 1
        reply = ask(candidate, message)
        if reply is None:
            yield from [failure(candidate.ending, candidate.message)] * (total - done)
            return
        checker.send_line(json.dumps(reply).encode())
