"""The stages of direct advantage, each on values worked out by hand."""

import numpy as np
import pytest
import torch

from hardwon.data import Group, Problem, Rollout, Sample, Sampling, State, Verdict
from hardwon.json_lines import JsonLines, read_json_lines
from hardwon.models.critic import Critic
from hardwon.models.policy import Policy
from hardwon.models.tokens import pad_id
from hardwon.offline.fitting import batches
from hardwon.offline.solutions import Collected, Solution, keep_balanced, keep_right
from hardwon.optimization import Optimizer
from hardwon.scoring import Span, score_spans
from hardwon.steps.critic import (
    CriticModel,
    Example,
    check_better_than_constant,
    read_outside_labels,
)
from hardwon.steps.critic import accumulate as accumulate_critic
from hardwon.steps.critic_metrics import auc, bce, brier, calibration, critic_report
from hardwon.steps.formats import JudgedSolution, to_trl, write_jsonl, write_parquet
from hardwon.steps.policy import accumulate, pair_metrics
from hardwon.steps.select import judge, pair_rows, selection_summary
from hardwon.steps.split import StepSplitter
from hardwon.steps.values import (
    Action,
    Labelled,
    Labeller,
    label,
    read_labelled,
    record_of,
    standard_errors,
    states_of,
)
from hardwon.tasks.task import split_lines
from hardwon.workbench import SharedSettings

PROBLEM = Problem("p", "3-7+5", "1")
SAMPLING = Sampling(max_new_tokens=8)


@pytest.fixture(scope="module")
def policy():
    return Policy.load("embedded", device="cpu")


@pytest.fixture(scope="module")
def splitter(policy):
    return StepSplitter(policy.tokenizer, split_lines)


@pytest.fixture(scope="module")
def ids(policy):
    def encode(text, finished=True):
        end = (policy.tokenizer.eos_token_id,) if finished else ()
        return (*policy.tokenizer(text, add_special_tokens=False)["input_ids"], *end)

    return encode


def rollout(token_ids, outcome="correct"):
    sample = Sample(np.array(token_ids), np.zeros(len(token_ids), np.float32), finished=True)
    return Rollout(sample, "", Verdict(outcome), 1.0)


# ------------------------------------------------------------------------------------------ collect


def counts(kept):
    return [r.verdict.correct for r in kept].count(True), len(kept)


def test_kept_solutions_are_balanced():
    right = [rollout([n]) for n in range(10)]
    wrong = [rollout([n], "wrong") for n in range(10, 20)]
    assert counts(keep_balanced(right + wrong, 6)) == (3, 6)
    assert counts(keep_balanced(right + wrong[:2], 6)) == (4, 6)  # 2 wrong are all there are
    assert counts(keep_balanced(right[:1] + wrong, 6)) == (1, 6)
    assert counts(keep_balanced(right, 6)) == (6, 6)
    assert counts(keep_balanced(right[:2] + wrong[:1], 6)) == (2, 3)
    assert counts(keep_balanced(right + wrong, 5)) == (3, 5)


def test_distinct_solutions_are_kept_first():
    same = [rollout([1]), rollout([1]), rollout([1]), rollout([2])]
    assert [r.sample.ids.tolist() for r in keep_balanced(same, 2)] == [[1], [2]]
    assert len(keep_right([*same, rollout([3], "wrong")], 6)) == 2


def test_states_at_every_boundary_once(ids, splitter):
    # "-4\n=1." and "-4\n=2." share the states "" and "-4\n"; "=9." has only "".
    solutions = tuple(Solution(ids(t), t, False) for t in ("4\n=1.", "4\n=2.", "=9."))
    states = states_of([Collected(PROBLEM, solutions, 32, 0, 99)], splitter)
    assert [s.prefix_ids for s in states] == [(), ids("4\n", finished=False)]


# ------------------------------------------------------------------------------------------- values


def group_of(prefix, *completions):
    return Group(State(PROBLEM, prefix), (), tuple(completions), 1)


