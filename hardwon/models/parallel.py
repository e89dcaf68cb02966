"""One process, or several under torchrun: what they share, and a policy in shards (FSDP2).

Every rank runs the same program on the same groups. What costs time is divided: prompts, micro-batches,
evaluation, weights, gradients and optimizer state. What decides (advantages, which groups are kept, the order
of the rows) is cheap and done everywhere alike, from what all ranks gathered. With one process nothing here
communicates, and no process group exists.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

if TYPE_CHECKING:
    from hardwon.models.critic import Critic
    from hardwon.models.policy import Policy

A = TypeVar("A")
B = TypeVar("B")

# How long a rank waits for the others (ours): their share of the rollouts may take much longer.
TIMEOUT = timedelta(hours=2)


@dataclass(frozen=True)
class World:
    """This process among those that train together."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """The one rank that writes files and talks."""
        return self.rank == 0


def world() -> World:
    return World(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else World()


@contextlib.contextmanager
def processes(device: str) -> Iterator[World]:
    """Join the processes that torchrun started; with one process, do nothing.

    They talk through gloo on the CPU and NCCL on GPUs, where each takes the one with its local rank.
    ValueError if `device` names one GPU for all, or if there are fewer GPUs than processes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World()
        return
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(_local_gpu(device))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    yield world()
    # Not after an error: the other ranks would be waited for, and torchrun ends them.
    dist.destroy_process_group()


def _local_gpu(device: str) -> int:
    rank, processes, gpus = (
        int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    )  # fmt: skip
    if device not in ("auto", "cuda"):
        raise ValueError(
            f"device={device} with {processes} processes: each takes its own, so use device=cuda"
        )
    if processes > gpus:
        raise ValueError(
            f"{processes} processes on this machine, which has {gpus} GPUs: use --nproc-per-node {gpus}, "
            "or device=cpu"
        )
    return rank


# ------------------------------------------------------------------------------------ what ranks exchange


def barrier() -> None:
    """Wait until every rank is here."""
    gather(None)


def on_main(work: Callable[[], object]) -> None:
    """Rank 0 does it, and afterwards every rank goes on: how files are written that all of them read."""
    if world().is_main:
        work()
    barrier()


def gather(value: A) -> list[A]:
    """The value of every rank, in the order of ranks, on every rank."""
    if world().size == 1:
        return [value]
    values: list[Any] = [None] * world().size
    dist.all_gather_object(values, value)
    return values


def broadcast(value: A) -> A:
    """Rank 0's value, on every rank."""
    if world().size == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def all_reduce_sum(values: Mapping[str, float]) -> dict[str, float]:
    """Sums over ranks of numbers that every rank has under the same names."""
    total: dict[str, float] = {}
    for part in gather(dict(values)):
        for key, value in part.items():
            total[key] = total.get(key, 0.0) + value
    return total


def add_up(tensor: Tensor) -> Tensor:
    """The sum over ranks of a tensor on the CPU; each rank has filled in its part of it."""
    return torch.stack(gather(tensor)).sum(dim=0) if world().size > 1 else tensor


def any_rank(flag: bool) -> bool:
    """True on every rank if it is on one."""
    return any(gather(flag))


def divided(items: Sequence[A], work: Callable[[Sequence[A]], Sequence[B]]) -> list[B]:
    """`work(items)`, each rank doing a share of them; every rank gets all results, in the order of items.

    Every rank must call with the same items. `work` maps one item to one result, and is called on a rank
    without items as well.
    """
    rank, size = world().rank, world().size
    shares = gather(list(work(items[rank::size] if size > 1 else items)))
    return [shares[i % size][i // size] for i in range(len(items))]


# -------------------------------------------------------------------------------------- a policy in shards


def shard(scorer: Policy | Critic, dtype: str) -> None:
    """Divide weights, and with them gradients and optimizer state, over all ranks; before an optimizer.

    `log_probs` and `logits` work as before, but every rank has to call them at the same time: weights are
    gathered layer by layer as they run. With dtype=bfloat16 they are gathered and computed with in bfloat16;
    weights, gradients and their sums are float32. Gradients are added over ranks, not averaged, since the
    losses' denominators are those of all ranks.
    """
    model, score = scorer.model, scorer.score
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {
        "mesh": device_mesh(scorer.device.type),
        "mp_policy": half if dtype == "bfloat16" else MixedPrecisionPolicy(),
        "reshard_after_forward": True,
    }
    for layer in [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other kind

    def score_copied(*inputs: Any) -> Any:
        """FSDP hangs its hooks on what comes out, which must be no view."""
        out = score(*inputs)
        return out.clone() if isinstance(out, Tensor) else tuple(tensor.clone() for tensor in out)

    # Scoring does not call the model but its parts, so FSDP has to be told that this is a forward pass.
    model.hardwon_score = score_copied
    register_fsdp_forward_method(model, "hardwon_score")
    scorer.score = model.hardwon_score  # type: ignore[method-assign]


def device_mesh(device_type: str) -> DeviceMesh:
    return init_device_mesh(device_type, (world().size,))


def is_sharded(policy: Policy) -> bool:
    return isinstance(policy.model, FSDPModule)


def whole_copy(policy: Policy) -> Policy:
    """A copy to sample with, whole on every rank, of a policy that is about to be sharded.

    It computes what the sharded policy does, so its weights are those of the forward pass: 2 bytes each in
    bfloat16 and 4 in float32, beside the shards. A decode step then needs no communication, and ranks may
    take different numbers of them.
    """
    whole = copy.copy(policy)
    whole.model = copy.deepcopy(policy.model)
    for parameter in whole.model.parameters():
        parameter.requires_grad_(False)
        if policy.dtype == "bfloat16":
            parameter.data = parameter.data.bfloat16()
    return whole


@torch.no_grad()
def copy_trained(policy: Policy, whole: Policy) -> None:
    """Bring a `whole_copy` up to date with what is trained of the sharded policy."""
    for source, target in zip(policy.model.parameters(), whole.model.parameters(), strict=True):
        if source.requires_grad:
            target.copy_(gathered(source.detach().to(target.dtype)))


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be divided over ranks; every rank must call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def divided_like(tensor: Tensor, other: Tensor) -> Tensor:
    """This rank's shard of `tensor`, which is whole, if `other` of the same shape is divided."""
    if not isinstance(other, DTensor) or isinstance(tensor, DTensor) or tensor.shape != other.shape:
        return tensor
    tensor = tensor.to(other.device)
    return distribute_tensor(tensor, other.device_mesh, other.placements, src_data_rank=None)


def gathered_weights(module: nn.Module) -> dict[str, Tensor]:
    """`module.state_dict()`, whole and on the CPU if it is divided over ranks, and then for rank 0 alone.

    Weights that are tied stay so: both names hold one tensor.
    """
    whole: dict[int, Tensor] = {}
    state: dict[str, Tensor] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in whole:
            full = gathered(tensor.detach())
            if isinstance(tensor, DTensor):
                full = full.cpu() if world().is_main else full.new_empty(0)
            whole[id(tensor)] = full
        state[name] = whole[id(tensor)]
    return state if world().is_main else {}
