"""A plan as it is printed: memory of a device, time of an iteration, and what was assumed."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from hardwon.cost import Assumptions, Stage, Workload, amount
from hardwon.memory import PARTS
from hardwon.plan import Plan

MEASURED = ("decode_tokens_per_s", "update_tokens_per_s", "prefill_tokens_per_s")


def print_plan(plan: Plan, console: Console) -> None:
    console.print(heading(plan.work), highlight=False, soft_wrap=True)
    if plan.memory:
        console.print(memory_table(plan))
    if plan.stages:
        console.print(time_table(plan.work, plan.stages))
        console.print(assumed_text(plan.work), style="dim", highlight=False)


def heading(work: Workload) -> str:
    config = work.config
    trainers = work.hardware.count if config.vllm_server is None else 1
    served = work.hardware.count - trainers
    devices = f"{trainers} processes train" if trainers > 1 else "1 process trains"
    devices += f", {served} serve" if served else ""
    lora = f", lora_rank={config.lora_rank}" if config.lora_rank else ""
    return (
        f"[bold]{config.algorithm}[/]  {config.model}, {amount(work.shape.parameters)} parameters, "
        f"{work.dtype}{lora}, generator={config.generator}, on [bold]{work.hardware}[/]: {devices}"
    )


def memory_table(plan: Plan) -> Table:
    """Parts down, phases across, GiB."""
    available, phases = plan.work.hardware.gib, plan.memory
    table = Table(title=f"Memory of each {plan.work.hardware.name}, GiB of {available:.1f}", show_footer=True)
    table.add_column("", "all together")
    for name, parts in phases.items():
        total = sum(parts.values())
        style = "red" if total > available else ""
        table.add_column(name, f"{total:.1f}", justify="right", footer_style=style)
    for part in PARTS:
        row = [f"{parts[part]:.1f}" if parts.get(part, 0) >= 0.05 else "" for parts in phases.values()]
        if any(row):
            table.add_row(part, *row)
    return table


def time_table(work: Workload, stages: list[Stage]) -> Table:
    total = sum(stage.seconds for stage in stages)
    count, iterations = work.hardware.count, getattr(work.config, "iterations", 1)
    hours = f"{total * count / 3600:.3g} {work.hardware.name} hours"
    whole = f"; {duration(total * iterations)} for iterations={iterations}" if iterations > 1 else ""
    table = Table(
        title="Time of an iteration", show_footer=True, caption=f"An iteration takes {hours}{whole}."
    )
    table.add_column("", "all together")
    table.add_column("time", duration(total), justify="right")
    table.add_column("share", justify="right")
    table.add_column("what it does")
    for stage in stages:
        table.add_row(stage.name, duration(stage.seconds), f"{stage.seconds / total:.1%}", stage.work)
    return table


def duration(seconds: float) -> str:
    """
    >>> [duration(s) for s in (0.0123, 8.4, 300, 7200, 400000)]
    ['12 ms', '8.4 s', '5.0 min', '2.0 h', '4.6 days']
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= 2 * size or (size == 1 and seconds >= 0.1):
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1000:.0f} ms"


def assumed_text(work: Workload) -> str:
    """What the times rest on; measured rates are named as such."""
    assumed = work.assumed
    used = {name: value for name, value in assumed.model_dump().items() if value is not None}
    used |= {"response_tokens": round(work.response_tokens), "layer_seconds": work.layer_seconds}
    used["verify_seconds"] = work.verify_seconds_each
    measured = [name for name in MEASURED if getattr(assumed, name)]
    guessed = {n: v for n, v in used.items() if n not in MEASURED and n in relevant(work, assumed)}
    words = "  ".join(f"{name}={value:g}" for name, value in guessed.items())
    start = f"With measured {', '.join(measured)}; the rest is estimated" if measured else "An estimate"
    return (
        f"{start} from assumed efficiencies, none of them measured on a GPU (docs/scaling.md). "
        f"Change with --assume name=value:\n{words}"
    )


def relevant(work: Workload, assumed: Assumptions) -> set[str]:
    """The assumptions that matter for this run."""
    names = {"response_tokens", "length_spread", "prompt_tokens"}
    names |= {"verify_seconds", "verify_cores"} if work.verify_seconds_each else set()
    if work.config.algorithm == "direct_advantage":
        names |= {"steps_per_solution", "actions_per_state", "kept_states"}
        names |= set() if work.config.num_problems else {"problems"}
    elif work.config.dynamic_sampling:
        names.add("accept_rate")
    names |= set() if assumed.prefill_tokens_per_s else {"prefill_mfu"}
    names |= set() if assumed.update_tokens_per_s else {"update_mfu"}
    if not assumed.decode_tokens_per_s:
        names |= {"decode_mfu", "decode_bandwidth", "layer_seconds"}
    if work.trainers > 1:
        names |= {"link_efficiency", "gather_rate"}
        names |= {"between_nodes"} if work.trainers > assumed.node_size else set()
    if work.config.vllm_server is not None:
        names.add("server_link")
    return names