def test_counts_not_labels_are_stored(ids, splitter):
    # 3 of 8 right is (3, 8), which is 0.375 and not 1; a verifier's failure counts nowhere.
    completions = [rollout(ids("=1.")) for _ in range(3)]
    completions += [rollout(ids("=2."), "wrong") for _ in range(4)] + [rollout(ids("2\n=2."), "timeout")]
    record = record_of(group_of((), *completions, rollout(ids("=3."), "error")), splitter, 8)
    assert (record["correct"], record["judged"]) == (3, 8)
    found = {(a["count"], a["correct"], a["judged"], a["terminal"]) for a in record["actions"]}
    assert found == {(3, 3, 3, True), (4, 0, 4, True), (1, 0, 1, False), (1, 0, 0, True)}
    # Standard error at the smoothed rate 3.5/9: sqrt(0.3889 * 0.6111 / 8) = 0.17236.
    labelled = Labelled(State(PROBLEM), 0, 3, 8, 0, ())
    assert standard_errors([labelled]) == pytest.approx([0.17236], abs=1e-5)


def test_first_steps_are_the_candidates(ids, splitter):
    prefix = ids("4\n", finished=False)
    record = record_of(group_of(prefix, rollout(ids("2\n=1.")), rollout(ids("=1."))), splitter, 8)
    assert record["depth"] == 1
    assert [tuple(a["ids"]) for a in record["actions"]] == [ids("2\n", finished=False), ids("=1.")]


def test_a_stop_string_that_begins_in_the_prefix_ends_the_step(policy, ids):
    """From the state `4\\n`, `=` completes the stop string `\\n=`: a terminal step of one token."""
    splitter = StepSplitter(policy.tokenizer, split_lines, stop=["\n="])
    prefix, end = ids("4\n", finished=False), ids("=", finished=False)
    record = record_of(
        group_of(prefix, rollout(end, "wrong"), rollout(ids("2\n=", finished=False))), splitter, 8
    )
    assert [(tuple(a["ids"]), a["terminal"]) for a in record["actions"]] == [
        (end, True),
        (ids("2\n=", finished=False), True),
    ]


def test_a_response_over_the_limit_is_wrong(ids, splitter):
    # Prefix 2 tokens and completion 4 are 6: within a limit of 6, over one of 5.
    group = group_of(ids("4\n", finished=False), rollout(ids("=1.")))
    assert record_of(group, splitter, 6)["correct"] == 1
    assert record_of(group, splitter, 5)["correct"] == 0


class CountingSampler:
    """Stands in for `sample_groups`: the answer 1 or 2, by the seed's stream; remembers whom it was asked."""

    def __init__(self, ids):
        self.ids, self.asked = ids, []

    def __call__(self, states, *, sampler, sampling, num_samples, iteration):
        self.asked += [(s.problem.id, s.prefix_ids, iteration) for s in states]
        right, wrong = rollout(self.ids("=1.")), rollout(self.ids("=2."), "wrong")
        out = []
        for state in states:
            k = (7 * int(state.problem.id[1:]) + iteration) % (num_samples + 1)
            out.append(Group(state, (), (right,) * k + (wrong,) * (num_samples - k), iteration))
        return out


@pytest.fixture
def labelling(monkeypatch, ids, splitter):
    sampler = CountingSampler(ids)
    monkeypatch.setattr("hardwon.steps.values.sample_groups", sampler)
    monkeypatch.setattr("hardwon.offline.solutions.ROLLOUTS_A_WRITE", 8)  # 2 states a write
    states = [State(Problem(f"p{n}", "1", "1")) for n in range(9)]

    def run(path, **settings):
        labeller = Labeller(None, SAMPLING, splitter, 4, 1)
        return label(path, states, labeller, seed=0, progress=lambda *_: None, **settings)

    return run, sampler


def test_nothing_is_labelled_twice_and_nothing_is_lost(tmp_path, labelling):
    run, sampler = labelling
    whole = run(tmp_path / "whole.jsonl")
    content = (tmp_path / "whole.jsonl").read_bytes()
    for size in (
        0,
        1,
        len(content) // 3,
        len(content) - 1,
        len(content),
    ):  # killed here, inside a line or not
        sampler.asked.clear()
        (tmp_path / "cut.jsonl").write_bytes(content[:size])
        assert run(tmp_path / "cut.jsonl") == whole
        assert len(sampler.asked) == 9 - content[:size].count(b"\n")
        assert (tmp_path / "cut.jsonl").read_bytes() == content


