import math

import pytest
import torch

from hardwon.functional.masked import sequence_mean, token_mean
from hardwon.functional.objectives import (
    cispo,
    clipped,
    critic_loss,
    direct_advantage,
    gmpo,
    gpg,
    gspo,
    kl_k1,
    kl_k3,
    sapo,
    truncated_importance_weights,
)

BOUNDS = {"clip_low": 0.2, "clip_high": 0.28}
OBJECTIVES = {"clipped": clipped, "gspo": gspo, "cispo": cispo, "gpg": gpg, "gmpo": gmpo, "sapo": sapo}


def run(objective, ratios, advantages, mask=None, **kwargs):
    """(losses, d losses.sum() / d log_probs, stats) where every old log-prob is -1."""
    ratios_BT = torch.tensor(ratios, dtype=torch.float64)
    old_BT = torch.full_like(ratios_BT, -1.0)
    log_probs_BT = (old_BT + ratios_BT.log()).requires_grad_()
    advantages_BT = torch.tensor(advantages, dtype=torch.float64).expand_as(ratios_BT)
    mask_BT = torch.ones_like(ratios_BT) if mask is None else torch.tensor(mask)
    losses_BT, stats = objective(log_probs_BT, old_BT, advantages_BT, mask_BT, **kwargs)
    (grads_BT,) = torch.autograd.grad(token_mean(losses_BT, mask_BT, 1), log_probs_BT)
    return losses_BT.detach(), grads_BT, stats


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "grad"),
    # d(-r A) / d log pi = -r A inside the bounds, 0 where a bound stops it
    [
        (1.27, 2.0, -2.54, -2.54),
        (1.29, 2.0, -2.56, 0.0),  # A > 0 stops above 1.28
        (0.1, 2.0, -0.2, -0.2),  # a good token that became unlikely is always pulled back
        (0.81, -2.0, 1.62, 1.62),
        (0.79, -2.0, 1.6, 0.0),  # A < 0 stops below 0.8
        (50.0, -2.0, 100.0, 100.0),  # A < 0 with a large ratio is unclipped
    ],
)
def test_clipped(ratio, advantage, loss, grad):
    losses_BT, grads_BT, stats = run(clipped, [[ratio]], advantage, **BOUNDS)
    assert losses_BT.item() == pytest.approx(loss)
    assert grads_BT.item() == pytest.approx(grad)
    assert stats["clip_ratio/high_mean"] == (grad == 0 and advantage > 0)
    assert stats["clip_ratio/low_mean"] == (grad == 0 and advantage < 0)


@pytest.mark.parametrize(("ratio", "loss", "grad"), [(9.0, 18.0, 18.0), (50.0, 20.0, 0.0), (0.5, 1.6, 0.0)])
def test_dual_clip_caps_the_loss_at_minus_c_a(ratio, loss, grad):
    losses_BT, grads_BT, stats = run(clipped, [[ratio]], -2.0, **BOUNDS, dual_clip=10.0)
    assert losses_BT.item() == pytest.approx(loss)
    assert grads_BT.item() == pytest.approx(grad)
    assert stats["clip_ratio/dual_mean"] == (ratio > 10)


def test_dual_clip_leaves_positive_advantages_alone():
    losses_BT, _, _ = run(clipped, [[50.0]], 2.0, **BOUNDS, dual_clip=10.0)
    assert losses_BT.item() == pytest.approx(-2.56)


@pytest.mark.parametrize("kwargs", [{"dual_clip": 0.5}, {"clip_low": 1.5}, {"clip_high": -0.1}])
def test_bad_bounds_are_named(kwargs):
    (name, value), *_ = kwargs.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        run(clipped, [[1.0]], 1.0, **{**BOUNDS, **kwargs})


