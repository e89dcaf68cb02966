"""Rows of public data sets load as they are published: the listed ones, their neighbours, and your own."""

from __future__ import annotations

import base64
import json
import pickle
import sys
import zlib
from collections import Counter
from pathlib import Path

import pytest

from hardwon.data import Problem
from hardwon.tasks import load_task
from hardwon.tasks.layouts.answers import gold_texts
from hardwon.tasks.layouts.code import CODE
from hardwon.tasks.layouts.layout import BadRowError, at
from hardwon.tasks.layouts.math import MATH
from hardwon.tasks.layouts.reader import Reader, code_problem, math_problem, reward_problem
from hardwon.verifiers.pytest_names import approx, raises
from hardwon.verifiers.sandbox_probe import layers

HOLDS = any(layer.holds for layer in layers())
needs_layer = pytest.mark.skipif(not HOLDS, reason="no layer of isolation holds on this machine")

PUBLIC = [json.loads(line) for line in Path(__file__).with_name("public_layouts.jsonl").open()]
MUL = "def mul(a, b):\n    return a * b\n"
METHOD = "class Solution:\n    def mul(self, a: int, b: int) -> int:\n        return a * b\n"
READS = "a, b = map(int, input().split())\nprint(a * b)\n"
ASK = "Multiply the two numbers."


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def boxed(answer):
    return f"So the answer is \\boxed{{{answer}}}."


def fenced(code):
    return f"```python\n{code}```"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """One task of each kind: its verifier judges problems that came from anywhere."""
    row = write(tmp_path_factory.mktemp("layouts") / "one.jsonl", {"prompt": "1+1?", "answer": 2})
    made = {"math": load_task("math", data=row, held_out_fraction=0.0, verifier_workers=1)}
    if HOLDS:
        made["code"] = load_task("code", verifier_workers=1)
    yield made
    for task in made.values():
        task.close()


def outcomes(task, problem, *responses):
    return [verdict.outcome for verdict in task.verify([(problem, text) for text in responses])]


@pytest.mark.parametrize("case", PUBLIC, ids=[case["name"] for case in PUBLIC])
def test_a_public_row_loads_and_is_judged(case, tmp_path, tasks):
    if case["task"] not in tasks:
        pytest.skip("no layer of isolation holds on this machine")
    task = load_task(case["task"], data=write(tmp_path / "a.jsonl", case["row"]), held_out_fraction=0.0)
    (problem,) = task.problems("train")
    task.close()
    assert case["prompt"] in json.dumps(problem.prompt)
    assert task.notes and "1 row read as layout" in task.notes[0]
    assert outcomes(tasks[case["task"]], problem, case["right"], case["wrong"]) == ["correct", "wrong"]


