"""One task from several: each source has its own weight, verifier, columns and reward (docs/data.md)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from hardwon.config import SourceSettings, build
from hardwon.data import Problem, Verdict
from hardwon.tasks.sources import source_name
from hardwon.tasks.splits import ALL_HELD_OUT, counted, say, without_prompts
from hardwon.tasks.task import Split, Task, split_lines

LoadTask = Callable[..., Task]

REWARD_OPTIONS = ("reward", "reward_threshold", "reward_seconds", "encode")
"""Options of tasks/custom.py: with them any task is judged by the user's functions instead of its own."""

ROW_OPTIONS = ("columns", "row_function")
"""What the columns of a row mean; as the options before, a source takes them over whatever its task is."""


@dataclass(frozen=True)
class Part:
    """A source that is loaded; its problems have the ids of the mixture."""

    name: str
    weight: float
    task: Task
    rewarded: bool  # by functions of the user
    train: Sequence[Problem]
    test: Sequence[Problem]


def is_mixture(source: Any) -> bool:
    """Whether a setting `data` is several sources; a list of names alone is one source in several files."""
    several = isinstance(source, list | tuple) and any(not isinstance(one, str) for one in source)
    return isinstance(source, Mapping) or several


def load_mixture(
    load: LoadTask,
    spec: str,
    *,
    data: Any = None,
    eval_data: Any = None,
    seed: int = 0,
    reward_from: str = "verdict",
    **options: Any,
) -> Task:
    """The sources of `data` as one task, evaluated on their own held-out problems or on `eval_data`.

    `load` makes the task of one source. What a source does not say is as `spec` and `options` say; options
    of a task go only to sources with that task. ValueError names the source at fault.
    """
    sources, others = paired(
        read_sources("data", data, spec),
        {} if eval_data is None else read_sources("eval_data", eval_data, spec),
    )
    parts: list[Part] = []
    try:
        for name, source in sources.items():
            fraction = None if eval_data is None or source.eval_data is not None else 0
            parts.append(load_part(load, name, source, spec, seed, options, held_out_fraction=fraction))
        for name, source in others.items():
            part = load_part(load, name, source, spec, seed, options, held_out_fraction=ALL_HELD_OUT)
            parts.append(replace(part, train=[]))
        return mixed(parts, set(sources), reward_from)
    except BaseException:
        close_all(parts)
        raise


# ---------------------------------------------------------------------------------------- settings


def read_sources(setting: str, value: Any, spec: str) -> dict[str, SourceSettings]:
    """The sources of a setting by their names, which are their files' unless they are given."""
    found: dict[str, SourceSettings] = {}
    for number, given in enumerate(value if isinstance(value, list | tuple) else [value], 1):
        where = f"{setting}, source {number}"
        if not isinstance(given, str | Mapping):
            raise ValueError(f"{where}: a name or a mapping with `data` is wanted, found {given!r:.80}")
        try:
            source = build(SourceSettings, {"data": given} if isinstance(given, str) else given)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        name = source.name or (source_name(source.data) if source.data else source.task or spec)
        if name in found:
            raise ValueError(f"{where}: another source is also named {name!r}; give one of them a `name`")
        found[name] = source
    return found


def paired(
    sources: Mapping[str, SourceSettings], evaluated: Mapping[str, SourceSettings]
) -> tuple[dict[str, SourceSettings], dict[str, SourceSettings]]:
    """(sources to train on, with the evaluation data of the same name; sources for evaluation only)."""
    trained, others = dict(sources), {}
    for name, source in evaluated.items():
        if name not in trained:
            others[name] = source
            continue
        extra = sorted(source.model_fields_set - {"data", "name"})
        if extra or trained[name].eval_data is not None:
            what = f"`{extra[0]}`" if extra else "`eval_data` beside it"
            raise ValueError(
                f"eval_data, source {name!r}: it is judged as the source of this name in data, so {what} has "
                "no place; leave that out, or give one of the two another `name`"
            )
        trained[name] = trained[name].model_copy(update={"eval_data": source.data})
    return trained, others


def load_part(
    load: LoadTask,
    name: str,
    source: SourceSettings,
    spec: str,
    seed: int,
    options: Mapping[str, Any],
    *,
    held_out_fraction: float | None,
) -> Part:
    """One source with its own task. A generated task, which has no data, has its own held-out problems."""
    own_task = source.task or spec
    arguments: dict[str, Any] = {
        key: value
        for key, value in options.items()
        if own_task == spec or key in REWARD_OPTIONS + ROW_OPTIONS
    }
    arguments |= {key: value for key in ("reward", "columns") if (value := getattr(source, key)) is not None}
    arguments |= source.task_options
    rewarded = "reward" in arguments
    unused = (() if rewarded else REWARD_OPTIONS) + (() if source.data else ROW_OPTIONS)
    if source.data and held_out_fraction is not None:
        arguments["held_out_fraction"] = held_out_fraction
    arguments = {key: value for key, value in arguments.items() if key not in unused}
    try:
        task = load(own_task, data=source.data, eval_data=source.eval_data, seed=seed, **arguments)
    except (ValueError, ImportError) as error:
        raise type(error)(f"source {name!r}: {error}") from error
    train, test = ([in_mixture(p, name) for p in task.problems(split)] for split in ("train", "test"))
    return Part(name, source.weight, task, rewarded, train, [] if held_out_fraction == 0 else test)


