"""Weights over a TCP connection, from the trainer's memory to the workers of a vLLM server.

On the wire: the worker says the trainer's token; the trainer sends for each tensor its name, dtype and
shape as one line of JSON, and its bytes. An empty line ends it.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import math
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping
from io import BufferedIOBase

import torch
from torch import Tensor

TIMEOUT = 600.0  # seconds that either side waits for the other


def write_weights(stream: BufferedIOBase, weights: Mapping[str, Tensor]) -> None:
    for name, tensor in weights.items():
        header = {
            "name": name,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
        }
        stream.write(json.dumps(header).encode() + b"\n")
        stream.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    stream.write(b"\n")
    stream.flush()


def read_weights(stream: BufferedIOBase) -> Iterator[tuple[str, Tensor]]:
    """One tensor at a time. EOFError if the connection ends early."""
    while (line := stream.readline()) != b"\n":
        if not line.endswith(b"\n"):
            raise EOFError("the connection to the trainer ended before its weights did")
        header = json.loads(line)
        dtype = getattr(torch, header["dtype"])
        buffer = bytearray(math.prod(header["shape"]) * dtype.itemsize)
        if stream.readinto(buffer) != len(buffer):
            raise EOFError(f"the connection to the trainer ended within {header['name']}")
        yield header["name"], torch.frombuffer(buffer, dtype=dtype).reshape(header["shape"])


class WeightSource:
    """Serves `weights` on a port of `host` to whoever knows `token`, while the context is open."""

    def __init__(self, weights: Mapping[str, Tensor], host: str) -> None:
        self.weights, self.host = weights, host
        self.token = secrets.token_hex(16)

    def __enter__(self) -> WeightSource:
        self.listener = socket.create_server((self.host, 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone does not wake a thread that waits in accept.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the context has ended
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(TIMEOUT)
        # A worker that goes away fails its own call, of which the server tells the trainer.
        with connection, contextlib.suppress(OSError), connection.makefile("rwb") as stream:
            if hmac.compare_digest(stream.readline(64).strip(), self.token.encode()):
                write_weights(stream, self.weights)


def fetch_weights(host: str, port: int, token: str) -> Iterator[tuple[str, Tensor]]:
    with socket.create_connection((host, port), timeout=TIMEOUT) as connection:
        connection.settimeout(TIMEOUT)
        with connection.makefile("rwb") as stream:
            stream.write(token.encode() + b"\n")
            stream.flush()
            yield from read_weights(stream)
