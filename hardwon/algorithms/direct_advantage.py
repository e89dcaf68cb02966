"""Direct advantage (arXiv 2412.18279): offline, step by step, with a critic that is trained alone.

    1. collect     solutions of the reference policy, balanced; states at every step boundary
    2. label       Monte-Carlo counts from every state, and candidate steps
    3. critic      fitted to the counts, then frozen
    4. select      advantages of the steps; states whose steps differ enough
    5. policy      squared loss between A / beta and the step's log-ratio

Each stage reads files of the run directory and writes the next (hardwon.steps.records lists them), so a run
killed at any moment goes on where it was. `iterations=2` repeats the whole: the new policy becomes the
reference, the critic and the policy continue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from hardwon.checkpoints import write_atomic
from hardwon.models.critic import Critic
from hardwon.models.parallel import broadcast, on_main, shard, world
from hardwon.models.stopping import cut_at_stop
from hardwon.models.tokens import decode_response
from hardwon.offline.setup import Offline, OfflineSettings, open_offline
from hardwon.offline.solutions import Collected, keep_balanced
from hardwon.progress import Display
from hardwon.records import prompt_text, read_metrics
from hardwon.run import Run
from hardwon.steps.critic import (
    CriticModel,
    check_better_than_constant,
    critic_fit,
    examples_of,
    read_outside_labels,
    report,
)
from hardwon.steps.plots import write_step_plots
from hardwon.steps.policy import add_reference_log_probs, policy_fit
from hardwon.steps.records import FRESH, PAIRS, STEPS, VALUES, stage_folder
from hardwon.steps.select import judge, pair_rows, read_pairs, selection_summary, write_pairs
from hardwon.steps.split import StepSplitter, find_splitter
from hardwon.steps.values import (
    Labelled,
    Labeller,
    label,
    standard_errors,
    states_of,
)


class Config(OfflineSettings):
    """Settings of direct advantage. Defaults are the paper's unless marked ours."""

    algorithm: str = "direct_advantage"
    iterations: int = Field(1, gt=0, description="repetitions; each one's policy is the next one's reference")
    kept_solutions: int = Field(6, gt=0, description="of each problem, right and wrong as balanced as can be")
    step_split: str = Field(
        "task", description="task (its own, mostly lines), line, blank_line, regex:<pattern>, module:function"
    )
    completions: int = Field(16, gt=0, description="of every state, for its value and its candidate steps")
    max_label_states: int = Field(0, ge=0, description="0: all (ours)")
    max_label_tokens: int = Field(0, ge=0, description="sampled tokens; 0: no limit (ours)")
    adaptive: bool = Field(False, description="label the half with the widest intervals twice (ours)")
    critic_model: str | None = Field(None, description="what the critic begins as; default the policy")
    critic_data: str | None = Field(
        None,
        description="others' step labels to fit the critic on: .parquet or .jsonl (hardwon.steps.formats)",
    )
    critic_learning_rate: float = Field(5e-6, gt=0)
    critic_batch_size: int = Field(512, gt=0, description="states")
    critic_epochs: int = Field(1, gt=0)
    require_critic: bool = Field(True, description="stop if the critic is no better than a constant (ours)")
    fresh_states: int = Field(256, ge=0, description="held-out states labelled anew to test it (ours)")
    action_mean: Literal["unique", "all"] = Field(
        "unique", description="the baseline's mean; the paper leaves it open"
    )
    min_gap: float = Field(0.1, ge=0, description="least difference of a state's advantages")
    beta: float = Field(0.01, gt=0, description="paper: 0.01 to 0.02")
    batch_size: int = Field(2048, gt=0, description="(state, step) pairs, states whole")
    learning_rate: float = Field(5e-7, gt=0)
    adam_beta2: float = Field(0.95, gt=0, lt=1)