def test_label_budgets(tmp_path, labelling):
    run, _ = labelling
    assert len(run(tmp_path / "a.jsonl", max_states=5)) == 5
    # A state costs 4 completions of 4 tokens, and 2 are labelled at a time: 40 tokens are passed after 4.
    assert len(run(tmp_path / "b.jsonl", max_tokens=40)) == 4


def test_adaptive_allocation_goes_to_wide_intervals(tmp_path, labelling):
    run, sampler = labelling
    first = {e.state.problem.id: e for e in run(tmp_path / "a.jsonl")}
    sampler.asked.clear()
    second = run(tmp_path / "a.jsonl", adaptive=True)
    again = {name for name, _, iteration in sampler.asked if iteration == 2}
    assert len(again) == 4  # half of 9
    errors = dict(zip(first, standard_errors(list(first.values())), strict=True))
    assert min(errors[n] for n in again) >= max(errors[n] for n in set(errors) - again)
    assert {e.state.problem.id: e.judged for e in second} == {n: 8 if n in again else 4 for n in errors}


def test_a_torn_line_is_cut_and_a_damaged_one_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    with JsonLines(path) as store:
        store.append([{"a": 1}, {"a": 2}])
    with open(path, "ab") as file:
        file.write(b'{"a": ')
    assert read_json_lines(path) == [{"a": 1}, {"a": 2}]
    with JsonLines(path) as store:
        assert store.records == [{"a": 1}, {"a": 2}]
        store.append([{"a": 3}])
    assert path.read_bytes() == b'{"a": 1}\n{"a": 2}\n{"a": 3}\n'
    path.write_bytes(b'{"a"\n{"a": 2}\n')
    with pytest.raises(ValueError, match="line 1, is damaged"):
        read_json_lines(path)


# ------------------------------------------------------------------------------------------- select


def labelled(*actions, problem=PROBLEM, prefix=()):
    return Labelled(State(problem, prefix), len(prefix), 0, 16, 0, actions)


def step(token, count=1, *, correct=0, terminal=False):
    return Action((token,), count, correct, count, terminal)


def values_by_last_token(states):
    """A critic that says a tenth of the last token, and 1/2 of a problem."""
    return torch.tensor([s.prefix_ids[-1] / 10 if s.prefix_ids else 0.5 for s in states])


def test_advantages_by_hand():
    # Values .8, .5, .2: their mean is .5, the advantages .3, 0, -.3.
    judged = judge(
        [labelled(step(8), step(5), step(2))], values_by_last_token, baseline="unique", min_gap=0.1
    )
    assert judged.advantages_SM.tolist()[0] == pytest.approx([0.3, 0.0, -0.3])
    assert judged.kept_S.tolist() == [True]


def test_mean_over_unique_or_all_samples():
    # Values .8 (3 samples) and .4 (1): unique mean .6, mean of samples .7.
    entry = labelled(step(8, 3), step(4, 1))
    unique = judge([entry], values_by_last_token, baseline="unique", min_gap=0.1)
    everything = judge([entry], values_by_last_token, baseline="all", min_gap=0.1)
    assert unique.advantages_SM.tolist()[0] == pytest.approx([0.2, -0.2])
    assert everything.advantages_SM.tolist()[0] == pytest.approx([0.1, -0.3])


def test_a_terminal_step_is_worth_its_reward_and_is_not_judged():
    asked = []

    def values(states):
        asked.extend(s.prefix_ids for s in states)
        return values_by_last_token(states)

    entry = labelled(step(8), step(9, 2, correct=2, terminal=True), step(7, 1, terminal=True))
    judged = judge([entry], values, baseline="unique", min_gap=0.1)
    # .8 from the critic, 1 and 0 from the verifier: mean .6.
    assert judged.advantages_SM.tolist()[0] == pytest.approx([0.2, 0.4, -0.6])
    assert asked == [(), (8,)]


def test_gap_filter_and_states_with_one_step():
    def hundredths(states):
        return torch.tensor([s.prefix_ids[-1] / 100 if s.prefix_ids else 0.5 for s in states])

    entries = [labelled(step(50), step(59)), labelled(step(50), step(61)), labelled(step(50))]
    judged = judge(entries, hundredths, baseline="unique", min_gap=0.1)
    assert judged.kept_S.tolist() == [False, True, False]  # gaps .09, .11, and none


