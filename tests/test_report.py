"""The report page and its plots, from made-up run directories."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from synthetic_run import GREEDY, SAMPLING, make_group, make_run, write_response

from hardwon import plots
from hardwon.data import Verdict
from hardwon.evaluate import evaluation_of
from hardwon.report import (
    before_after,
    changes,
    examples,
    form_before_after,
    form_changes,
    load_run,
    metric_columns,
    run_names,
    settings_table,
    success_rates,
    write_report,
)
from hardwon.run import Run

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e]]>&lt;"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    hostile = make_run(folder / "a$b", iterations=30, text=lambda problem, correct: HOSTILE)
    return [hostile, make_run(folder / "other", iterations=20, seed=1, name="dapo")]


@pytest.fixture(scope="module")
def page(runs):
    return write_report(runs[:1]).read_text()


def test_the_page_needs_nothing_else_and_runs_nothing(page):
    assert page.startswith("<!doctype html>") and page.rstrip().endswith("</html>")
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]+"', page)
    assert "<script" not in page and "default-src 'none'" in page


def test_model_text_is_escaped_and_its_control_characters_named(page):
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&lt;U+001B&gt;[2J&lt;U+202E&gt;]]&gt;&amp;lt;" in page
    assert "\x1b" not in page and "\u202e" not in page


def test_plots_are_in_the_page_and_beside_it(page, runs):
    names = {path.stem for path in (runs[0] / "plots").glob("*.png")}
    assert {"held_out", "success_histogram", "groups", "reward", "success_rate", "entropy", "lengths"} < names
    assert {"clip_fractions", "grad_norm", "throughput"} < names
    figures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(figures) == len(names)
    for figure in figures:
        ElementTree.fromstring(figure)
        # Colours follow the page's theme.
        assert "var(--ink)" in figure and plots.INK not in figure
    for number, figure in enumerate(figures):
        others = "".join(figures[:number] + figures[number + 1 :])
        used = set(re.findall(r"url\(#([^)]+)\)", figure))
        assert not any(f'<clipPath id="{name}"' in others for name in used)


def test_before_and_after_are_compared_over_the_same_problems(runs, page):
    rows = {row.measure: row for row in changes(load_run(runs[0]))}
    assert list(rows) == ["mean@1", "pass@2", "pass@4", "majority@4", "greedy"]
    mean = rows["mean@1"]
    assert mean.comparison.difference == pytest.approx(mean.after.value - mean.before.value)
    assert mean.comparison.low > 0 and mean.comparison.p_value < 0.01
    assert f"{100 * mean.after.value:.1f} %" in page
    out = StringIO()
    Console(file=out, width=80).print(before_after(runs[0]))
    text = out.getvalue()
    assert f"{100 * mean.before.value:.1f} [" in text and "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_form_is_told_apart_from_reasoning(tmp_path):
    """At first 1 response of 4 has an answer, always right; at last all have one, and half are right."""
    answered = Verdict("correct", answer="1"), Verdict("wrong", answer="3"), Verdict("wrong")
    verdicts = {0: [0, 2, 2, 2], 10: [0, 0, 1, 1]}
    with Run.create(tmp_path / "run", {"algorithm": "da3po"}) as run:
        for iteration, chosen in verdicts.items():
            groups = [make_group(np.random.default_rng(i), 0.5, 4, 0, write_response) for i in range(20)]
            groups = [
                replace(
                    g,
                    rollouts=tuple(
                        replace(r, verdict=answered[v]) for r, v in zip(g.rollouts, chosen, strict=True)
                    ),
                )
                for g in groups
            ]
            result = evaluation_of(groups, task="t", sampling=SAMPLING, seed=0)
            run.save_evaluation(iteration, "sampled", result.to_dict())
    rows = {row.measure: row for row in form_changes(load_run(tmp_path / "run"))}
    assert list(rows) == ["answered", "boxed", "cut off", "if answered"]
    assert (rows["answered"].before.value, rows["answered"].after.value) == (0.25, 1.0)
    assert rows["answered"].comparison.difference == 0.75
    assert (rows["if answered"].before.value, rows["if answered"].after.value) == (1.0, 0.5)
    assert rows["if answered"].comparison is None  # of other responses, and so not paired
    page = write_report([tmp_path / "run"]).read_text()
    assert "Form of the sampled responses" in page and "+75.0 points" in page
    out = StringIO()
    Console(file=out, width=80).print(form_before_after(tmp_path / "run"))
    assert "25.0 [" in out.getvalue() and "+75.0 [" in out.getvalue() and "…" not in out.getvalue()


def test_several_runs_are_laid_over_one_another(runs, tmp_path):
    target = write_report(runs, tmp_path / "both.html")
    page = target.read_text()
    assert "a$b" in page and "other: upper bound" in page
    differing = re.findall(r'<tr class="differs"><td>(\w+)</td>', page)
    assert set(differing) == {"algorithm", "iterations", "learning_rate"}
    assert (tmp_path / "both-plots/reward.png").stat().st_size > 10_000


def test_a_run_that_has_barely_begun_has_a_page(tmp_path):
    Run.create(tmp_path / "new", {"algorithm": "da3po"}).close()
    assert "0 iterations" in write_report([tmp_path / "new"]).read_text()
    assert changes(load_run(tmp_path / "new")) == []
    with pytest.raises(ValueError, match="not a run directory"):
        write_report([tmp_path])


def test_examples_are_right_and_wrong_of_hard_and_easy_prompts(runs):
    shown = examples(runs[1])
    assert [e.title for e in shown] == [
        f"{when} iteration, {kind} prompt" for when in ("first", "last") for kind in ("hard", "easy")
    ]
    for hard, easy in (shown[:2], shown[2:]):
        assert 0 < hard.success_rate <= easy.success_rate < 1
        assert {row["correct"] for row in hard.rollouts} == {True, False}
        # Right answers on hard prompts are rare, so they carry more.
        assert max(r["advantage"] for r in hard.rollouts) >= max(r["advantage"] for r in easy.rollouts)


def test_success_rates_count_each_group_once(runs):
    rates, num_levels = success_rates(runs[1])
    assert num_levels == 8 and rates.shape == (20 * 16, 2)
    np.testing.assert_array_equal(rates[:, 1] * 8 % 1, 0)


def test_metrics_that_were_never_numbers_are_left_out():
    columns = metric_columns(
        [{"iteration": 1, "a": 0.5, "b": None}, {"iteration": 3, "a": None, "c": "text"}]
    )
    assert list(columns) == ["a"]
    np.testing.assert_array_equal(columns["a"], [[1, 3], [0.5, np.nan]])


def test_names_tell_runs_apart(tmp_path):
    paths = [tmp_path / "x" / "run", tmp_path / "y" / "run"]
    assert run_names(paths[:1]) == ["run"]
    assert run_names(paths) == ["x/run", "y/run"]


def test_settings_that_differ_are_marked():
    rows = settings_table([{"a": 1, "b": 2}, {"a": 1, "c": True}])
    assert rows == [("a", ["1", "1"], False), ("b", ["2", "–"], True), ("c", ["–", "true"], True)]


def test_smoothing_keeps_a_constant_and_leaves_gaps_out():
    # 160 values: windows of 5. A constant stays, also at the ends and beside a gap.
    values = np.full(160, 2.0)
    values[50] = np.nan
    np.testing.assert_allclose(plots.smooth(values), 2.0)
    step = plots.smooth(np.r_[np.zeros(80), np.ones(80)])
    # At the last zero, two of five values are one.
    assert step[79] == pytest.approx(0.4)


def test_long_series_are_thinned_by_means():
    iterations, values = plots.thin(np.arange(5000), np.arange(5000.0), most=1000)
    assert len(values) == 1000 and values[0] == 2.0 and iterations[-1] == 4997


def test_one_greedy_problem_is_enough(tmp_path):
    group = make_group(np.random.default_rng(0), 0.5, 1, 0, write_response)
    result = evaluation_of([group], task="t", sampling=GREEDY, seed=0)
    with Run.create(tmp_path / "run", {}) as run:
        run.save_evaluation(0, "greedy", result.to_dict())
    assert "Accuracy on held-out problems" in write_report([tmp_path / "run"]).read_text()


def test_offline_fits_are_plotted_under_their_own_names(tmp_path):
    with Run.create(tmp_path / "run", {"algorithm": "direct_advantage"}) as run:
        for step in range(5):
            run.log(step, {"critic/loss": 1 / (1 + step), "tokens/total": 5.0})
        run.log(5, {"critic/auc": 0.9})  # a single figure is no curve
    write_report([tmp_path / "run"])
    assert [path.name for path in (tmp_path / "run/plots").iterdir()] == ["critic_loss.png"]
