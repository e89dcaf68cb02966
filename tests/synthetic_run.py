"""A run directory as training leaves it, made up: for the tests of what reads it."""

import math

import numpy as np

from hardwon.data import Group, Problem, Rollout, Sample, Sampling, State, Verdict
from hardwon.evaluate import evaluation_of
from hardwon.run import Run

SAMPLING = Sampling(max_new_tokens=40)
GREEDY = Sampling(max_new_tokens=40, temperature=0.0)


def make_run(path, *, iterations=60, groups=16, group_size=8, gain=0.4, seed=0, name="da3po", text=None):
    """A run whose success rate rises by `gain`; `text(problem, correct)` makes the responses."""
    rng = np.random.default_rng(seed)
    config = {
        "algorithm": name,
        "model": "embedded",
        "task": "chain_arithmetic",
        "iterations": iterations,
        "group_size": group_size,
        "learning_rate": 2e-4 * (1 + seed),
    }
    text = text or write_response
    with Run.create(path, config) as run:
        record_evaluation(run, rng, 0, 0.35, text)
        for iteration in range(1, iterations + 1):
            level = 0.35 + gain * (1 - math.exp(-3 * iteration / iterations))
            batch = [make_group(rng, level, group_size, iteration, text) for _ in range(groups)]
            record_iteration(run, rng, iteration, batch)
            if iteration % 15 == 0 or iteration == iterations:
                record_evaluation(run, rng, iteration, level, text)
    return path


def write_response(problem, correct):
    return f"3-7=-4\n{'=1.' if correct else '=3.'}"


def make_group(rng, level, group_size, iteration, text, problem=None):
    problem = problem or Problem(f"chain/{rng.integers(10**6)}", "3-7+5", "1")
    rate = rng.beta(1.2 * level, 1.2 * (1 - level))
    rollouts = []
    for _ in range(group_size):
        correct = bool(rng.random() < rate)
        length = int(rng.integers(4, 20))
        sample = Sample(np.full(length, 5), np.full(length, -0.1, np.float32), bool(rng.random() < 0.95))
        verdict = Verdict("correct", answer="1") if correct else Verdict("wrong", answer="3")
        rollouts.append(Rollout(sample, text(problem, correct), verdict, 1.0 if correct else -1.0))
    return Group(State(problem), (1, 2), tuple(rollouts), iteration)


def record_iteration(run, rng, iteration, batch):
    rates = np.array([group.success_rate for group in batch])
    kept = (rates > 0) & (rates < 1)
    correct = np.array([[r.verdict.correct for r in group.rollouts] for group in batch])
    spread = np.sqrt(rates * (1 - rates))[:, None]
    advantages = np.where(kept[:, None], (correct - rates[:, None]) / np.maximum(spread, 1e-6), np.nan)
    run.save_rollouts(iteration, batch, advantages, trained=kept[:, None])
    noise = rng.normal(0, 1, 8)
    metrics = {
        "reward": 2 * rates.mean() - 1,
        "reward_std": 0.9,
        "success_rate": rates.mean(),
        "frac_reward_zero_std": 1 - kept.mean(),
        "entropy": 0.45 * math.exp(-iteration / 80) + 0.01 * noise[0],
        "kl": 0.001 * iteration + 0.001 * noise[1],
        "completions/mean_length": 10 + iteration / 20 + noise[2],
        "completions/max_length": 19,
        "completions/clipped_ratio": 0.05,
        "clip_ratio/low_mean": abs(0.002 * noise[3]),
        "clip_ratio/high_mean": abs(0.004 * noise[4]),
        "grad_norm": math.exp(0.3 * noise[5]),
        "dynamic_sampling/rounds": 2,
        "dynamic_sampling/kept": kept.sum(),
        "dynamic_sampling/dropped": (~kept).sum(),
        "dynamic_sampling/all_correct": (rates == 1).sum(),
        "dynamic_sampling/all_wrong": (rates == 0).sum(),
        "dynamic_sampling/carried": rng.integers(0, 3),
        "dynamic_sampling/accept_rate": kept.mean(),
        "dynamic_sampling/wasted_tokens": 900,
        "tokens_per_second": 9000 + 300 * noise[6],
        "iteration_seconds": 0.4 + 0.02 * noise[7],
        "rollout_seconds": 0.25,
        "update_seconds": 0.12,
        "verifier/errors": 0,
    }
    run.log(iteration, {key: float(value) for key, value in metrics.items()})


def record_evaluation(run, rng, iteration, level, text, problems=100):
    fixed = [Problem(f"test/{i}", f"{i}+1-2", str(i - 1)) for i in range(problems)]
    for kind, sampling, size, extra in (("sampled", SAMPLING, 4, 0.0), ("greedy", GREEDY, 1, 0.15)):
        batch = [make_group(rng, min(0.98, level + extra), size, iteration, text, p) for p in fixed]
        result = evaluation_of(batch, task="chain_arithmetic", sampling=sampling, seed=0)
        run.save_evaluation(iteration, kind, result.to_dict())
