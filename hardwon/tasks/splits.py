"""Distinct problems from rows: checked when loaded, and no prompt in both splits."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

from hardwon.config import nearest
from hardwon.data import Problem
from hardwon.tasks.layouts.layout import BadRowError
from hardwon.tasks.layouts.reader import Reader, math_problem
from hardwon.tasks.sources import Row, Source, read_rows

# Row, default id; BadRowError for a bad row, None to leave it out.
Convert = Callable[[Any, str], Problem | None]
Check = Callable[[Sequence[Problem]], list[str | None]]  # for each problem, what is wrong with its answer
RowWeights = Literal["distinct", "rows"]

HELD_OUT_FRACTION = 0.05  # ours
MAX_HELD_OUT = 500  # ours
ALL_HELD_OUT = 1.0  # the fraction of data that is for evaluation only
SHOWN_FAULTS = 5
SHOWN_ROWS = 3


class Splits(dict[str, list[Problem]]):
    """{"train", "test"}; `notes` are sentences about what loading did, for the user to read."""

    notes: tuple[str, ...] = ()


@dataclass
class Loaded:
    """Distinct problems in the order of their first rows, and how many rows each has."""

    source: Source
    problems: list[Problem] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def load_problems(
    source: Source, *, setting: str = "data", convert: Convert | None = None, check: Check | None = None
) -> list[Problem]:
    """The distinct problems of `source`, made by `convert` and then checked together by `check`.

    ValueError names the file, and row and column of up to five faults. Ids must be unique; without a
    column `id` they are "<file stem>/<row number>".
    """
    return load_distinct(source, setting=setting, convert=convert, check=check).problems


def load_distinct(
    source: Source, *, setting: str = "data", convert: Convert | None = None, check: Check | None = None
) -> Loaded:
    """As `load_problems`, with the number of rows of each. Rows with the same prompt and answer are one
    problem, and it has the id and the other columns of the first of them."""
    loaded, faults = Loaded(source), Faults(source)
    convert = convert or Reader(math_problem)
    first: list[Row] = []  # of each problem, without the content
    known: dict[bytes, int] = {}
    ids: dict[str, int] = {}
    prefix = "eval/" if setting == "eval_data" else ""
    for row in read_rows(source, setting):
        try:
            problem = convert(row.content, f"{prefix}{row.name}/{row.number}")
            if problem is None:
                continue
            same = known.setdefault(duplicate_key(problem), len(loaded.problems))
            if same < len(loaded.problems):
                loaded.rows[same] += 1
                continue
            if problem.id in ids:
                del known[duplicate_key(problem)]
                other = first[ids[problem.id]]
                where = f"row {other.number}" + (f" of {other.place}" if other.place != row.place else "")
                raise BadRowError("id", f"{problem.id!r} is also the id of {where}")
        except BadRowError as error:
            faults.add(row, str(error))
            continue
        ids[problem.id] = len(loaded.problems)
        loaded.problems.append(problem)
        loaded.rows.append(1)
        first.append(row._replace(content=None))
    wrong = check(loaded.problems) if check else []
    for row, fault in zip(first, wrong, strict=False):
        if fault:
            faults.add(row, fault)
    faults.refuse()
    if not loaded.problems:
        why = "; ".join(getattr(convert, "notes", ()))  # of a Reader
        raise ValueError(f"{named(source)}: every row is left out; {why}".removesuffix("; "))
    loaded.notes += [*_note_of_copies(loaded), *_note_of_answers(loaded, first)]
    return loaded


class Faults:
    """Faults of rows, in the order in which the rows stand in the source."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.found: list[tuple[Row, str]] = []

    def add(self, row: Row, fault: str) -> None:
        self.found.append((row._replace(content=None), fault))

    def refuse(self) -> None:
        """ValueError with the first faults, if there are any."""
        if not self.found:
            return
        places = {row.place: None for row, _ in self.found}
        several = not isinstance(self.source, str) or len(places) > 1 or self.source not in places
        order = list(places)
        self.found.sort(key=lambda fault: (order.index(fault[0].place), fault[0].number))
        shown = "".join(
            f"\n  {f'{row.place}, ' if several else ''}row {row.number}, {fault}"
            for row, fault in self.found[:SHOWN_FAULTS]
        )
        hidden = len(self.found) - SHOWN_FAULTS
        more = f"\n  and {hidden} more" if hidden > 0 else ""
        raise ValueError(f"{named(self.source)}: {counted(len(self.found), 'bad row')}{shown}{more}")


def prompt_key(prompt: Any) -> str:
    """A hash of the prompt's text that ignores spacing: the same question has the same key."""
    text = prompt if isinstance(prompt, str) else json.dumps([[m["role"], m["content"]] for m in prompt])
    return hashlib.sha256(" ".join(text.split()).encode("utf-8", "surrogatepass")).hexdigest()


def duplicate_key(problem: Problem) -> bytes:
    """The same for rows that are one problem: a hash of the prompt and of what judges a response.

    That is the tests, the answer, or else the whole row.
    """
    judged_by = problem.info.get("tests", problem.info if problem.answer is None else problem.answer)
    return _digest(prompt_key(problem.prompt), _text(judged_by))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=repr, sort_keys=True)


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()


def _note_of_copies(loaded: Loaded) -> Iterator[str]:
    total, copied = sum(loaded.rows), sum(number > 1 for number in loaded.rows)
    if copied:
        yield (
            f"{named(loaded.source)}: {total:,} rows are {counted(len(loaded.rows), 'distinct problem')}; "
            f"{copied:,} {'stands' if copied == 1 else 'stand'} in several rows, up to {max(loaded.rows):,}. "
            "task_options.row_weights says how often such a problem is asked: as any other (distinct, the "
            "default), or as often as it has rows (rows)"
        )


