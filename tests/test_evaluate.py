"""Evaluation with a generator that plays a script: what is counted, stored, compared and refused."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hardwon.data import Problem, Sample, Sampling, Verdict
from hardwon.evaluate import (
    Evaluation,
    compare,
    compare_seeds,
    evaluate,
    evaluate_and_record,
    evaluation_metrics,
    final_answer,
    load_evaluation,
    stored_evaluations,
)
from hardwon.records import read_config
from hardwon.rollouts import Sampler
from hardwon.run import Run
from hardwon.tasks import Task

SAMPLED = Sampling(max_new_tokens=8)
GREEDY = Sampling(max_new_tokens=8, temperature=0.0)
PROBLEMS = [Problem("a", "1+1=", "2"), Problem("b", "2+2=", "4"), Problem("c", "3+3=", "6")]
# Responses of each problem, letters as tokens: "?" is what breaks the verifier.
SCRIPT = {"a": ["2", "2", "2", "2"], "b": ["4", "5", "5", "9"], "c": ["6", "?", "7", "7"]}


def verify(pairs):
    def judge(problem, text):
        if text == "?":
            return Verdict("error")
        return Verdict("correct" if text == problem.answer else "wrong")

    return [judge(problem, text) for problem, text in pairs]


def make_sampler(script=SCRIPT):
    """A sampler whose problem is its prompt's position, and whose responses come from the script."""

    def generate(requests, sampling):
        return [
            [
                Sample(np.array([ord(text), 0]), np.zeros(2, np.float32), finished=text != "9")
                for text in list(script.values())[request.prefix_ids[0]][: len(request.seeds)]
            ]
            for request in requests
        ]

    tokenizer = SimpleNamespace(
        decode=lambda ids, **_: "".join(chr(i) for i in ids if i), all_special_ids=[0], eos_token_id=0
    )
    task = Task("sums", problems=lambda split: PROBLEMS, verify=verify, gold=lambda problem: problem.answer)
    ids = [problem.id for problem in PROBLEMS]
    return Sampler(SimpleNamespace(generate=generate), task, tokenizer, lambda p: (ids.index(p.id),), seed=0)


def run_script(script=SCRIPT, problems=PROBLEMS):
    return evaluate(make_sampler(script), problems, sampling=SAMPLED, num_samples=4)


def test_counts_leave_verifier_errors_out():
    result = run_script()
    np.testing.assert_array_equal(result.num_correct_P, [4, 1, 1])
    np.testing.assert_array_equal(result.num_judged_P, [4, 4, 3])
    assert result.num_errors == 1 and result.num_samples == 4
    # (1 + 1/4 + 1/3) / 3
    assert result.mean_at_k().value == pytest.approx(19 / 36)
    assert result.mean_length() == 2.0 and result.frac_truncated() == pytest.approx(1 / 12)


def test_pass_and_majority_leave_out_problems_with_too_few_judged():
    result = run_script()
    # Problem c has 3 judged responses, so that k = 4 is decided by a and b.
    assert result.pass_at_k(4).value == 1.0 and result.pass_at_k(4).num_problems == 2
    # a is elected; in b "5" has two votes and the correct one has one.
    assert result.majority_at_k(4).value == 0.5
    # k = 1 is the mean, by any name.
    assert result.pass_at_k(1).value == pytest.approx(19 / 36)
    assert result.majority_at_k(1).value == pytest.approx(19 / 36)


def test_an_evaluation_survives_json(tmp_path):
    result = run_script()
    file = tmp_path / "evaluation.json"
    file.write_text(json.dumps(result.to_dict()))
    assert load_evaluation(file) == result
    file.write_text('{"task": "sums"}')
    with pytest.raises(ValueError, match=f"{file} is not an evaluation"):
        load_evaluation(file)