def test_rows_of_validation_problems_are_never_kept():
    other = Problem("held out", "1", "1")
    entries = [labelled(step(8), step(2)), labelled(step(8), step(2), problem=other)]
    judged = judge(entries, values_by_last_token, baseline="unique", min_gap=0.1)
    rows = pair_rows(entries, judged, {"held out"}, lambda ids: str(ids))
    assert [row["kept"] for row in rows] == [True, True, False, False]
    assert selection_summary(rows)["frac_states_kept"] == 1.0


# ------------------------------------------------------------------------------------------- critic


def test_critic_learns_counts(policy):
    """The gradient is not zero and the loss falls on a fixed set (a detached value would do neither)."""
    model = CriticModel(Critic.from_policy(policy), policy.autocast, 64)
    examples = [Example((10, 11), 3, 8, 0), Example((10, 12), 8, 8, 1), Example((10, 13, 14), 0, 8, 2)]
    settings = SharedSettingsWithOptimizer(learning_rate=3e-3, weight_decay=0.0)
    optimizer = Optimizer(model.critic.model, settings)
    losses = []
    for step_number in range(150):
        losses.append(accumulate_critic(model, examples)["loss"])
        norm = optimizer.step(3e-3 * (1 - step_number / 150))
        assert norm > 0 or step_number
    # ln 2 at the start, where every value is 1/2; the least is the entropy of 3/8 over 3 states, 0.2205.
    assert losses[0] == pytest.approx(np.log(2), abs=1e-4)
    assert losses[-1] < 0.23
    assert model.values([e.ids for e in examples]).tolist() == pytest.approx([0.375, 1, 0], abs=0.06)


def test_critic_figures_by_hand():
    values, labels = np.array([0.5, 0.9]), np.array([0.5, 1.0])
    assert bce(values, labels) == pytest.approx((np.log(2) - np.log(0.9)) / 2)
    assert brier(values, labels) == pytest.approx((0.25 + 0.01) / 2)
    # Right: 2 at .5 and 4 at .9; wrong: 2 at .5. Of 12 pairs 4*2 are in order and 2*2 tie: 10 / 12.
    assert auc(values, np.array([2.0, 4.0]), np.array([4.0, 4.0])) == pytest.approx(10 / 12)
    assert [b["states"] for b in calibration(values, labels)] == [1, 1]


def test_a_critic_no_better_than_a_constant_stops_the_run():
    useless = critic_report([0.5, 0.5], [1, 3], [4, 4], [0, 1])
    with pytest.raises(ValueError, match="require_critic=false"):
        check_better_than_constant(useless, required=True)
    check_better_than_constant(useless, required=False)
    check_better_than_constant(critic_report([0.3, 0.7], [1, 3], [4, 4], [0, 1]), required=True)


# ------------------------------------------------------------------------------------------- policy


class SharedSettingsWithOptimizer(SharedSettings):
    """Settings enough for an optimizer."""

    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    adam_beta2: float = 0.95
    max_grad_norm: float = 1e9
    warmup_iterations: int = 0


def spans_with_reference(policy):
    spans = [Span((10, 11), (22, 4)), Span((10, 11), (23, 4)), Span((10, 11, 22, 4), (34, 22, 19, 2))]
    scores = score_spans(policy, spans, SAMPLING, pad_id(policy.tokenizer), 64)
    return [Span(s.prefix_ids, s.response_ids, lp) for s, lp in zip(spans, scores, strict=True)]


def gradient(policy):
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


