"""Keys and values of many rows at different ages, all written at one shared column.

Shapes: `R` rows of the buffer, `K` key/value heads, `C` columns, `D` head size.

Each row's tokens stand in adjacent columns that end at the shared column `end`, however old the
row is: rows differ in where they begin. So a decode step writes one column for all rows in place,
attention reads one view of the buffer, and nothing is concatenated. What stands left of a row's
beginning is hidden by the attention mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer


@dataclass
class Window:
    """The part of the buffer in use: rows [0, rows), columns [start, end)."""

    rows: int = 0
    start: int = 0
    end: int = 0


class WindowLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer's buffer; `update` writes the newest column and returns the window."""

    def __init__(self, window: Window, keys_RKCD: Tensor, values_RKCD: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.window = window
        self.keys: Tensor = keys_RKCD
        self.values: Tensor = values_RKCD
        self.dtype, self.device = keys_RKCD.dtype, keys_RKCD.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        window = self.window
        keys = self.keys[: window.rows, :, window.start : window.end]
        values = self.values[: window.rows, :, window.start : window.end]
        keys[:, :, -1:] = key_states
        values[:, :, -1:] = value_states
        return keys, values

    def get_seq_length(self) -> int:
        return self.window.end - self.window.start - 1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.window.end - self.window.start, 0


class RowCache(Cache):
    """The buffers of all layers and the window that they share."""

    def __init__(self, like: Sequence[tuple[Tensor, Tensor]], rows: int, columns: int) -> None:
        """Buffers with the heads, sizes and dtypes of `like`, one `(keys, values)` a layer."""
        self.window = Window()
        self.columns = columns
        self.window_layers = [
            WindowLayer(self.window, *(t.new_empty(rows, t.shape[1], columns, t.shape[3]) for t in pair))
            for pair in like
        ]
        super().__init__(layers=list(self.window_layers))

    def fits(self, like: Sequence[tuple[Tensor, Tensor]], rows: int, columns: int) -> bool:
        """Whether these buffers can serve where new ones with these arguments were asked for."""

        def kinds(tensors: Iterable[Tensor]) -> list[tuple[object, ...]]:
            return [(t.dtype, t.device, t.shape[1], t.shape[3]) for t in tensors]

        mine = self.buffers()
        return kinds(mine) == kinds(chain(*like)) and rows <= len(mine[0]) and columns <= self.columns

    def num_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers())

    def buffers(self) -> list[Tensor]:
        return [tensor for layer in self.window_layers for tensor in (layer.keys, layer.values)]

    def append_rows(self, states: Sequence[Tensor]) -> None:
        """Add rows below the live ones; each of `states` (N, K, L, D) ends at the shared column.

        Older columns of the window become 0: the mask hides them, but attention still multiplies
        them by a probability of 0, which what lay in memory there might not survive.
        """
        window = self.window
        rows = slice(window.rows, window.rows + states[0].shape[0])
        begin = window.end - states[0].shape[2]
        for buffer, new in zip(self.buffers(), states, strict=True):
            buffer[rows, :, begin : window.end] = new
            buffer[rows, :, window.start : begin] = 0
        window.rows = rows.stop

    def move_rows(self, target: Tensor, source: Tensor) -> None:
        """Overwrite rows `target` by rows `source`."""
        for buffer in self.buffers():
            view = buffer[:, :, self.window.start : self.window.end]
            view.index_copy_(0, target, view.index_select(0, source))

    def shift(self, end: int) -> int:
        """Move the window left until it ends at `end`; returns by how many columns."""
        window, distance = self.window, self.window.end - end
        old, new = slice(window.start, window.end), slice(window.start - distance, end)
        for buffer in self.buffers():
            buffer[: window.rows, :, new] = buffer[: window.rows, :, old].clone()
        window.start, window.end = new.start, end
        return distance
