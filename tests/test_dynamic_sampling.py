"""Bounded rounds, refill by the group, carry-over with an age cap, and no lost problem."""

import numpy as np
import pytest

from hardwon.data import Group, Problem, Rollout, Sample, State, Verdict
from hardwon.dynamic_sampling import DynamicSampler, ProblemStream, keep_all, keep_varied

PROBLEMS = [Problem(f"p{i}", "?", "!") for i in range(20)]


def rollout(outcome="correct", reward=1.0, length=3):
    sample = Sample(np.arange(length), np.full(length, -0.5, np.float32), True)
    return Rollout(sample, "text", Verdict(outcome), reward)


def group(problem, outcomes=("correct", "wrong"), iteration=1, rewards=None):
    rewards = rewards or [1.0 if o == "correct" else -1.0 for o in outcomes]
    rollouts = tuple(rollout(o, r) for o, r in zip(outcomes, rewards, strict=True))
    return Group(State(problem), (1, 2), rollouts, iteration)


class Draws:
    """Groups that are varied for problems `is_varied` accepts; remembers what was asked, round by round."""

    def __init__(self, is_varied=lambda problem, iteration: True):
        self.is_varied, self.rounds = is_varied, []

    def __call__(self, problems, iteration):
        self.rounds.append([p.id for p in problems])
        return [
            group(p, ("correct", "wrong") if self.is_varied(p, iteration) else ("wrong", "wrong"), iteration)
            for p in problems
        ]


def sampler(draw, problems=PROBLEMS, num_groups=8, max_rounds=10, max_age=1, keep=keep_varied):
    stream = ProblemStream(problems, seed=0)
    return DynamicSampler(
        stream, draw, keep=keep, num_groups=num_groups, max_rounds=max_rounds, max_age=max_age
    )


def first(n):
    """Accepts the first n problems that it is asked about."""
    seen = []

    def is_varied(problem, iteration):
        seen.append(problem.id)
        return len(seen) <= n

    return is_varied


@pytest.mark.parametrize(
    ("outcomes", "kept"),
    [
        (("correct", "wrong"), True),
        (("correct", "correct"), False),
        (("wrong", "wrong"), False),
        (("correct", "timeout"), True),  # an answer that timed out is not correct
        (("correct", "error"), False),  # one judged response compares with nothing
        (("error", "error"), False),
    ],
)
def test_a_group_is_kept_by_its_verdicts(outcomes, kept):
    assert keep_varied(group(PROBLEMS[0], outcomes)) is kept


def test_shaped_rewards_do_not_make_a_group_varied():
    """Overlong punishment gives different rewards to equal verdicts: std > 0, but nothing to learn."""
    both_wrong = group(PROBLEMS[0], ("wrong", "wrong"), rewards=[-1.0, -1.5])
    assert not keep_varied(both_wrong)


def test_constant_fractional_rewards_are_dropped():
    """Known from other libraries: a mean strictly between 0 and 1 is no sign of variety."""
    assert not keep_varied(group(PROBLEMS[0], ("wrong",) * 8, rewards=[0.5] * 8))


def test_a_reward_that_never_varies_ends_after_the_cap():
    draws = Draws(lambda problem, iteration: False)
    many = [Problem(f"p{i}", "?", "!") for i in range(10_000)]
    fill = sampler(draws, many, num_groups=8, max_rounds=10).fill(1)
    assert fill.groups == []
    assert len(draws.rounds) == 10
    assert fill.metrics["dynamic_sampling/all_wrong"] == sum(map(len, draws.rounds))
    # Two responses of 3 tokens for every group asked for.
    assert fill.metrics["dynamic_sampling/wasted_tokens"] == 6 * sum(map(len, draws.rounds))


def test_a_round_is_never_larger_than_three_batches():
    """Round 1 asks for 8; nothing was kept, so the estimate falls to 1/9 and 8/(1/9) = 72 is cut to 24."""
    draws = Draws(lambda problem, iteration: False)
    many = [Problem(f"p{i}", "?", "!") for i in range(10_000)]
    sampler(draws, many, num_groups=8, max_rounds=3).fill(1)
    assert [len(r) for r in draws.rounds] == [8, 24, 24]


def test_refill_asks_for_what_is_missing():
    """8 asked, 6 kept: accept rate (6+1)/(8+1), so the missing 2 become ceil(2 * 9/7) = 3, not 8 again."""
    draws = Draws(first(6))
    filler = sampler(draws, num_groups=8, max_rounds=2)
    filler.fill(1)
    assert [len(r) for r in draws.rounds] == [8, 3]


