"""The online loop on the embedded model: every recipe, every setting, and what it records."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hardwon.algorithms import resolve
from hardwon.algorithms.group_policy import mini_batches, prepare, reward_of, shortfall
from hardwon.algorithms.group_recipes import RECIPES
from hardwon.algorithms.group_update import make_rows, score, update
from hardwon.data import Sampling, Verdict
from hardwon.evaluate import load_evaluation, stored_evaluations
from hardwon.progress import Display
from hardwon.records import read_metrics as read_all_metrics
from hardwon.records import read_rollouts
from hardwon.run import Run
from hardwon.tasks import chain_arithmetic

# Every prompt is encoded before a run begins: with few of them it begins at once.
FEW = {"task_options": {"train_size": 64}, "eval_problems": 8}


def read_metrics(path):
    """Of the training iterations; iteration 0 is the evaluation before them."""
    return read_all_metrics(path)[1:]


def weights(path):
    return load_file(path / "model" / "model.safetensors")


@pytest.mark.parametrize("algorithm", RECIPES)
def test_every_recipe_trains(train, algorithm):
    path = train(algorithm, group_size=RECIPES[algorithm].min_group_size + 2)
    assert "eval/mean@1" in read_all_metrics(path)[0]
    metrics = read_metrics(path)
    assert [m["iteration"] for m in metrics] == [1, 2]
    for m in metrics:
        assert math.isfinite(m["loss"]) and m["grad_norm"] > 0
        assert 0 < m["success_rate"] < 1
        if not m["dynamic_sampling/carried"]:  # one update a batch: on-policy but for carried groups
            assert m["ratio"] == pytest.approx(1, abs=1e-4)
            assert m["clip_ratio/low_mean"] == m["clip_ratio/high_mean"] == 0
    before, after = load_file(embedded_weights()), weights(path)
    assert any(not torch.equal(before[k], after[k]) for k in before)
    AutoModelForCausalLM.from_pretrained(path / "model")


def embedded_weights():
    from hardwon.models.paths import packaged_path

    return packaged_path("embedded") / "model.safetensors"


def test_rollouts_are_recorded_with_what_training_used(train):
    """G = 4, one correct: A = sqrt(3), doubled by da3po since 1/4 < 1/2; the others have -1/sqrt(3)."""
    rows = read_rollouts(train("da3po", overlong="none", iterations=3)).to_pandas()
    trained = rows[rows.trained]
    assert set(trained.groupby(["iteration", "problem_id"]).correct.nunique()) == {2}
    rare = trained[np.isclose(trained.success_rate, 0.25)]
    assert len(rare)
    assert np.allclose(rare[rare.correct].advantage, 2 * math.sqrt(3))
    assert np.allclose(rare[~rare.correct].advantage, -1 / math.sqrt(3))
    assert rows[~rows.trained].advantage.isna().all()


def test_each_metric_is_over_everything_that_was_sampled(train):
    path = train("da3po", iterations=1, max_rounds=1)  # one round asks for the batch, so nothing is carried
    rows = read_rollouts(path).to_pandas()
    (m,) = read_metrics(path)
    assert m["success_rate"] == pytest.approx(rows.correct.mean())
    assert m["reward"] == pytest.approx(rows.reward.mean(), abs=1e-6)
    assert m["completions/mean_length"] == pytest.approx(rows.length.mean())
    assert m["tokens_sampled"] == rows.length.sum()


def test_advantages_are_normalised_over_the_iteration_and_not_over_each_update(train):
    """REINFORCE++: over all tokens that were sampled together, mean 0 and variance 1."""
    path = train("reinforce_pp", kl_coef=0.0, iterations=1, updates_per_iteration=4)
    rows = read_rollouts(path).to_pandas()
    assert np.average(rows.advantage, weights=rows.length) == pytest.approx(0, abs=1e-5)
    assert np.average(rows.advantage**2, weights=rows.length) == pytest.approx(1, abs=1e-5)


def test_uniform_groups_are_counted_where_nothing_is_dropped(train):
    path = train("grpo", iterations=1)
    rates = read_rollouts(path).to_pandas().groupby("problem_id").success_rate.first()
    (m,) = read_metrics(path)
    assert m["dynamic_sampling/dropped"] == 0
    assert m["dynamic_sampling/all_wrong"] == (rates == 0).sum() > 0
    assert m["dynamic_sampling/all_correct"] == (rates == 1).sum()


@pytest.mark.parametrize("algorithm", ["dapo", "grpo", "dr_grpo"])
def test_micro_batches_do_not_change_the_gradient(tmp_path, algorithm):
    """The denominator is that of the whole step: 100 tokens at a time, or all at once, on 1 or 2 threads."""
    config = resolve(algorithm, FEW, {"kl_coef": 0.0, "prompts_per_iteration": 8})
    gradients = []
    with Run.create(tmp_path / "r", {}) as run:
        trainer, _ = prepare(config, run)
        trainer.optimizer.step = lambda learning_rate: 0.0
        groups = trainer.prompts.fill(1).groups
        for tokens, threads in ((100, 1), (100, 2), (100_000, 1)):
            torch.set_num_threads(threads)
            few = config.model_copy(update={"micro_batch_tokens": tokens})
            rows, _ = make_rows(groups, trainer.recipe, few, trainer.bench.policy, None)
            step = update(
                trainer.bench.policy,
                trainer.optimizer,
                [r for g in rows for r in g],
                trainer.recipe,
                few,
                1e-4,
            )
            gradients.append(
                [p.grad.clone() for p in trainer.optimizer.parameters] + [torch.tensor(step["loss"])]
            )
            trainer.optimizer.adamw.zero_grad()
    for other in gradients[1:]:
        for a, b in zip(gradients[0], other, strict=True):
            assert torch.allclose(a, b, atol=1e-6, rtol=1e-4)


def test_gradient_checkpointing_does_not_change_the_update(train):
    plain, checkpointed = (
        weights(train("dapo", gradient_checkpointing=x, iterations=1)) for x in (False, True)
    )
    assert all(torch.allclose(plain[k], checkpointed[k], atol=1e-6) for k in plain)


def test_several_updates_and_epochs_leave_the_policy_that_sampled(train):
    (m,) = read_metrics(train("dapo", iterations=1, updates_per_iteration=4, epochs_per_iteration=2))
    assert m["updates"] == 8
    assert m["approx_kl"] > 0


def test_with_no_learning_rate_every_ratio_stays_one(train):
    path = train(
        "dapo", learning_rate=1e-30, updates_per_iteration=2, epochs_per_iteration=2, top_k=5, temperature=0.7
    )
    for m in read_metrics(path):
        assert m["ratio"] == pytest.approx(1, abs=1e-5)
        assert m["clip_ratio/low_mean"] == m["clip_ratio/high_mean"] == 0


def test_mismatch_correction_is_neutral_where_generator_and_trainer_agree(train):
    plain, corrected = (weights(train("dapo", mismatch_cap=cap, iterations=1)) for cap in (None, 2.0))
    assert all(torch.allclose(plain[k], corrected[k], atol=1e-5) for k in plain)


def test_with_mismatch_cap_a_carried_group_is_scored_by_the_policy_that_trains_on_it(tmp_path):
    """The ratio then begins at 1, and all drift since sampling is in the capped weight."""
    config = resolve("dapo", FEW, {"group_size": 4, "mismatch_cap": 2.0})
    with Run.create(tmp_path / "r", {}) as run:
        trainer, _ = prepare(config, run)
        policy = trainer.bench.policy
        groups = trainer.prompts.draw(trainer.bench.train[:2], 1)
        with torch.no_grad():  # an update since then
            for parameter in policy.model.parameters():
                parameter.mul_(1.05)
        rows, _ = make_rows(groups, trainer.recipe, config, policy, None)
    flat = [row for group in rows for row in group]
    now = score(policy, flat, config)
    for row, rollout, scored in zip(flat, (r for g in groups for r in g.rollouts), now, strict=True):
        assert np.array_equal(row.old_log_probs, scored)
        assert np.array_equal(row.sampled_log_probs, rollout.sample.log_probs)
        assert not np.allclose(row.old_log_probs, row.sampled_log_probs, atol=1e-3)


def test_kl_to_the_reference_starts_at_zero(train):
    first, second = read_metrics(train("grpo", kl_coef=0.1))
    assert first["kl"] == pytest.approx(0, abs=1e-6)
    assert second["kl"] > 0


def test_bfloat16_trains_and_stays_near_float32(train):
    full, half = (read_metrics(train("dapo", dtype=d, iterations=1))[0] for d in ("float32", "bfloat16"))
    assert half["ratio"] == pytest.approx(1, abs=0.05)
    assert half["entropy"] == pytest.approx(full["entropy"], rel=0.3)


def test_lora_trains_adapters_and_writes_a_whole_model(train):
    pytest.importorskip("peft")
    path = train("da3po", lora_rank=4)
    before, after = load_file(embedded_weights()), weights(path)
    assert before.keys() == after.keys()
    assert (path / "model" / "adapter" / "adapter_model.safetensors").is_file()
    assert any(not torch.equal(before[k], after[k]) for k in before)


def test_overlong_filtering_leaves_truncated_rows_out_of_the_loss(train):
    path = train("dapo", overlong="filter", max_new_tokens=8, dynamic_sampling=False, iterations=1)
    rows = read_rollouts(path).to_pandas()
    (m,) = read_metrics(path)
    assert 0 < rows.truncated.mean() < 1
    assert m["completions/clipped_ratio"] == pytest.approx(rows.truncated.mean())
    assert (rows.trained == ~rows.truncated).all()
    assert (rows.advantage.isna() == ~rows.trained).all()


def test_soft_overlong_punishment_is_part_of_the_reward():
    """L_max 40, buffer 8: 36 tokens are 4 over 32, so -0.5; 40 gives -1."""
    config = resolve("dapo", {"max_new_tokens": 40, "overlong_buffer": 8})
    reward = reward_of(config)
    assert [reward(Verdict("correct"), n, False) for n in (32, 36, 40)] == [1.0, 0.5, 0.0]
    assert reward(Verdict("wrong"), 40, True) == -2.0


def test_score_rewards_use_the_verifiers_grade():
    reward = reward_of(resolve("grpo", {"reward_from": "score"}))
    assert reward(Verdict("wrong", score=0.25), 5, False) == 0.25
    assert reward(Verdict("wrong"), 5, False) == -1.0


def test_mini_batches_keep_groups_whole_and_come_in_a_new_order_each_epoch():
    config = resolve(
        "dapo", {"prompts_per_iteration": 8, "updates_per_iteration": 4, "epochs_per_iteration": 2}
    )
    rows = [[f"{p}{g}" for g in "ab"] for p in range(8)]
    batches = list(mini_batches(rows, config, iteration=1))
    assert len(batches) == 8
    for epoch in (batches[:4], batches[4:]):
        assert sorted(r for _, b in epoch for r in b) == sorted(r for group in rows for r in group)
        assert all(b[0][0] == b[1][0] and b[2][0] == b[3][0] for _, b in epoch)
    assert [b for _, b in batches[:4]] != [b for _, b in batches[4:]]
    assert [done for done, _ in batches] == [i / 8 for i in range(8)]


def test_a_short_batch_has_fewer_updates_not_smaller_ones():
    config = resolve("dapo", {"prompts_per_iteration": 8, "updates_per_iteration": 4})
    assert [len(b) for _, b in mini_batches([["x"]] * 5, config, 1)] == [2, 2, 1]


IMPOSSIBLE = {"max_new_tokens": 2, "overlong_buffer": 1, "max_rounds": 2}


def test_when_nothing_is_ever_right_the_run_goes_on_and_says_so(train):
    """Two tokens are too few for any answer: bounded rounds, no update, weights as they were."""
    path = train("da3po", **IMPOSSIBLE)
    for m in read_metrics(path):
        assert m["dynamic_sampling/rounds"] == 2
        assert m["groups_trained"] == m["dynamic_sampling/kept"] == 0
    # The first round asks for the batch; then the accept rate is known to be low: three batches, the cap.
    assert [m["dynamic_sampling/all_wrong"] for m in read_metrics(path)] == [8 + 24, 24 + 24]
    before, after = load_file(embedded_weights()), weights(path)
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_a_short_batch_says_what_it_was_short_of():
    """Filtered, it lacks varied groups; without a filter the data has too few problems."""
    figures = {"kept": 5, "rounds": 2, "all_wrong": 9, "all_correct": 1}
    metrics = {f"dynamic_sampling/{name}": float(value) for name, value in figures.items()}
    settings = {"prompts_per_iteration": 8, "max_rounds": 2}
    assert "only 5 of prompts_per_iteration=8 groups were varied in 2 of max_rounds=2 (9 all wrong, 1" in (
        shortfall(resolve("dapo", settings), metrics)
    )
    assert "prompts_per_iteration=8, and the data has only 5 problems" in (
        shortfall(resolve("grpo", {"prompts_per_iteration": 8}), metrics)
    )


def test_a_run_in_which_no_response_has_an_answer_says_so(train, monkeypatch):
    """Two tokens are too few for an answer."""
    said = []
    keep = lambda self, text: said.append(text) if text.startswith("iteration") else None  # noqa: E731
    monkeypatch.setattr(Display, "print", keep)
    train("da3po", **IMPOSSIBLE)
    assert "iteration 1: No response of 128 had an answer in the wanted form" in said[1]
    assert "A right response is, for example" in said[1] and len(said) == 4
    unfiltered = {k: v for k, v in IMPOSSIBLE.items() if k not in ("max_rounds", "overlong_buffer")}
    train("grpo", **unfiltered)  # no filter, so no shortfall
    assert "iteration 1: No response of 32 had an answer" in said[4]
    train("grpo")
    assert len(said) == 6
    with pytest.raises(
        RuntimeError, match=r"all wrong.*No response of 128 had an answer.*on_shortfall=train"
    ):
        train("da3po", **IMPOSSIBLE, on_shortfall="fail")


def test_a_verifier_that_fails_on_everything_is_said(train, monkeypatch):
    """Its rewards are NaN, so that the run would go on and learn nothing in silence."""
    said = []
    monkeypatch.setattr(Display, "print", lambda self, text: said.append(text))

    def failed(response, answer):
        return Verdict("error", message="broken")

    monkeypatch.setattr(chain_arithmetic, "_judge", failed)
    train("grpo")
    found = [text for text in said if text.startswith("iteration 1: the verifier failed on every response")]
    assert len(found) == 1 and "hardwon check" in found[0]


def test_stop_strings_and_evaluations_own_sampling_in_a_run(train, monkeypatch):
    """`=4` ends at its full stop, which the verifier does not see; before an update all is as without it."""
    judge = chain_arithmetic._judge
    whole = train("da3po")
    monkeypatch.setattr(chain_arithmetic, "_judge", lambda response, answer: judge(f"{response}.", answer))
    path = train("da3po", stop=["."], eval_temperature=0.5, eval_max_new_tokens=20)
    rows, expected = (read_rollouts(p, [1]).to_pandas() for p in (path, whole))
    key = ["problem_id", "index"]
    both = rows.merge(expected, on=key, suffixes=("", "_whole"))
    both = both[~both.truncated_whole & both.text_whole.str.endswith(".")]
    assert len(both) > 20 and (both.text + "." == both.text_whole).all()
    assert (both.correct == both.correct_whole).all() and not both.truncated.any()
    assert (both.length == both.length_whole - 1).all()  # without its EOS, with the full stop
    assert "." not in "".join(rows.text) and rows.trained.any()
    stored = load_evaluation(stored_evaluations(path, "sampled")[0])
    assert stored.sampling == Sampling(20, 0.5, stop=(".",))


def test_a_short_batch_can_be_made_to_fail(train):
    with pytest.raises(RuntimeError, match=r"only 0 of prompts_per_iteration=8.*max_rounds=2.*on_shortfall"):
        train("da3po", **IMPOSSIBLE, on_shortfall="fail")


def test_a_short_batch_can_wait(train):
    """With one round of 8, some groups are not varied: a short batch is put back and fills the next."""
    path = train("da3po", max_rounds=1, on_shortfall="skip", iterations=4, max_age=3)
    metrics = read_metrics(path)
    assert metrics[0]["groups_trained"] == 0
    assert metrics[1]["dynamic_sampling/carried"] > 0
    assert any(m["groups_trained"] == 8 for m in metrics)


def test_a_model_that_gives_nan_stops_with_the_weights_it_had(train, monkeypatch):
    from hardwon.algorithms import group_update

    real = group_update.token_losses

    def poisoned(*args):
        losses, stats = real(*args)
        return losses * math.nan, stats

    monkeypatch.setattr(group_update, "token_losses", poisoned)
    with pytest.raises(FloatingPointError, match="5 steps in a row"):
        train("dapo", iterations=9)


def test_verifier_errors_take_no_part(tmp_path):
    """A row whose verifier failed has no reward and no row in the loss; the group's others are as ever."""
    from dataclasses import replace as put

    config = resolve("grpo", FEW, {"prompts_per_iteration": 4, "group_size": 4, "kl_coef": 0.0})
    with Run.create(tmp_path / "r", {}) as run:
        trainer, _ = prepare(config, run)
        (group,) = trainer.prompts.draw(trainer.bench.train[:1], 1)
        verdicts = ["correct", "wrong", "error", "wrong"]
        rewards = [1.0, 0.0, math.nan, 0.0]
        group = put(
            group,
            rollouts=tuple(
                put(r, verdict=Verdict(v), reward=x)
                for r, v, x in zip(group.rollouts, verdicts, rewards, strict=True)
            ),
        )
        rows, advantages_PG = make_rows([group], trainer.recipe, config, trainer.bench.policy, None)
    # Of [1, 0, 0]: mean 1/3, population std sqrt(2)/3, so (2/3)/(sqrt(2)/3) = sqrt(2) and -1/sqrt(2).
    expected = [math.sqrt(2), -math.sqrt(0.5), 0.0, -math.sqrt(0.5)]
    assert advantages_PG[0].tolist() == pytest.approx(expected)
    assert len(rows[0]) == 3


@pytest.mark.parametrize("dataset", ["chain_sum", "coin_flip", "simple_equations"])
def test_reasoning_gym_data_sets_train(train, dataset):
    """The embedded model knows no words and solves none: the run says so, counts it, and ends well."""
    pytest.importorskip("reasoning_gym")
    small = {"max_prompt_tokens": 900, "max_new_tokens": 8, "overlong_buffer": 2, "max_rounds": 1}
    options = {"train_size": 20, "test_size": 8}
    path = train("da3po", task=f"reasoning_gym:{dataset}", task_options=options, iterations=1, **small)
    (m,) = read_metrics(path)
    assert m["tokens_sampled"] > 0
    assert m["verifier/errors"] == 0
