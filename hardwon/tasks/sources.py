"""Rows from files, folders and Hugging Face data sets, each with the place that a message names.

A source is one of these, or a list of them, which are read one after another:

    train.jsonl, *.csv, a/*.parquet     a file, or all files of a pattern, in the order of their names
    folder, folder/config               a saved data set, or files and splits as `datasets` finds them
    owner/name                          a data set of the Hugging Face Hub
    owner/name/config@revision          one of its configurations, at a branch, tag or commit

and after any of them `:split`, `:split[slice]` or `[slice]` with a slice of Python or of percents, such as
`openai/gsm8k/main:train[:1000]`, `x.jsonl[-20%:]`. docs/data.md says more.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hardwon.config import nearest

Source = str | Sequence[str]


class Row(NamedTuple):
    place: str  # the file or data set, for messages
    name: str  # how ids of this place begin
    number: int  # from 1; in JSON lines it is the line, elsewhere the row (the header of a .csv is none)
    content: Any


@dataclass
class Part:
    """The rows of one file, or of one split of a data set; `rows` begins anew at each call."""

    place: str
    name: str
    rows: Callable[[], Iterator[tuple[int, Any]]]


def read_rows(source: Source, setting: str = "data") -> Iterator[Row]:
    """The rows of `source`, one at a time. ValueError says what is missing or broken, and where."""
    pieces = []
    for one in [source] if isinstance(source, str) else source:
        if not isinstance(one, str) or not one.strip():
            raise ValueError(f"{setting}={one!r}: the name of a file or data set is wanted")
        text, low, high = split_slice(one)
        pieces.append((_parts(text, setting), low, high))
    name_apart([part for parts, _, _ in pieces for part in parts])
    found = False
    for parts, low, high in pieces:
        for row in _slice(parts, low, high):
            found = True
            yield row
    if not found:
        raise ValueError(f"{setting}={source!r}: has no rows")


def source_name(source: Source) -> str:
    """A short name: the file's or folder's without its endings, or the data set's.

    >>> source_name("data/train.jsonl.gz"), source_name("openai/gsm8k/main@v1:train[:10]")
    ('train', 'gsm8k')
    """
    text, _, _ = split_slice(source if isinstance(source, str) else source[0])
    hub = HUB.fullmatch(text)
    if hub and not Path(text).exists() and not _kind(text):
        return hub["name"].rpartition("/")[2]
    return stem(text)


def stem(path: str | Path) -> str:
    """The name of a file without the endings that say how it is written."""
    name = Path(path).name
    kind = _kind(path)
    return name.removesuffix(kind) if kind and name != kind else name


# ------------------------------------------------------------------------------- splits and slices

SLICE = re.compile(r"\[(-?\d+%?)?:(-?\d+%?)?\]$")
HUB = re.compile(
    r"(?P<name>[\w.-]+(/[\w.-]+)?)(/(?P<config>[^@:/\[\]*?]+))?(@(?P<revision>[^:\[\]*?]+))?(:(?P<split>[\w.-]+))?"
)


def split_slice(text: str) -> tuple[str, str | None, str | None]:
    """ "a:train[5:10%]" -> ("a:train", "5", "10%"); without a slice both bounds are None."""
    found = SLICE.search(text)
    return (text[: found.start()], found[1], found[2]) if found else (text, None, None)


def _slice(parts: Sequence[Part], low: str | None, high: str | None) -> Iterator[Row]:
    """The rows of all parts from `low` to below `high`, as in Python, or in percents of their number."""
    rows = (Row(part.place, part.name, number, row) for part in parts for number, row in part.rows())
    if low is None and high is None:
        return rows

    total = -1

    def bound(value: str | None, default: int | None) -> int | None:
        nonlocal total
        if value is None:
            return default
        if not value.startswith("-") and not value.endswith("%"):
            return int(value)
        if total < 0:  # only these need to know how many rows there are
            total = sum(1 for part in parts for _ in part.rows())
        share = value.endswith("%")
        place = round(int(value[:-1]) * total / 100) if share else int(value)
        return place if place >= 0 else max(total + place, 0)

    return itertools.islice(rows, bound(low, 0), bound(high, None))


def _parts(text: str, setting: str) -> list[Part]:
    path = Path(text)
    if path.is_file() or _kind(path):
        return [_file(path, setting)] if not _is_pattern(text) or path.is_file() else _matching(text, setting)
    if _is_pattern(text):
        return _matching(text, setting)
    return _data_set(text, setting)


def _is_pattern(text: str) -> bool:
    return any(character in text for character in "*?[")


def _matching(pattern: str, setting: str) -> list[Part]:
    path = Path(pattern)
    base = Path(path.anchor) if path.is_absolute() else Path()
    found = sorted(p for p in base.glob(str(path.relative_to(path.anchor))) if p.is_file())
    if not found:
        raise ValueError(f"{setting}={pattern!r}: no file has such a name")
    return [_file(file, setting) for file in found]


def name_apart(parts: Sequence[Part]) -> None:
    """Files of one name in several folders get the names of their folders too, so that their ids differ."""
    for depth in range(1, max((len(Path(part.place).parts) for part in parts), default=0)):
        places: dict[str, set[str]] = {}
        for part in parts:
            places.setdefault(part.name, set()).add(part.place)
        same = [part for part in parts if len(places[part.name]) > 1]
        for part in same:
            part.name = "/".join([*Path(part.place).parts[-depth - 1 : -1], stem(part.place)])
        if not same:
            return


# ------------------------------------------------------------------------------------------ files


def _file(path: Path, setting: str) -> Part:
    kind = _kind(path)
    if not path.is_file():
        raise ValueError(f"{setting}={str(path)!r}: no such file{_neighbour(path)}")
    if not kind:
        raise ValueError(
            f"{setting}={str(path)!r}: files of this kind are not read; these are: {', '.join(READERS)}, "
            f"and the text files also with {', '.join(OPENERS)}"
        )
    return Part(str(path), stem(path), lambda: _read_file(path, path, kind))


def _kind(path: str | Path) -> str:
    """The ending that says how a file is read, such as ".csv" or ".jsonl.gz"; "" if none does."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes[-2:]]
    if suffixes and suffixes[-1] in READERS:
        return Path(path).suffix
    if len(suffixes) == 2 and suffixes[1] in OPENERS and suffixes[0] in TEXT_READERS:
        return "".join(Path(path).suffixes[-2:])
    return ""