# name of the layout, row, a text of the prompt, right answer, wrong answer
NEIGHBOURS = [
    ("arc", {"id": "M1", "question": "Which is odd?", "choices": {"text": ["8", "9"], "label": ["A", "B"]},
             "answerKey": "B"}, "B) 9", "B", "A"),
    # Some rows of ARC number their options.
    ("arc", {"id": "M2", "question": "Which is odd?", "choices": {"text": ["8", "9"], "label": ["1", "2"]},
             "answerKey": "2"}, "B) 9", "B", "A"),
    ("arc", {"id": "x", "question": "Where is a jar?", "question_concept": "jar", "answerKey": "A",
             "choices": {"label": ["A", "B", "C"], "text": ["shelf", "sea", "sky"]}}, "A) shelf", "A", "C"),
    ("openbookqa", {"id": "7", "question_stem": "Which is odd?", "answerKey": "A",
                    "choices": {"text": ["9", "8"], "label": ["A", "B"]}}, "A) 9", "A", "B"),
    ("mmlu_pro", {"question_id": 70, "question": "Which is a prime?", "options": ["8", "9", "11"],
                  "answer": "C", "answer_index": 2, "cot_content": "", "category": "math"},
     "C) 11", "C", "A"),
    ("medqa", {"question": "Which is odd?", "answer": "9", "options": {"A": "8", "B": "9", "C": "4"},
               "meta_info": "step1", "answer_idx": "B"}, "B) 9", "B", "A"),
    ("medmcqa", {"id": "m", "question": "Odd?", "opa": "2", "opb": "4", "opc": "5", "opd": "6", "cop": 2},
     "C) 5", "C", "B"),
    ("cmmlu", {"Question": "Odd?", "A": "2", "B": "3", "C": "4", "D": "6", "Answer": "B"}, "B) 3", "B", "A"),
    ("mathqa", {"Problem": "2 + 2 ?", "Rationale": "\"4\"", "options": "a ) 3 , b ) 4 , c ) 1,000",
                "correct": "b", "annotated_formula": "add(2,2)"}, "c ) 1,000", "B", "C"),
    ("aqua", {"question": "2+2?", "options": ["A)21", "B)21.5"], "rationale": "", "correct": "A"},
     "B)21.5", "A", "B"),
    ("winogrande", {"sentence": "The jar is on the _.", "option1": "shelf", "option2": "sun", "answer": "1"},
     "A) shelf", "A", "B"),
    ("hellaswag", {"ctx": "A jar falls and", "endings": ["sings", "breaks"], "label": "1"},
     "B) breaks", "B", "A"),
    ("logiqa", {"context": "All jars break.", "query": "Does this jar?", "options": ["yes", "no"],
                "correct_option": 0}, "All jars break.", "A", "B"),
    ("options", {"question": "Odd?", "options": ["2", "eleven"], "answer": "eleven"}, "B) eleven", "B", "A"),
    ("svamp", {"ID": "c1", "Body": "Ann has 8 jars", "Question": "How many are left of 5 more?",
               "Answer": "13.0", "Equation": "( 8 + 5 )", "Type": "Addition"},
     "Ann has 8 jars How many", "13", "3"),
    ("asdiv", {"body": "Ann has 8 jars.", "question": "How many?", "answer": "8 (jars)"},
     "8 jars. How", "8", "9"),
    ("olympiadbench", {"question": "Solve $x^2=4$.", "solution": ["..."], "final_answer": ["$-2,2$"],
                       "context": None, "is_multiple_answer": True, "subfield": "Algebra"},
     "x^2", "-2, 2", "2"),
    ("metamath", {"query": "6 rows of 7?", "response": "6*7=42\nThe answer is: 42", "type": "GSM_AnsAug"},
     "6 rows", "42", "7"),
    ("math", {"problem": "Half of 3?", "level": "Level 1", "type": "Prealgebra", "solution": "\\boxed{1.5}"},
     "Half", "\\frac{3}{2}", "3"),
    ("openmath", {"problem": "6*7?", "generated_solution": "\\boxed{41}", "expected_answer": "42"},
     "6*7", "42", "41"),
    ("question + final_answer", {"question": "6*7?", "final_answer": "42", "r1_solution_1": "..."},
     "6*7", "42", "7"),
    # The column prompt is TRL's and is complete, whatever the question beside it says.
    ("prompt + answer", {"prompt": "Think. 6*7?", "question": "6*7?", "answer": "42"}, "Think.", "42", "7"),
    ("prompt + solution", {"prompt": [{"role": "user", "content": "6*7?"}], "solution": "$42$"},
     "6*7?", "42", "7"),
    # Two columns that say the same answer are one answer.
    ("question + answer", {"question": "6*7?", "answer": 42.0, "gt_answer": "42"}, "6*7", "42", "7"),
    ("verl", {"prompt": [{"role": "user", "content": "6*7?"}], "reward_model": {"ground_truth": 42}},
     "6*7?", "42", "7"),
    # Several gold answers, as a list and as its JSON text: any will do.
    ("prompt + answer", {"prompt": "Name a root of 4.", "answer": ["2", "-2"]}, "root", "-2", "4"),
    ("verl", {"prompt": "A root?", "reward_model": {"ground_truth": '["2", "-2"]'}}, "root", "-2", "4"),
    # A JSON list of numbers is mathematics: an interval or a pair, and not two answers.
    ("prompt + answer", {"prompt": "From 1 to 2?", "answer": "[1, 2]"}, "From", "[1,2]", "1"),
    # A small number reaches the verifier as digits, and not with Euler's e.
    ("prompt + answer", {"prompt": "10 to the -5?", "answer": 1e-05}, "-5", "0.00001", "e-05"),
    ("conversations + answer", {"conversations": [{"from": "human", "value": "6*7?"}, 
                                                  {"from": "gpt", "value": "42"}], "answer": "42"},
     "6*7?", "42", "7"),
]  # fmt: skip