def test_stats_count_under_the_mask():
    # Ratios 1.5, 0.5, 1.5, 9 with A = +1, the last masked: two stopped above; low is for A < 0 only.
    _, _, stats = run(clipped, [[1.5, 0.5, 1.5, 9.0]], 1.0, [[1, 1, 1, 0]], **BOUNDS)
    assert stats["clip_ratio/high_mean"] == 2
    assert stats["clip_ratio/low_mean"] == 0
    assert stats["ratio"].item() == pytest.approx(3.5)
    # sum of r - 1 - log r = 2 (0.5 - log 1.5) + (-0.5 - log 0.5)
    expected = 2 * (0.5 - math.log(1.5)) + (-0.5 - math.log(0.5))
    assert stats["approx_kl"].item() == pytest.approx(expected)
    assert not any(value.requires_grad for value in stats.values())


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_on_policy_nothing_is_clipped_and_the_gradient_is_the_policy_gradient(objective):
    """At ratio 1: clip counts exactly 0, and -A on every token (gmpo spreads its response's -A: the same)."""
    _, grads_BT, stats = run(objective, [[1.0, 1.0], [1.0, 1.0]], [[2.0], [-1.0]], **BOUNDS)
    assert stats["clip_ratio/low_mean"] == stats["clip_ratio/high_mean"] == 0
    torch.testing.assert_close(grads_BT, torch.tensor([[-2.0, -2], [1, 1]]).double())


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_padding_may_hold_anything(objective):
    clean = run(objective, [[1.1, 0.9, 1.0]], 1.0, [[1, 1, 0]], **BOUNDS)
    for garbage in (1e30, math.nan, math.inf):
        losses_BT, grads_BT, stats = run(objective, [[1.1, 0.9, garbage]], 1.0, [[1, 1, 0]], **BOUNDS)
        torch.testing.assert_close(losses_BT, clean[0])
        torch.testing.assert_close(grads_BT, clean[1])
        assert grads_BT[0, 2] == 0
        assert stats == clean[2]


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_everything_masked_is_a_finite_zero_with_a_gradient_path(objective):
    losses_BT, grads_BT, stats = run(objective, [[1.1, 0.9]], 1.0, [[0, 0]], **BOUNDS)
    assert losses_BT.isfinite().all()
    assert grads_BT.tolist() == [[0, 0]]
    assert all(value == 0 for value in stats.values())


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_micro_batches_add_up(objective):
    """Losses and stats of two halves, over the whole step's token count, sum to those of the whole."""
    ratios, advantages, mask = [[1.5, 0.7, 1.0], [0.5, 1.2, 3.0]], [[1.0], [-2.0]], [[1, 0, 0], [1, 1, 1]]
    losses_BT, _, stats = run(objective, ratios, advantages, mask, **BOUNDS)
    whole = token_mean(losses_BT, torch.tensor(mask), 4)
    parts = 0.0
    for i in range(2):
        part = run(objective, ratios[i : i + 1], advantages[i : i + 1], mask[i : i + 1], **BOUNDS)
        parts = parts + token_mean(part[0], torch.tensor(mask[i : i + 1]), 4)
        stats = {key: stats[key] - part[2][key] for key in stats}
    torch.testing.assert_close(parts, whole)
    assert all(abs(value) < 1e-12 for value in stats.values())


def test_gspo_by_hand():
    # Ratios 2 and 1/2 cancel: s = 1, loss -A, gradient -A s on each token (times 1/2 in the sequence mean).
    losses_BT, grads_BT, _ = run(gspo, [[2.0, 0.5]], 3.0, clip_low=3e-4, clip_high=4e-4)
    torch.testing.assert_close(losses_BT, torch.full((1, 2), -3.0).double())
    torch.testing.assert_close(grads_BT, torch.full((1, 2), -3.0).double())
    # Ratios 4 and 1: s = sqrt(4) = 2 is above 1.0004: the whole response stops.
    losses_BT, grads_BT, stats = run(gspo, [[4.0, 1.0]], 3.0, clip_low=3e-4, clip_high=4e-4)
    torch.testing.assert_close(losses_BT, torch.full((1, 2), -3.0012).double())
    assert grads_BT.tolist() == [[0, 0]]
    assert stats["clip_ratio/high_mean"] == 2


def test_gspo_gradient_is_that_of_the_sequence_form():
    """d/d log pi_t of -A exp(mean_t log r_t) = -A s / length: A = 1, ratios 1.1, 1.2, 0.9."""
    ratios = [[1.1, 1.2, 0.9]]
    _, grads_BT, _ = run(gspo, ratios, 1.0, clip_low=1.0, clip_high=9.0)
    s = (1.1 * 1.2 * 0.9) ** (1 / 3)
    torch.testing.assert_close(grads_BT / 3, torch.full((1, 3), -s / 3).double())


