"""Every way to name rows, and that a cell arrives as it was written (known faults 44 and 53)."""

import bz2
import gzip
import json
import lzma

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hardwon.tasks.sources import read_rows, source_name
from hardwon.tasks.splits import load_problems, load_splits

ROWS = [{"prompt": f"{i}+0?", "answer": str(i)} for i in range(10)]


def contents(source, setting="data"):
    return [row.content for row in read_rows(source, setting)]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def zstd(text):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(text)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("ending", "pack"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", zstd)],
)
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("jsonl", lines(ROWS)),
        ("ndjson", lines(ROWS)),
        ("json", json.dumps(ROWS)),
        ("json", json.dumps({"version": "1", "data": ROWS})),  # the only list of an object
        ("json", lines(ROWS)),  # lines of JSON under the wrong name, as many data sets of the Hub are
        ("csv", "prompt,answer\n" + "".join(f"{r['prompt']},{r['answer']}\n" for r in ROWS)),
        ("tsv", "prompt\tanswer\n" + "".join(f"{r['prompt']}\t{r['answer']}\n" for r in ROWS)),
    ],
)
def test_text_files_plain_and_compressed(tmp_path, kind, text, ending, pack):
    path = tmp_path / f"train.{kind}{ending}"
    path.write_bytes(pack(("\ufeff" + text).encode()))  # with the mark that spreadsheets put first
    assert contents(str(path)) == ROWS
    assert load_problems(str(path))[0].id == "train/1"


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
def test_a_broken_compressed_file_is_named(tmp_path, ending):
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}[ending]
    whole = pack(lines(ROWS * 100).encode())
    for number, content in enumerate((b"this is text\n", whole[: len(whole) // 2])):
        path = tmp_path / f"bad{number}.jsonl{ending}"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"bad{number}.*(can't be read|not JSON)"):
            contents(str(path))


def test_cells_of_a_csv_file_keep_their_form(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('prompt,answer,level\n"small, or\nnot?",1e-05,007\nagent?,007,\nnone?,NA,1.50\n')
    assert contents(str(path)) == [
        {"prompt": "small, or\nnot?", "answer": "1e-05", "level": "007"},
        {"prompt": "agent?", "answer": "007", "level": ""},
        {"prompt": "none?", "answer": "NA", "level": "1.50"},
    ]
    assert [p.answer for p in load_problems(str(path))] == ["1e-05", "007", "NA"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "prompt,answer\na,1\n\nb,2,3\n",
            r"row 2 \(up to line 4\): 3 cells for the 2 columns prompt, answer",
        ),
        ("prompt,answer\na\n", r"row 1 \(up to line 2\): 1 cells for the 2 columns"),
        ("prompt,prompt\na,1\n", "two columns are named 'prompt'"),
        ('prompt,answer\n"a"b,1\n', r"row 1 \(line 2\): not CSV"),
        ("question;answer\na;1\n", "column 'prompt': is missing; the row has question;answer"),
        ("prompt,answer\na,\n", "row 1, column 'answer': is empty"),
        ("prompt,answer\n", "has no rows"),
        ("", "has no rows"),
    ],
)
def test_faults_of_a_csv_file_are_named_by_row_and_column(tmp_path, text, message):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        load_problems(str(path))
    assert "a.csv" in str(error.value)


def test_parquet_and_both_forms_of_arrow(tmp_path):
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    for name, new in (("stream", pa.ipc.new_stream), ("file", pa.ipc.new_file)):
        with new(str(tmp_path / f"{name}.arrow"), table.schema) as writer:
            writer.write_table(table)
    for name in ("a.parquet", "stream.arrow", "file.arrow"):
        assert contents(str(tmp_path / name)) == ROWS
    (tmp_path / "cut.arrow").write_bytes(b"ARROW1 cut short")
    with pytest.raises(ValueError, match=r"cut\.arrow: not a readable arrow file"):
        contents(str(tmp_path / "cut.arrow"))


def test_several_files_by_pattern_and_by_list(tmp_path):
    for folder, rows in (("a", ROWS[:4]), ("b", ROWS[4:])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "part.jsonl").write_text(lines(rows))
    pattern, files = f"{tmp_path}/*/part.jsonl", [f"{tmp_path}/{f}/part.jsonl" for f in ("a", "b")]
    assert contents(pattern) == contents(files) == ROWS
    problems = load_problems(pattern)
    assert (problems[0].id, problems[4].id) == ("a/part/1", "b/part/1")  # one name, so the folder tells
    (tmp_path / "b" / "part.jsonl").write_text(lines([{"prompt": "p", "answer": ""}]))
    with pytest.raises(ValueError, match=r"1 bad row\n.*b/part.jsonl, row 1, column 'answer': is empty"):
        load_problems(files)
    with pytest.raises(ValueError, match="no file has such a name"):
        contents(f"{tmp_path}/*/other.jsonl")
    with pytest.raises(ValueError, match="data=3: the name of a file"):
        contents([files[0], 3])


@pytest.mark.parametrize(
    "text",
    ["[:3]", "[7:]", "[2:5]", "[-2:]", "[:-2]", "[20%:50%]", "[-25%:]", "[:15%]", "[85%:]", "[:]", "[5:99]"],
)
def test_slices_are_those_of_datasets(tmp_path, text):
    """The oracle is the package's own reading of the same words."""
    datasets = pytest.importorskip("datasets")
    (tmp_path / "a.jsonl").write_text(lines(ROWS))
    (bounds,) = datasets.ReadInstruction.from_spec(f"train{text}").to_absolute({"train": 10})
    wanted = ROWS[bounds.from_ or 0 : 10 if bounds.to is None else bounds.to]
    assert contents(f"{tmp_path}/a.jsonl{text}") == wanted
    whole = {r.content["prompt"]: r.number for r in read_rows(f"{tmp_path}/a.jsonl")}
    sliced = list(read_rows(f"{tmp_path}/a.jsonl{text}"))
    assert [row.number for row in sliced] == [whole[r["prompt"]] for r in wanted]  # ids do not move


def test_two_slices_of_one_file_are_one_source(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(ROWS))
    both = [f"{tmp_path}/a.jsonl[:3]", f"{tmp_path}/a.jsonl[2:4]"]
    assert [p.id for p in load_problems(both)] == ["a/1", "a/2", "a/3", "a/4"]


def test_files_that_are_not_read_say_which_are(tmp_path):
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"a\.xlsx.*not read; these are: \.jsonl"):
        contents(str(tmp_path / "a.xlsx"))
    with pytest.raises(ValueError, match=r"no file or folder has this name.*owner/name/config@revision"):
        contents("my data!")