def test_greedy_has_one_response():
    assert evaluate(make_sampler(), PROBLEMS, sampling=GREEDY, num_samples=1).num_samples == 1
    with pytest.raises(ValueError, match="4 samples at temperature 0 would all be the same"):
        evaluate(make_sampler(), PROBLEMS, sampling=GREEDY, num_samples=4)
    with pytest.raises(ValueError, match="nothing to evaluate on"):
        evaluate(make_sampler(), [], sampling=GREEDY, num_samples=1)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{6} wait \boxed{7}", "7"),
        (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        ("1+2=3\n=3.\n\n", "=3."),
        (r"cut short \boxed{\frac{1", r"cut short \boxed{\frac{1"),
        ("", ""),
        ("  \n ", ""),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


def test_final_answer_of_megabytes_is_short_and_quick():
    assert len(final_answer("x" * 5_000_000)) == 200
    assert len(final_answer(r"\boxed{" + "{" * 5_000_000)) <= 200


def test_metrics_of_training_and_what_is_stored(tmp_path):
    bench = SimpleNamespace(sampler=make_sampler(), held_out=PROBLEMS)
    config = SimpleNamespace(sampling=SAMPLED, eval_samples=4)
    with Run.create(tmp_path / "run", {"seed": 0}) as run:
        metrics = evaluate_and_record(bench, run, config, 7)
    assert metrics["eval/mean@1"] == pytest.approx(19 / 36)
    assert metrics["eval/mean@1_low"] < metrics["eval/mean@1"] < metrics["eval/mean@1_high"]
    assert metrics["eval/greedy"] == 1.0 and metrics["eval/greedy_low"] < 1
    assert metrics["eval/pass@4"] == 1.0 and metrics["eval/errors"] == 1
    stored = stored_evaluations(tmp_path / "run", "greedy")
    assert list(stored) == [7] and load_evaluation(stored[7]).sampling == GREEDY
    assert read_config(tmp_path / "run") == {"seed": 0}


def test_metrics_when_the_verifier_never_answers():
    broken = run_script({"a": ["?"] * 4, "b": ["?"] * 4, "c": ["?"] * 4})
    metrics = evaluation_metrics(broken, broken)
    assert np.isnan(metrics["eval/mean@1"]) and metrics["eval/errors"] == 24


def test_comparison_is_paired():
    better = {"a": ["2"] * 4, "b": ["4", "4", "5", "5"], "c": ["6", "6", "6", "7"]}
    result = compare(run_script(), run_script(better))
    # Differences: 0, 2/4 - 1/4, 3/4 - 1/3.
    assert result.difference == pytest.approx((0 + 1 / 4 + 5 / 12) / 3)
    # Two problems differ, both upwards: 2 of the 4 sign patterns are as extreme.
    assert result.p_value == 0.5
    seeds = compare_seeds([run_script(), run_script()], [run_script(better)] * 2)
    assert seeds.difference == pytest.approx(result.difference)
    assert compare_seeds([run_script()], [run_script(better)]) == result


def test_comparison_refuses_what_is_not_alike():
    result = run_script()
    with pytest.raises(ValueError, match=r"different problems \(3 and 2\): c is in one only"):
        compare(result, run_script(problems=PROBLEMS[:2]))
    with pytest.raises(ValueError, match="their order differs"):
        compare(result, run_script(problems=PROBLEMS[::-1]))
    changed = [replace(PROBLEMS[0], answer="3"), *PROBLEMS[1:]]
    with pytest.raises(ValueError, match="same ids but other prompts or answers"):
        compare(result, run_script(problems=changed))
    with pytest.raises(ValueError, match="different tasks: sums and products"):
        compare(result, replace(result, task="products"))
    with pytest.raises(ValueError, match="greedy and the other sampled"):
        compare(result, replace(result, sampling=GREEDY))


def test_summary_has_powers_of_two_and_the_number_of_samples():
    def names(k, outcome="wrong"):
        row = ((outcome,) * k,)
        return list(
            Evaluation("t", SAMPLED, 0, ("a",), "", row, (("",) * k,), ((1,),), ((False,),)).summary()
        )

    assert names(1) == ["mean@1"]
    assert names(6) == ["mean@1", "pass@2", "pass@4", "majority@4", "pass@6", "majority@6"]
    assert names(8)[-2:] == ["pass@8", "majority@8"] and len(names(8)) == 6
    # No response could be judged.
    assert names(4, "error") == ["mean@1"]


def test_an_evaluation_of_a_mixture_has_one_for_each_source():
    """Problem a is of one source, b and c of another: 1, and the mean of 1/4 and 1/3."""
    sources = ["x", "y", "y"]
    problems = [replace(p, source=s) for p, s in zip(PROBLEMS, sources, strict=True)]
    result = run_script(problems=problems)
    parts = Evaluation.from_dict(json.loads(json.dumps(result.to_dict()))).by_source()
    assert {name: part.problem_ids for name, part in parts.items()} == {"x": ("a",), "y": ("b", "c")}
    assert parts["x"].mean_at_k().value == 1 and parts["y"].mean_at_k().value == pytest.approx(7 / 24)
    metrics = evaluation_metrics(result, result)
    assert metrics["eval/x/mean@1"] == 1 and metrics["eval/y/mean@1"] == pytest.approx(7 / 24)
    assert run_script().by_source() == {}
