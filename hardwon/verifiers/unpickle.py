"""Test cases that a data set ships as base64 of zlib of pickle. Unpickled in a sealed worker, data only.

A pickle may name any function and have it called. Here it can name none, and should that fail, it runs in a
process without files, network and environment (worker.seal), which imports this file and nothing heavy.
"""

from __future__ import annotations

import base64
import io
import pickle
import zlib
from typing import Any, NoReturn

LARGEST = 1 << 28  # bytes after unpacking


class DataUnpickler(pickle.Unpickler):
    """Builds text, numbers, lists and dicts, and refuses everything that has a name."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"names {module}.{name}, and only data is read")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("refers to an object outside of it")


def unpack(text: str) -> Any:
    """What a packed text holds. For a worker process; raises for anything that is not plain data."""
    unzip = zlib.decompressobj()
    data = unzip.decompress(base64.b64decode(text, validate=True), LARGEST)
    if not unzip.eof:
        raise ValueError("cut short" if len(data) < LARGEST else f"more than {LARGEST >> 20} MiB")
    return DataUnpickler(io.BytesIO(data)).load()