def _neighbour(path: Path) -> str:
    names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, names, n=1)
    return f"; did you mean {str(path.with_name(close[0]))!r}?" if close else ""


def _read_file(file: Path, place: Any, kind: str) -> Iterator[tuple[int, Any]]:
    """Rows of `file`, which was stored as `place`, whose name ends in `kind`."""
    first, _, compression = kind.lower().lstrip(".").partition(".")
    reader = READERS[f".{first}"]
    if f".{first}" not in TEXT_READERS:
        yield from reader(file, place)
        return
    try:
        with OPENERS.get(f".{compression}", _plain)(file) as stream:
            yield from reader(stream, place)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{place}: can't be read ({error})") from error


def _plain(path: Path) -> BinaryIO:
    return path.open("rb")


def _zstd(path: Path) -> Any:
    import pyarrow

    return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))


def _read_jsonl(stream: Any, place: Any) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(stream, 1):
        if line.strip():
            try:
                yield number, json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{place}, row {number}: not JSON{_json_fault(error)}") from error


def _json_fault(error: Exception) -> str:
    return ": too deeply nested" if isinstance(error, RecursionError) else f" ({error})"


def _read_json(stream: Any, place: Any) -> Iterator[tuple[int, Any]]:
    """A list of rows, an object whose only list is one of rows, or lines of JSON in spite of the name."""
    text = stream.read()
    try:
        content = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            return _read_jsonl(io.BytesIO(text), place)
        raise ValueError(f"{place}: not JSON{_json_fault(error)}") from error
    if isinstance(content, Mapping):
        lists = [value for value in content.values() if isinstance(value, list)]
        content = lists[0] if len(lists) == 1 and isinstance(lists[0][:1], list) else content
    if not isinstance(content, list):
        raise ValueError(f"{place}: a list of rows is wanted, found a {type(content).__name__}")
    return iter(enumerate(content, 1))