@pytest.mark.parametrize("case", NEIGHBOURS, ids=[f"{n}-{case[0]}" for n, case in enumerate(NEIGHBOURS)])
def test_a_neighbour_loads_and_is_judged(case, tasks):
    name, row, prompt, right, wrong = case
    problem, taken = math_problem(row, "x")
    assert taken == name and prompt in json.dumps(problem.prompt)
    assert outcomes(tasks["math"], problem, boxed(right), boxed(wrong)) == ["correct", "wrong"]


# name of the layout, row, right program, wrong program
PROGRAMS = [
    ("apps", {"question": ASK, "solutions": json.dumps([READS]), "starter_code": "", "difficulty": "EASY",
              "input_output": json.dumps({"inputs": ["3 4", ["5 6"]], "outputs": ["12", ["30"]]})},
     READS, "print(12)\n"),
    ("mbpp", {"source_file": "x", "task_id": 2, "prompt": ASK, "code": MUL, "test_imports": ["import math"],
              "test_list": ["assert math.isclose(mul(3, 4), 12)"]},
     MUL, "def mul(a, b):\n    return a + b\n"),
    ("livecodebench", {"question_content": ASK, "question_id": "3", "starter_code": METHOD[:60],
                       "public_test_cases": '[{"input": "3\\n4", "output": "12", "testtype": "functional"}]',
                       "private_test_cases":
                           '[{"input": "5\\n[6]", "output": "[30]", "testtype": "functional"}]',
                       "metadata": '{"func_name": "mul"}'},
     "class Solution:\n    def mul(self, a, b):\n        return [a * b[0]] if b != 4 else 12\n", METHOD),
    ("verifiable", {"prompt": ASK, "verification_info": json.dumps(
        {"language": "python", "test_cases": [{"type": "function_call", "fn_name": "mul", "input": [3, 4],
                                               "output": 12}]})}, MUL, "def mul(a, b):\n    return 7\n"),
    ("acecode", {"id": "a", "question": ASK, "test_cases": ["assert mul(3, 4) == 12"]}, MUL,
     "def mul(a, b):\n    return 7\n"),
    ("codeforces", {"description": ASK, "input_format": "Two numbers.", "output_format": "One.",
                    "official_tests": [{"input": "3 4", "output": "12"}]}, READS, "print(7)\n"),
    ("verl", {"prompt": [{"role": "user", "content": ASK}],
              "reward_model": {"ground_truth": json.dumps({"functional": "assert mul(3, 4) == 12"})}}, MUL,
     "def mul(a, b):\n    return 7\n"),
    ("question + tests", {"question": ASK, "tests": ["assert mul(3, 4) == 12"]},
     MUL, "def mul(a, b): pass\n"),
    ("kodcode", {"question": ASK, "solution": MUL, "test_info": [{"function_name": "mul"}],
                 "test": "import pytest\nfrom solution import mul\n\n"
                         "@pytest.mark.parametrize('a, b, c', [(3, 4, 12), (0, 4, 0)])\n"
                         "def test_mul(a, b, c):\n    assert mul(a, b) == pytest.approx(c)\n\n"
                         "def test_text():\n    with pytest.raises(TypeError):\n        mul('a', 'b')\n"},
     MUL, "def mul(a, b):\n    return float(a) * float(b)\n"),  # raises a ValueError for text
    ("bigcodebench", {"task_id": "B/0", "complete_prompt": "def task_func(a, b):\n", "instruct_prompt": ASK,
                      "code_prompt": "def task_func(a, b):\n", "canonical_solution": "    return a * b\n",
                      "entry_point": "task_func",
                      "test": "import unittest\nclass TestCases(unittest.TestCase):\n"
                              "    def setUp(self):\n        self.a = 3\n"
                              "    def test_one(self):\n        self.assertEqual(task_func(self.a, 4), 12)\n"
                              "    def test_text(self):\n"
                              "        with self.assertRaises(TypeError):\n"
                              "            task_func('a', 'b')\n"},
     "def task_func(a, b):\n    return a * b\n", "def task_func(a, b):\n    return 12\n"),
    # HumanEval+ computes over inputs and results in the check.
    ("humaneval", {"prompt": "def mul(a, b):\n    \"\"\"Product.\"\"\"\n", "entry_point": "mul",
                   "canonical_solution": "    return a * b\n",
                   "test": "def check(candidate):\n    for given, wanted in [([3, 4], 12), ([5, 6], 30)]:\n"
                           "        assert candidate(*given) == wanted\n"},
     MUL, "def mul(a, b):\n    return 12\n"),
]  # fmt: skip


