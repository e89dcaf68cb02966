"""State of which a part may be divided over ranks: tensors in shards beside the plain state.

    state.json, tensors.safetensors    hardwon.checkpoints.save_state, written by rank 0
    shards/                            torch.distributed.checkpoint, written by every rank

What was saved by any number of processes can be read by any other number.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor, Shard, zeros

from hardwon import checkpoints
from hardwon.models.parallel import device_mesh, world

SHARDS = "shards"
DIVIDED = "divided over ranks"  # key of the note that stands in the plain state for a tensor in shards


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """`checkpoints.save_state` for state that may hold DTensors; every rank calls with its own shards."""
    shards: dict[str, Tensor] = {}
    plain = _take_out(state, "state", shards)
    if shards:
        try:
            state_dict_saver.save(shards, checkpoint_id=path / SHARDS)
        except CheckpointException as error:  # no Exception, so nobody would report it
            raise RuntimeError(str(error)) from error
    if world().is_main:
        checkpoints.save_state(path, plain)


def load_state(path: Path, device_type: str = "cpu") -> dict[str, Any]:
    """What `save_state` wrote. Tensors that were in shards are so again, if there are several processes.

    They are divided by rows, as FSDP2 divides parameters. ValueError if the files are not whole.
    """
    plain = checkpoints.load_state(path)
    shards: dict[str, Tensor] = {}
    mesh = device_mesh(device_type) if world().size > 1 else None
    for name, shape, dtype in _notes(plain):
        kind = getattr(torch, dtype)
        shards[name] = (
            torch.zeros(shape, dtype=kind)
            if mesh is None
            else zeros(shape, dtype=kind, device_mesh=mesh, placements=[Shard(0)])
        )
    if shards:
        try:
            state_dict_loader.load(shards, checkpoint_id=path / SHARDS)
        except CheckpointException as error:
            raise ValueError(f"the state in {path} cannot be read: {error}") from error
    whole: dict[str, Any] = _put_back(plain, shards)
    return whole


def _take_out(value: Any, place: str, shards: dict[str, Tensor]) -> Any:
    if isinstance(value, DTensor):
        shards[place] = value
        return {DIVIDED: [place, list(value.shape), str(value.dtype).removeprefix("torch.")]}
    if isinstance(value, Mapping):
        return {key: _take_out(item, f"{place}.{key}", shards) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_take_out(item, f"{place}.{i}", shards) for i, item in enumerate(value))
    return value


def _notes(value: Any) -> list[tuple[str, list[int], str]]:
    if isinstance(value, Mapping):
        return [value[DIVIDED]] if DIVIDED in value else [n for item in value.values() for n in _notes(item)]
    return [n for item in value for n in _notes(item)] if type(value) in (list, tuple) else []


def _put_back(value: Any, shards: Mapping[str, Tensor]) -> Any:
    if isinstance(value, Mapping):
        if DIVIDED in value:
            return shards[value[DIVIDED][0]]
        return {key: _put_back(item, shards) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put_back(item, shards) for item in value)
    return value
