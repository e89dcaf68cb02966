r"""Where the final answer of a response is. Linear in the text: a model may write megabytes of braces."""

from __future__ import annotations

import re

BOXES = (r"\boxed{", r"\fbox{")
ANSWER_LINE = re.compile(r"\banswer\b(?:[^\n:]{0,60}?\bis\b[ \t*]*:?|[ \t*]*:)[ \t*]*([^\n]+)", re.IGNORECASE)


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...}: "" if it is empty or never closed, None if there is no box.

    A box inside a box is the later one.

    >>> last_boxed(r"\boxed{6} wait \boxed{\frac{7}{2}}")
    '\\frac{7}{2}'
    >>> last_boxed(r"\boxed{6} so \boxed{7")
    ''
    """
    start, box = max((text.rfind(box), box) for box in BOXES)
    if start < 0:
        return None
    begin = start + len(box)
    depth = 1
    for brace in re.finditer(r"\\.|[{}]", text[begin:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)  # \{ and \} are symbols, not groups
        if depth == 0:
            return text[begin : begin + brace.start()].strip()
    return ""


def last_tagged(text: str, tag: str = "answer") -> str | None:
    """The content of the last <answer>...</answer>: "" if the last one is empty or never closed, else None.

    >>> last_tagged("<answer>6</answer> no, <answer> 7 </answer>")
    '7'
    """
    start = text.rfind(f"<{tag}>")
    if start < 0:
        return None
    content, closed, _ = text[start + len(tag) + 2 :].partition(f"</{tag}>")
    return content.strip() if closed else ""


def last_answer_line(text: str) -> str | None:
    """What follows the last "Answer:" or "answer is", to the end of its line; None if there is none.

    >>> last_answer_line("Answer: 6. No.\\n**Final answer:** $7$.")
    '7'
    """
    lines: list[str] = ANSWER_LINE.findall(text)
    if not lines:
        return None
    answer = lines[-1].strip().strip("*").strip().removesuffix(".").strip()
    in_dollars: list[str] = re.findall(r"(?<!\\)\$([^$]+)(?<!\\)\$", answer)
    return in_dollars[0].strip() if len(in_dollars) == 1 else answer


def final_answer(text: str) -> str | None:
    """The answer a response commits to: its last box, else its last "Answer:" line, else None."""
    boxed = last_boxed(text)
    return boxed if boxed is not None else last_answer_line(text)


def gold_answer(text: str) -> str:
    """The answer in a data set's column: a solution's last box, or what follows its "####", or all of it."""
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    return text.rpartition("####")[2].strip()