@needs_layer
@pytest.mark.parametrize("case", PROGRAMS, ids=[case[0] for case in PROGRAMS])
def test_a_program_s_row_is_judged_by_its_tests(case, tasks):
    name, row, right, wrong = case
    problem, taken = code_problem(row, "x")
    assert taken == name and problem.prompt
    assert outcomes(tasks["code"], problem, fenced(right), fenced(wrong)) == ["correct", "wrong"]
    if problem.answer:
        assert outcomes(tasks["code"], problem, tasks["code"].gold(problem)) == ["correct"]


@pytest.mark.parametrize("table", [MATH, CODE], ids=["math", "code"])
def test_no_layout_stands_below_one_that_would_always_be_taken_before_it(table):
    for index, layout in enumerate(table):
        for above in table[:index]:
            unconditional = above.when.__name__ == "any_row"
            assert not (unconditional and set(above.marks) <= set(layout.marks)), (
                f"{above.name}, {layout.name}"
            )


# ---------------------------------------------------------------------------------------------- choices


def test_where_the_right_option_comes_first_a_hash_decides_its_letter():
    """GPQA names the right answer apart. 400 questions: each of four letters has 100 +- 9 of them."""
    rows = [
        {"Question": f"What is {n} + 1?", "Correct Answer": str(n + 1), "Incorrect Answer 1": str(n),
         "Incorrect Answer 2": str(n + 2), "Incorrect Answer 3": str(n + 3), "Record ID": f"r{n}"}
        for n in range(400)
    ]  # fmt: skip
    read = [math_problem(row, "x")[0] for row in rows]
    letters = Counter(problem.answer for problem in read)
    assert sorted(letters) == list("ABCD") and min(letters.values()) > 60
    for row, problem in zip(rows, read, strict=True):
        assert f"{problem.answer}) {row['Correct Answer']}\n" in problem.prompt
    # The order of columns, and with it of the wrong answers, changes nothing.
    turned = dict(reversed(rows[3].items()))
    assert math_problem(turned, "x")[0].prompt == read[3].prompt


def test_an_answer_that_is_the_number_of_one_option_and_the_text_of_another_is_ambiguous():
    row = {"question": "1 + 1?", "options": ["1", "4", "2"], "answer": "1"}
    with pytest.raises(BadRowError, match="number of one option and the text of another"):
        math_problem(row, "x")
    with pytest.raises(BadRowError, match="'7' is none of the options A, B, C"):
        math_problem({**row, "answer": "7"}, "x")


# ---------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (37, ["37"]),
        (37.0, ["37"]),
        (-0.5, ["-0.5"]),
        (1e-05, ["0.00001"]),
        (1e22, ["10000000000000000000000"]),
        (10**30 + 1, ["1000000000000000000000000000001"]),
        (0.1, ["0.1"]),
        ("1e5", ["1e5"]),  # text stays as it was written
        ("[1, 2]", ["[1, 2]"]),
        ('["1", "2"]', ["1", "2"]),
        (["1", 1.0], ["1"]),
        ("so\n#### 1,200", ["1,200"]),
    ],
)
def test_numbers_and_lists_as_texts(value, texts):
    assert gold_texts(value) == texts


def test_a_worked_solution_must_say_its_answer():
    long = "We add the numbers one by one and look at what comes out of it.\n" * 5
    with pytest.raises(BadRowError, match=r"'solution': has no .*boxed"):
        math_problem({"problem": "6*7?", "solution": long}, "x")
    assert math_problem({"problem": "6*7?", "solution": long + "\\boxed{42}"}, "x")[1] == "problem + solution"


