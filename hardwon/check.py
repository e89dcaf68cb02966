"""Everything that can be known to go wrong before a run starts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from hardwon import memory
from hardwon.data import Problem
from hardwon.hardware import GIB, Hardware, this_machine
from hardwon.models.tokens import encode_prompt, eos_ids, load_tokenizer
from hardwon.plan import Finding, check_memory, dtype_on
from hardwon.tasks import Task
from hardwon.verifiers.sandbox_probe import layers
from hardwon.workbench import SharedSettings, open_task

# Gold answers that are verified, at most (ours).
GOLD_ANSWERS = 64


def check(config: SharedSettings, hardware: Hardware | None = None) -> Iterator[Finding]:
    """Findings about data, gold answers, tokens, lengths, memory and disk, in that order.

    Nothing is trained and no weights are read. Memory is that of `hardware`, by default this machine.
    """
    task: Task | None = None
    try:
        task = open_task(config)
        problems = task.problems("train") + task.problems("test")
        yield Finding(
            "ok", "data", f"{len(task.problems('train'))} problems and {len(task.problems('test'))} held out"
        )
        for note in task.notes:
            yield Finding("ok", "data", note)
        yield from _guard("gold answers", lambda: check_gold(task, problems))
        yield from _guard("prompts", lambda: check_tokens(config, problems))
    except (ValueError, ImportError) as error:
        yield Finding("error", "data", str(error))
    finally:
        if task is not None:
            task.close()
    if config.task in ("code", "tiny_programs"):
        yield from _guard("sandbox", check_sandbox)
    machine = hardware or this_machine(config.device)
    yield from _guard("memory", lambda: check_fit(config, machine))
    yield from _guard("disk", lambda: check_disk(config))


def _guard(subject: str, findings: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """One check's failure is a finding and does not keep the others from running."""
    try:
        yield from findings()
    except (ValueError, ImportError, OSError) as error:
        yield Finding("error", subject, str(error))


def check_gold(task: Task, problems: list[Problem]) -> Iterator[Finding]:
    """A spread of gold answers must earn full reward from the task's own verifier.

    A problem without a gold answer is tried with an empty response, which shows tests that can't be run.
    """
    chosen = problems[:: max(len(problems) // GOLD_ANSWERS, 1)][:GOLD_ANSWERS]
    golds: dict[int, str] = {}
    reason = ""
    for index, problem in enumerate(chosen):
        try:
            golds[index] = task.gold(problem)
        except ValueError as error:  # some tasks know a right answer when they see one, but cannot write it
            reason = reason or str(error)
    verdicts = task.verify([(p, golds.get(index, "")) for index, p in enumerate(chosen)])
    bad = [
        (p.id, v)
        for index, (p, v) in enumerate(zip(chosen, verdicts, strict=True))
        if v.is_error or (index in golds and not v.correct)
    ]
    if bad:
        first, verdict = bad[0]
        yield Finding(
            "error",
            "gold answers",
            f"{len(bad)} of {len(chosen)} do not pass the task's own verifier; the first is {first}: "
            f"{verdict.outcome} {verdict.message}".rstrip(),
        )
    elif golds:
        yield Finding("ok", "gold answers", f"{len(golds)} of {len(golds)} earn full reward")
    if reason:
        missing = len(chosen) - len(golds)
        yield Finding("warning", "gold answers", f"{missing} of {len(chosen)} can't be tried: {reason}")


def check_sandbox() -> Iterator[Finding]:
    """The layers of isolation that hold here; the strongest one is used."""
    found = layers()
    for layer in found:
        text = f"layer {layer.name} " + ("holds" if layer.holds else f"does not hold: {layer.reason}")
        yield Finding("ok" if layer.holds else "warning", "sandbox", text)
    if not any(layer.holds for layer in found):
        yield Finding("error", "sandbox", "no layer holds: programs that a model wrote will not be run")


def check_tokens(config: SharedSettings, problems: list[Problem]) -> Iterator[Finding]:
    tokenizer = load_tokenizer(config.model)
    ends = (f"{tokenizer.convert_ids_to_tokens(i)!r} ({i})" for i in sorted(eos_ids(tokenizer)))
    yield Finding("ok", "end of response", ", ".join(ends))
    encode = partial(
        encode_prompt, tokenizer, chat_template=config.chat_template, system_prompt=config.system_prompt
    )
    prompts = [encode(p) for p in problems]
    lengths, first, bos = [len(ids) for ids in prompts], prompts[0], tokenizer.bos_token_id
    begins = f"{first.count(bos)} BOS" if bos is not None else "the tokenizer has no BOS"
    yield Finding("ok", "beginning", begins)
    unknown = tokenizer.unk_token_id
    if unknown is not None and unknown in first:
        yield Finding("warning", "prompts", "the tokenizer does not know some characters of the first prompt")
    too_long = sum(n > config.max_prompt_tokens for n in lengths)
    text = f"{min(lengths)} to {max(lengths)} tokens"
    if too_long:
        text += f"; {too_long} over max_prompt_tokens={config.max_prompt_tokens}: raise it to {max(lengths)}"
    yield Finding("error" if too_long else "ok", "prompts", text)


def check_fit(config: SharedSettings, hardware: Hardware) -> Iterator[Finding]:
    shape = memory.load_shape(config.model)
    phases = memory.phases(shape, config, hardware, dtype_on(config, hardware))
    yield from check_memory(phases, config, hardware)


def check_disk(config: Any) -> Iterator[Finding]:
    """Room for weights and two moments in the newest N checkpoints, the best and the one being written."""
    place = Path(config.run or "runs").absolute()
    while not place.exists():
        place = place.parent
    shape = memory.load_shape(config.model)
    size = (4 + (8 if not config.lora_rank else 0)) * shape.parameters / GIB
    needed, free = size * (config.keep_checkpoints + 2), shutil.disk_usage(place).free / GIB
    text = f"checkpoints take about {needed:.1f} GiB; {free:.1f} are free"
    yield Finding("error" if needed > free else "ok", "disk", text)