def test_gspo_is_grpo_when_ratios_are_one_and_lengths_equal():
    for objective in (gspo, clipped):
        losses_BT, grads_BT, _ = run(objective, [[1.0, 1.0]] * 2, [[1.5], [-0.5]], **BOUNDS)
        assert sequence_mean(losses_BT, torch.ones(2, 2), 2) == -0.5  # -(1.5 - 0.5) / 2
        assert grads_BT.tolist() == [[-1.5, -1.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("ratio", "clip_low", "weight"), [(1.2, 1.0, 1.2), (5.0, 1.0, 1.28), (0.1, 1.0, 0.1), (0.1, 0.2, 0.8)]
)
def test_cispo_keeps_every_gradient(ratio, clip_low, weight):
    """Gradient -weight A whether or not the weight was clipped; loss -weight A log pi."""
    losses_BT, grads_BT, stats = run(cispo, [[ratio]], 2.0, clip_low=clip_low, clip_high=0.28)
    assert grads_BT.item() == pytest.approx(-2 * weight)
    assert losses_BT.item() == pytest.approx(-2 * weight * (math.log(ratio) - 1))
    assert stats["clip_ratio/low_mean"] + stats["clip_ratio/high_mean"] == (weight != ratio)


def test_gpg_by_hand():
    losses_BT, grads_BT, _ = run(gpg, [[math.e]], 2.0)  # log pi = -1 + 1 = 0
    assert losses_BT.item() == pytest.approx(0)
    assert grads_BT.item() == -2


def test_gmpo_by_hand():
    # A = 2 and log-ratios 0.5 -> 0.4 (stopped), -0.6 kept: exp(-0.2 / 2); the loss is the response's.
    ratios = [[math.exp(0.5), math.exp(-0.6)]]
    losses_BT, grads_BT, stats = run(gmpo, ratios, 2.0, clip_low=0.4, clip_high=0.4)
    torch.testing.assert_close(losses_BT, torch.full((1, 2), -2 * math.exp(-0.1)).double())
    # summed over 2 tokens that carry the same loss: -A exp(-0.1) on the free token, 0 on the stopped one
    torch.testing.assert_close(grads_BT, torch.tensor([[0, -2 * math.exp(-0.1)]]).double())
    assert stats["clip_ratio/high_mean"] == 1
    # A < 0 turns it round: 0.5 kept, -0.6 -> -0.4.
    losses_BT, _, stats = run(gmpo, ratios, -2.0, clip_low=0.4, clip_high=0.4)
    torch.testing.assert_close(losses_BT, torch.full((1, 2), 2 * math.exp(0.05)).double())
    assert stats["clip_ratio/low_mean"] == 1


@pytest.mark.parametrize(("advantage", "tau"), [(2.0, 1.0), (-2.0, 1.05)])
def test_sapo_by_hand(advantage, tau):
    # r = 3: gate 4/tau sigmoid(2 tau), slope 4 sigmoid (1 - sigmoid) times dr/dlog pi = 3.
    losses_BT, grads_BT, _ = run(sapo, [[3.0]], advantage)
    sigmoid = 1 / (1 + math.exp(-2 * tau))
    assert losses_BT.item() == pytest.approx(-advantage * 4 / tau * sigmoid)
    assert grads_BT.item() == pytest.approx(-advantage * 4 * sigmoid * (1 - sigmoid) * 3)


def test_kl_estimators_by_hand():
    # log(pi / pi_ref) = log 2: k1 = log 2, k3 = 1/2 + log 2 - 1.
    log_probs, reference = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    assert kl_k1(log_probs, reference).item() == pytest.approx(math.log(2))
    assert kl_k3(log_probs, reference).item() == pytest.approx(math.log(2) - 0.5)


def test_kl_estimators_in_expectation():
    """Over pi, k1 and k3 average to the exact KL."""
    logits_V = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64)
    reference_V = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    log_probs_V = logits_V.log_softmax(0)
    probs_V = log_probs_V.exp()
    exact = (probs_V * (log_probs_V - reference_V)).sum()
    for estimator in (kl_k1, kl_k3):
        torch.testing.assert_close((probs_V * estimator(log_probs_V, reference_V)).sum(), exact)


def test_truncated_importance_weights():
    # pi / mu = 2, 1/2 and 8, capped at 3; a wild difference stays finite.
    log_probs_BT = torch.tensor([[0.4, 0.1, 0.8, 1.0]]).log().requires_grad_()
    sampled_BT = torch.tensor([[0.2, 0.2, 0.1, 1e-38]]).log()
    weights_BT = truncated_importance_weights(log_probs_BT, sampled_BT, cap=3.0)
    torch.testing.assert_close(weights_BT, torch.tensor([[2.0, 0.5, 3.0, 3.0]]))
    assert not weights_BT.requires_grad
    with pytest.raises(ValueError, match="cap=0"):
        truncated_importance_weights(log_probs_BT, sampled_BT, cap=0)


def test_direct_advantage_sums_log_ratios_of_the_step():
    # A / beta = 0.3 / 0.1 = 3; log-ratios 0.5 + 1.5 (third token masked) = 2: loss (3 - 2)^2 / 2.
    log_probs_BT = torch.tensor([[-0.5, -0.5, 7.0]], requires_grad=True)
    reference_BT = torch.tensor([[-1.0, -2.0, torch.nan]])
    losses_B, stats = direct_advantage(
        log_probs_BT, reference_BT, torch.tensor([0.3]), torch.tensor([[1, 1, 0]]), beta=0.1
    )
    torch.testing.assert_close(losses_B, torch.tensor([0.5]))
    torch.testing.assert_close(stats["log_ratio"], torch.tensor(2.0))
    torch.testing.assert_close(stats["squared_target"], torch.tensor(9.0))
    losses_B.sum().backward()
    torch.testing.assert_close(log_probs_BT.grad, torch.tensor([[-1.0, -1.0, 0.0]]))  # -(3 - 2) a token