# ------------------------------------------------------------------------------------- data sets

README = """---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train.csv
  - split: test
    path: main/test.csv
- config_name: socratic
  data_files: socratic.jsonl
---
"""


@pytest.fixture
def folder(tmp_path):
    """A data set as the Hub has it: two configurations, named in its README."""
    pytest.importorskip("datasets")
    root = tmp_path / "gsm"
    (root / "main").mkdir(parents=True)
    (root / "README.md").write_text(README)
    (root / "main" / "train.csv").write_text("prompt,answer\na,007\nb,1e-05\nc,3\n")
    (root / "main" / "test.csv").write_text("prompt,answer\nd,4\n")
    (root / "socratic.jsonl").write_text(lines([{"prompt": "e", "answer": 5}]))
    return root


def test_a_folder_has_configurations_splits_and_slices(folder):
    def answers(ending, setting="data"):
        return [row["answer"] for row in contents(f"{folder}{ending}", setting)]

    assert answers("") == answers("/main") == answers(":train") == ["007", "1e-05", "3"]
    assert answers("/main:test") == ["4"]
    assert answers("/main:train[1:2]") == answers(":train[1:-1]") == ["1e-05"]
    assert answers("", "eval_data") == ["4"]  # an evaluation takes the test split by itself
    assert answers("/socratic", "eval_data") == [5]
    assert load_problems(str(folder))[1].id == "gsm/2"
    assert load_problems(f"{folder}/socratic")[0].id == "gsm/socratic/1"


