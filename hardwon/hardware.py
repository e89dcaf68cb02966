"""The machines that a run can be planned for: public figures of one device, and `8xH100-80GB` for eight."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

import torch

from hardwon.config import nearest

GIB = 2**30


@dataclass(frozen=True)
class Hardware:
    """`count` devices of one kind, a process each.

    gib               memory that a process can have
    bfloat16_flops    dense peak, FLOP/s (on the CPU what one core does in float32)
    float32_flops     the same in float32
    bandwidth         of its memory, bytes/s
    link              to the other devices of its machine, one direction, bytes/s
    """

    name: str
    gib: float
    bfloat16_flops: float
    float32_flops: float
    bandwidth: float
    link: float
    count: int = 1

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"

    def __str__(self) -> str:
        return f"{self.count}x{self.name}"

    def peak(self, dtype: str) -> float:
        return self.bfloat16_flops if dtype == "bfloat16" and self.is_gpu else self.float32_flops


# NVIDIA's data sheets: dense figures of the SXM form where there is one; memory as torch reports it.
GPUS = {
    gpu.name: gpu
    for gpu in (
        Hardware("A100-40GB", 39.4, 312e12, 19.5e12, 1.555e12, 300e9),
        Hardware("A100-80GB", 79.2, 312e12, 19.5e12, 2.039e12, 300e9),
        Hardware("H100-80GB", 79.1, 989e12, 67e12, 3.35e12, 450e9),
        Hardware("H200-141GB", 139.8, 989e12, 67e12, 4.8e12, 450e9),
        Hardware("L40S-48GB", 44.4, 362e12, 91.6e12, 0.864e12, 32e9),
        Hardware("RTX-4090-24GB", 23.5, 165e12, 82.6e12, 1.008e12, 32e9),
    )
}
# A core of a server processor (ours): as slow as the ones this was written on.
CPU_FLOPS, CPU_BANDWIDTH, CPU_LINK = 60e9, 10e9, 1e9


def parse_hardware(text: str) -> Hardware:
    """`8xH100-80GB`, `A100-40GB` or `2xcpu` (processes of this machine). ValueError names the nearest."""
    found = re.fullmatch(r"(?:([1-9]\d*)\s*x\s*)?(.+)", text.strip(), re.IGNORECASE)
    count, name = (int(found[1] or 1), found[2]) if found else (1, text)
    if name.lower() == "cpu":
        return cpu(count)
    kinds = {kind.lower(): kind for kind in GPUS}
    if name.lower() in kinds:
        return replace(GPUS[kinds[name.lower()]], count=count)
    raise ValueError(
        f"hardware={text} is not known{nearest(name.upper(), GPUS) or '.'} "
        f"Known, with a count as in 8xH100-80GB: {', '.join(GPUS)}, cpu"
    )


def this_machine(device: str) -> Hardware:
    """The one GPU, or the process on the CPU, that a run with `device` takes.

    A GPU that is not in the table has the memory that it has, and no rates.
    """
    if device == "cpu" or not torch.cuda.is_available():
        return cpu(1)
    properties = torch.cuda.get_device_properties(0)
    gib = properties.total_memory / GIB
    return gpu_named(properties.name, gib)


def gpu_named(name: str, gib: float) -> Hardware:
    """The table's device that the driver calls `name`, of its forms the one nearest in memory."""
    words = set(re.split(r"[ -]", name))
    kinds = [gpu for kind, gpu in GPUS.items() if words >= set(kind.split("-")[:-1])]
    if not kinds:
        return Hardware(name, gib, 0.0, 0.0, 0.0, 0.0)
    return replace(min(kinds, key=lambda gpu: abs(gpu.gib - gib)), gib=gib)


def cpu(processes: int) -> Hardware:
    """This machine's memory and cores, divided over processes."""
    flops = CPU_FLOPS * max((os.cpu_count() or 1) // processes, 1)
    return Hardware("cpu", available_gib() / processes, flops, flops, CPU_BANDWIDTH, CPU_LINK, processes)


def available_gib() -> float:
    """Memory that this machine has free."""
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":") for line in file)
    return int(fields["MemAvailable"].split()[0]) * 1024 / GIB
