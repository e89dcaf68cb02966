"""Problems from files and Hugging Face data sets: checked when loaded, no prompt in both splits.

What the columns mean is for layouts/ to say.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hardwon.data import Problem
from hardwon.tasks.layouts.layout import BadRowError
from hardwon.tasks.layouts.reader import Reader, math_problem

Row = tuple[int, Any]  # row number counted from 1 (the line, in JSONL), content
Convert = Callable[
    [Any, str], Problem | None
]  # row, default id; BadRowError for a bad row, None to leave it out
Check = Callable[[Sequence[Problem]], list[str | None]]  # for each problem, what is wrong with its answer

HELD_OUT_FRACTION = 0.05  # ours
MAX_HELD_OUT = 500  # ours
SHOWN_FAULTS = 5
READERS = (".jsonl", ".json", ".parquet")


def read_rows(source: str, setting: str = "data") -> list[Row]:
    """The rows of a .jsonl, .json or .parquet file, or of a data set: a saved folder, `name` or `name:split`.

    ValueError says what is missing or broken, and where.
    """
    path = Path(source)
    if path.suffix in READERS:
        if not path.is_file():
            raise ValueError(f"{setting}={source!r}: no such file{_neighbour(path)}")
        reader = {".jsonl": _read_jsonl, ".json": _read_json, ".parquet": _read_parquet}[path.suffix]
        rows = reader(path)
    else:
        rows = _read_dataset(source, setting)
    if not rows:
        raise ValueError(f"{setting}={source!r}: has no rows")
    return rows


def _neighbour(path: Path) -> str:
    names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {str(path.with_name(close[0]))!r}?" if close else ""


def _read_jsonl(path: Path) -> list[Row]:
    rows: list[Row] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    rows.append((number, json.loads(line.decode("utf-8"))))
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"{path}, row {number}: not JSON{_json_fault(error)}") from error
    return rows


def _json_fault(error: Exception) -> str:
    return ": too deeply nested" if isinstance(error, RecursionError) else f" ({error})"


def _read_json(path: Path) -> list[Row]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON{_json_fault(error)}") from error
    if not isinstance(content, list):
        raise ValueError(f"{path}: a list of rows is wanted, found a {type(content).__name__}")
    return list(enumerate(content, 1))


def _read_parquet(path: Path) -> list[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        return list(enumerate(pyarrow.parquet.read_table(path).to_pylist(), 1))
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: not a readable parquet file ({error})") from error


def _read_dataset(source: str, setting: str) -> list[Row]:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{setting}={source!r} is no .jsonl, .json or .parquet file; "
            "for Hugging Face data sets: pip install 'hardwon[datasets]'"
        ) from error
    folder, _, split = (source, "", "") if Path(source).exists() else source.rpartition(":")
    name = folder or source
    split = split if folder else ""
    try:
        if any((Path(name) / marker).exists() for marker in ("dataset_info.json", "dataset_dict.json")):
            loaded = datasets.load_from_disk(name)
        else:
            loaded = datasets.load_dataset(name)
    except Exception as error:  # many kinds: no network, no such data set, bad files
        raise ValueError(f"{setting}={source!r}: can't load the data set ({error})") from error
    if isinstance(loaded, Mapping):
        wanted = split or "train"
        if wanted not in loaded:
            raise ValueError(f"{setting}={source!r}: no split {wanted!r}; there are {', '.join(loaded)}")
        loaded = loaded[wanted]
    return list(enumerate(loaded, 1))


def load_problems(
    source: str, *, setting: str = "data", convert: Convert | None = None, check: Check | None = None
) -> list[Problem]:
    """Problems of `source`, one a row, made by `convert` and then checked together by `check`.

    `convert` is a Reader (layouts/reader.py); a row for which it gives None is left out.

    ValueError names the file, and row and column of up to five faults. Ids must be unique; without a
    column `id` they are "<file stem>/<row number>".
    """
    problems: dict[int, Problem] = {}
    faults: dict[int, str] = {}
    seen: dict[str, int] = {}
    convert = convert or Reader(math_problem)
    prefix = "eval/" if setting == "eval_data" else ""
    for number, row in read_rows(source, setting):
        try:
            problem = convert(row, f"{prefix}{Path(source).stem}/{number}")
            if problem is None:
                continue
            if problem.id in seen:
                raise BadRowError("id", f"{problem.id!r} is also the id of row {seen[problem.id]}")
        except BadRowError as error:
            faults[number] = str(error)
            continue
        seen[problem.id] = number
        problems[number] = problem
    wrong = check(list(problems.values())) if check else []
    for number, fault in zip(problems, wrong, strict=False):
        if fault:
            faults[number] = fault
    refuse(source, faults)
    if not problems:
        raise ValueError(f"{source}: every row is left out; {'; '.join(getattr(convert, 'notes', ()))}")
    return list(problems.values())


def refuse(source: str, faults: Mapping[int, str]) -> None:
    """ValueError with the first faults by row number, if there are any."""
    if faults:
        more = f"\n  and {len(faults) - SHOWN_FAULTS} more" if len(faults) > SHOWN_FAULTS else ""
        shown = "".join(f"\n  row {row}, {faults[row]}" for row in sorted(faults)[:SHOWN_FAULTS])
        raise ValueError(f"{source}: {len(faults)} bad {'row' if len(faults) == 1 else 'rows'}{shown}{more}")


def prompt_key(prompt: Any) -> str:
    """A hash of the prompt's text that ignores spacing: the same question has the same key."""
    text = prompt if isinstance(prompt, str) else json.dumps([[m["role"], m["content"]] for m in prompt])
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()


