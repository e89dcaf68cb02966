"""Tensors that say they are on a GPU and are computed on the CPU: what mixes devices is an error here too.

Inside `pretend_gpu()` whatever is asked for on `cuda` becomes an `OnGpu`, with real values. As on a real
GPU an operation refuses operands of both devices, but for copies, index tensors and scalars, and NumPy
cannot see the values. Kernels are the CPU's: this finds wrong places, not wrong numbers. Autocast is left
out, since torch takes its word for nothing but a real GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten
GPU = torch.device("cuda", 0)
MOVES = {aten._to_copy.default, aten.copy_.default, aten.index.Tensor, aten.index_put_.default,
         aten.index_put.default, aten._index_put_impl_.default}  # fmt: skip


class OnGpu(torch.Tensor):
    """The tensor `held`, on a GPU as far as Python can see."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # results have no class but `compute`'s

    @staticmethod
    def __new__(cls, real: torch.Tensor) -> OnGpu:
        # torch looks for a driver where its own C++ is told of a GPU, so there the device is `meta`.
        like = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
        self = torch.Tensor._make_subclass(cls, like, False, device_for_backend_keys=GPU)
        self.held = real
        return self

    @property
    def device(self) -> torch.device:
        return GPU

    def cpu(self) -> torch.Tensor:
        return self.to("cpu")

    def tolist(self) -> Any:
        return self.held.tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def __repr__(self) -> str:
        return f"OnGpu({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """`func` on the real tensors; its results are where a GPU's would be."""
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        with Factories():  # in inference mode functions come here that are made of others
            return func.decompose(*args, **kwargs)
    operands = [a for a in tree_flatten((args, kwargs))[0] if isinstance(a, torch.Tensor)]
    there = [a for a in operands if isinstance(a, OnGpu)]
    here = [a for a in operands if not isinstance(a, OnGpu) and a.ndim]
    if there and here and func not in MOVES:
        raise RuntimeError(f"{func}: Expected all tensors to be on the same device, found cuda:0 and cpu")
    on_gpu = bool(there)
    if func in MOVES and func is not aten._to_copy.default:
        on_gpu = isinstance(args[0], OnGpu)
    if kwargs.get("device") is not None:
        kind = torch.device(kwargs["device"]).type
        if kind == "meta" and not there and torch.get_default_device().type == "meta":
            return func(*args, **kwargs)  # the library that loads models means it
        on_gpu = kind in ("cuda", "meta")  # torch's C++ asks for what it takes our device to be
        kwargs = {**kwargs, "device": torch.device("cpu")}
    out = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs))
    if not on_gpu:
        return out
    known = {id(a.held): a for a in there}  # what is changed in place stays the same tensor

    def there_again(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return known[id(value)] if id(value) in known else OnGpu(value)

    return tree_map(there_again, out)


def unwrap(value: Any) -> Any:
    return value.held if isinstance(value, OnGpu) else value


class Factories(TorchDispatchMode):
    """Gives `torch.zeros(..., device="cuda")` and the like to `compute`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class Names(TorchFunctionMode):
    """Asks no driver which of its GPUs `cuda` is, for there is none."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {k: numbered(v) if k == "device" else v for k, v in (kwargs or {}).items()}
        if func in (torch.Tensor.numpy, torch.Tensor.__array__):
            if isinstance(args[0], OnGpu):
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            with _disable_current_modes():
                return func(*args, **kwargs)
        if func is scaled_dot_product_attention and isinstance(args[0], OnGpu):
            return attention(*args, **kwargs)
        if func is torch.Tensor.to:
            args = tuple(map(numbered, args))
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == GPU:
            return func(*args, **{**kwargs, "device": "cpu"}).to(GPU)
        return func(*args, **kwargs)


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, is_causal: bool = False, **kwargs: Any
) -> Any:
    """Attention as its formula says, since the fused kernels are a device's own.

    What a GPU's kernel with a mask refuses is refused here: a mask that begins off a boundary of 16 bytes. It
    copies, and so moves, masks of which some stride is no multiple of 8.
    """
    rows, columns = query.shape[-2], key.shape[-2]
    if is_causal:
        attn_mask = torch.full((rows, columns), -torch.inf, device=GPU).triu(1)
    elif attn_mask is not None:
        if attn_mask.held.data_ptr() % 16 and not any(stride % 8 for stride in attn_mask.stride()[:-1]):
            raise RuntimeError("p.attn_bias_ptr is not correctly aligned")
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros(attn_mask.shape, device=GPU).masked_fill(~attn_mask, -torch.inf)
    groups = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
    scores = query @ key.transpose(-1, -2) * (kwargs.get("scale") or query.shape[-1] ** -0.5)
    return (scores if attn_mask is None else scores + attn_mask).softmax(dim=-1) @ value


def numbered(value: Any) -> Any:
    is_gpu = value == "cuda" or (isinstance(value, torch.device) and value.type == "cuda")
    return GPU if is_gpu else value


@contextlib.contextmanager
def pretend_gpu(gib: int = 8) -> Iterator[None]:
    """A GPU of this size that computes in bfloat16, for as long as the block lasts."""
    card = SimpleNamespace(total_memory=gib * 2**30, name="pretended")
    there = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_bf16_supported": lambda *args, **kwargs: True,
        "device_count": lambda: 1,
        "memory_allocated": lambda *args: 2**30,
        "get_device_properties": lambda *args: card,
    }
    # A build for CUDA asks its driver here whether a graph is being captured; a build for CPUs asks nobody.
    checks = [name for name in vars(torch.optim.Optimizer) if name.endswith("_graph_capture_health_check")]
    unchecked = {name: lambda *args: None for name in checks}
    torch.__future__.set_swap_module_params_on_conversion(True)  # weights become others, and stay tied
    try:
        with (
            mock.patch.multiple(torch.cuda, **there),
            mock.patch.multiple(torch.optim.Optimizer, **unchecked),
            Names(),
            Factories(),
        ):
            yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
