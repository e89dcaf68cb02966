"""Which program a response holds, and how it completes the prompt of a problem."""

from __future__ import annotations

import pytest

from hardwon.verifiers.code import AssertTests, program_for, verify
from hardwon.verifiers.programs import extract_code
from hardwon.verifiers.sandbox import Sandbox
from hardwon.verifiers.sandbox_layers import Limits


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("print(1)", "print(1)"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("first\n```python\na\n```\nbetter\n```py\nb\n```", "b\n"),
        ("```python\na\n```\nOutput:\n```text\n1\n```", "a\n"),  # the last block of Python
        ("```js\na\n```", "a\n"),  # no block of Python: the last block
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),  # a longer fence holds a shorter one
        ("```python\na\n```\nthen\n```python\nb", "a\n"),  # an unclosed block counts only alone
        ("so\n```python\nb", "b"),
        ("    return x\n", "    return x\n"),  # a completion keeps its indentation
        ("1. So:\n    ```python\n    if x:\n        y\n    ```\n", "if x:\n    y\n"),  # in a list
        ("<think>```python\na\n```</think>\n```python\nb\n```", "b\n"),  # `</think>` opens no block
        ("```Python title=x\na\n```\n```text\n1\n```", "a\n"),
        ('def f():\n    """\n    ```\n    a\n    ```\n    """\n', None),  # a docstring's block is text
        ("", ""),
    ],
)
def test_extract_code(text, program):
    assert extract_code(text) == (text if program is None else program)


def test_extraction_takes_linear_time():
    assert extract_code("```\n" * 300_001).count("`") == 0
    assert extract_code("`" * 2_000_000 + "x`") == "`" * 2_000_000 + "x`"


PROMPT = 'import math\n\ndef helper(x):\n    return x + 1\n\ndef area(r):\n    """Area."""\n'


def test_program_continues_the_prompt_or_replaces_its_function():
    tests = AssertTests("", ("area",), (), PROMPT)
    assert program_for(tests, "    return math.pi * r**2") == PROMPT + "    return math.pi * r**2"
    whole = "def area(r):\n    return helper(r)\n"
    assert program_for(tests, f"```python\n{whole}```") == PROMPT[: PROMPT.index("def area")] + whole
    bare = AssertTests("", ("area",), (), PROMPT.rstrip())
    assert program_for(bare, "    return 1") == PROMPT + "    return 1"


PLAIN = Sandbox("none", Limits(wall_seconds=8.0, cpu_seconds=4))  # only programs of this file

IMPORTS = "import math\nfrom typing import List\n\n\n"
HELPER = "def is_even(x: int) -> bool:\n    return x % 2 == 0\n\n\n"
DOCSTRINGS = {
    "one line": '    """Double x."""\n',
    "examples": '    """ Double x.\n    >>> double(2)\n    4\n    """\n',
    "quotes": '    """ Say "twice", it\'s \'\'\'x\'\'\' and \\"x\\".\n    """\n',
    "single quotes": '    \'\'\' Double "x" with """no""" loop.\n    \'\'\'\n',
    "its own head": '    """Double x, as in\n\ndef double(x):\n    return x + x\n    """\n',
    "a fence": '    """Double x.\n\n    ```\n    double(2)\n    ```\n    """\n',
    "none": "",
}
SIGNATURE = "def double(x: int) -> int:\n"
CHECK = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-3) == -6\n"
BODY = "    total = 0\n    for _ in range(2):\n        total += x\n    return total\n"


def completions(prompt: str, whole: str, body: str) -> dict[str, str]:
    """Forms in which models give one and the same answer."""
    return {
        "the body": body,
        "the body in a fence": f"Here it is:\n```python\n{body}```",
        "the body without the first blanks": body.strip(),
        "the function": f"```python\n{whole}```",
        "prompt and body": f"```python\n{prompt}{body}```",
        "function and a helper of its own": f"```python\nimport math\n\n{whole}\n\ndef other(): pass\n```",
    }