def test_gradient_at_the_reference():
    """-(A / beta) grad log pi, averaged over the pairs; the log-prob is the sum over the step's tokens."""
    policy = Policy.load("embedded", device="cpu")
    spans, advantages, beta = spans_with_reference(policy), torch.tensor([0.3, -0.1, 0.2]), 0.02
    metrics = accumulate(policy, spans, advantages, SAMPLING, beta, 10_000)
    actual = gradient(policy)
    # The loss at the reference is half the squared target: (15^2 + 5^2 + 10^2) / 2 / 3.
    assert metrics["loss"] == pytest.approx(350 / 6, rel=1e-4)
    assert metrics["explained_variance"] == pytest.approx(0, abs=1e-4)
    policy.model.zero_grad()
    total = 0.0
    for span, advantage in zip(spans, advantages, strict=True):
        ids = torch.tensor([[*span.prefix_ids, *span.response_ids]])
        log_probs = policy.model(ids).logits[0, :-1].log_softmax(-1)
        taken = log_probs.gather(1, ids[0, 1:, None])[len(span.prefix_ids) - 1 :].sum()
        total = total - advantage / beta * taken / 3
    total.backward()
    torch.testing.assert_close(actual, gradient(policy), rtol=1e-3, atol=1e-3)


def test_micro_batches_do_not_change_the_gradient():
    policy = Policy.load("embedded", device="cpu")
    spans, advantages = spans_with_reference(policy), torch.tensor([0.3, -0.1, 0.2])
    accumulate(policy, spans, advantages, SAMPLING, 0.02, 10_000)
    whole = gradient(policy)
    policy.model.zero_grad()
    accumulate(policy, spans, advantages, SAMPLING, 0.02, 1)
    torch.testing.assert_close(gradient(policy), whole, rtol=1e-4, atol=1e-4)


def test_pair_metrics_by_hand():
    # Targets 2, -1, 0 and log-ratios 1, 1, 1: signs agree in 1 of the 2 that have one; residuals 1, 4, 1
    # against 5 give 1 - 6/5.
    metrics = pair_metrics(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([2.0, -1.0, 0.0]))
    assert metrics["sign_agreement"] == 0.5
    assert metrics["explained_variance"] == pytest.approx(-0.2)
    assert metrics["kl"] == pytest.approx(np.e - 2)


def test_states_are_never_split_over_steps():
    sizes = [3, 1, 4, 2, 5, 1]
    out = batches(sizes, 5, [0, 1])
    assert sorted(i for batch in out for i in batch) == list(range(6))
    assert all(sum(sizes[i] for i in batch) >= 5 for batch in out[:-1])
    assert out == batches(sizes, 5, [0, 1])
    assert out != batches(sizes, 5, [0, 2])


def test_labels_of_other_rounds_are_added(tmp_path):
    path = tmp_path / "v.jsonl"
    record = {"problem_id": "p", "prefix_ids": [], "depth": 0, "num_tokens": 5}
    with JsonLines(path) as store:
        for round_, correct in ((0, 1), (1, 4)):
            action = {"ids": [7], "count": 4, "correct": correct, "judged": 4, "terminal": False}
            store.append([record | {"round": round_, "correct": correct, "judged": 4, "actions": [action]}])
    (entry,) = read_labelled(path, [State(PROBLEM)])
    assert (entry.correct, entry.judged, entry.num_tokens) == (5, 8, 10)
    assert entry.actions == (Action((7,), 8, 5, 8, False),)


def test_critic_data_of_others(tmp_path, policy, ids):
    """TRL's rows and our parquet give the states after each labelled step but the last."""
    solution = JudgedSolution("3+8-2", ("11\n", "9\n", "=9."), (12, 3, 1), (16, 16, 1))
    write_jsonl(tmp_path / "trl.jsonl", [to_trl(solution)])
    write_parquet(tmp_path / "steps.parquet", [solution])

    def encode(problem):
        return ids(problem.prompt, finished=False)

    kept = []
    from_trl, from_parquet = (
        read_outside_labels(str(tmp_path / name), policy, encode, kept.extend)
        for name in ("trl.jsonl", "steps.parquet")
    )
    assert [problem.prompt for problem in kept] == ["3+8-2", "3+8-2"]
    states = [ids("3+8-211\n", finished=False), ids("3+8-211\n9\n", finished=False)]
    assert [e.ids for e in from_trl] == [e.ids for e in from_parquet] == states
    assert [(e.correct, e.judged, e.depth) for e in from_parquet] == [(12, 16, 1), (3, 16, 2)]
    assert [(e.correct, e.judged) for e in from_trl] == [(1, 1), (1, 1)]
    with pytest.raises(ValueError, match=r"critic_data='x.csv'"):
        read_outside_labels("x.csv", policy, encode)
