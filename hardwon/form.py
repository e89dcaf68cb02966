r"""Form apart from reasoning: whether a response has an answer at all, in the form that the verifier reads.

A large part of what training gains is often form alone, and a model that never writes it learns nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardwon.data import Problem, Rollout

if TYPE_CHECKING:
    from hardwon.tasks import Task

SHOWN = 80  # characters of a right response in a message


def is_answered(rollout: Rollout) -> bool:
    return rollout.verdict.answer is not None


def is_boxed(rollout: Rollout) -> bool:
    return r"\boxed" in rollout.text


def no_answer_hint(task: Task, problem: Problem, num_answered: int, num_judged: int) -> str:
    """A sentence for when none of `num_judged` responses had an answer; empty otherwise.

    It is also empty where the verifier does not say what it reads as the answer, even of a right response.
    """
    if num_answered or not num_judged:
        return ""
    try:
        response = task.gold(problem)
        (verdict,) = task.verify([(problem, response)])
    except ValueError:  # some tasks know a right answer when they see one, but cannot write it
        example = ""
    else:
        if verdict.correct and verdict.answer is None:
            return ""
        shown = response if len(response) <= SHOWN else f"...{response[-SHOWN:]}"
        example = f" A right response is, for example, {shown!r}." if verdict.correct else ""
    return (
        f"No response of {num_judged} had an answer in the wanted form, the likely cause of a success rate "
        f"of 0.{example} Ask for this form in the prompt, or start from a model that writes it (sft)."
    )
