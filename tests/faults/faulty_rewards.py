"""Users' reward functions that fail in every way, on some responses: workers import this module by name."""

import os
import time


def fault_of(text):
    """One in eight responses, by its length and first digit, so that it is the same in every run."""
    return (len(text) + sum(map(ord, text[:4]))) % 8 == 0


def right(solution_str, ground_truth):
    return float(solution_str.endswith(f"={ground_truth}."))


def hangs(data_source, solution_str, ground_truth, extra_info):
    if fault_of(solution_str):
        time.sleep(1000)
    return right(solution_str, ground_truth)


def crashes(data_source, solution_str, ground_truth, extra_info):
    if fault_of(solution_str):
        os._exit(11)
    return right(solution_str, ground_truth)


def raises(data_source, solution_str, ground_truth, extra_info):
    if fault_of(solution_str):
        raise KeyError(solution_str)
    return right(solution_str, ground_truth)


def garbage(data_source, solution_str, ground_truth, extra_info):
    if fault_of(solution_str):
        odd = [float("nan"), float("inf"), "yes", {}, {"score": "high"}, [1, 2], object(), b"1"]
        return odd[len(solution_str) % len(odd)]
    return right(solution_str, ground_truth)


def wrong_number(prompts, completions, **columns):
    return [1.0]


def leaks(data_source, solution_str, ground_truth, extra_info, kept=[]):  # noqa: B006 - the leak
    kept.append(bytearray(1 << 20))
    return right(solution_str, ground_truth)


def prints(data_source, solution_str, ground_truth, extra_info):
    print('["done", [{"correct": true, "score": 1.0}]]', flush=True)
    os.write(1, b'["done", [{"correct": true, "score": 1.0}]]\n')
    return right(solution_str, ground_truth)
