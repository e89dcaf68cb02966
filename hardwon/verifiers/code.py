"""Does a program pass its unit tests? The program runs in the sandbox; only a trusted side compares.

    StdinTests    one run for each input; the parent compares the printed text
    CallTests     one process answers calls with plain data; the parent compares the data
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
from hardwon.verifiers.sandbox import Child, Run, Sandbox, SandboxError
from hardwon.verifiers.sandbox_inside import plain

PYTHON_TAGS = {"", "python", "python3", "py"}
SHOWN = 200  # characters of a value in a message
PATIENCE = 3  # runs of one program that may use up their time, where every test is run


@dataclass(frozen=True)
class StdinTests:
    """`inputs[i]` on stdin must print `outputs[i]`, but for trailing white space of lines and of the text."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class CallTests:
    """`name(*inputs[i])` must equal `outputs[i]` as JSON data: a tuple counts as a list.

    If every output is a list of one, as several collections wrap each expected value, its element will do.
    """

    name: str
    inputs: tuple[Sequence[Any], ...]
    outputs: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def accepted(self) -> list[list[Any]]:
        """For each test the values that are right."""
        wrapped = all(isinstance(output, list) and len(output) == 1 for output in self.outputs)
        return [[output, output[0]] if wrapped else [output] for output in self.outputs]


@dataclass(frozen=True)
class AssertTests:
    """Each of `tests` must run without an exception after `setup`; `names` are the program's functions.

    `prompt` is code that the program continues, if the problem is a function to complete.
    Arguments and results are plain data (sandbox_inside.plain): a change that the program makes to
    an argument is not seen by the test.
    """

    setup: str
    names: tuple[str, ...]
    tests: tuple[str, ...]
    prompt: str = ""

    def __len__(self) -> int:
        return len(self.tests)


Tests = StdinTests | CallTests | AssertTests


class BrokenTestsError(ValueError):
    """The tests are at fault: they failed before the program had any part in them."""


@dataclass(frozen=True)
class Result:
    """Of one test. `killed`: something outside the sandbox ended the program, so it deserves another try."""

    outcome: Outcome
    message: str = ""
    killed: bool = False


def extract_code(text: str) -> str:
    """The last fenced block that is tagged as Python or not at all, else the last block, else all of `text`.

    An unclosed fence runs to the end of the text and counts only if there is no closed one. A fence within
    a list is indented, and so is its block.

    >>> extract_code("So:\\n```python\\nprint(1)\\n```\\nwhich prints\\n```text\\n1\\n```")
    'print(1)\\n'
    """
    closed: list[tuple[str, str]] = []
    block: list[str] = []
    indent, fence, tag = "", "", ""
    for line in text.splitlines(keepends=True):
        ticks = re.match(r"([ \t]*)(`{3,})([^`]*)$", line)
        if not fence and ticks and opens(ticks[1], ticks[3]):
            indent, fence, tag, block = ticks[1], ticks[2], tag_of(ticks[3]), []
        elif fence and ticks and closes(ticks[1], ticks[2], ticks[3], indent, fence):
            closed.append((tag, "".join(block)))
            fence = ""
        elif fence:
            block.append(line.removeprefix(indent))
    if not closed:
        return "".join(block) if fence else text
    python = [code for tag, code in closed if tag in PYTHON_TAGS]
    return python[-1] if python else closed[-1][1]


def tag_of(info: str) -> str:
    """The language: "python" of "Python title=x" and of "{.python}"."""
    return re.split(r"[\s,:{}]", info.strip(" {.}\t\r\n"), maxsplit=1)[0].lower()


def opens(indent: str, info: str) -> bool:
    """Deep in a list only with a tag: else it is text, as in a docstring. `</think>` is no tag."""
    tag = tag_of(info)
    shallow = len(indent) <= 3 and "\t" not in indent
    return bool(re.fullmatch(r"[\w.+#-]*", tag)) and (shallow or tag in PYTHON_TAGS - {""})


def closes(indent: str, ticks: str, info: str, opened_at: str, opened_by: str) -> bool:
    return len(ticks) >= len(opened_by) and not info.strip() and len(indent) <= len(opened_at) + 3


