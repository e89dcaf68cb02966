"""Mathematics from your own data: answers in a box, judged by verifiers/math.py in killable processes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hardwon.data import Problem, Verdict
from hardwon.tasks.sources import Source
from hardwon.tasks.splits import HELD_OUT_FRACTION, RowWeights, load_splits
from hardwon.tasks.task import Task
from hardwon.verifiers.answers import gold_answer
from hardwon.verifiers.math import grade, parses
from hardwon.verifiers.worker_pool import WorkerPool, verdict

SURELY_PARSES = re.compile(r"-?\d{1,30}(\.\d{1,30})?|-?\\d?frac\{-?\d{1,9}\}\{\d{1,9}\}")
GOLD_SECONDS = 10.0

# The field's usual instruction, unless the prompt has its own. A prompt that ends with a colon already waits
# for its answer. The variables are those of hardwon/models/prompts.py.
PROMPT_TEMPLATE = r"""
{% set wanted = "the letter of the right choice" if multiple_choice else "your final answer" %}
{% set instruction %}
Please reason step by step, and put {{ wanted }} within \boxed{}.
{%- endset %}
{% if chat %}
{{ prompt }}{% if not asks_for_form %}{{ "\n\n" }}{{ instruction }}{% endif %}
{% elif asks_for_form and prompt.rstrip().endswith(":") %}
{{ prompt }}
{%- else %}
Question: {{ prompt }}{{ "\n" }}{% if not asks_for_form %}{{ instruction }}{{ "\n" }}{% endif %}Answer:
{%- endif %}
""".lstrip()


def load(
    data: Source,
    eval_data: Source | None = None,
    seed: int = 0,
    *,
    held_out_fraction: float = HELD_OUT_FRACTION,
    row_weights: RowWeights = "distinct",
    verifier_seconds: float = 5.0,
    verifier_workers: int | None = None,
) -> Task:
    """Problems of `data` (see tasks/splits.py). Without `eval_data` a fraction of the prompts is held out.

    A gold answer may be the answer itself, a worked solution with a box, or text that ends in "#### 42".
    `verifier_seconds` a check (ours), on `verifier_workers` processes (default: the machine's cores). The
    split depends on the prompts alone, so `seed` changes nothing. ValueError names bad rows.
    """
    splits = load_splits(
        data, eval_data, held_out_fraction=held_out_fraction, row_weights=row_weights, check=gold_faults
    )
    pool = WorkerPool(grade, seconds=verifier_seconds, num_workers=verifier_workers, sealed=True)

    def verify(pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        return [verdict(reply) for reply in pool.run([(problem.answer, text) for problem, text in pairs])]

    return Task(
        "math",
        lambda split: list(splits[split]),
        verify,
        gold_response,
        close=pool.close,
        prompt_template=PROMPT_TEMPLATE,
        notes=splits.notes,
    )


def gold_response(problem: Problem) -> str:
    return f"\\boxed{{{gold_answer(problem.answer)}}}"


def gold_faults(problems: Sequence[Problem]) -> list[str | None]:
    """What is wrong with each gold answer: one that doesn't read as mathematics could earn no reward."""
    faults: list[str | None] = [None] * len(problems)
    golds = [gold_answer(problem.answer) for problem in problems]
    doubtful = [index for index, gold in enumerate(golds) if not SURELY_PARSES.fullmatch(gold)]
    pool = WorkerPool(parses, seconds=GOLD_SECONDS, sealed=True)
    replies = pool.run([(problems[index].answer,) for index in doubtful])
    pool.close()
    for index, reply in zip(doubtful, replies, strict=True):
        if reply.value is not True:
            faults[index] = f"the gold answer {golds[index]!r:.100} can't be parsed"
    return faults
