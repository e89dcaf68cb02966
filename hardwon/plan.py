"""What a run takes on named hardware, from its settings and the model's sizes alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from transformers import AutoConfig

from hardwon import memory
from hardwon.cost import Assumptions, Stage, Workload, stages
from hardwon.hardware import Hardware, this_machine
from hardwon.models.paths import PACKAGED, find_model
from hardwon.workbench import SharedSettings

# Rows decoded together below which a GPU does little but read weights (ours).
FEW_ROWS = 16


class Finding(NamedTuple):
    status: Literal["ok", "warning", "error"]
    subject: str
    text: str


@dataclass(frozen=True)
class Plan:
    """What a run takes: memory of a process by phase and part, seconds by stage of an iteration.

    Either is empty where a finding says why it cannot be estimated.
    """

    work: Workload
    memory: dict[str, memory.Parts]
    stages: list[Stage]
    findings: list[Finding]


def plan(config: Any, hardware: Hardware | None, assumed: Assumptions, models: Path | None = None) -> Plan:
    """What the run takes on `hardware` (default: this machine), from settings and the model's sizes alone.

    No network, weights, data or tokenizer. `models` may hold a NAME/config.json for the hub's OWNER/NAME.
    ValueError if the model's sizes are not known here.
    """
    shape, machine = offline_shape(config.model, models), hardware or this_machine(config.device)
    work = Workload(shape, config, machine, dtype_on(config, machine), assumed)
    findings = list(check_lengths(config, shape))
    phases: dict[str, memory.Parts] = {}
    timed: list[Stage] = []
    try:
        phases = memory.phases(shape, config, machine, work.dtype)
        findings += check_memory(phases, config, machine)
        findings += check_rows(work)
    except ValueError as error:
        findings.append(Finding("error", "memory", str(error)))
    if phases:
        try:
            timed = stages(work)
        except ValueError as error:
            findings.append(Finding("warning", "time", str(error)))
    return Plan(work, phases, timed, findings)


def offline_shape(model: str, models: Path | None) -> memory.Shape:
    """Sizes of a packaged model, a directory, NAME in `models` for the hub's OWNER/NAME, or of the cache."""
    beside = models / model.rpartition("/")[2] if models is not None else None
    if model in PACKAGED or Path(model).expanduser().is_dir():
        base = find_model(model).base  # of an adapter; it may lie on the hub
        return memory.load_shape(model) if Path(base).is_dir() else offline_shape(base, models)
    if beside is not None and (beside / "config.json").is_file():
        return memory.load_shape(str(beside))
    try:
        found = AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of many kinds, as in from_pretrained
        where = f"{beside} or " if beside is not None else ""
        raise ValueError(
            f"model={model}: its sizes are not known offline. Put its config.json into {where}a directory "
            "of yours, and say model=that directory"
        ) from error
    return memory.shape_of(found)


def check_lengths(config: SharedSettings, shape: memory.Shape) -> Iterator[Finding]:
    longest = config.max_prompt_tokens + config.longest_response
    name = "max_new_tokens" if config.longest_response == config.max_new_tokens else "eval_max_new_tokens"
    text = (
        f"max_prompt_tokens={config.max_prompt_tokens} and {name}={config.longest_response} make "
        f"{longest} of the model's {shape.context}"
    )
    if longest <= shape.context:
        yield Finding("ok", "lengths", text)
    else:
        yield Finding(
            "error", "lengths", f"{text}: lower {name} to {shape.context - config.max_prompt_tokens}"
        )


def check_rows(work: Workload) -> Iterator[Finding]:
    """A device that decodes few rows reads all weights for little."""
    rows, config = work.rows(work.response_tokens), work.config
    if rows >= FEW_ROWS or not work.hardware.is_gpu:
        return
    text = f"{rows} responses at a time fit a device beside the model, so most of an iteration is rollout"
    if config.generator == "hf":
        text += (
            f": generator=hf keeps room for {config.max_prompt_tokens} + 2 x {config.max_new_tokens} tokens "
            "a row. Lower max_new_tokens, use generator=vllm, or train in verl (recipes/verl)"
        )
    yield Finding("warning", "rollout", text)


def dtype_on(config: SharedSettings, hardware: Hardware) -> str:
    """What `dtype=auto` comes to there."""
    if config.dtype != "auto":
        return config.dtype
    return "bfloat16" if hardware.is_gpu else "float32"


def check_memory(
    phases: dict[str, memory.Parts], config: SharedSettings, hardware: Hardware
) -> Iterator[Finding]:
    """The largest phase against what one device has."""
    totals = {name: sum(parts.values()) for name, parts in phases.items()}
    peak = max(totals, key=lambda name: totals[name])
    listed = ", ".join(f"{name} {gib:.1f}" for name, gib in phases[peak].items() if gib >= 0.05)
    each = "" if hardware.count == 1 else f" on each {hardware.name}"
    text = f"about {totals[peak]:.1f} GiB of {hardware.gib:.1f}{each} in phase {peak}"
    text += f" ({listed})" if listed else ""
    if totals[peak] <= hardware.gib:
        yield Finding("ok", "memory", text)
    else:
        yield Finding("error", "memory", f"{text}; try {', '.join(remedies(config, hardware))}")


def remedies(config: Any, hardware: Hardware) -> list[str]:
    """What would take less memory, in the order of what it costs."""
    longest = config.max_prompt_tokens + config.max_new_tokens
    out = []
    if not config.gradient_checkpointing:
        out.append("gradient_checkpointing=true")
    if config.micro_batch_tokens > longest:
        out.append(f"micro_batch_tokens={longest}")
    if config.generator == "hf":
        out.append(f"more devices ({2 * hardware.count}x{hardware.name})")
    elif config.vllm_server is None:
        out.append(f"vllm_gpu_memory={config.vllm_gpu_memory / 2:g}")
    if not config.lora_rank:
        out.append("lora_rank=16")
    return [*out, "a smaller max_new_tokens", "larger hardware"]