# Settings of ours for the packaged models, over the paper's: minutes on two CPU cores.
EMBEDDED: Mapping[str, Any] = {
    "num_problems": 1500,
    "solutions_per_problem": 12,
    "kept_solutions": 4,
    "completions": 8,
    "micro_batch_tokens": 2048,
    "validation_share": 0.1,
    "critic_learning_rate": 1e-3,
    "critic_batch_size": 64,
    "critic_epochs": 2,
    "beta": 0.05,
    "batch_size": 256,
    "epochs": 4,
    "learning_rate": 2e-4,
    "learning_rate_schedule": "linear",
    "warmup_iterations": 5,
    "eval_problems": 512,
}

# Sampling streams of the stages of one repetition: no two draw the same random numbers.
COLLECT, LABEL, FRESH_LABEL, STREAMS = 0, 1, 3, 10


@dataclass(frozen=True)
class Repetition:
    """What the stages of one repetition work with."""

    config: Config
    number: int
    offline: Offline
    splitter: StepSplitter

    @property
    def folder(self) -> Path:
        return stage_folder(self.offline.run.path, self.number)

    def stream(self, stage: int) -> int:
        return STREAMS * self.number + stage

    def report(self, name: str, figures: Mapping[str, Any]) -> None:
        """Write a stage's figures to `<name>.json`, the sign that it is done, and log the plain ones."""
        numbers = {f"{name}/{k}": float(v) for k, v in figures.items() if isinstance(v, int | float)}
        self.offline.run.log(self.offline.at, numbers)
        shown = "  ".join(f"{k.partition('/')[2]} {v:.4g}" for k, v in numbers.items())
        self.offline.display.print(f"{name} {self.number}: {shown}")
        content = json.dumps(figures, indent=1).encode()
        on_main(lambda: write_atomic(self.folder / f"{name}.json", content))

    def is_done(self, name: str) -> bool:
        return broadcast((self.folder / f"{name}.json").is_file())


def train(config: Config, run: Run, display: Display) -> Path:
    """Run all stages `config.iterations` times, from where the run directory is.

    Returns the directory of the trained model in the Hugging Face format. On Ctrl-C or SIGTERM what is done
    is on the disk and KeyboardInterrupt is raised. ValueError if the critic is no better than a constant,
    or if no state's steps differ enough to train on.
    """
    for number in range(1, config.iterations + 1):
        if not broadcast((stage_folder(run.path, number) / "policy.json").is_file()):
            repeat(open_repetition(config, run, display, number))
    model = run.publish(stage_folder(run.path, config.iterations) / "policy")
    display.begin("plots", 1)
    on_main(lambda: draw_plots(run.path, display))
    return model


def draw_plots(path: Path, display: Display) -> None:
    """The plots of every repetition; what they fail with is said, since the model is there without them."""
    try:
        write_step_plots(path)
    except Exception as error:  # of many kinds: the disk, fonts, damaged files
        display.print(f"the plots of the steps could not be drawn: {error}")


def repeat(repetition: Repetition) -> None:
    """The five stages, in the paper's order."""
    collected = collect_stage(repetition)
    labelled = label_stage(repetition, collected)
    critic = critic_stage(repetition, labelled)
    select_stage(repetition, labelled, critic)
    policy_stage(repetition)


def open_repetition(config: Config, run: Run, display: Display, number: int) -> Repetition:
    """The reference of a repetition is the policy that the one before made."""
    weights = stage_folder(run.path, number - 1) / "policy" if number > 1 else None
    offline = open_offline(config, run, display, weights)
    split = find_splitter(config.step_split, offline.bench.task)
    splitter = StepSplitter(offline.bench.policy.tokenizer, split, config.stop)
    return Repetition(config, number, offline, splitter)


def collect_stage(repetition: Repetition) -> list[Collected]:
    """Stage 1: solutions, the kept ones cut into steps."""
    config, folder = repetition.config, repetition.folder
    choose = partial(keep_balanced, keep=config.kept_solutions)
    collected = repetition.offline.collect(folder, choose, repetition.stream(COLLECT))
    if repetition.is_done("collect"):
        return collected
    records = [record for entry in collected for record in step_lines(entry, repetition.splitter)]
    content = "".join(json.dumps(record) + "\n" for record in records).encode()
    on_main(lambda: write_atomic(folder / STEPS, content))
    num_steps = sum(len(record["steps"]) for record in records)
    solutions = [solution for entry in collected for solution in entry.solutions]
    sampled = sum(entry.num_sampled for entry in collected)
    repetition.report(
        "collect",
        {
            "problems": len(collected),
            "solutions": len(solutions),
            "success_rate": sum(entry.num_correct for entry in collected) / sampled,
            "kept_success_rate": sum(s.correct for s in solutions) / max(len(solutions), 1),
            "steps_per_solution": num_steps / max(len(records), 1),
            "tokens": sum(entry.num_tokens for entry in collected),
        },
    )
    return collected