def test_what_the_data_holds_keeps_its_type_for_a_reward_function():
    countdown = {
        "prompt": [{"role": "user", "content": "Make 24."}],
        "reward_model": {"ground_truth": {"target": 24, "numbers": [4, 6]}},
    }
    assert reward_problem(countdown, "x")[0].answer == {"target": 24, "numbers": [4, 6]}
    raw, name = reward_problem({"target": 24, "nums": [4, 6]}, "x")
    assert name == "countdown" and raw.answer == {"target": 24, "numbers": [4, 6]} and "4, 6" in raw.prompt
    assert reward_problem({"prompt": "Write a poem."}, "x")[0].answer is None
    assert reward_problem({"prompt": "p", "reward_model": {"ground_truth": 4}}, "x")[0].answer == 4
    with pytest.raises(BadRowError, match="text or a number is wanted"):
        math_problem(countdown, "x")


REWARD = (
    "def score(solution_str, ground_truth):\n    return float(ground_truth['target'] == eval(solution_str))\n"
)


def test_the_math_task_takes_any_answer_where_a_reward_judges(tmp_path, monkeypatch):
    (tmp_path / "layout_rewards.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)
    data = write(tmp_path / "c.jsonl", {"target": 24, "nums": [4, 6]})
    with pytest.raises(ValueError, match="column 'answer': text or a number is wanted"):
        load_task("math", data=data)
    task = load_task("math", data=data, reward="layout_rewards:score", held_out_fraction=0.0)
    (problem,) = task.problems("train")
    assert outcomes(task, problem, "4*6", "4+6") == ["correct", "wrong"]
    assert task.gold(problem) == '{"target": 24, "numbers": [4, 6]}'
    task.close()


def test_info_has_the_columns_as_they_came_but_the_prompt_and_the_tests():
    row = {"question": "6*7?", "answer": "42", "level": {"n": [1]}, "tools": None}
    assert math_problem(row, "x")[0].info == {"answer": "42", "level": {"n": [1]}, "tools": None}
    problem, _ = code_problem({"question": ASK, "test_cases": ["assert mul(3, 4) == 12"], "level": 2}, "x")
    assert sorted(problem.info) == ["level", "tests"]


# ---------------------------------------------------------------------------- other rows, by a setting


def test_columns_are_named_by_path():
    row = {"data": {"ask": "6*7?", "answers": [{"final": 42}]}, "question": "Not this.", "answer": "nor this"}
    reader = Reader(math_problem, {"prompt": "data.ask", "answer": "data.answers.0.final"})
    problem = reader(row, "x")
    assert (problem.prompt, problem.answer) == ("6*7?", 42)
    assert problem.info == row  # what was asked lies inside a column that has more
    assert reader.notes == ("1 row read as layout prompt + answer",)


def test_columns_name_options_and_tests():
    choice = Reader(math_problem, {"prompt": "stem", "options": "alternatives", "answer": "key"})
    problem = choice({"stem": "Odd?", "alternatives": ["2", "eleven"], "key": "B", "n": 1}, "x")
    assert problem.answer == "B" and "B) eleven" in problem.prompt and problem.info["n"] == 1
    program = Reader(code_problem, {"prompt": "ask", "tests": "unit.cases", "answer": "reference"})
    row = {"ask": ASK, "unit": {"cases": '[{"input": "3 4", "output": "12"}]'}, "reference": READS}
    problem = program(row, "x")
    assert problem.answer == READS and problem.info["tests"].inputs == ("3 4",)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"promt": "a"}, "columns.promt is unknown; did you mean 'prompt'"),
        ({"prompt": ""}, "columns.prompt=''"),
    ],
)
def test_columns_that_no_row_can_have(columns, message):
    with pytest.raises(ValueError, match=message):
        Reader(math_problem, columns)


def test_a_named_column_that_is_missing_is_an_error():
    with pytest.raises(
        BadRowError, match=r"'a.c': is missing or empty \(columns.answer\); the row has prompt, a"
    ):
        Reader(math_problem, {"answer": "a.c"})({"prompt": "p", "a": {"b": 1}}, "x")