def program_for(tests: Tests, text: str) -> str:
    """The answer after the prompt's imports and helpers, or as the prompt's continuation."""
    answer = extract_code(text)
    if not isinstance(tests, AssertTests) or not tests.prompt:
        return answer
    definition = rf"^(async\s+)?def\s+{re.escape(tests.names[0])}\b"
    if not re.search(definition, answer, re.MULTILINE):
        return continued(tests.prompt, answer)
    starts = [match.start() for match in re.finditer(definition, tests.prompt, re.MULTILINE)]
    return (tests.prompt[: starts[-1]] if starts else "") + answer


def continued(prompt: str, answer: str) -> str:
    """The answer below the prompt, or in the prompt's last line where that is only an indentation.

    >>> continued("def f(x):\\n    ", "return x"), continued("def f(x):", "    return x")
    ('def f(x):\\n    return x', 'def f(x):\\n    return x')
    """
    last = prompt.rpartition("\n")[2]
    if last.strip():
        return f"{prompt}\n{answer}"
    return prompt.removesuffix(last) + answer if answer[:1].isspace() else prompt + answer


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
    if isinstance(tests, StdinTests):
        results = run_stdin(sandbox, tests, program)
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


def run_stdin(sandbox: Sandbox, tests: StdinTests, program: str) -> Generator[Result, None, None]:
    late = 0
    for given, expected in zip(tests.inputs, tests.outputs, strict=True):
        if late == PATIENCE:
            yield Result("timeout", f"not run: {PATIENCE} tests before used up their time")
            continue
        result = judge_run(sandbox.run_program(program, given.encode("utf-8", "surrogatepass")), expected)
        late += result.outcome == "timeout"
        yield result


def judge_run(run: Run, expected: str) -> Result:
    """A run is right if it ended by itself with status 0 and printed what was expected."""
    if run.ending != "exited":
        return failure(run.ending, run.message)
    if run.exit_code != 0:
        return Result("wrong", f"exit status {run.exit_code}: {tail(run.stderr)}")
    printed = run.stdout.decode("utf-8", "replace")
    if printed_lines(printed) == printed_lines(expected):
        return Result("correct")
    return Result("wrong", f"expected {show(expected)}, printed {show(printed)}")


def printed_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def failure(ending: str | None, message: str) -> Result:
    if ending == "timeout":
        return Result("timeout", message)
    return Result("wrong", message or "the program ended before it answered", killed=ending == "killed")


def tail(stderr: bytes) -> str:
    return stderr[-10 * SHOWN :].decode("utf-8", "replace").rstrip()[-SHOWN:]


def show(value: Any) -> str:
    text = repr(value[: SHOWN + 1] if isinstance(value, str) else value)
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
    with sandbox.start({"mode": "functions", "source": program, "starter": True}) as child:
        loaded = load(child)
        for given, accepted in zip(tests.inputs, tests.accepted, strict=True):
            yield one_call(child, tests.name, given, accepted) if loaded.outcome == "correct" else loaded


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


def one_call(child: Child, name: str, given: Sequence[Any], accepted: Sequence[Any]) -> Result:
    reply = ask(child, {"name": name, "arguments": plain.dumps([list(given), {}])})
    if reply is None:
        return failure(child.ending, child.message)
    if not isinstance(reply.get("value"), str):
        return Result("wrong", f"{reply.get('raised')}: {reply.get('message')}"[:SHOWN])
    if len(reply["value"]) > longest(accepted):
        return Result("wrong", f"expected {show(accepted[0])}, got {len(reply['value'])} characters")
    try:
        value = as_json(json.loads(reply["value"]))
        if any(value == right for right in accepted):
            return Result("correct")
        return Result("wrong", f"expected {show(accepted[0])}, got {show(value)}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Result("wrong", "the result is not JSON data")


def longest(accepted: Sequence[Any]) -> int:
    """Characters that a right value can take, with the tags of tuples, dicts and long numbers.

    So a reply of megabytes costs the parent seconds only where such a value is wanted.
    """
    return 1000 + 20 * max(len(json.dumps(value)) for value in accepted)


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
    checks = {"mode": "check", "setup": tests.setup, "names": tests.names, "tests": tests.tests}
    with sandbox.start({"mode": "functions", "source": program}) as candidate:
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