def test_exactly_the_batch_is_used_and_the_rest_is_carried():
    """Batch 8 with 5 valid groups, then 6: 8 are used and 3 carried, with the log-probs they had."""
    plan = iter([5, 6])
    keep_ids = set()

    def draw(problems, iteration):
        groups = [group(p, iteration=iteration) for p in problems]
        keep_ids.update(g.state.problem.id for g in groups[: next(plan)])
        return groups

    filler = sampler(draw, num_groups=8, keep=lambda g: g.state.problem.id in keep_ids)
    filler.asked, filler.accepted = 7.0, 4.0  # rate 5/8, so that the second round asks for enough
    fill = filler.fill(1)
    assert len(fill.groups) == 8
    assert len(filler.carried) == 3
    carried = filler.carried[0].rollouts[0].sample.log_probs.copy()

    plan = iter([8])
    second = filler.fill(2)
    assert second.metrics["dynamic_sampling/carried"] == 3
    assert [g.iteration for g in second.groups] == [1] * 3 + [2] * 5
    assert (second.groups[0].rollouts[0].sample.log_probs == carried).all()


def test_a_group_too_old_goes_back_to_the_head_of_the_line():
    filler = sampler(Draws(), num_groups=2, max_age=0)
    filler.carried = [group(PROBLEMS[7], iteration=1)]
    filler.stream.take(20)  # the whole epoch is given out, so p7 could only come from the line
    fill = filler.fill(2)
    assert fill.metrics["dynamic_sampling/expired"] == 1
    assert fill.groups[0].state.problem.id == "p7"
    assert fill.groups[0].iteration == 2


def test_the_end_of_the_data_gives_a_short_batch():
    """5 problems, batch 4, 3 valid: a short batch of 3, and no problem asked twice."""
    draws = Draws(lambda problem, iteration: problem.id in {"p0", "p1", "p2"})
    filler = sampler(draws, PROBLEMS[:5], num_groups=4)
    fill = filler.fill(1)
    assert {g.state.problem.id for g in fill.groups} == {"p0", "p1", "p2"}
    asked = [i for r in draws.rounds for i in r]
    assert sorted(asked) == ["p0", "p1", "p2", "p3", "p4"]


def test_no_problem_repeats_before_its_epoch_is_over():
    stream = ProblemStream(PROBLEMS, seed=3)
    order = [p.id for _ in range(15) for p in stream.take(4)]
    for epoch in range(3):
        assert sorted(order[20 * epoch : 20 * epoch + 20]) == sorted(p.id for p in PROBLEMS)
    assert order[:20] != order[20:40]


def test_an_excluded_problem_keeps_its_place():
    stream = ProblemStream(PROBLEMS[:4], seed=0)
    order = [p.id for p in ProblemStream(PROBLEMS[:4], seed=0).take(4)]
    assert [p.id for p in stream.take(2, exclude={order[0]})] == order[1:3]
    assert [p.id for p in stream.take(1)] == [order[0]]


# ------------------------------------------------------------------------------------ weights and sources


def weighted(counts, source=""):
    return [Problem(f"{source}{i}", "?", "!", source=source, weight=w) for i, w in enumerate(counts)]


def ids(stream, batches, size):
    return [p.id for _ in range(batches) for p in stream.take(size)]


def test_a_problem_is_asked_as_often_as_its_weight_says():
    """Weights 1, 1, 2, 4: of 8 draws, two epochs of 4, they are 1, 1, 2 and 4."""
    stream = ProblemStream(weighted([1, 1, 2, 4]), seed=0)
    for _ in range(10):
        order = ids(stream, 8, 1)
        assert [order.count(str(i)) for i in range(4)] == [1, 1, 2, 4]


def test_a_heavy_problem_is_once_in_a_batch_and_does_not_pile_up():
    """Weights 97, 1, 1, 1 in batches of two: each has the heavy one, and never twice."""
    stream = ProblemStream(weighted([97, 1, 1, 1]), seed=0)
    for _ in range(100):
        batch = ids(stream, 1, 2)
        assert "0" in batch and len(set(batch)) == 2
        assert len(stream.waiting) <= 1