def in_mixture(problem: Problem, name: str) -> Problem:
    """The problem with its source, and an id that no other source has."""
    own = problem.id.startswith((f"{name}/", f"eval/{name}/"))
    return replace(problem, id=problem.id if own else f"{name}/{problem.id}", source=name)


# ----------------------------------------------------------------------------------------- the task


def mixed(parts: Sequence[Part], trained: set[str], reward_from: str) -> Task:
    """The task that the parts make; `trained` are the names of those that need problems to train on."""
    tasks = {part.name: part.task for part in parts}
    test = list(in_turn([part.test for part in parts]))
    notes = [f"{part.name}: {note}" for part in parts for note in part.task.notes]
    total_weight = sum(part.weight for part in parts if part.name in trained)
    splits: dict[Split, list[Problem]] = {"train": [], "test": test}
    for part in parts:
        kept = without_prompts(part.train, test)
        if part.name in trained and not kept:
            raise ValueError(f"source {part.name!r}: all its prompts are held out, none is left to train on")
        if missing := len(part.train) - len(kept):
            notes.append(
                f"{part.name}: {counted(missing, 'problem')} left out, whose prompts another source holds out"
            )
            say(notes[-1:])
        if part.name in trained:
            share = part.weight / total_weight
            notes.append(f"{part.name}: {share:.1%} of what is asked, {counted(len(kept), 'problem')}")
        total = sum(problem.weight for problem in kept)
        splits["train"] += [replace(p, weight=part.weight * p.weight / total) for p in kept]
    for problems in splits.values():
        refuse_equal_ids(problems)
    # Where functions of the user judge some sources, training reads scores; the others keep their +1 and -1.
    any_reward = any(part.rewarded for part in parts)
    plain = {part.name for part in parts if any_reward and reward_from == "verdict" and not part.rewarded}

    def verify(pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        verdicts: dict[int, Verdict] = {}
        for name, task in tasks.items():
            own = [i for i, (problem, _) in enumerate(pairs) if problem.source == name]
            found = task.verify([pairs[i] for i in own]) if own else []
            verdicts |= zip(
                own, [replace(v, score=None) for v in found] if name in plain else found, strict=True
            )
        return [verdicts[i] for i in range(len(pairs))]

    ways = {part.task.split_steps for part in parts}
    return Task(
        f"mixture of {', '.join(tasks)}",
        lambda split: list(splits[split]),
        verify,
        lambda problem: tasks[problem.source].gold(problem),
        split_steps=ways.pop() if len(ways) == 1 else split_lines,
        close=lambda: close_all(parts),
        prompt_template=joined_template({part.name: part.task.prompt_template for part in parts}),
        notes=tuple(notes),
    )


def joined_template(templates: Mapping[str, str | None]) -> str | None:
    """The template (Jinja) that words a prompt as its source's own does; `source_name` is the source.

    >>> joined_template({"a": "{{ prompt }}!", "b": None})
    '{% if source_name == "a" %}{{ prompt }}!{% else %}{{ prompt }}{% endif %}'
    """
    if len(set(templates.values())) < 2:
        return next(iter(templates.values()), None)
    *first, last = [(json.dumps(name), text or "{{ prompt }}") for name, text in templates.items()]
    branches = "".join(f"{{% elif source_name == {name} %}}{text}" for name, text in first)
    return f"{branches.replace('elif', 'if', 1)}{{% else %}}{last[1]}{{% endif %}}"


def in_turn(lists: Sequence[Sequence[Problem]]) -> Iterator[Problem]:
    """One of each in turn, so that the first problems of a mixture are of all its sources."""
    for turn in zip_longest(*lists):
        yield from (problem for problem in turn if problem is not None)


def refuse_equal_ids(problems: Sequence[Problem]) -> None:
    (found, number) = Counter(problem.id for problem in problems).most_common(1)[0] if problems else ("", 0)
    if number > 1:
        raise ValueError(
            f"{number} problems of the mixture have the id {found!r}: rename the source or the ids"
        )


def close_all(parts: Sequence[Part]) -> None:
    for part in parts:
        part.task.close()