def step_lines(entry: Collected, splitter: StepSplitter) -> list[dict[str, Any]]:
    """A record a kept solution: its ids, where its steps end, and their texts."""
    records = []
    for solution in entry.solutions:
        ends = splitter.ends(solution.ids)
        records.append(
            {
                "problem_id": entry.problem.id,
                "prompt": prompt_text(entry.problem),
                "correct": solution.correct,
                "ids": solution.ids,
                "ends": ends,
                "steps": step_texts(solution.ids, ends, splitter),
            }
        )
    return records


def step_texts(ids: Sequence[int], ends: Sequence[int], splitter: StepSplitter) -> list[str]:
    """The text that each step adds: joined they are the judged text, also where a token is none by itself."""
    texts = [cut_at_stop(decode_response(splitter.tokenizer, ids[:end]), splitter.stop) for end in ends]
    return [text[len(before) :] for before, text in zip(["", *texts[:-1]], texts, strict=True)]


def label_stage(repetition: Repetition, collected: Sequence[Collected]) -> list[Labelled]:
    """Stage 2: counts of every state, and of a few held-out states a second time."""
    config, folder = repetition.config, repetition.folder
    labelled = label(
        folder / VALUES,
        states_of(collected, repetition.splitter),
        labeller(repetition, LABEL),
        seed=config.seed,
        max_states=config.max_label_states,
        max_tokens=config.max_label_tokens,
        adaptive=config.adaptive,
        progress=repetition.offline.progress("label"),
    )
    labelled = [entry for entry in labelled if entry.judged]
    fresh = fresh_labels(repetition, labelled)
    if not repetition.is_done("values"):
        errors = standard_errors(labelled)
        repetition.report(
            "values",
            {
                "states": len(labelled),
                "mean": sum(e.correct / e.judged for e in labelled) / len(labelled),
                "standard_error": sum(errors) / len(errors),
                "actions_per_state": sum(len(e.actions) for e in labelled) / len(labelled),
                "tokens": sum(e.num_tokens for e in [*labelled, *fresh]),
            },
        )
    return labelled


def labeller(repetition: Repetition, stage: int) -> Labeller:
    config = repetition.config
    return Labeller(
        repetition.offline.bench.sampler, config.sampling, repetition.splitter, config.completions,
        repetition.stream(stage),
    )  # fmt: skip


def fresh_labels(repetition: Repetition, labelled: Sequence[Labelled]) -> list[Labelled]:
    """Independent values of up to `fresh_states` labelled states of validation problems."""
    held_out = [e.state for e in labelled if e.state.problem.id in repetition.offline.validation_ids]
    if not repetition.config.fresh_states or not held_out:
        return []
    found = label(
        repetition.folder / FRESH,
        held_out,
        labeller(repetition, FRESH_LABEL),
        seed=repetition.config.seed,
        max_states=repetition.config.fresh_states,
        progress=repetition.offline.progress("fresh values"),
    )
    return [entry for entry in found if entry.judged]