def _read_csv(stream: Any, place: Any, delimiter: str = ",") -> Iterator[tuple[int, Any]]:
    """Cells as text exactly as they stand there: 007 and 1e-05 keep their form."""
    csv.field_size_limit(2**31 - 1)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    number = 0
    try:
        header = next(reader, [])
        if len(set(header)) < len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise ValueError(f"{place}: two columns are named {twice!r}")
        for cells in reader:
            if not cells:
                continue  # an empty line
            number += 1
            if len(cells) != len(header):
                raise ValueError(
                    f"{place}, row {number} (up to line {reader.line_num}): {len(cells)} cells for the "
                    f"{len(header)} columns {', '.join(header)}"
                )
            yield number, dict(zip(header, cells, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{place}, row {number + 1} (line {reader.line_num}): not CSV ({error})") from error


def _read_tsv(stream: Any, place: Any) -> Iterator[tuple[int, Any]]:
    return _read_csv(stream, place, delimiter="\t")


def _read_parquet(path: Path, place: Any) -> Iterator[tuple[int, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield from _batches(file.iter_batches(batch_size=BATCH_ROWS))
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{place}: not a readable parquet file ({error})") from error


def _read_arrow(path: Path, place: Any) -> Iterator[tuple[int, Any]]:
    """Arrow's two forms: a stream, as `datasets` writes, or a file with an index."""
    import pyarrow

    try:
        with pyarrow.memory_map(str(path)) as source:
            try:
                table = pyarrow.ipc.open_stream(source).read_all()
            except pyarrow.ArrowInvalid:
                table = pyarrow.ipc.open_file(source).read_all()
            yield from _batches(table.to_batches(max_chunksize=BATCH_ROWS))
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{place}: not a readable arrow file ({error})") from error


def _batches(batches: Any) -> Iterator[tuple[int, Any]]:
    """Rows of Arrow batches: a thousand at a time are Python objects, and not all of a file."""
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield number, row


BATCH_ROWS = 1000
TEXT_READERS: dict[str, Callable[..., Iterator[tuple[int, Any]]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
}
READERS = TEXT_READERS | {".parquet": _read_parquet, ".arrow": _read_arrow}
OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _zstd,
}


# -------------------------------------------------------------------------------------- data sets

SAVED = ("dataset_info.json", "dataset_dict.json")
# Taken by themselves if a data set has several, the first that it has (ours).
CONFIGS = ("main", "default")
SPLITS = {"eval_data": ("test", "validation", "train")}


def _data_set(text: str, setting: str) -> list[Part]:
    """The parts of a folder or of a data set of the Hub, of one configuration and split."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{setting}={text!r} is no {', '.join(READERS)} file; for folders and Hugging Face data sets: "
            "pip install 'hardwon[datasets]'"
        ) from error
    name, config, revision, split = _address(text, setting)
    try:
        if any((Path(name) / marker).exists() for marker in SAVED):
            return [_loaded_part(text, name, datasets.load_from_disk(name), split, setting)]
        config = config or _config(datasets.get_dataset_config_names(name, revision=revision), text, setting)
        builder = datasets.load_dataset_builder(name, config, revision=revision)
        files = builder.config.data_files
        label = f"{name.rpartition('/')[2]}/{config}" if config not in (None, *CONFIGS) else stem(name)
        if files and all(_kind(str(file)) for files_of in files.values() for file in files_of):
            chosen = _split(list(files), split, text, setting)
            return _downloaded(datasets, label, list(map(str, files[chosen])))
        loaded = datasets.load_dataset(name, config, revision=revision)
    except RefusedError:
        raise
    except Exception as error:  # many kinds: no network, no such data set, bad files
        raise ValueError(f"{setting}={text!r}: can't load the data set ({error})") from error
    return [_loaded_part(text, label, loaded, split, setting)]


class RefusedError(ValueError):
    """What the source's address lacks or has too much: a message of ours, not one of `datasets`."""


def _address(text: str, setting: str) -> tuple[str, str | None, str | None, str | None]:
    """(folder or name on the Hub, configuration, revision, split)."""
    place, colon, split = text.rpartition(":")
    if not colon or Path(text).is_dir():
        place, split = text, ""
    if Path(place).is_dir():
        return place, None, None, split or None
    parent, _, config = place.rpartition("/")
    if parent and Path(parent).is_dir():
        return parent, config, None, split or None
    found = HUB.fullmatch(text)
    if not found:
        raise RefusedError(
            f"{setting}={text!r}: no file or folder has this name, and a data set of the Hub is written "
            "owner/name/config@revision:split[slice], all but the name optional"
        )
    return found["name"], found["config"], found["revision"], found["split"]


def _config(names: Sequence[str], text: str, setting: str) -> str | None:
    """The only configuration, or `main` or `default`; otherwise the user must say."""
    if len(names) <= 1:
        return names[0] if names else None
    for usual in CONFIGS:
        if usual in names:
            return usual
    raise RefusedError(
        f"{setting}={text!r}: has the configurations {', '.join(names)}; choose one: "
        f"{text.partition(':')[0].partition('@')[0]}/{names[0]}"
    )


def _split(names: Sequence[str], wanted: str | None, text: str, setting: str) -> str:
    if wanted and wanted in names:
        return wanted
    if wanted:
        raise RefusedError(
            f"{setting}={text!r}: no split {wanted!r}; there are {', '.join(names)}{nearest(wanted, names)}"
        )
    for usual in SPLITS.get(setting, ("train",)):
        if usual in names:
            return usual
    if len(names) == 1:
        return names[0]
    raise RefusedError(
        f"{setting}={text!r}: has the splits {', '.join(names)}; choose one: {text}:{names[0]}"
    )


def _downloaded(datasets: Any, label: str, files: list[str]) -> list[Part]:
    """Files of a data set, read as they are written: no type is guessed, and no row is filled up."""
    local = datasets.DownloadManager(dataset_name=label).download(files)

    def part(index: int) -> Part:
        place, kind, path = files[index], _kind(files[index]), Path(local[index])
        name = label if len(files) == 1 else f"{label}/{stem(place)}"
        return Part(place, name, lambda: _read_file(path, place, kind))

    return [part(index) for index in range(len(files))]


def _loaded_part(text: str, name: str, loaded: Any, split: str | None, setting: str) -> Part:
    if isinstance(loaded, Mapping):
        loaded = loaded[_split(list(loaded), split, text, setting)]
    elif split not in (None, "train"):
        raise RefusedError(f"{setting}={text!r}: the data set has no splits; leave {split!r} out")

    def rows() -> Iterator[tuple[int, Any]]:
        number = 0
        for columns in loaded.iter(batch_size=BATCH_ROWS):
            for values in zip(*columns.values(), strict=True):
                number += 1
                yield number, dict(zip(columns, values, strict=True))

    return Part(text, Path(name).name, rows)
