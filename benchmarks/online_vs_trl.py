"""hardwon's grpo beside TRL's GRPOTrainer: the same model, problems, group size, batch and lengths.

    python benchmarks/online_vs_trl.py                 # rollout tokens/s, iterations/s, peak memory
    python benchmarks/online_vs_trl.py --to-accuracy 0.7     # and seconds to a held-out mean@1

Each measurement is a process of its own, and the two take turns, so that a machine whose speed
drifts is fair to both. Evaluations are made by the same code and their time is taken out.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = {
    "kl_coef": 0.0,
    "iterations": 1000,
    "eval_every": 0,
    "warmup_iterations": 0,
    "max_grad_norm": 1.0,
    "weight_decay": 0.0,
}
WARM_UP = 3
CHECK_EVERY = 20


class Stopwatch:
    """Seconds of training, with everything between `pause` and `go` left out."""

    def __init__(self) -> None:
        self.total, self._since = 0.0, time.perf_counter()

    def pause(self) -> float:
        self.total += time.perf_counter() - self._since
        return self.total

    def go(self) -> None:
        self._since = time.perf_counter()


class Record:
    """What both sides write down: rollout tokens and seconds, iterations, and accuracy over time."""

    def __init__(self, iterations: int, target: float | None, accuracy: Any) -> None:
        self.iterations, self.target, self.accuracy = iterations, target, accuracy
        self.watch, self.done = Stopwatch(), 0
        self.tokens = self.rollout_seconds = 0.0
        self.timed_from = 0.0
        self.curve: list[tuple[float, float]] = []

    def iteration_ended(self, tokens: float, rollout_seconds: float) -> bool:
        """Count one iteration; True if that was the last one needed."""
        seconds = self.watch.pause()
        self.done += 1
        if self.done <= WARM_UP:
            self.timed_from = seconds
        else:
            self.tokens += tokens
            self.rollout_seconds += rollout_seconds
        reached = False
        if self.target is not None and self.done % CHECK_EVERY == 0:
            self.curve.append((seconds, self.accuracy()))
            reached = self.curve[-1][1] >= self.target
        self.watch.go()
        return reached or self.done >= self.iterations

    def result(self) -> dict[str, Any]:
        timed = self.watch.pause() - self.timed_from
        reached = [s for s, a in self.curve if self.target is not None and a >= self.target]
        return {
            "rollout_tokens_per_second": self.tokens / self.rollout_seconds,
            "iteration_seconds": timed / (self.done - WARM_UP),
            "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "seconds_to_target": reached[0] if reached else None,
            "last_accuracy": self.curve[-1][1] if self.curve else None,
        }


def open_bench(seed: int) -> tuple[Any, Any]:
    from hardwon.algorithms import resolve
    from hardwon.workbench import open_workbench

    config = resolve("grpo", {**SETTINGS, "seed": seed})
    return config, open_workbench(config)


def accuracy_of(bench: Any, config: Any) -> Any:
    from hardwon.evaluate import evaluate

    def accuracy() -> float:
        bench.generator.load_weights(bench.policy)
        result = evaluate(bench.sampler, bench.held_out, sampling=config.sampling, num_samples=1)
        return float(result.mean_at_k().value)

    return accuracy


def run_hardwon(seed: int, iterations: int, target: float | None) -> dict[str, Any]:
    from hardwon.algorithms.group_policy import iterate, prepare
    from hardwon.run import Run

    config, _ = open_bench(seed)
    with tempfile.TemporaryDirectory() as folder, Run.create(Path(folder) / "run", {}) as run:
        trainer, _ = prepare(config, run)
        record = Record(iterations, target, accuracy_of(trainer.bench, config))
        iteration = 0
        while True:
            iteration += 1
            metrics = iterate(trainer, run, iteration)
            if record.iteration_ended(metrics["tokens_sampled"], metrics["rollout_seconds"]):
                return record.result()


def run_trl(seed: int, iterations: int, target: float | None) -> dict[str, Any]:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    config, bench = open_bench(seed)
    responses = config.prompts_per_iteration * config.group_size
    problems = bench.train
    rows = [{"prompt": [{"role": "user", "content": p.prompt}], "number": i} for i, p in enumerate(problems)]

    def reward(completions: Any, number: list[int], **_: Any) -> list[float]:
        texts = [c[0]["content"] for c in completions]
        verdicts = bench.task.verify([(problems[i], t) for i, t in zip(number, texts, strict=True)])
        return [1.0 if v.correct else -1.0 for v in verdicts]

    record = Record(iterations, target, accuracy_of(bench, config))
    spent = {"tokens": 0.0, "seconds": 0.0}

    class Timed(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            start = time.perf_counter()
            out = super()._generate_and_score_completions(inputs)
            spent["seconds"] = time.perf_counter() - start
            spent["tokens"] = float(out["completion_mask"].sum())
            return out

    class Watch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = record.iteration_ended(spent["tokens"], spent["seconds"])

    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            seed=seed,
            per_device_train_batch_size=responses,
            num_generations=config.group_size,
            max_completion_length=config.max_new_tokens,
            temperature=config.temperature,
            beta=0.0,
            epsilon=config.clip_low,
            loss_type="grpo",
            learning_rate=config.learning_rate,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=config.max_grad_norm,
            max_steps=iterations,
            report_to="none",
            save_strategy="no",
            logging_steps=50,
            disable_tqdm=True,
            gradient_checkpointing=False,
        )
        model = bench.policy.causal_lm
        # TRL keeps dropout off as well; the shipped model has none.
        trainer = Timed(
            model=model,
            args=arguments,
            reward_funcs=reward,
            train_dataset=Dataset.from_list(rows),
            processing_class=bench.policy.tokenizer,
            callbacks=[Watch()],
        )
        record.watch = Stopwatch()
        trainer.train()
        return record.result()


def measure(side: str, seed: int, iterations: int, target: float | None) -> dict[str, Any]:
    """One side in a process of its own."""
    command = [sys.executable, __file__, "--side", side, "--seed", str(seed), "--iterations", str(iterations)]
    command += [] if target is None else ["--to-accuracy", str(target)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--side", choices=["hardwon", "trl"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=23)
    parser.add_argument("--to-accuracy", type=float)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.side:
        run = {"hardwon": run_hardwon, "trl": run_trl}[given.side]
        print(json.dumps(run(given.seed, given.iterations, given.to_accuracy)))
        return
    results: dict[str, list[dict[str, Any]]] = {"hardwon": [], "trl": []}
    for number in range(given.rounds):
        for side in results:
            results[side].append(measure(side, given.seed + number, given.iterations, given.to_accuracy))
            print(f"round {number + 1} {side:8} {results[side][-1]}", flush=True)
    report(results)


def report(results: dict[str, list[dict[str, Any]]]) -> None:
    print(f"\n{'median of rounds':28} {'hardwon':>12} {'trl':>12}   hardwon : trl (each round)")
    for name in results["hardwon"][0]:
        pairs = [
            (a[name], b[name])
            for a, b in zip(results["hardwon"], results["trl"], strict=True)
            if a[name] is not None and b[name] is not None
        ]
        if pairs:
            medians = [statistics.median(side) for side in zip(*pairs, strict=True)]
            ratios = ", ".join(f"{a / b:.2f}" for a, b in pairs)
            print(f"{name:28} {medians[0]:12.2f} {medians[1]:12.2f}   {ratios}")


if __name__ == "__main__":
    main()