def split_held_out(
    problems: Sequence[Problem], fraction: float = HELD_OUT_FRACTION
) -> tuple[list[Problem], list[Problem]]:
    """(train, test): the prompts with the smallest hashes are held out, at most 500 of them.

    It depends on the prompts alone, not on their order or a seed; all rows of a prompt stay on one side.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"held_out_fraction={fraction}: from 0 to below 1, e.g. {HELD_OUT_FRACTION}")
    keys = sorted({prompt_key(problem.prompt) for problem in problems})
    if fraction and len(keys) < 2:
        raise ValueError("one prompt can't be split: give eval_data, or held_out_fraction=0")
    number = min(MAX_HELD_OUT, max(1, round(fraction * len(keys)))) if fraction else 0
    held_out = set(keys[:number])
    train = [p for p in problems if prompt_key(p.prompt) not in held_out]
    return train, [p for p in problems if prompt_key(p.prompt) in held_out]


def load_splits(
    data: str,
    eval_data: str | None = None,
    *,
    held_out_fraction: float = HELD_OUT_FRACTION,
    convert: Convert | None = None,
    check: Check | None = None,
) -> dict[str, list[Problem]]:
    """{"train", "test"}, from two sources or one; training leaves out the prompts of the evaluation."""
    problems = load_problems(data, convert=convert, check=check)
    if eval_data is None:
        train, test = split_held_out(problems, held_out_fraction)
        return {"train": train, "test": test}
    test = load_problems(eval_data, setting="eval_data", convert=convert, check=check)
    held_out = {prompt_key(problem.prompt) for problem in test}
    train = [problem for problem in problems if prompt_key(problem.prompt) not in held_out]
    if not train:
        raise ValueError(f"data={data!r}: every prompt is also in eval_data={eval_data!r}")
    if len(train) < len(problems):
        warnings.warn(
            f"{len(problems) - len(train)} rows of {data} are left out: their prompts are in {eval_data}",
            stacklevel=2,
        )
    return {"train": train, "test": test}


def fingerprint(problems: Sequence[Problem]) -> str:
    """sha256 of the problems' whole content in order, so that a resumed run can refuse data that changed."""
    digest = hashlib.sha256()
    for line in _lines(problems):
        digest.update(line.encode())
    return digest.hexdigest()


def _lines(problems: Sequence[Problem]) -> Iterator[str]:
    for p in problems:
        prompt = p.prompt if isinstance(p.prompt, str) else [dict(message) for message in p.prompt]
        yield json.dumps([p.id, prompt, p.answer, dict(p.info)], default=str) + "\n"
