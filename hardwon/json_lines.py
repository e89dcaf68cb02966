"""Append-only records that survive a kill: one JSON object a line, flushed to the disk with each batch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from hardwon.checkpoints import saving


class JsonLines:
    """A file of records held for appending. A last line that a kill tore is cut when it is opened.

    `records` are those that were there. Raises ValueError, naming the line, for a file that is damaged
    elsewhere; SaveError if the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with saving("records", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab+", buffering=0)  # noqa: SIM115 (held until close)
            self._file.truncate(_whole_length(path.read_bytes()))
        self.records = read_json_lines(path)

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Adds all records in one write and waits for the disk."""
        content = "".join(json.dumps(record) + "\n" for record in records).encode()
        with saving("records", self.path):
            while content:
                content = content[self._file.write(content) :]
            os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
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
