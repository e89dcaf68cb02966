"""Step data to and from other libraries' formats."""

import json
import math

import pytest

from hardwon.steps.formats import (
    JudgedSolution,
    from_math_shepherd,
    from_trl,
    read_parquet,
    to_math_shepherd,
    to_trl,
    write_jsonl,
    write_parquet,
)

SOLUTION = JudgedSolution(
    prompt="3+8-2",
    steps=("11\n", "9\n", "=8."),
    mc_correct=(12, 3, 0),
    mc_total=(16, 16, 1),
    value=(0.7, 0.2, 0.0),
    advantage=(0.1, -0.4, -0.2),
)


def test_parquet_loses_nothing(tmp_path):
    other = JudgedSolution("q", ("½\r\n", "\n"), (0, 0), (0, 0))  # unlabelled: no counts, values unknown
    write_parquet(tmp_path / "steps.parquet", [SOLUTION, other])
    first, second = read_parquet(tmp_path / "steps.parquet")
    assert first == SOLUTION
    assert second.steps == other.steps
    assert all(map(math.isnan, second.value + second.advantage))


def test_labels_are_a_reading_of_counts():
    # 12/16, 3/16 and 0/1: any right completion makes a step right, or more than half of them.
    assert SOLUTION.labels() == [True, True, False]
    assert SOLUTION.labels(threshold=0.5) == [True, False, False]


def test_trl_round_trip():
    row = to_trl(SOLUTION)
    assert row == {"prompt": "3+8-2", "completions": ["11", "9", "=8."], "labels": [True, True, False]}
    back = from_trl(row)
    assert (back.prompt, back.steps) == (SOLUTION.prompt, SOLUTION.steps)
    assert (back.mc_correct, back.mc_total) == ((1, 1, 0), (1, 1, 1))


def test_math_shepherd_as_published():
    # The layout of the published data: the mark after each step, "+" and "-" in its place in `label`.
    row = {
        "input": "How many? Step 1: 1 + 1 = 2. ки\nStep 2: The answer is: 3 ки",
        "label": "How many? Step 1: 1 + 1 = 2. +\nStep 2: The answer is: 3 -",
        "task": "GSM8K",
    }
    read = from_math_shepherd(row)
    assert read.prompt == "How many?"
    assert read.steps == ("Step 1: 1 + 1 = 2.\n", "Step 2: The answer is: 3")
    assert read.labels() == [True, False]
    assert to_math_shepherd(read, task="GSM8K") == row


def test_math_shepherd_numbers_our_steps():
    row = to_math_shepherd(SOLUTION)
    assert row["input"] == "3+8-2 Step 1: 11 ки\nStep 2: 9 ки\nStep 3: =8. ки"
    assert row["label"] == "3+8-2 Step 1: 11 +\nStep 2: 9 +\nStep 3: =8. -"


def test_math_shepherd_refuses_what_it_cannot_say():
    with pytest.raises(ValueError, match="marks steps"):
        to_math_shepherd(JudgedSolution("реки", ("a",), (1,), (1,)))
    with pytest.raises(ValueError, match="does not follow"):
        from_math_shepherd({"input": "q Step 1: a ки", "label": "q Step 1: b +"})
    with pytest.raises(ValueError, match="no border"):
        from_math_shepherd({"input": "q a ки", "label": "q a +"})


def test_wrong_sizes_and_columns(tmp_path):
    with pytest.raises(ValueError, match="give one per step"):
        JudgedSolution("q", ("a", "b"), (1,), (1,))
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"prompt": ["q"]}), tmp_path / "bad.parquet")
    with pytest.raises(ValueError, match="no column 'steps'"):
        read_parquet(tmp_path / "bad.parquet")


def test_jsonl_is_one_row_a_line(tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", [to_trl(SOLUTION), to_trl(SOLUTION)])
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [to_trl(SOLUTION)] * 2