def test_a_row_function_rewrites_rows_and_leaves_some_out(tmp_path, monkeypatch):
    (tmp_path / "my_rows.py").write_text(
        "def change(row):\n"
        "    return None if row['skip'] else {'prompt': row['a'] + row['b'], 'answer': 3}\n"
        "def fails(row):\n    return row['nothing']\n"
        "def text(row):\n    return 'text'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    rows = [{"a": "1+", "b": f"2={i}?", "skip": i == 2} for i in range(4)]
    data = write(tmp_path / "r.jsonl", *rows)
    task = load_task("math", data=data, row_function="my_rows:change", held_out_fraction=0.0)
    assert [p.prompt for p in task.problems("train")] == ["1+2=0?", "1+2=1?", "1+2=3?"]
    assert task.notes == ("3 rows read as layout prompt + answer", "1 row left out: row_function gives None")
    for name, message in [("fails", "row_function raised KeyError"), ("text", "row_function returned a str")]:
        with pytest.raises(ValueError, match=message):
            load_task("math", data=data, row_function=f"my_rows:{name}")
    with pytest.raises(ValueError, match="has no function 'chang'; did you mean 'change'"):
        load_task("math", data=data, row_function="my_rows:chang")
    with pytest.raises(ValueError, match="can't import 'no_such_rows'"):
        load_task("math", data=data, row_function="no_such_rows:f")


def test_what_is_ambiguous_lists_the_candidates():
    row = {"question": "6*7?", "problem": "7*8?", "answer": "42"}
    with pytest.raises(BadRowError, match=r"could be question or problem: .* columns=\{prompt: question\}"):
        math_problem(row, "x")
    row = {"question": "6*7?", "answer": "42", "final_answer": "56"}
    with pytest.raises(BadRowError, match="could be answer or final_answer"):
        math_problem(row, "x")
    with pytest.raises(BadRowError, match="could be test_cases or unit_tests"):
        code_problem({"query": ASK, "test_cases": ["assert f()"], "unit_tests": ["assert g()"]}, "x")


def test_what_is_unknown_names_its_columns_and_the_nearest_layouts():
    with pytest.raises(
        BadRowError, match=r"the row has Question, key; the nearest layouts are gsm8k .*columns="
    ):
        math_problem({"Question": "6*7?", "key": "42"}, "x")
    with pytest.raises(BadRowError, match=r"the row has task_id, entry_point; the nearest layouts are"):
        code_problem({"task_id": 1, "entry_point": "f"}, "x")


def test_columns_are_no_setting_of_tasks_without_data():
    with pytest.raises(ValueError, match="takes no 'columns'"):
        load_task("chain_arithmetic", columns={"prompt": "a"})


# ------------------------------------------------------------------------------------------------ tests


def packed(value):
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


class Evil:
    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return (exec, (f"open({self.place!r}, 'w').write('was here')",))


def lcb_row(private):
    return {"question_content": ASK,
            "public_test_cases": '[{"input": "3 4", "output": "12", "testtype": "stdin"}]',
            "private_test_cases": private}  # fmt: skip


def test_packed_tests_are_unpickled_elsewhere_and_only_data(tmp_path):
    tests = [{"input": "5 6", "output": "30", "testtype": "stdin"}]
    for value in (tests, json.dumps(tests)):
        assert code_problem(lcb_row(packed(value)), "x")[0].info["tests"].inputs == ("3 4", "5 6")
    place = tmp_path / "pwned"
    with pytest.raises(BadRowError, match=r"'private_test_cases': can't be unpacked .*names builtins.exec"):
        code_problem(lcb_row(packed(Evil(str(place)))), "x")
    assert not place.exists()
    with pytest.raises(BadRowError, match="can't be unpacked"):
        code_problem(lcb_row(packed(tests)[:-8]), "x")
    bomb = base64.b64encode(zlib.compress(bytes((1 << 28) + 1), 1)).decode()  # a byte too many
    with pytest.raises(BadRowError, match=r"can't be unpacked .*256 MiB"):
        code_problem(lcb_row(bomb), "x")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tests": [{"input": "1", "output": "1", "type": "interactive"}]}, "a test of type 'interactive'"),
        ({"tests": [{"input": "1", "type": "stdin"}]}, "'input' and 'output' are wanted"),
        ({"tests": [{"input": "[1]", "output": "1", "testtype": "functional"}]}, "without its name"),
        (
            {"tests": [{"input": "1", "output": "1"}, {"input": [1], "output": 1, "fn_name": "f"}]},
            "one program or",
        ),
        ({"tests": [{"input": "f(x", "output": "1", "fn_name": "f"}]}, "a value is wanted, found the text"),
        ({"tests": "[{"}, "not JSON"),
        ({"test": "def test_x():\n    assert True"}, "don't say which function"),
    ],
)
def test_tests_that_cannot_be_read_or_run_name_the_reason(row, message):
    with pytest.raises(BadRowError, match=message):
        code_problem({"problem": ASK, "question": ASK} | row, "x")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            {"test": "def test_x(tmp_path):\n    assert f()", "entry_point": "f"},
            "wants the fixture 'tmp_path'",
        ),
        (
            {"test": "from pytest import warns\ndef test_x():\n    f()", "entry_point": "f"},
            "use pytest.warns",
        ),
        (
            {"test": "from solution import S\ndef test_x():\n    assert S().n", "solution": "class S: n = 1"},
            "make objects of a class",
        ),
        ({"test_list": ["assert f(Pair(1)) == 1"], "code": "class Pair: pass\ndef f(x): pass"}, "a class"),
        (
            {"official_tests": [{"input": "1", "output": "1"}], "description": "d", "generated_checker": "c"},
            "a program decides",
        ),
        (
            {
                "problem_description": "d",
                "prompt": "p",
                "entry_point": "Solution().f",
                "test": "list_node([1])",
            },
            "linked lists",
        ),
        ({"input_output": ""}, "it has no tests"),
    ],
)
def test_rows_that_cannot_be_judged_here_are_left_out_and_counted(row, reason, tmp_path):
    """One such row must not refuse a whole data set, and must not give wrong verdicts either."""
    reader = Reader(code_problem)
    row = {"problem": ASK} | row
    assert reader(row, "x") is None
    assert len(reader.notes) == 1 and "1 row left out: " in reader.notes[0] and reason in reader.notes[0]
    with pytest.raises(ValueError, match="every row is left out; 1 row left out: "):
        load_task("code", data=write(tmp_path / "all.jsonl", row))


