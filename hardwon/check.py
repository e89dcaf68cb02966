"""Everything that can be known to go wrong before a run starts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hardwon import memory
from hardwon.data import Problem
from hardwon.hardware import GIB, Hardware, this_machine
from hardwon.models.prompts import encode_prompt
from hardwon.models.tokens import eos_ids, load_tokenizer
from hardwon.plan import Finding, check_memory, dtype_on
from hardwon.records import visible
from hardwon.tasks import Task
from hardwon.verifiers.sandbox_probe import layers
from hardwon.workbench import SharedSettings, open_task, prompt_forms

# Gold answers that are verified, at most (ours).
GOLD_ANSWERS = 64

# Of a prompt that is shown, at most (ours).
SHOWN_CHARACTERS = 2000


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
        yield from _guard("prompts", lambda: check_tokens(config, task))
        if config.stop:
            yield from _guard("stop", lambda: check_stop(task, problems, config.stop))
    except (ValueError, ImportError) as error:
        yield Finding("error", "data", str(error))
    finally:
        if task is not None:
            task.close()
    if config.tasks & {"code", "tiny_programs"}:
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


def spread(problems: list[Problem]) -> list[Problem]:
    return problems[:: max(len(problems) // GOLD_ANSWERS, 1)][:GOLD_ANSWERS]


def check_gold(task: Task, problems: list[Problem]) -> Iterator[Finding]:
    """A spread of gold answers must earn full reward from the task's own verifier.

    A problem without a gold answer is tried with an empty response, which shows tests that can't be run.
    """
    chosen = spread(problems)
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


def check_stop(task: Task, problems: list[Problem], stop: Sequence[str]) -> Iterator[Finding]:
    """A gold answer that holds a stop string is one that no response can give."""
    try:
        gold = {problem.id: task.gold(problem) for problem in spread(problems)}
    except ValueError:  # as in check_gold, which says so
        return
    held = [(i, s) for i, response in gold.items() for s in stop if s in response]
    cut = len({i for i, _ in held})
    if held:
        text = (
            f"{cut} of {len(gold)} gold answers hold a stop string; the first is {held[0][0]}: {held[0][1]!r}"
        )
    else:
        text = f"a response ends at {', '.join(map(repr, stop))}, which no gold answer holds"
    yield Finding("warning" if held else "ok", "stop", text)


def check_sandbox() -> Iterator[Finding]:
    """The layers of isolation that hold here; the strongest one is used."""
    found = layers()
    for layer in found:
        text = f"layer {layer.name} " + ("holds" if layer.holds else f"does not hold: {layer.reason}")
        yield Finding("ok" if layer.holds else "warning", "sandbox", text)
    if not any(layer.holds for layer in found):
        yield Finding("error", "sandbox", "no layer holds: programs that a model wrote will not be run")


def check_tokens(config: SharedSettings, task: Task) -> Iterator[Finding]:
    """Where responses end, the first prompt as the model sees it, and the lengths of all prompts."""
    tokenizer = load_tokenizer(config.model)
    ends = (f"{tokenizer.convert_ids_to_tokens(i)!r} ({i})" for i in sorted(eos_ids(tokenizer)))
    yield Finding("ok", "end of response", ", ".join(ends))
    forms, splits = prompt_forms(config, task), (task.problems("train"), task.problems("test"))
    prompts = [
        [encode_prompt(tokenizer, p, form) for p in problems]
        for form, problems in zip(forms, splits, strict=True)
    ]
    first = (prompts[0] or prompts[1])[0]  # all may be held out: data for evaluation only
    yield Finding("ok", "beginning", beginning(tokenizer, first))
    yield Finding("ok", "first prompt", shown_prompt(tokenizer, first))
    if forms[1] != forms[0] and prompts[0] and prompts[1]:
        yield Finding("ok", "first held-out prompt", shown_prompt(tokenizer, prompts[1][0]))
    unknown = tokenizer.unk_token_id
    if unknown is not None and unknown in first:
        yield Finding("warning", "prompts", "the tokenizer does not know some characters of the first prompt")
    yield from check_lengths([len(ids) for split in prompts for ids in split], config)


def shown_prompt(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """A prompt with its special tokens, set in, and without its middle if it is long."""
    text = str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))
    if len(text) > SHOWN_CHARACTERS:
        half, left_out = SHOWN_CHARACTERS // 2, len(text) - SHOWN_CHARACTERS
        text = f"{text[:half]}\n... ({left_out:,} characters left out) ...\n{text[-half:]}"
    lines = visible(text).split("\n")
    return f"{len(ids)} tokens" + "".join(f"\n    | {line}" for line in lines)


def check_lengths(lengths: Sequence[int], config: SharedSettings) -> Iterator[Finding]:
    too_long = sum(n > config.max_prompt_tokens for n in lengths)
    text = f"{min(lengths)} to {max(lengths)} tokens"
    if too_long:
        text += f"; {too_long} over max_prompt_tokens={config.max_prompt_tokens}: raise it to {max(lengths)}"
    yield Finding("error" if too_long else "ok", "prompts", text)


def beginning(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Whether a prompt begins with a BOS. Only there it is one: some models open every turn with it."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return "the tokenizer has no BOS"
    name = f"{tokenizer.convert_ids_to_tokens(bos)!r} ({bos})"
    return f"{name}, which is the BOS" if ids[0] == bos else f"no BOS, which would be {name}"


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
