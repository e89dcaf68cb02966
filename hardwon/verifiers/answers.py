r"""Where the final answer of a response is. Linear in the text: a model may write megabytes of braces."""

from __future__ import annotations

import re
from hashlib import blake2b

BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
ANSWER_LINE = re.compile(
    r"\banswer\b(?:[^\n:]{0,60}?\bis\b[ \t*_]*:?|[ \t*_]*:)[ \t*_]*\n?\s{0,20}([^\n]+)", re.IGNORECASE
)
BOLD_LINE = re.compile(r"\*\*([^*\n]+)\*\*")
SENTENCE = re.compile(r"\.\**\s+(?=[A-Z])|[,;]?(?<!\s)\s+(?:because|since|which|where|so that)\b")
ENUMERATED = re.compile(r"\(?[A-J][.)]")
THINKING = "think", "thinking"
LONGEST_LINE = 4000  # characters of a line that are read (ours)
LONGEST = 200  # characters of an answer that is kept and voted for (ours)


def after_thinking(text: str) -> str | None:
    """What follows the last </think>; the whole text if there is none; None if a <think> is not closed.

    Where the opening tag stands in the prompt, the response holds the closing one only.

    >>> after_thinking("<think>2?</think> 3"), after_thinking("2? </think> 3"), after_thinking("3 <think> 2")
    (' 3', ' 3', None)
    """
    for tag in THINKING:
        text = text.rpartition(f"</{tag}>")[2]
        if f"<{tag}>" in text:
            return None
    return text


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...}: "" if it is empty or never closed, None if there is no box.

    A box inside a box is the later one. Without braces (`\boxed 73`) the box holds what stands up to a space.

    >>> last_boxed(r"\boxed{6} wait \boxed{\frac{7}{2}}"), last_boxed(r"\boxed 73.")
    ('\\frac{7}{2}', '73')
    >>> last_boxed(r"\boxed{6} so \boxed{7")
    ''
    """
    begin = -1
    for box in BOX.finditer(text):
        begin = box.end()
    if begin < 0:
        return None
    if text[begin : begin + 1] != "{":
        token = re.compile(r"[^\s$*]*").match(text, begin)
        return token.group().rstrip(".,;:") if token else ""
    begin += 1
    depth = 1
    for brace in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, begin):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)  # \{ and \} are symbols, not groups
        if depth == 0:
            return text[begin : brace.start()].strip()
    return ""


def last_tagged(text: str, tag: str = "answer") -> str | None:
    """The content of the last <answer>...</answer>: "" if the last one is empty or never closed, else None.

    >>> last_tagged("<answer>6</answer> no, <answer> 7 </answer>")
    '7'
    """
    text = after_thinking(text) or ""
    start = text.rfind(f"<{tag}>")
    if start < 0:
        return None
    content, closed, _ = text[start + len(tag) + 2 :].partition(f"</{tag}>")
    return content.strip() if closed else ""


def last_answer_line(text: str) -> str | None:
    """What follows the last "Answer:" or "answer is", without the sentences after it; None if there is none.

    >>> last_answer_line("Answer: 6. No.\\n**Final answer:** $7$.")
    '7'
    >>> last_answer_line("The answer is **73**. It is the sum."), last_answer_line("Answer: B. Paris")
    ('73', 'B. Paris')
    """
    lines: list[str] = ANSWER_LINE.findall(text)
    return without_comment(lines[-1]) if lines else None


def without_comment(line: str) -> str:
    """An answer without emphasis, the marks of mathematics around it, and what explains it."""
    line = line[:LONGEST_LINE].strip().strip("*_ ")
    in_marks = re.findall(r"(?<!\\)\$+([^$]+)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", line)
    if len(in_marks) == 1:
        return "".join(in_marks[0]).strip()
    end = SENTENCE.search(line) if not ENUMERATED.match(line) else None
    line = line[: end.start()] if end else line
    return line.strip("*_ \t").removesuffix(".").strip("*_ \t")


def last_bold_line(text: str) -> str | None:
    """The last line if all of it is **bold**."""
    lines = text[-2000:].strip().splitlines()
    match = BOLD_LINE.fullmatch(lines[-1].strip().removesuffix(".")) if lines else None
    return match[1].strip().removesuffix(".").strip() if match else None


def final_answer(text: str) -> str | None:
    """The answer a response commits to: its last box, else its last "Answer:" line, else a last line in bold.

    What stands in <think>...</think> is no answer. None if there is no answer, or if a <think> is not closed.
    """
    said = after_thinking(text)
    if said is None:
        return None
    for find in (last_boxed, last_answer_line, last_bold_line):
        answer = find(said)
        if answer is not None:
            return answer
    return None


def gold_answer(value: object) -> str:
    """The answer in a data set's column: a solution's last box, or what follows its "####", or all of it.

    A number column's value is the number as Python writes it (1e-05), a list its elements with commas.

    >>> gold_answer("3 + 4 = 7 #### 7"), gold_answer(1e-5), gold_answer([1, 2])
    ('7', '1e-05', '1, 2')
    """
    if isinstance(value, list | tuple):
        return ", ".join(map(gold_answer, value))
    text = value if isinstance(value, str) else str(value)
    text = after_thinking(text) or text
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    return text.rpartition("####")[2].strip()


def shortened(text: str) -> str:
    """At most 200 characters; a longer text keeps its beginning and a hash, so that different ones differ."""
    if len(text) <= LONGEST:
        return text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[: LONGEST - 17]}#{digest}"