def test_what_a_data_set_lacks_is_named(folder):
    with pytest.raises(ValueError, match="no split 'tset'; there are train, test; did you mean 'test'"):
        contents(f"{folder}:tset")
    with pytest.raises(ValueError, match=r"socratc.*main.*socratic"):
        contents(f"{folder}/socratc")
    (folder / "README.md").write_text(README.replace("main\n", "easy\n", 1))
    with pytest.raises(ValueError, match="configurations easy, socratic; choose one"):
        contents(str(folder))


def test_a_folder_of_files_without_a_readme(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "d").mkdir()
    for split, rows in (("train", ROWS[:6]), ("test", ROWS[6:])):
        (tmp_path / "d" / f"{split}-00000-of-00001.jsonl.zst").write_bytes(zstd(lines(rows).encode()))
    assert contents(f"{tmp_path}/d") == ROWS[:6]
    assert contents(f"{tmp_path}/d:test[:2]") == ROWS[6:8]
    splits = load_splits(f"{tmp_path}/d", f"{tmp_path}/d")
    assert len(splits["train"]) == 6 and [p.id for p in splits["test"]] == [
        f"eval/d/{i}" for i in range(1, 5)
    ]


class Hub:
    """Stands in for the Hub: `datasets` sends every name to a local folder, and its revision is noted."""

    def __init__(self, monkeypatch, folder):
        import datasets

        self.asked = []
        names, builder = datasets.get_dataset_config_names, datasets.load_dataset_builder

        def get_dataset_config_names(name, revision=None):
            self.asked.append((name, revision))
            return names(str(folder))

        def load_dataset_builder(name, config=None, revision=None):
            self.asked.append((name, config, revision))
            return builder(str(folder), config)

        monkeypatch.setattr(datasets, "get_dataset_config_names", get_dataset_config_names)
        monkeypatch.setattr(datasets, "load_dataset_builder", load_dataset_builder)


@pytest.mark.parametrize(
    ("source", "asked", "answers"),
    [
        ("openai/gsm8k", ("openai/gsm8k", "main", None), ["007", "1e-05", "3"]),
        ("openai/gsm8k/main:train[:2]", ("openai/gsm8k", "main", None), ["007", "1e-05"]),
        ("openai/gsm8k@v1.0:test", ("openai/gsm8k", "main", "v1.0"), ["4"]),
        ("openai/gsm8k/socratic@refs/pr/3", ("openai/gsm8k", "socratic", "refs/pr/3"), [5]),
        ("gsm8k:train[66%:]", ("gsm8k", "main", None), ["3"]),
    ],
)
def test_names_of_the_hub(monkeypatch, folder, tmp_path, source, asked, answers):
    hub = Hub(monkeypatch, folder)
    monkeypatch.chdir(tmp_path / "gsm" / "main")  # no file or folder here has such a name
    assert [row["answer"] for row in contents(source)] == answers
    assert hub.asked[-1] == asked
    assert load_problems(source)[0].id.startswith(("gsm8k/", "gsm8k/socratic/"))


def test_a_data_set_that_is_not_there_is_an_error_of_the_setting():
    pytest.importorskip("datasets")
    with pytest.raises(ValueError, match="eval_data='nobody/nothing': can't load the data set"):
        contents("nobody/nothing", "eval_data")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("x/train.jsonl.gz", "train"),
        ("x/train.v2.csv[:5]", "train.v2"),
        ("openai/gsm8k/main@v1:train[:10]", "gsm8k"),
        (["a.jsonl", "b.jsonl"], "a"),
    ],
)
def test_a_source_has_a_short_name(source, name):
    assert source_name(source) == name