def test_direct_advantage_is_zero_exactly_at_a_over_beta():
    reference_BT = torch.tensor([[-1.0, -2.0]])
    for shift, loss in ((1.5, 0.0), (1.4, 0.02)):  # 2 tokens * 1.5 = 3 = A / beta; 2.8 -> 0.2^2 / 2
        losses_B, _ = direct_advantage(
            reference_BT + shift, reference_BT, torch.tensor([0.3]), torch.ones(1, 2), beta=0.1
        )
        assert losses_B.item() == pytest.approx(loss, abs=1e-6)


def test_direct_advantage_gradient_at_the_reference():
    """-(A / beta) grad log pi: for a softmax over 3 actions, grad log pi(0) = onehot(0) - pi."""
    logits_V = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    log_probs_V = logits_V.log_softmax(0)
    losses_B, _ = direct_advantage(
        log_probs_V[None, :1], log_probs_V[None, :1].detach(), torch.tensor([0.4]), torch.ones(1, 1), beta=0.2
    )
    losses_B.sum().backward()
    torch.testing.assert_close(logits_V.grad, -2.0 * (torch.tensor([1.0, 0, 0]) - log_probs_V.detach().exp()))


@pytest.mark.parametrize(
    ("nu", "expected"),
    [
        ([0.4, 0.3, 0.2, 0.1], [0.0817, 0.3144, 0.2902, 0.3137]),
        ([0.25] * 4, [0.0733, 0.2519, 0.2664, 0.4083]),
    ],
)
def test_direct_advantage_reaches_the_tabular_optimum(nu, expected):
    """One state, 4 one-token actions drawn from nu; Q = .1 .5 .6 .9, V = sum pi_ref Q = .4, beta .2.

    Gradient descent on the real loss; the optimum improves on the reference: sum pi+ Q > .4.
    """
    reference_V = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log()
    q_V = torch.tensor([0.1, 0.5, 0.6, 0.9], dtype=torch.float64)
    advantages_V = q_V - (reference_V.exp() * q_V).sum()
    logits_V = reference_V.clone().requires_grad_()
    optimizer = torch.optim.SGD([logits_V], lr=1.0)
    for _ in range(600):
        optimizer.zero_grad()
        losses_B, _ = direct_advantage(
            logits_V.log_softmax(0)[:, None], reference_V[:, None], advantages_V, torch.ones(4, 1), beta=0.2
        )
        (torch.tensor(nu) * losses_B).sum().backward()
        optimizer.step()
    probs_V = logits_V.detach().softmax(0)
    torch.testing.assert_close(probs_V, torch.tensor(expected).double(), rtol=0, atol=5e-5)
    assert (probs_V * q_V).sum() > 0.4


def test_direct_advantage_names_beta():
    with pytest.raises(ValueError, match="beta=0"):
        direct_advantage(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1), torch.ones(1, 1), beta=0)


def test_critic_loss_by_hand():
    # 3 of 8 at logit 0 (V = 1/2): -(3/8 log 1/2 + 5/8 log 1/2) = log 2, gradient V - 3/8 = 1/8.
    logits_B = torch.zeros(1, requires_grad=True)
    losses_B = critic_loss(logits_B, torch.tensor([3]), torch.tensor([8]))
    losses_B.sum().backward()
    assert losses_B.item() == pytest.approx(math.log(2))
    assert logits_B.grad.item() == pytest.approx(1 / 8)


def test_critic_learns_the_soft_label():
    """Known faults: a detached value never learns; 3 of 8 read as a label would teach 1."""
    logits_B = torch.tensor([2.0, -2.0, 0.0], requires_grad=True)
    successes_B, trials_B = torch.tensor([3, 8, 0]), torch.tensor([8, 16, 4])
    optimizer = torch.optim.SGD([logits_B], lr=2.0)
    history = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = critic_loss(logits_B, successes_B, trials_B).mean()
        loss.backward()
        assert logits_B.grad.norm() > 0
        optimizer.step()
        history.append(loss.item())
    assert history == sorted(history, reverse=True)
    torch.testing.assert_close(
        logits_B.detach().sigmoid()[:2], torch.tensor([3 / 8, 1 / 2]), rtol=0, atol=1e-3
    )


@pytest.mark.parametrize(("successes", "trials"), [(9, 8), (-1, 8), (0, 0)])
def test_critic_loss_refuses_impossible_counts(successes, trials):
    with pytest.raises(ValueError, match="successes <= trials"):
        critic_loss(torch.zeros(1), torch.tensor([successes]), torch.tensor([trials]))
