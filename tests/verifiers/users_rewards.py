"""Reward functions as users of TRL and verl write them, unchanged; workers import this module by name."""

import asyncio
import os
import time


def trl_accuracy(prompts, completions, completion_ids=None, answer=None, **kwargs):
    return [1.0 if a in text(c) else 0.0 for c, a in zip(completions, answer, strict=True)]


async def trl_async(prompts, completions, answer, **kwargs):
    await asyncio.sleep(0)
    return [float(a in text(c)) for c, a in zip(completions, answer, strict=True)]


def trl_length(completions, **kwargs):
    return [len(text(c)) / 10 for c in completions]


def trl_ids(prompts, completions, completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def trl_level(prompts, completions, level, log_metric=None, **kwargs):
    log_metric("level", sum(level))
    return [float(x) for x in level]


def trl_conversational(prompts, completions, **kwargs):
    assert prompts[0][-1]["role"] == "user"
    return [float(c[0]["role"] == "assistant" and c[0]["content"] == "yes") for c in completions]


def trl_sometimes_none(completions, **kwargs):
    return [None if text(c) == "none" else float("nan") if text(c) == "nan" else 1.0 for c in completions]


def trl_too_few(completions, **kwargs):
    return [1.0]


def trl_fragile(completions, **kwargs):
    """One bad response spoils the batch."""
    for completion in completions:
        if text(completion) == "raise":
            raise KeyError("no such thing")
        if text(completion) == "crash":
            os._exit(9)
        if text(completion) == "hang":
            time.sleep(1000)
    return [1.0] * len(completions)


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if solution_str == "hang":
        time.sleep(1000)
    return 1.0 if data_source == "mine" and solution_str.endswith(ground_truth) else 0.0


def compute_score_with_acc(data_source, solution_str, ground_truth, extra_info):
    """DAPO's in verl: reward +1 or -1, and raw accuracy beside it."""
    right = solution_str.endswith(ground_truth)
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": solution_str}


def shaped(data_source, solution_str, ground_truth, extra_info):
    """Correct, and the reward is below the threshold; wrong, and it is above."""
    right = solution_str.endswith(ground_truth)
    return {"score": 0.2 if right else 1.5, "acc": right}


def unlike_any(text, gold):
    return 1.0


def text(completion):
    return completion if isinstance(completion, str) else completion[0]["content"]
