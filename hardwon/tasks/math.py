"""Mathematics from your own data: answers in a box, judged by verifiers/math.py in killable processes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hardwon.data import Problem, Verdict
from hardwon.tasks.custom import answer_itself
from hardwon.tasks.layouts.answers import gold_texts
from hardwon.tasks.layouts.reader import Reader, math_problem, reward_problem
from hardwon.tasks.sources import Source
from hardwon.tasks.splits import HELD_OUT_FRACTION, RowWeights, load_splits
from hardwon.tasks.task import Task
from hardwon.verifiers.math import grade, parses
from hardwon.verifiers.worker_pool import WorkerPool, verdict

SURELY_PARSES = re.compile(r"[A-Z]|-?\d{1,30}(\.\d{1,30})?|-?\\d?frac\{-?\d{1,9}\}\{\d{1,9}\}")
GOLD_SECONDS = 10.0
BEST_FIRST = ("correct", "timeout", "error", "wrong")

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
    columns: Mapping[str, str] | None = None,
    row_function: str | None = None,
    any_answer: bool = False,
    verifier_seconds: float = 5.0,
    verifier_workers: int | None = None,
) -> Task:
    """Problems of `data` (see layouts/). Without `eval_data` a fraction of the prompts is held out.

    A gold answer may be the answer itself, several of which any is right, a worked solution with a box, or
    text that ends in "#### 42". `columns` and `row_function` are for rows of no known layout
    (docs/layouts.md). `any_answer` takes answers unchecked, for a reward function that judges instead.
    `verifier_seconds` per check (ours), on `verifier_workers` processes (default: the machine's cores). The
    split depends on the prompts alone, so `seed` changes nothing. ValueError names bad rows.
    """
    reader = Reader(reward_problem if any_answer else math_problem, columns, row_function)
    check = None if any_answer else gold_faults
    splits = load_splits(
        data,
        eval_data,
        held_out_fraction=held_out_fraction,
        row_weights=row_weights,
        convert=reader,
        check=check,
    )
    pool = WorkerPool(grade, seconds=verifier_seconds, num_workers=verifier_workers, sealed=True)

    def verify(pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        golds = [gold_texts(problem.answer) for problem, _ in pairs]
        calls = [(gold, text) for (_, text), texts in zip(pairs, golds, strict=True) for gold in texts]
        verdicts = iter([verdict(reply) for reply in pool.run(calls)])
        return [best([next(verdicts) for _ in texts]) for texts in golds]

    several = sum(len(gold_texts(p.answer)) > 1 for p in splits["train"] + splits["test"]) if check else 0
    notes = (f"{several:,} problems have several right answers, any of which will do",) if several else ()
    return Task(
        "math",
        lambda split: list(splits[split]),
        verify,
        gold_response,
        close=pool.close,
        prompt_template=PROMPT_TEMPLATE,
        notes=(*reader.notes, *notes, *splits.notes),
    )


def best(verdicts: Sequence[Verdict]) -> Verdict:
    """Of a response against each of several right answers."""
    return min(verdicts, key=lambda found: BEST_FIRST.index(found.outcome))


def gold_response(problem: Problem) -> str:
    try:
        return f"\\boxed{{{gold_texts(problem.answer)[0]}}}"
    except ValueError:
        return answer_itself(problem)


def gold_faults(problems: Sequence[Problem]) -> list[str | None]:
    """What is wrong with each gold answer: one that doesn't read as mathematics could earn no reward."""
    faults: list[str | None] = [None] * len(problems)
    golds = [(index, gold) for index, problem in enumerate(problems) for gold in gold_texts(problem.answer)]
    doubtful = [(index, gold) for index, gold in golds if not SURELY_PARSES.fullmatch(gold)]
    pool = WorkerPool(parses, seconds=GOLD_SECONDS, sealed=True)
    replies = pool.run([(gold,) for _, gold in doubtful])
    pool.close()
    for (index, gold), reply in zip(doubtful, replies, strict=True):
        if reply.value is not True:
            faults[index] = f"the gold answer {gold!r:.100} can't be parsed"
    return faults