def test_equal_weights_of_any_size_are_epochs():
    plain = ids(ProblemStream(weighted([1] * 7), seed=5), 35, 1)
    assert plain == ids(ProblemStream(weighted([0.1] * 7), seed=5), 35, 1)
    for epoch in range(5):
        assert sorted(plain[7 * epoch : 7 * epoch + 7]) == list("0123456")


def test_sources_are_asked_in_proportion_to_their_weights():
    """Ten problems of 0.3 and forty of 0.175 weigh 3 and 7: of every ten in a row, 3 and 7, within one."""
    problems = weighted([0.3] * 10, "a") + weighted([0.175] * 40, "b")
    order = ids(ProblemStream(problems, seed=1), 100, 1)
    for start in range(90):
        assert abs(sum(i[0] == "a" for i in order[start : start + 10]) - 3) <= 1
    of_a = [i for i in order if i[0] == "a"]
    assert len(of_a) == 30
    for epoch in range(3):  # and each source has epochs of its own
        assert len(set(of_a[10 * epoch : 10 * epoch + 10])) == 10


def test_a_small_source_leaves_its_turns_to_the_others():
    """Half of the weight is on two problems: a batch of eight has both and six others, and none is lost."""
    problems = weighted([5, 5], "a") + weighted([1] * 10, "b")
    stream = ProblemStream(problems, seed=1)
    for _ in range(20):
        batch = ids(stream, 1, 8)
        assert {"a0", "a1"} < set(batch) and len(set(batch)) == 8
    assert len(stream.take(50)) == 12
    assert {p.source for p in stream.take(50, exclude={"a0", "a1"})} == {"b"}


def test_a_weighted_stream_goes_on_where_it_was_saved():
    problems = weighted([3, 1, 2.5], "a") + weighted([1] * 4, "b")
    whole = ProblemStream(problems, seed=2)
    for _ in range(5):
        whole.give_back(whole.take(3)[:1])
    saved = whole.state_dict()
    again = ProblemStream(problems, seed=2)
    again.load_state_dict(saved)
    assert ids(again, 20, 3) == ids(whole, 20, 3)


def test_no_problem_starves():
    """Whatever is dropped, expired or deferred, after three epochs' worth each problem was asked for."""
    draws = Draws(lambda problem, iteration: (int(problem.id[1:]) + iteration) % 3 == 0)
    filler = sampler(draws, num_groups=4, max_rounds=4)
    for iteration in range(1, 16):
        filler.fill(iteration)
    counts = {p.id: sum(p.id in r for r in draws.rounds) for p in PROBLEMS}
    assert min(counts.values()) >= 1
    assert max(counts.values()) - min(counts.values()) <= 2


def test_baselines_ask_once_and_keep_everything():
    draws = Draws(lambda problem, iteration: False)
    fill = sampler(draws, num_groups=8, max_rounds=1, keep=keep_all).fill(1)
    assert len(fill.groups) == 8
    assert fill.dropped == []


def test_state_round_trip_continues_identically(tmp_path):
    """Saved in the middle of an epoch with groups carried, it goes on bit for bit."""
    from hardwon.checkpoints import load_state, save_state

    def new():
        return sampler(Draws(lambda p, i: (int(p.id[1:]) + i) % 4 != 0), num_groups=6, max_rounds=3)

    one = new()
    for iteration in (1, 2, 3):
        one.fill(iteration)
    one.carried = one.carried or [group(PROBLEMS[0], iteration=3)]
    save_state(tmp_path / "state", one.state_dict())
    two = new()
    two.load_state_dict(load_state(tmp_path / "state"))
    assert two.carried[0].state.problem is PROBLEMS[int(two.carried[0].state.problem.id[1:])]
    for iteration in (4, 5, 6):
        a, b = one.fill(iteration), two.fill(iteration)
        assert [g.state.problem.id for g in a.groups] == [g.state.problem.id for g in b.groups]
        assert a.metrics == b.metrics
        for x, y in zip(a.groups, b.groups, strict=True):
            assert (x.rollouts[0].sample.log_probs == y.rollouts[0].sample.log_probs).all()


def test_a_batch_that_was_skipped_is_used_next():
    filler = sampler(Draws(first(3)), num_groups=4, max_rounds=1)
    fill = filler.fill(1)
    filler.put_back(fill.groups)
    assert [g.state.problem.id for g in filler.fill(2).groups[:3]] == [
        g.state.problem.id for g in fill.groups
    ]