def critic_stage(repetition: Repetition, labelled: Sequence[Labelled]) -> CriticModel:
    """Stage 3: a critic, from the policy or where the last repetition left it, frozen from then on."""
    config, offline, target = repetition.config, repetition.offline, repetition.folder / "critic"
    encode, validation = offline.bench.sampler.encode, offline.validation_ids
    if not repetition.is_done("critic"):
        held_out = examples_of([e for e in labelled if e.state.problem.id in validation], encode)
        examples = examples_of([e for e in labelled if e.state.problem.id not in validation], encode)
        if config.critic_data is not None:
            examples = read_outside_labels(
                config.critic_data, offline.bench.policy, encode, offline.keep_prompts
            )
        fit = critic_fit(
            f"critic-{repetition.number}",
            critic_model(repetition, initial_critic(repetition)),
            examples,
            held_out,
            config.model_copy(update={"learning_rate": config.critic_learning_rate}),
            batch_size=config.critic_batch_size,
            epochs=config.critic_epochs,
            validations_per_epoch=config.validations_per_epoch,
        )
        offline.fit(fit, target)
        fitted = critic_model(repetition, Critic.load(target, config.device))
        repetition.report("critic", report(fitted, held_out, fresh_labels(repetition, labelled), encode))
    figures = json.loads((repetition.folder / "critic.json").read_text())
    check_better_than_constant(figures, required=config.require_critic)
    return critic_model(repetition, Critic.load(target, config.device))


def initial_critic(repetition: Repetition) -> Critic:
    config, before = repetition.config, stage_folder(repetition.offline.run.path, repetition.number - 1)
    if repetition.number > 1:
        return Critic.load(before / "critic", config.device)
    # In the first repetition the policy is still the model as it was loaded.
    return Critic.load(config.critic_model or config.model, config.device)


def critic_model(repetition: Repetition, critic: Critic) -> CriticModel:
    policy = repetition.offline.bench.policy
    if world().size > 1:
        shard(critic, policy.dtype)
    return CriticModel(critic, policy.autocast, repetition.config.micro_batch_tokens)


def select_stage(repetition: Repetition, labelled: Sequence[Labelled], critic: CriticModel) -> None:
    """Stage 4: all pairs with their advantages, and the reference's log-probs of those that are kept."""
    config, bench, path = repetition.config, repetition.offline.bench, repetition.folder / PAIRS
    if repetition.is_done("advantages"):
        return
    judged = judge(
        labelled,
        lambda states: critic.values_of(states, bench.sampler.encode),
        baseline=config.action_mean,
        min_gap=config.min_gap,
    )
    rows = pair_rows(
        labelled,
        judged,
        repetition.offline.validation_ids,
        lambda ids: decode_response(bench.policy.tokenizer, ids),
    )
    if not any(row["kept"] for row in rows):
        raise ValueError(
            f"min_gap={config.min_gap}: no state has steps whose advantages differ by so much, so there is "
            "nothing to train on. Lower min_gap, raise num_problems, or look at the critic (critic.json)"
        )
    rows = add_reference_log_probs(rows, repetition.offline)
    on_main(lambda: write_pairs(path, rows))
    repetition.report("advantages", selection_summary(rows))


def policy_stage(repetition: Repetition) -> None:
    """Stage 5: the policy, from the reference; then the held-out evaluation and the token budget."""
    config = repetition.config
    fit = policy_fit(
        f"policy-{repetition.number}",
        read_pairs(repetition.folder / PAIRS, kept_only=True),
        repetition.offline,
        beta=config.beta,
        batch_size=config.batch_size,
    )
    target = repetition.folder / "policy"
    repetition.offline.fit(fit, target)
    metrics = repetition.offline.evaluate_model(target, token_budget(repetition))
    repetition.report("policy", {k: v for k, v in metrics.items() if k in ("eval/mean@1", "eval/greedy")})


def token_budget(repetition: Repetition) -> dict[str, float]:
    """Tokens so far, over all repetitions: sampled to learn from, and in the policy's and critic's losses.

    Samples of evaluation and validation are not counted: every method takes them alike.
    """
    metrics = read_metrics(repetition.offline.run.path)
    generated = 0.0
    for number in range(1, repetition.number + 1):
        for name in ("collect", "values"):
            file = stage_folder(repetition.offline.run.path, number) / f"{name}.json"
            generated += json.loads(file.read_text())["tokens"]
    return {
        "tokens/generated": generated,
        "tokens/trained": sum(m.get("policy/tokens") or 0.0 for m in metrics),
        "tokens/critic": sum(m.get("critic/tokens") or 0.0 for m in metrics),
    }
