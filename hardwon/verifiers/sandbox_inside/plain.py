"""Plain data as JSON: the only thing that crosses between the model's program and a judge.

A value is rebuilt from its content, so an object that claims to equal everything, a subclass with
its own comparison, or code of any kind cannot cross.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def dumps(value: Any) -> str:
    """One line of JSON for None, bool, int, float, complex, str, bytes, range, and list, tuple, set,
    frozenset, dict and iterators of these; numpy's numbers and arrays become numbers and lists.
    TypeError names any other type."""
    try:
        return json.dumps(encode(value))
    except RecursionError as error:
        raise TypeError("a value nested too deeply is not plain data") from error


def loads(text: str | bytes) -> Any:
    """The value that `dumps` wrote. ValueError for anything that it cannot have written."""
    try:
        return decode(json.loads(text))
    except (RecursionError, TypeError, KeyError, AttributeError, MemoryError) as error:
        raise ValueError(f"not plain data: {type(error).__name__}") from error


def encode(value: Any) -> Any:
    """Lists stay lists; every other container becomes {"<type>": content}."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        small = value.bit_length() <= 64
        return int(value) if small else {"int": hex(value)}  # long decimals are slow, and limited
    if isinstance(value, float):
        return float(value)
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [encode(item) for item in value]}
    if isinstance(value, (bytes, bytearray)):
        return {type(value).__name__: value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, range):
        return {"range": [encode(value.start), encode(value.stop), encode(value.step)]}
    if hasattr(value, "__next__"):
        return {"iterator": [encode(item) for item in value]}
    if hasattr(value, "tolist"):
        return encode(value.tolist())
    raise TypeError(f"a value of type {type(value).__name__} is not plain data")


DECODERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda content: int(content, 16),
    "dict": lambda content: {decode(key): decode(item) for key, item in content},
    "tuple": lambda content: tuple(decode(item) for item in content),
    "set": lambda content: {decode(item) for item in content},
    "frozenset": lambda content: frozenset(decode(item) for item in content),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda content: complex(*content),
    "range": lambda content: range(*(decode(item) for item in content)),
    "iterator": lambda content: iter([decode(item) for item in content]),
}


def decode(data: Any) -> Any:
    if isinstance(data, list):
        return [decode(item) for item in data]
    if isinstance(data, dict):
        ((kind, content),) = data.items()
        return DECODERS[kind](content)
    return data
