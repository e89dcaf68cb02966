"""Append-only records that survive a kill: one JSON object a line, flushed to the disk with each batch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, Self

from hardwon.checkpoints import fsync, saving
from hardwon.models.parallel import barrier, on_main


class JsonLines:
    """A file of records held for appending. A last line that a kill tore is cut when it is opened.

    `records` are those that were there. Raises ValueError, naming the line, for a file that is damaged
    elsewhere; SaveError if the disk refuses. Of several ranks, which must all call, the first one writes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        on_main(self._open)
        self.records = read_json_lines(path)
        barrier()  # before anything is appended

    def _open(self) -> None:
        with saving("records", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(self.path, "a+")
            self._file.truncate(_whole_length(self.path.read_bytes()))
            fsync(self.path.parent)  # what a file holds is found by its name alone

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Adds all records in one write and waits for the disk."""
        content = "".join(json.dumps(record) + "\n" for record in records).encode()
        on_main(partial(self._write, content))

    def _write(self, content: bytes) -> None:
        assert self._file is not None
        with saving("records", self.path):
            while content:
                content = content[self._file.write(content) :]
            os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The whole records of a file, none if there is no file; a torn last line is left out."""
    if not path.is_file():
        return []
    content = path.read_bytes()
    records = []
    for number, line in enumerate(content[: _whole_length(content)].splitlines(), 1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}, is damaged: {error}") from error
    return records


def _whole_length(content: bytes) -> int:
    return content.rfind(b"\n") + 1
