"""Test cases that a data set ships as base64 of zlib of pickle. Unpickled in a sealed worker, data only.

A pickle may name any function and have it called. Here it can name none, and should that fail, it runs in a
process without files, network and environment (worker.seal).
"""

from __future__ import annotations

import base64
import io
import pickle
import zlib
from typing import Any, NoReturn

from hardwon.verifiers.worker_pool import WorkerPool

SECONDS = 60.0
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
    if unzip.unconsumed_tail:
        raise ValueError(f"more than {LARGEST >> 20} MiB")
    return DataUnpickler(io.BytesIO(data)).load()


class Unpacker:
    """`unpack` in one worker, which starts with the first call and ends with `close`."""

    def __init__(self) -> None:
        self.pool = WorkerPool(unpack, seconds=SECONDS, num_workers=1, sealed=True)

    def __call__(self, text: str) -> Any:
        """ValueError says why a text can't be unpacked."""
        (reply,) = self.pool.run([(text,)])
        if reply.kind != "done":
            raise ValueError(f"can't be unpacked ({reply.kind}: {reply.value})")
        return reply.value

    def close(self) -> None:
        self.pool.close()
