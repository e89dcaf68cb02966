"""The program in a response: its last block of Python, alone or as the completion of a prompt."""

from __future__ import annotations

import ast
import re
import textwrap

PYTHON_TAGS = {"", "python", "python3", "py"}


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


def completed(prompt: str, name: str, answer: str) -> str:
    """A program that defines `name`, a function or "Solution().method", from the prompt that begins it.

    An answer that defines it anew stands in for the prompt's last definition: what the prompt has before,
    its imports and helpers, is kept. A method alone goes into the prompt's class. Anything else continues
    the prompt.
    """
    outer, _, inner = name.replace("()", "").rpartition(".")
    if re.search(definition(outer or inner), answer, re.MULTILINE):
        return before(prompt, outer or inner) + answer
    method = re.search(rf"^([ \t]*)def\s+{re.escape(inner)}\b", answer, re.MULTILINE)
    wanted = re.search(rf"^([ \t]+)def\s+{re.escape(inner)}\b", prompt, re.MULTILINE)
    if outer and method and wanted:
        return prompt[: wanted.start()] + textwrap.indent(answer, wanted[1].removeprefix(method[1]))
    return continued(prompt, answer)


def definition(name: str) -> str:
    return rf"^(?:@.*\n)*(?:async\s+def|def|class)\s+{re.escape(name)}\b"


def before(prompt: str, name: str) -> str:
    """The prompt up to its last definition of `name` that does not stand within a docstring. Without one, all
    of the prompt if it only defines things, else nothing: it is text."""
    starts = [match.start() for match in re.finditer(definition(name), prompt, re.MULTILINE)]
    for start in reversed(starts):
        if parsed(prompt[:start]) is not None:
            return prompt[:start]
    tree = parsed(prompt)
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign)
    if tree is None or not all(isinstance(statement, kinds) for statement in tree.body):
        return ""
    return prompt.rstrip() + "\n\n"


def parsed(source: str) -> ast.Module | None:
    """None for what is not Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def continued(prompt: str, answer: str) -> str:
    """The answer below the prompt, or in the prompt's last line where that is only an indentation.

    An answer whose first line lost its indentation gets it back; so do its other lines where none has any.

    >>> continued("def f(x):\\n    ", "return x"), continued("def f(x):", "    return x")
    ('def f(x):\\n    return x', 'def f(x):\\n    return x')
    """
    last = prompt.rpartition("\n")[2]
    if last.strip():
        prompt, last = prompt + "\n", ""
    start = prompt.removesuffix(last)
    if not answer.strip() or answer.lstrip("\n")[:1].isspace():
        return start + answer
    first, _, rest = answer.lstrip("\n").partition("\n")
    margin = last or body_margin(start)
    bare = any(line[:1].strip() for line in rest.splitlines())
    shallow = first.rstrip().endswith(":") and margin_of(rest) <= margin  # else it would be no block
    return start + (textwrap.indent(answer, margin) if bare or shallow else margin + answer.lstrip("\n"))


def body_margin(prompt: str) -> str:
    """The indentation of what comes next, from the prompt's last line."""
    line = prompt.rstrip().rpartition("\n")[2]
    return margin_of(line) + "    " * line.endswith(":")


def margin_of(text: str) -> str:
    """The blanks that the first line begins with."""
    return text[: len(text) - len(text.lstrip(" \t"))]