@pytest.mark.parametrize("docstring", DOCSTRINGS)
@pytest.mark.parametrize("before", ["", IMPORTS, IMPORTS + HELPER, "@staticmethod\n"])
def test_functions_to_complete(before, docstring):
    """The rows of HumanEval have all of these shapes."""
    prompt = before + SIGNATURE + DOCSTRINGS[docstring]
    tests = AssertTests(CHECK, ("double",), ("check(double)",), prompt)
    for form, answer in completions(prompt, SIGNATURE + BODY, BODY).items():
        source = program_for(tests, answer)
        namespace: dict[str, object] = {}
        exec(compile(source, form, "exec"), namespace)
        assert namespace["double"](3) == 6, (form, source)
        assert "is_even" not in before or "is_even" in namespace, form


@pytest.mark.parametrize("entry", ["Solution().double", "Solution.double"])
def test_methods_to_complete(entry):
    head = 'class Solution:\n    def double(self, x: int) -> int:\n        """Double x."""\n'
    body = "".join(f"    {line}\n" for line in BODY.splitlines())
    method = f"    def double(self, x):\n{body}"
    answers = {
        **completions(IMPORTS + head, head + body, body),
        "the method": method,
        "the method in a fence": f"```python\n{method}```",
        "the method at the margin": f"```python\ndef double(self, x):\n{BODY}```",
    }
    for prompt in (IMPORTS + head, IMPORTS):
        tests = AssertTests(IMPORTS + CHECK, (entry,), (f"check({entry})",), prompt)
        for form, answer in answers.items():
            if prompt == IMPORTS and "class" not in answer:
                continue
            namespace: dict[str, object] = {}
            exec(compile(program_for(tests, answer), form, "exec"), namespace)
            assert namespace["Solution"]().double(3) == 6 and "math" in namespace, (form, prompt)
        assert verify(PLAIN, tests, answers["the function"]).correct
        assert (
            verify(PLAIN, tests, answers["the function"].replace("range(2)", "range(3)")).outcome == "wrong"
        )


LISTS = """
class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next

def list_node(values):
    head = None
    for value in reversed(values):
        head = ListNode(value, head)
    return head

def is_same_list(a, b):
    while a and b and a.val == b.val:
        a, b = a.next, b.next
    return a is None and b is None
"""
REVERSE = """class Solution:
    def reverse(self, head: ListNode) -> ListNode:
        done = None
        while head:
            head.next, done, head = done, head, head.next
        return done
"""


def test_linked_lists_as_arguments_and_results():
    """Rows of LeetCode whose prompt defines the nodes: program and tests each have the class."""
    check = """
def check(candidate):
    assert is_same_list(candidate(head=list_node([1, 2])), list_node([2, 1]))
    assert candidate(head=None) is None
    assert is_same_list(candidate(list_node(range(3000))), list_node(range(2999, -1, -1)))
"""
    tests = AssertTests(
        LISTS + check, ("Solution().reverse",), ("check(Solution().reverse)",), LISTS, provided=True
    )
    assert verify(PLAIN, tests, REVERSE).correct
    cheats = {
        "the same list": "return head",
        "values only": "return [2, 1]",
        "an endless list": "n = ListNode(2); n.next = n; return n",
        "a class of its own": (
            "class ListNode:\n            val = 2\n            __bool__ = lambda s: False\n"
            "        return ListNode()"
        ),
        "nothing": "return None",
    }
    for name, body in cheats.items():
        program = f"class Solution:\n    def reverse(self, head):\n        {body}\n"
        assert verify(PLAIN, tests, program).outcome == "wrong", name


def test_several_functions_and_a_text_as_the_prompt():
    prompt = "def shift(x):\n    return x + 1\n\n\ndef back(x):\n    return x - 1\n\n\ndef both(x):\n"
    tests = AssertTests("", ("both",), ("assert both(3) == 3",), prompt)
    assert verify(PLAIN, tests, "    return back(shift(x))\n").correct
    assert verify(PLAIN, tests, "def both(x):\n    return shift(back(x))\n").correct
    text = AssertTests("", ("both",), ("assert both(3) == 3",), "Write a function.\nCall it both.")
    assert verify(PLAIN, text, "def both(x): return x").correct


def test_helpers_are_not_taken_twice():
    """An answer that repeats the whole prompt with another helper is judged with its own helper."""
    prompt = IMPORTS + HELPER + SIGNATURE
    tests = AssertTests(CHECK, ("double",), ("check(double)",), prompt)
    answer = "def is_even(x): return None\n\ndef double(x):\n    return 2 * x if is_even(x) is None else 0\n"
    assert verify(PLAIN, tests, answer).correct
