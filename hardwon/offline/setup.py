"""What the offline methods share: settings, the split of problems, validation, evaluation around a fit."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from hardwon.checkpoints import write_atomic
from hardwon.config import OptimizerSettings
from hardwon.data import Problem
from hardwon.evaluate import evaluate, evaluate_and_record
from hardwon.models.parallel import broadcast, on_main
from hardwon.models.policy import Policy
from hardwon.offline.fitting import Fit, Validation, run_fit
from hardwon.offline.solutions import SOLUTIONS, Choose, Collected, collect
from hardwon.progress import Display
from hardwon.records import read_metrics
from hardwon.run import Run
from hardwon.sharded_state import save_state
from hardwon.stored_prompts import PROMPTS
from hardwon.tasks.splits import fingerprint
from hardwon.workbench import SharedSettings, Workbench, check_same_data, open_workbench, resolve_dtype

# What a run directory says of the problems that its files come from.
DATA = "data.json"


class OfflineSettings(SharedSettings, OptimizerSettings):
    """Settings of a fit to collected solutions."""

    num_problems: int | None = Field(None, gt=1, description="training problems used; default all")
    solutions_per_problem: int = Field(32, gt=0)
    validation_share: float = Field(
        0.1, gt=0, lt=1, description="problems that are never trained on and decide when to stop (ours)"
    )
    epochs: int = Field(1, gt=0)
    validations_per_epoch: int = Field(4, gt=0, description="(ours)")
    warmup_iterations: int = Field(0, ge=0, description="optimizer steps (ours)")
    max_new_tokens: int = Field(2048, gt=0)


@dataclass(frozen=True)
class Offline:
    """The workbench of an offline method and its problems, of which `validation` are never trained on."""

    config: OfflineSettings
    run: Run
    display: Display
    bench: Workbench
    problems: list[Problem]
    validation: list[Problem]

    @property
    def by_id(self) -> dict[str, Problem]:
        return {problem.id: problem for problem in self.problems}

    @property
    def validation_ids(self) -> set[str]:
        return {problem.id for problem in self.validation}

    @property
    def at(self) -> int:
        """The run's iteration of the newest checkpoint: what is logged there survives a resume."""
        latest = self.run.latest_checkpoint()
        return latest.iteration if latest else 0

    def progress(self, title: str) -> Callable[[int, int], None]:
        """A callback that shows how far a stage is."""
        self.display.begin(title, 1)

        def show(done: int, total: int) -> None:
            if self.display.total != total:
                self.display.begin(title, total, done)
            self.display.update(done, {})

        return show

    def collect(self, folder: Path, choose: Choose, iteration: int = 1) -> list[Collected]:
        """Solutions of the policy to all problems, in a file of `folder`; see `hardwon.offline.solutions`."""
        return collect(
            folder / SOLUTIONS,
            self.problems,
            sampler=self.bench.sampler,
            sampling=self.config.sampling,
            num_samples=self.config.solutions_per_problem,
            choose=choose,
            iteration=iteration,
            progress=self.progress("collect"),
        )

    def keep_prompts(self, problems: Sequence[Problem]) -> None:
        """Store with the run what further problems ask (hardwon.stored_prompts)."""
        self.bench.prompts.keep(self.run.path / PROMPTS, problems)

    def validate(self) -> Validation:
        """Accuracy on validation problems, sampled as in evaluation: by that a model is chosen and reported.

        It has fallen when it is below the best by half its interval.
        """
        self.bench.generator.load_weights(self.bench.policy)
        result = evaluate(
            self.bench.sampler,
            self.validation,
            sampling=self.config.eval_sampling,
            num_samples=self.config.eval_samples,
        ).mean_at_k()
        return Validation(result.value, result.value - result.low, {"validation_accuracy": result.value})

    def policy_fit(
        self,
        name: str,
        sizes: Sequence[int],
        batch_size: int,
        accumulate: Callable[[Sequence[int]], dict[str, float]],
    ) -> Fit:
        """A fit of the policy that stops when its accuracy on validation problems falls."""
        policy, config = self.bench.policy, self.config
        return Fit(
            name,
            policy.model,
            config,
            sizes,
            batch_size,
            config.epochs,
            config.validations_per_epoch,
            accumulate,
            self.validate,
            policy.save,
        )

    def fit_once(self, fit: Fit, collected: Sequence[Collected]) -> Path:
        """A method's only fit: evaluated, its cost in tokens logged. Returns the trained model's place."""
        target = self.run.path / "model"
        self.fit(fit, target)
        trained = sum(m.get(f"{fit.name}/tokens") or 0.0 for m in read_metrics(self.run.path))
        generated = float(sum(entry.num_tokens for entry in collected))
        self.evaluate_model(target, {"tokens/generated": generated, "tokens/trained": trained})
        return target

    def fit(self, fit: Fit, target: Path) -> None:
        """`run_fit` with the settings of this run."""
        run_fit(
            fit,
            self.run,
            self.display,
            seed=self.config.seed,
            checkpoint_every=self.config.checkpoint_every,
            target=target,
        )

    def evaluate_model(self, model: Path, budget: Mapping[str, float]) -> dict[str, float]:
        """The held-out evaluation of a fitted model, logged with what it cost."""
        policy = Policy.load(model, resolve_dtype(self.config), self.config.device)
        self.bench.generator.load_weights(policy)
        bench = replace(self.bench, policy=policy)
        metrics = evaluate_and_record(bench, self.run, self.config, self.at)
        self.run.log(self.at, {**metrics, **budget})
        return metrics


def keep_to_data(config: OfflineSettings, path: Path, problems: Sequence[Problem]) -> None:
    """Write the fingerprint of a new run's problems; ValueError if a resumed run has others."""
    if not broadcast(path.is_file()):
        content = json.dumps({"problems": fingerprint(problems)}).encode()
        on_main(lambda: write_atomic(path, content))
    check_same_data(config, json.loads(path.read_text())["problems"], problems)


def open_offline(
    config: OfflineSettings, run: Run, display: Display, weights: str | Path | None = None
) -> Offline:
    """Model, task and problems; in a new run, the policy as it is is evaluated first.

    The problems are drawn by the seed; the last of them validate. ValueError if none is left to train on.
    """
    bench = open_workbench(config, weights=weights)
    keep_to_data(config, run.path / DATA, bench.train)
    wanted = min(config.num_problems or len(bench.train), len(bench.train))
    problems = random.Random(config.seed).sample(bench.train, wanted)
    num_validation = max(1, round(config.validation_share * wanted))
    if num_validation >= wanted:
        raise ValueError(
            f"validation_share={config.validation_share} of {wanted} problems leaves none to train on; "
            f"the largest share is {1 - 1 / wanted:.2f}"
        )
    bench.prompts.keep(run.path / PROMPTS, problems + bench.held_out)
    if run.latest_checkpoint() is None:
        display.begin("evaluation", 1)
        run.log(0, evaluate_and_record(bench, run, config, 0))
        run.checkpoint(0, lambda path: save_state(path / "state", {"fit": "none"}))
    return Offline(config, run, display, bench, problems, problems[-num_validation:])