def test_what_stands_in_for_pytest():
    assert approx(0.3) == 0.1 + 0.2 and approx(1) != 1.00001 and approx(1, abs=0.1) == 1.05
    assert approx([0.3, 1]) == [0.1 + 0.2, 1] and approx([1]) != [1, 1] and approx({"a": 1.0}) == {"a": 1}
    assert approx(1.0) != float("nan") and approx(1.0) != "1.0" and approx(float("inf")) == float("inf")
    with raises(ValueError, match="b+") as info:
        raise ValueError("abbc")
    assert isinstance(info.value, ValueError)
    with pytest.raises(AssertionError, match="did not raise"), raises(ValueError):
        pass
    with pytest.raises(AssertionError, match="does not match"), raises(ValueError, match="x"):
        raise ValueError("abc")
    with pytest.raises(KeyError), raises(ValueError):
        raise KeyError


@needs_layer
def test_a_class_method_as_entry_point_is_proved_by_its_own_solution(tasks):
    """Known fault 43: `Solution().twoSum` passed the check, and then every verdict was `error`."""
    row = next(case["row"] for case in PUBLIC if case["name"] == "leetcode_dataset")
    problem, _ = code_problem(row, "x")
    assert outcomes(tasks["code"], problem, tasks["code"].gold(problem)) == ["correct"]
    assert outcomes(tasks["code"], problem, fenced("class Solution:\n    pass\n")) == ["wrong"]


@pytest.mark.parametrize("path", ["a.b", "a.0", "a.0.b"])
def test_paths_that_lead_nowhere_are_none(path):
    assert at({"a": 5}, path) is None and at(None, path) is None and at([], path) is None


def test_paths_enter_json_text_and_prefer_the_column_of_that_name():
    assert at({"a": '{"b": [3, 4]}'}, "a.b.1") == 4
    assert at({"a.b": 1, "a": {"b": 2}}, "a.b") == 1


def test_problem_is_still_a_plain_record():
    assert Problem("x", "p", {"any": "data"}).answer == {"any": "data"}
