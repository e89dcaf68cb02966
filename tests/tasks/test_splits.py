"""Data is checked when loaded: every refusal names file, row and column (known fault 26)."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hardwon.data import Problem
from hardwon.tasks.splits import fingerprint, load_problems, load_splits, prompt_key, split_held_out


def jsonl(path, rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(path)


def test_trl_columns_and_extra_columns_are_kept(tmp_path):
    chat = [{"role": "user", "content": "2+2?"}]
    path = jsonl(
        tmp_path / "a.jsonl",
        [{"prompt": "1+1?", "answer": 2, "level": 3}, {"prompt": chat, "solution": "so \\boxed{4}"}],
    )
    first, second = load_problems(path)
    assert (first.id, first.prompt, first.answer, first.info["level"]) == ("a/1", "1+1?", 2, 3)
    assert (second.prompt, second.answer) == (chat, "so \\boxed{4}")


def test_verl_columns_from_parquet(tmp_path):
    row = {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": "2+2?"}],
        "reward_model": {"ground_truth": "4", "style": "rule"},
        "extra_info": {"index": "x7"},
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "b.parquet")
    (problem,) = load_problems(str(tmp_path / "b.parquet"))
    assert problem.answer == "4"
    assert problem.prompt == row["prompt"]
    assert problem.info["data_source"] == "math_dapo" and problem.info["extra_info"] == {"index": "x7"}


def test_json_list_and_given_ids(tmp_path):
    (tmp_path / "c.json").write_text('[{"id": 5, "prompt": "p", "answer": "1"}]')
    assert load_problems(str(tmp_path / "c.json"))[0].id == "5"


def test_data_set_saved_on_disk_with_and_without_splits(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"prompt": "1+1?", "answer": "2"}])
    rows.save_to_disk(tmp_path / "plain")
    datasets.DatasetDict({"train": rows, "dev": rows}).save_to_disk(tmp_path / "split")
    assert load_problems(str(tmp_path / "plain"))[0].answer == "2"
    assert load_problems(f"{tmp_path / 'split'}")[0].id == "split/1"
    assert load_problems(f"{tmp_path / 'split'}:dev")[0].answer == "2"
    with pytest.raises(ValueError, match="no split 'test'; there are train, dev"):
        load_problems(f"{tmp_path / 'split'}:test")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "1"}, "row 2, column 'prompt': is missing; the row has answer"),
        ({"prompt": " ", "answer": "1"}, "row 2, column 'prompt': is empty"),
        ({"prompt": 3, "answer": "1"}, "row 2, column 'prompt': text or a list"),
        ({"prompt": [{"role": "user"}], "answer": "1"}, "row 2, column 'prompt': a message with"),
        ({"prompt": "p"}, "row 2, column 'answer': is missing"),
        ({"prompt": "p", "answer": ""}, "row 2, column 'answer': is empty"),
        ({"prompt": "p", "answer": None}, "row 2, column 'answer': is empty"),
        ({"prompt": "p", "answer": []}, "row 2, column 'answer': is empty"),
        ({"prompt": "p", "answer": [{}]}, "row 2, column 'answer': text or a number"),
        ({"prompt": "p", "answer": float("inf")}, "row 2, column 'answer': a finite number"),
        ({"prompt": "p", "answer": True}, "row 2, column 'answer': text or a number"),
        ({"prompt": "p", "solution": ""}, "row 2, column 'solution': is empty"),
        ({"prompt": "p", "reward_model": {}}, "row 2, column 'answer': is missing.*nearest layouts are verl"),
        ({"id": "a/1", "prompt": "p", "answer": "1"}, "row 2, column 'id': 'a/1' is also the id of row 1"),
        ({"id": 1.5, "prompt": "p", "answer": "1"}, "row 2, column 'id': text or a whole number"),
        ([1, 2], "row 2, column '\\*': a row of named columns"),
        ("{broken", "row 2: not JSON"),
    ],
)
def test_bad_rows_are_refused_by_file_row_and_column(tmp_path, row, message):
    path = jsonl(tmp_path / "a.jsonl", [{"prompt": "good", "answer": "1"}, row])
    with pytest.raises(ValueError, match=message) as error:
        load_problems(path)
    assert "a.jsonl" in str(error.value)


def test_five_faults_are_shown_at_once(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"prompt": "p", "answer": ""}] * 7)
    with pytest.raises(ValueError, match="7 bad rows") as error:
        load_problems(path)
    assert str(error.value).count("is empty") == 5 and str(error.value).endswith("and 2 more")


def test_missing_and_empty_files(tmp_path):
    (tmp_path / "train.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"data=.*no such file; did you mean .*train.jsonl"):
        load_problems(str(tmp_path / "trian.jsonl"))
    with pytest.raises(ValueError, match="has no rows"):
        load_problems(str(tmp_path / "train.jsonl"))
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 cut short")
    with pytest.raises(ValueError, match="not a readable parquet file"):
        load_problems(str(tmp_path / "cut.parquet"))


def problems(prompts):
    return [Problem(str(index), prompt, "1") for index, prompt in enumerate(prompts)]


def test_held_out_prompts_are_a_fraction_and_never_in_both():
    # 200 prompts, each in two rows (once with other spacing): 5 % of 200 prompts is 10, so 20 rows.
    rows = problems([f"what is {i}?" for i in range(200)] + [f"what  is {i}? " for i in range(200)])
    train, test = split_held_out(rows, 0.05)
    assert len(test) == 20 and len(train) == 380
    assert not {prompt_key(p.prompt) for p in train} & {prompt_key(p.prompt) for p in test}


def test_held_out_prompts_do_not_depend_on_order_and_are_capped():
    rows = problems([f"q{i}" for i in range(20_000)])
    _, test = split_held_out(rows, 0.05)
    _, reversed_test = split_held_out(rows[::-1], 0.05)
    assert len(test) == 500  # not 1000
    assert {p.id for p in test} == {p.id for p in reversed_test}


def test_one_prompt_cannot_be_split():
    with pytest.raises(ValueError, match="eval_data"):
        split_held_out(problems(["same", "same"]))
    assert split_held_out(problems(["same"]), 0) == (problems(["same"]), [])
    with pytest.raises(ValueError, match="held_out_fraction=1"):
        split_held_out(problems(["a", "b"]), 1)


def test_prompts_of_eval_data_leave_the_training_set(tmp_path):
    data = jsonl(tmp_path / "x.jsonl", [{"prompt": "p", "answer": 1}, {"prompt": "q", "answer": 2}])
    eval_data = jsonl(tmp_path / "y.jsonl", [{"prompt": "q", "answer": 2}])
    with pytest.warns(UserWarning, match="1 problem of"):
        splits = load_splits(data, eval_data)
    assert [p.prompt for p in splits["train"]] == ["p"] and [p.id for p in splits["test"]] == ["eval/y/1"]
    with pytest.raises(ValueError, match="every prompt is also in"):
        load_splits(eval_data, eval_data)


def test_fingerprint_sees_every_change():
    base = [Problem("1", "p", "1", {"level": 2})]
    assert fingerprint(base) == fingerprint([Problem("1", "p", "1", {"level": 2})])
    others = [Problem("2", "p", "1", {"level": 2}), Problem("1", "q", "1", {"level": 2}),
              Problem("1", "p", "2", {"level": 2}), Problem("1", "p", "1", {"level": 3})]  # fmt: skip
    assert len({fingerprint([other]) for other in others} | {fingerprint(base), fingerprint(base * 2)}) == 6


def test_a_file_that_is_no_text_names_its_row(tmp_path):
    path = tmp_path / "noise.jsonl"
    path.write_bytes(b'{"prompt": "1+1", "answer": "2"}\n\x87\xff\n')
    with pytest.raises(ValueError, match=r"noise\.jsonl, row 2: not JSON"):
        load_problems(str(path))


# ------------------------------------------------------------------------------ one problem, many rows


def test_rows_of_one_prompt_and_answer_are_one_problem(tmp_path):
    """Known fault 39: a public set of 17,000 problems ships each a hundred times."""
    pairs = [
        ("1+1?", "2"),
        ("2+2?", 4),
        ("1+1? ", "2"),
        ("1+1?", 2),
        ("3+3?", "6"),
    ]  # a space is no difference
    path = jsonl(tmp_path / "a.jsonl", [{"prompt": p, "answer": a, "n": i} for i, (p, a) in enumerate(pairs)])
    with pytest.warns(UserWarning, match=r"a\.jsonl: 5 rows are 3 distinct problems; 1 stands .* up to 3"):
        splits = load_splits(path, held_out_fraction=0)
    assert [(p.id, p.info["n"]) for p in splits["train"]] == [("a/1", 0), ("a/2", 1), ("a/5", 4)]
    assert [p.weight for p in splits["train"]] == [1, 1, 1]
    assert len(splits.notes) == 1
    splits = load_splits(path, held_out_fraction=0, row_weights="rows")
    assert [p.weight for p in splits["train"]] == [3, 1, 1]
    with pytest.raises(ValueError, match="row_weights='row': distinct or rows; did you mean 'rows'"):
        load_splits(path, row_weights="row")


def test_copies_change_no_id_and_no_held_out_prompt(tmp_path):
    rows = [{"id": f"x{i}", "prompt": f"q{i}", "answer": i} for i in range(60)]
    once = load_splits(jsonl(tmp_path / "a.jsonl", rows), held_out_fraction=0.1)
    with pytest.warns(UserWarning, match="180 rows are 60 distinct problems"):
        thrice = load_splits(jsonl(tmp_path / "b.jsonl", rows * 3), held_out_fraction=0.1, row_weights="rows")
    assert once.notes == ()
    for split in ("train", "test"):
        assert [p.id for p in once[split]] == [p.id for p in thrice[split]]
    assert {p.weight for p in thrice["train"]} == {3} and {p.weight for p in thrice["test"]} == {1}


def test_one_prompt_with_several_answers_is_said_with_the_rows(tmp_path):
    rows = [("p", 1), ("q", 2), ("p", 3), ("q", 2), ("p", 1)]
    path = jsonl(tmp_path / "a.jsonl", [{"prompt": p, "answer": a} for p, a in rows])
    with pytest.warns(UserWarning, match="1 prompt with different answers .* Rows 1 and 3"):
        splits = load_splits(path, held_out_fraction=0.5)
    sides = [{p.prompt for p in splits[split]} for split in ("train", "test")]
    assert sorted(map(len, sides)) == [1, 1] and not sides[0] & sides[1]
    assert sorted(p.id for split in splits.values() for p in split) == ["a/1", "a/2", "a/3"]


def test_programs_are_the_same_problem_by_their_tests(tmp_path):
    """Two solutions of one problem are one problem; other tests make another one."""

    def convert(row, default_id):
        return Problem(default_id, row["prompt"], row["solution"], {"tests": row["tests"]})

    rows = [{"prompt": "p", "solution": s, "tests": t} for s, t in [("a", [1]), ("b", [1]), ("a", [2])]]
    found = load_problems(jsonl(tmp_path / "a.jsonl", rows), convert=convert)
    assert [p.id for p in found] == ["a/1", "a/3"]