def _note_of_answers(loaded: Loaded, rows: Sequence[Row]) -> Iterator[str]:
    """Prompts that several answers are given for. They stay, since some data lists right answers so."""
    by_prompt: dict[str, list[Row]] = {}
    for problem, row in zip(loaded.problems, rows, strict=True):
        by_prompt.setdefault(prompt_key(problem.prompt), []).append(row)
    several = [found for found in by_prompt.values() if len(found) > 1]
    if several:
        shown = [" and ".join(str(row.number) for row in found[:2]) for found in several[:SHOWN_ROWS]]
        yield (
            f"{named(loaded.source)}: {counted(len(several), 'prompt')} with different answers in different "
            f"rows, kept as problems of their own: look which is right. Rows {'; '.join(shown)}"
        )


def named(source: Source) -> str:
    return source if isinstance(source, str) else ", ".join(source)


def counted(number: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


# ----------------------------------------------------------------------------------------- splits


def split_held_out(
    problems: Sequence[Problem], fraction: float = HELD_OUT_FRACTION
) -> tuple[list[Problem], list[Problem]]:
    """(train, test): the prompts with the smallest hashes are held out, at most 500 of them.

    It depends on the prompts alone, not on their order or a seed; all rows of a prompt stay on one side.
    """
    if not 0 <= fraction < 1:
        raise ValueError(
            f"task_options.held_out_fraction={fraction}: from 0 to below 1, e.g. {HELD_OUT_FRACTION}"
        )
    own = [prompt_key(problem.prompt) for problem in problems]
    keys = sorted(set(own))
    if fraction and len(keys) < 2:
        raise ValueError("one prompt can't be split: give eval_data, or task_options.held_out_fraction=0")
    number = min(MAX_HELD_OUT, max(1, round(fraction * len(keys)))) if fraction else 0
    held_out = set(keys[:number])
    train = [p for p, key in zip(problems, own, strict=True) if key not in held_out]
    return train, [p for p, key in zip(problems, own, strict=True) if key in held_out]


def load_splits(
    data: Source,
    eval_data: Source | None = None,
    *,
    held_out_fraction: float = HELD_OUT_FRACTION,
    row_weights: RowWeights = "distinct",
    convert: Convert | None = None,
    check: Check | None = None,
) -> Splits:
    """{"train", "test"}, from two sources or one; training leaves out the prompts of the evaluation.

    With held_out_fraction=1 all is for evaluation. With row_weights="rows" a training problem is asked as
    often as it has rows. What was merged or left out is a warning, and stands in the result's `notes`.
    """
    if row_weights not in get_args(RowWeights):
        near = nearest(str(row_weights), get_args(RowWeights))
        raise ValueError(f"row_weights={row_weights!r}: distinct or rows{near}")
    load = partial(load_distinct, convert=convert, check=check)
    if eval_data is not None:
        loaded, evaluation = load(data), load(eval_data, setting="eval_data")
        train, test = without_prompts(weighted(loaded, row_weights), evaluation.problems), evaluation.problems
        notes = loaded.notes + evaluation.notes + _note_of_overlap(loaded, evaluation, len(train))
    elif held_out_fraction == ALL_HELD_OUT:
        loaded = load(data, setting="eval_data")
        train, test, notes = [], loaded.problems, loaded.notes
    else:
        loaded = load(data)
        train, test = split_held_out(weighted(loaded, row_weights), held_out_fraction)
        test, notes = [replace(p, weight=1.0) if p.weight != 1 else p for p in test], loaded.notes
    splits = Splits(train=train, test=test)
    splits.notes = tuple(notes)
    say(splits.notes)
    return splits


def _note_of_overlap(loaded: Loaded, evaluation: Loaded, left: int) -> list[str]:
    if not left:
        raise ValueError(f"data={loaded.source!r}: every prompt is also in eval_data={evaluation.source!r}")
    missing = len(loaded.problems) - left
    verb = "is" if missing == 1 else "are"
    if not missing:
        return []
    return [
        f"{counted(missing, 'problem')} of {named(loaded.source)} {verb} left out: "
        f"their prompts are in {named(evaluation.source)}"
    ]


def weighted(loaded: Loaded, row_weights: RowWeights) -> list[Problem]:
    if row_weights == "distinct":
        return loaded.problems
    return [replace(p, weight=float(n)) for p, n in zip(loaded.problems, loaded.rows, strict=True)]


def without_prompts(problems: Sequence[Problem], held_out: Iterable[Problem]) -> list[Problem]:
    """Those of `problems` whose prompts are in none of `held_out`."""
    keys = {prompt_key(problem.prompt) for problem in held_out}
    return [problem for problem in problems if prompt_key(problem.prompt) not in keys]


def say(notes: Iterable[str]) -> None:
    for note in notes:
        warnings.warn(note, stacklevel=3)


def fingerprint(problems: Sequence[Problem]) -> str:
    """sha256 of the problems' whole content in order, so that a resumed run can refuse data that changed."""
    digest = hashlib.sha256()
    for line in _lines(problems):
        digest.update(line.encode())
    return digest.hexdigest()


def _lines(problems: Sequence[Problem]) -> Iterator[str]:
    for p in problems:
        prompt = p.prompt if isinstance(p.prompt, str) else [dict(message) for message in p.prompt]
        fields = [p.id, prompt, p.answer, dict(p.info), p.source, p.weight]
        yield json.dumps(fields, default=str) + "\n"
