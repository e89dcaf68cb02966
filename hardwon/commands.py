"""What `hardwon evaluate`, `compare` and `check` do and print."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hardwon.algorithms import resolve
from hardwon.check import check
from hardwon.checkpoints import write_atomic
from hardwon.config import PromptSettings, build, idle, merged, parse_words, read_yaml
from hardwon.cost import Assumptions
from hardwon.data import Sampling
from hardwon.evaluate import (
    Evaluation,
    compare_seeds,
    evaluate_both,
    load_evaluation,
    report_ks,
    sampling_differences,
    stored_evaluations,
)
from hardwon.hardware import Hardware
from hardwon.models.paths import PACKAGED, origin_of, trained_model
from hardwon.plan import Finding, plan
from hardwon.plan_tables import print_plan
from hardwon.records import CONFIG, read_config
from hardwon.stored_prompts import PROMPTS
from hardwon.workbench import SharedSettings, open_workbench, within_context

FORM_ROWS = {
    "answered": "with an answer in the wanted form",
    "boxed": "with a box",
    "truncated": "cut by the length limit",
    "accuracy_if_answered": "correct, of those with an answer",
}
# With one of these given, a run's model is asked something else than the run asked.
DATA_SHAPING = {"task", "data", "eval_data", "columns", "row_function", "task_options"}
PROMPT_SHAPING = {*PromptSettings.model_fields, *DATA_SHAPING}
# What every method has and only training reads.
NOT_OF_EVALUATION = {
    "lora_rank", "gradient_checkpointing", "algorithm", "run", "checkpoint_every", "keep_checkpoints",
    "log_to",
}  # fmt: skip

MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "error": "[red]error[/]"}


def evaluate_command(model: str, given: Mapping[str, Any], out: Path | None, console: Console) -> None:
    """Evaluate a model, or a run's trained model on the run's own task, and print the estimates."""
    for key in NOT_OF_EVALUATION & given.keys():
        raise ValueError(f"{key}={given[key]}: this is a setting of training, which evaluation does not use")
    layers: list[Mapping[str, Any]] = [PACKAGED.get(origin_of(model) or "", {})]
    if "model" in given:
        raise ValueError(f"model={given['model']}: the model to evaluate is the first word, here {model}")
    is_run = (Path(model) / CONFIG).is_file()
    if is_run:
        stored = read_config(model)
        layers.append({k: v for k, v in stored.items() if k in SharedSettings.model_fields and k != "run"})
        # A trained model is written with its adapters merged in.
        layers.append({"lora_rank": 0, "model": str(trained_model(model))})
    else:
        layers.append({"model": model})
    for setting in idle(SharedSettings, merged(*layers), given):
        raise ValueError(
            f"{setting.key}={given[setting.key]} does nothing with {setting.now}: it acts with {setting.acts}"
        )
    fitted = within_context(SharedSettings, merged(*layers, given))
    config = build(SharedSettings, fitted, *layers, given)
    bench = open_workbench(config)
    if is_run and not given.keys() & PROMPT_SHAPING:
        bench.prompts.load(Path(model) / PROMPTS)
    try:
        with console.status(f"{len(bench.held_out)} held-out problems, {config.eval_samples} responses each"):
            evaluations = evaluate_both(bench, config)
    finally:
        bench.task.close()
    console.print(evaluation_table(model, evaluations))
    if out is not None:
        write_atomic(out, json.dumps(evaluations["sampled"].to_dict()).encode())
        console.print(f"per-problem results in {out}", highlight=False)


def evaluation_table(title: str, evaluations: Mapping[str, Evaluation]) -> Table:
    sampled, greedy = evaluations["sampled"], evaluations["greedy"]
    table = Table(title=f"{title}: {sampled.task}, {len(sampled.problem_ids)} problems")
    for column in ("measure", "estimate", "95 % interval"):
        table.add_column(column, justify="left" if column == "measure" else "right")
    k = sampled.num_samples
    rows = {f"mean@{k}, {sampling_words(sampled.sampling)}": sampled.mean_at_k()}
    rows |= {f"pass@{n}": sampled.pass_at_k(n) for n in report_ks(sampled) if n > 1}
    if k > 2 and sampled.names_answers:
        rows[f"majority@{k}"] = sampled.majority_at_k(k)
    rows["greedy"] = greedy.mean_at_k()
    for name, value in rows.items():
        table.add_row(name, f"{value.value:.3f}", f"{value.low:.3f} to {value.high:.3f}")
    table.add_section()
    for name, value in sampled.form().items():
        table.add_row(FORM_ROWS[name], f"{value.value:.3f}", f"{value.low:.3f} to {value.high:.3f}")
    notes = f"{sampled.mean_length():.1f} tokens per response"
    if sampled.num_errors:
        notes += f", {sampled.num_errors} verifier errors left out"
    table.caption = notes
    return table


def sampling_words(sampling: Sampling) -> str:
    """How tokens were drawn, without the filters that are off.

    >>> sampling_words(Sampling(100, temperature=0.6, top_p=0.95))
    'temperature 0.6, top_p 0.95'
    """
    words = [f"temperature {sampling.temperature:g}"]
    words += [f"top_p {sampling.top_p:g}"] * (sampling.top_p < 1)
    return ", ".join(words + [f"top_k {sampling.top_k}"] * (sampling.top_k > 0))


def compare_command(
    a: Sequence[str], b: Sequence[str], console: Console, *, allow_different_sampling: bool = False
) -> None:
    """Print B minus A; several files or runs a side are seeds of one recipe."""
    sides = [[evaluation_of(source) for source in side] for side in (a, b)]
    result = compare_seeds(*sides, allow_different_sampling=allow_different_sampling)
    if differences := sampling_differences([*sides[0], *sides[1]]):
        console.print(f"The evaluations sampled differently: {differences}.", style="yellow", highlight=False)
    table = Table(title=f"{', '.join(b)} minus {', '.join(a)}: {result.num_problems} problems")
    for column in ("mean A", "mean B", "difference", "95 % interval", "p-value"):
        table.add_column(column, justify="right")
    means = [sum(e.mean_at_k().value for e in side) / len(side) for side in sides]
    table.add_row(
        f"{means[0]:.3f}",
        f"{means[1]:.3f}",
        f"{result.difference:+.3f}",
        f"{result.low:+.3f} to {result.high:+.3f}",
        f"{result.p_value:.2g}",
    )
    console.print(table)
    if min(len(side) for side in sides) == 1:
        console.print("One training run a side: the interval covers problems, not seeds.", style="dim")


def evaluation_of(source: str) -> Evaluation:
    """An evaluation file, or the last sampled evaluation that a run stored."""
    if not Path(source).is_dir():
        return load_evaluation(source)
    stored = stored_evaluations(source, "sampled")
    if not stored:
        raise ValueError(f"{source} holds no evaluation: is it a run directory?")
    return load_evaluation(stored[max(stored)])


def check_command(
    algorithm: str, given: Sequence[Mapping[str, Any]], console: Console, hardware: Hardware | None = None
) -> bool:
    """Print every finding for layers of settings; True if none is an error."""
    return print_findings(check(resolve(algorithm, *given), hardware), console)


def dry_run_command(
    algorithm: str,
    given: Sequence[Mapping[str, Any]],
    console: Console,
    *,
    hardware: Hardware | None,
    assume: Sequence[str],
    models: Path | None,
) -> bool:
    """Print what a run takes, then the findings; True if none is an error."""
    config = resolve(algorithm, *given)
    found = plan(config, hardware, build(Assumptions, *map(assumption, assume)), models)
    print_plan(found, console)
    return print_findings(found.findings, console)


def assumption(word: str) -> dict[str, Any]:
    """`name=value`, or a YAML or JSON file of them."""
    return parse_words([word]) if "=" in word else read_yaml(word)


def print_findings(findings: Iterable[Finding], console: Console) -> bool:
    passed = True
    for finding in findings:
        console.print(f"{MARKS[finding.status]:>18}  [bold]{finding.subject}[/]  ", end="", highlight=False)
        console.print(finding.text, markup=False, highlight=False, soft_wrap=True)
        passed = passed and finding.status != "error"
    return passed
