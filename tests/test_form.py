"""Form apart from reasoning: what is counted, and what a run says when no response has an answer."""

import json
from dataclasses import replace

import numpy as np
import pytest

from hardwon.data import Group, Problem, Rollout, Sample, Sampling, State, Verdict
from hardwon.evaluate import Evaluation, evaluation_metrics, evaluation_of
from hardwon.form import no_answer_hint
from hardwon.tasks import Task

PROBLEM = Problem("p", "1+1", "2")


def rollout(text, verdict, finished=True):
    return Rollout(Sample(np.array([5]), np.zeros(1, np.float32), finished), text, verdict, 0.0)


RIGHT = rollout(r"\boxed{2}", Verdict("correct", answer="2"))
WRONG = rollout(r"\boxed{3}", Verdict("wrong", answer="3"))
UNBOXED = rollout("Answer: 3", Verdict("wrong", answer="3"))
SILENT = rollout("I think", Verdict("wrong"))
CUT = rollout(r"so \boxed{", Verdict("wrong"), finished=False)
BROKEN = rollout(r"\boxed{2}", Verdict("error", answer="2"), finished=False)


def evaluation(*problems):
    groups = [
        Group(State(replace(PROBLEM, id=str(i))), (1,), tuple(rollouts), 0)
        for i, rollouts in enumerate(problems)
    ]
    return evaluation_of(groups, task="t", sampling=Sampling(8, stop=("Q:",)), seed=0)


MIXED = evaluation([RIGHT, WRONG, SILENT, CUT], [RIGHT, RIGHT, UNBOXED, BROKEN], [SILENT, SILENT, CUT, CUT])


def test_form_is_counted_over_what_was_judged():
    values = MIXED.form_values()
    np.testing.assert_allclose(values["answered"], [2 / 4, 3 / 3, 0])
    np.testing.assert_allclose(values["boxed"], [3 / 4, 2 / 3, 2 / 4])  # an open box is one too
    np.testing.assert_allclose(values["truncated"], [1 / 4, 0, 2 / 4])
    form = MIXED.form()
    assert form["answered"].value == pytest.approx((2 / 4 + 1 + 0) / 3)
    # Of 5 responses with an answer 3 are right; the third problem has none and says nothing.
    assert form["accuracy_if_answered"].value == pytest.approx(3 / 5)
    assert form["accuracy_if_answered"].num_problems == 2
    assert all(e.low < e.value < e.high for e in form.values())


def test_accuracy_is_form_times_reasoning():
    """With equally many judged responses each: mean@1 = answered x accuracy_if_answered, 2/8 = 4/8 x 2/4."""
    result = evaluation([RIGHT, WRONG, SILENT, CUT], [RIGHT, UNBOXED, SILENT, SILENT])
    form = result.form()
    assert form["answered"].value * form["accuracy_if_answered"].value == pytest.approx(
        result.mean_at_k().value
    )


def test_where_the_verifier_names_no_answers_their_share_is_not_known():
    """A correct response without an answer gives it away: a share of answers would be the accuracy again."""
    unnamed = evaluation([rollout("yes", Verdict("correct")), SILENT])
    assert set(unnamed.form()) == {"boxed", "truncated"} and "answered" not in unnamed.form_values()
    metrics = evaluation_metrics(unnamed, unnamed)
    assert "eval/frac_answered" not in metrics and metrics["eval/frac_boxed"] == 0


def test_metrics_have_it_with_intervals():
    metrics = evaluation_metrics(MIXED, MIXED)
    assert metrics["eval/frac_answered"] == pytest.approx(0.5)
    assert metrics["eval/accuracy_if_answered"] == pytest.approx(0.6)
    for name in ("frac_answered", "frac_boxed", "accuracy_if_answered"):
        assert metrics[f"eval/{name}_low"] < metrics[f"eval/{name}"] < metrics[f"eval/{name}_high"]
    nothing = evaluation([SILENT, SILENT], [BROKEN, BROKEN])
    assert np.isnan(evaluation_metrics(nothing, nothing)["eval/accuracy_if_answered"])


def test_it_survives_json_with_the_stop_strings():
    again = Evaluation.from_dict(json.loads(json.dumps(MIXED.to_dict())))
    assert again == MIXED and again.sampling.stop == ("Q:",)


# What a run says


def task(gold, verdict):
    return Task("t", problems=lambda split: [], verify=lambda pairs: [verdict for _ in pairs], gold=gold)


def test_a_run_without_any_answer_says_what_one_looks_like():
    wanted = task(lambda problem: r"so \boxed{2}", Verdict("correct", answer="2"))
    hint = no_answer_hint(wanted, PROBLEM, 0, 640)
    assert "No response of 640 had an answer in the wanted form" in hint and r"'so \\boxed{2}'" in hint
    assert no_answer_hint(wanted, PROBLEM, 1, 640) == ""
    assert no_answer_hint(wanted, PROBLEM, 0, 0) == ""  # all carried: nothing was sampled


def test_a_verifier_that_never_names_an_answer_is_not_taken_at_its_word():
    assert no_answer_hint(task(lambda problem: "2", Verdict("correct")), PROBLEM, 0, 640) == ""


def test_without_a_right_response_to_show_there_is_no_example():
    def cannot(problem):
        raise ValueError("this data set has no gold responses")

    hint = no_answer_hint(task(cannot, Verdict("wrong")), PROBLEM, 0, 9)
    assert "No response of 9" in hint and "for example" not in hint


def test_a_long_response_is_shown_by_its_end():
    long = task(lambda problem: "x" * 500 + "=2.", Verdict("correct", answer="2"))
    hint = no_answer_hint(long, PROBLEM, 0, 9)
    assert "x=2.'" in hint and len(hint) < 350
