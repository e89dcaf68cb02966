"""Evaluation with a generator that plays a script: what is counted, stored, compared and refused."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hardwon.config import build
from hardwon.data import Problem, Sample, Sampling, Verdict
from hardwon.evaluate import (
    Evaluation,
    compare,
    compare_seeds,
    evaluate,
    evaluate_and_record,
    evaluate_both,
    evaluation_metrics,
    load_evaluation,
    stored_evaluations,
)
from hardwon.records import read_config
from hardwon.rollouts import Sampler
from hardwon.run import Run
from hardwon.tasks import Task
from hardwon.workbench import SharedSettings

SAMPLED = Sampling(max_new_tokens=8)
GREEDY = Sampling(max_new_tokens=8, temperature=0.0)
PROBLEMS = [Problem("a", "1+1=", "2"), Problem("b", "2+2=", "4"), Problem("c", "3+3=", "6")]
# Responses of each problem, letters as tokens: "?" is what breaks the verifier.
SCRIPT = {"a": ["2", "2", "2", "2"], "b": ["4", "5", "5", "9"], "c": ["6", "?", "7", "7"]}


def verify(pairs):
    def judge(problem, text):
        if text == "?":
            return Verdict("error")
        return Verdict("correct" if text == problem.answer else "wrong", answer=text)

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


def test_responses_vote_by_the_answer_that_the_verifier_read():
    def majority(read_as):
        def verify_as(pairs):
            answers = [read_as.get(text, text) for _, text in pairs]
            return [replace(v, answer=a) for v, a in zip(verify(pairs), answers, strict=True)]

        sampler = make_sampler({"a": [], "b": ["4", "4", "5", "9", "8"]})
        sampler = replace(sampler, task=replace(sampler.task, verify=verify_as))
        return evaluate(sampler, [PROBLEMS[1]], sampling=SAMPLED, num_samples=5).majority_at_k(5).value

    assert majority({}) == 1.0  # two votes for 4, one for each of the others
    assert majority({"9": "5", "8": "5"}) == 0.0  # three ways to write one wrong answer outvote it
    assert majority(dict.fromkeys("4598")) == 0.0  # no answer, no vote, also of a right response


def test_metrics_of_training_and_what_is_stored(tmp_path):
    bench = SimpleNamespace(sampler=make_sampler(), held_out=PROBLEMS)
    config = SimpleNamespace(eval_sampling=SAMPLED, eval_samples=4)
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
    # With two more of plus and minus sqrt((1/16 + 25/144) / 2): mean 2/15 and variance 0.0958 over five,
    # so t = 0.1333 / sqrt(0.0958 / 5) = 0.963, which 4 degrees of freedom exceed with probability 0.39.
    assert result.p_value == pytest.approx(0.390, abs=1e-3)
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
    cooler = replace(result, sampling=replace(SAMPLED, temperature=0.6, stop=("Q:",)))
    with pytest.raises(ValueError, match=r"differently \(temperature 1.0 and 0.6, stop \(\) and \('Q:',\)\)"):
        compare(result, cooler)
    with pytest.raises(ValueError, match=r"sampled differently.*--allow-different-sampling"):
        compare_seeds([result, result], [result, cooler])


def test_comparison_of_what_sampled_differently_can_be_allowed(tmp_path, capsys, monkeypatch):
    from hardwon.cli import main

    result = run_script()
    other = replace(result, sampling=replace(SAMPLED, top_p=0.7))
    assert compare(result, other, allow_different_sampling=True) == compare(result, result)
    pairs = compare_seeds([result] * 2, [other] * 2, allow_different_sampling=True)
    assert pairs.difference == 0
    files = [tmp_path / name for name in ("a.json", "b.json")]
    for file, stored in zip(files, (result, other), strict=True):
        file.write_text(json.dumps(stored.to_dict()))
    monkeypatch.setattr("sys.argv", ["hardwon", "compare", *map(str, files)])
    with pytest.raises(SystemExit):
        main()
    assert "--allow-different-sampling" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["hardwon", "compare", *map(str, files), "--allow-different-sampling"])
    with pytest.raises(SystemExit) as exit_info:
        main()
    said = " ".join(capsys.readouterr().out.split())
    assert exit_info.value.code == 0 and "sampled differently: top_p 1.0 and 0.7" in said


def test_evaluation_samples_as_training_where_nothing_else_is_said():
    training = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "max_new_tokens": 300, "stop": ["Q:"]}
    assert build(SharedSettings, training).eval_sampling == Sampling(300, 0.9, 0.95, 50, ("Q:",))
    changed = {"eval_temperature": 0.6, "eval_top_p": 0.7, "eval_top_k": 0, "eval_max_new_tokens": 400}
    config = build(SharedSettings, training, changed)
    assert config.sampling == Sampling(300, 0.9, 0.95, 50, ("Q:",))
    assert config.eval_sampling == Sampling(400, 0.6, 0.7, 0, ("Q:",))
    assert (config.longest_response, build(SharedSettings, training).longest_response) == (400, 300)
    with pytest.raises(ValueError, match="eval_temperature"):  # the greedy evaluation is made anyway
        build(SharedSettings, {"eval_temperature": 0})
    with pytest.raises(ValueError, match=r"stop\.0"):
        build(SharedSettings, {"stop": [""]})


def test_both_evaluations_have_the_settings_of_evaluation():
    """Greedy takes the longest response and the stop strings; a filter would change nothing there."""
    sampling = Sampling(9, temperature=0.6, top_p=0.7, top_k=3, stop=("Q:",))
    config = SimpleNamespace(eval_sampling=sampling, eval_samples=4)
    found = evaluate_both(SimpleNamespace(sampler=make_sampler(), held_out=PROBLEMS), config)
    assert found["sampled"].sampling == sampling
    assert found["greedy"].sampling == Sampling(9, temperature=0.0, stop=("Q:",))


def test_summary_has_powers_of_two_and_the_number_of_samples():
    def names(k, outcome="wrong"):
        row, flags = ((outcome,) * k,), ((False,) * k,)
        found = Evaluation("t", SAMPLED, 0, ("a",), "", row, (("",) * k,), ((1,) * k,), flags, flags, flags)
        return list(found.summary())

    assert names(1) == ["mean@1"]
    assert names(6) == ["mean@1", "pass@2", "pass@4", "majority@4", "pass@6", "majority@6"]
    assert names(8)[-2:] == ["pass@8", "majority@8"] and len(names(8)) == 6
    # A verifier that does not say what the answer of a right response is leaves nothing to vote for.
    assert names(4, "correct") == ["mean@1", "pass@2", "pass@4"]
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
