"""Plain data as JSON: the only thing that crosses between the model's program and a judge.

A value is rebuilt from its content, so an object that claims to equal everything, a subclass with
its own comparison, or code of any kind cannot cross.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

NODES = {"ListNode": ("val", "next"), "TreeNode": ("val", "left", "right")}
"""Classes of LeetCode whose objects are data too: name -> attributes. They are told by their name."""

classes: Mapping[str, Any] = {}
"""Where `loads` finds these classes: the names of the program or of the tests that run in this process."""


def dumps(value: Any) -> str:
    """One line of JSON for None, bool, int, float, complex, str, bytes, range, and list, tuple, set,
    frozenset, dict and iterators of these, and NODES; numpy's numbers and arrays become numbers and lists.
    TypeError names any other type."""
    try:
        return json.dumps(encode(value))
    except RecursionError as error:
        raise TypeError("a value nested too deeply is not plain data") from error


def loads(text: str | bytes) -> Any:
    """The value that `dumps` wrote. ValueError for anything that it cannot have written."""
    try:
        return decode(json.loads(text))
    except (RecursionError, TypeError, LookupError, AttributeError, MemoryError) as error:
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
    if type(value).__name__ in NODES:
        return {"nodes": flattened(value)}
    if hasattr(value, "__next__"):
        return {"iterator": [encode(item) for item in value]}
    if hasattr(value, "tolist"):
        return encode(value.tolist())
    raise TypeError(f"a value of type {type(value).__name__} is not plain data")


def flattened(root: Any) -> list[Any]:
    """All nodes that can be reached, the root first: [class name, attributes]. A node among the attributes is
    its number, so that long lists need no deep nesting, and a list may lead back into itself."""
    found, numbers, rows = [root], {id(root): 0}, []
    for node in found:  # which grows meanwhile
        row: list[Any] = []
        for attribute in NODES[type(node).__name__]:
            value = getattr(node, attribute, None)
            if type(value).__name__ not in NODES:
                row.append(encode(value))
                continue
            if id(value) not in numbers:
                numbers[id(value)] = len(found)
                found.append(value)
            row.append({"node": numbers[id(value)]})
        rows.append([type(node).__name__, row])
    return rows


def rebuilt(rows: list[Any]) -> Any:
    """The root of what `flattened` wrote, of this process's own classes."""
    nodes = [new_node(name) for name, _ in rows]
    for node, (name, row) in zip(nodes, rows, strict=True):
        for attribute, data in zip(NODES[name], row, strict=True):
            number = data.get("node") if isinstance(data, dict) else None
            setattr(node, attribute, decode(data) if number is None else nodes[number])
    return nodes[0]


def new_node(name: str) -> Any:
    kind = classes.get(name)
    return object.__new__(kind if isinstance(kind, type) else type(name, (), {}))


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
    "nodes": rebuilt,
    "iterator": lambda content: iter([decode(item) for item in content]),
}


def decode(data: Any) -> Any:
    if isinstance(data, list):
        return [decode(item) for item in data]
    if isinstance(data, dict):
        ((kind, content),) = data.items()
        return DECODERS[kind](content)
    return data
