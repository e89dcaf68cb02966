import itertools

import pytest
import torch

from hardwon.functional.advantages import centered, standardized
from hardwon.functional.amplification import amplify
from hardwon.functional.theory import expected_gradient, filter_effect, filter_factors

# p, P(kept), E[A+], E[A+ kept], E[A-], E[A- kept], factor of A-; G = 16, population std.
TABLE = [
    (1 / 64, 0.2227, 3.6016, 3.6016, -0.0572, -0.2717, 4.7529),
    (1 / 32, 0.3983, 3.3599, 3.3599, -0.1084, -0.2861, 2.6394),
    (1 / 16, 0.6439, 2.9509, 2.9509, -0.1967, -0.3172, 1.6124),
    (1 / 8, 0.8819, 2.3521, 2.3521, -0.3360, -0.3884, 1.1560),
    (1 / 4, 0.9900, 1.6484, 1.6484, -0.5495, -0.5569, 1.0135),
    (1 / 2, 1.0000, 0.9671, 0.9671, -0.9671, -0.9671, 1.0000),
]


@pytest.mark.parametrize(
    ("p", "kept", "correct", "correct_kept", "incorrect", "incorrect_kept", "factor"), TABLE
)
def test_filter_effect_table(p, kept, correct, correct_kept, incorrect, incorrect_kept, factor):
    effect = filter_effect(p, 16, standardized)
    assert effect.kept_probability == pytest.approx(kept, abs=5e-5)
    assert effect.correct == pytest.approx(correct, abs=5e-5)
    assert effect.correct_kept == pytest.approx(correct_kept, abs=5e-5)
    assert effect.incorrect == pytest.approx(incorrect, abs=5e-5)
    assert effect.incorrect_kept == pytest.approx(incorrect_kept, abs=5e-5)
    assert filter_factors(p, 16)[1] == pytest.approx(factor, abs=5e-5)


@pytest.mark.parametrize("estimator", [standardized, centered])
def test_filter_effect_against_enumeration(estimator):
    """All 2^5 groups at p = 0.3, averaging the first response's advantage over kept groups by definition."""
    p, size = 0.3, 5
    success_KG = torch.tensor(list(itertools.product([False, True], repeat=size)))
    weights_K = torch.where(success_KG, p, 1 - p).double().prod(1)
    advantages_K = estimator(success_KG.double(), success_KG, torch.ones_like(success_KG).long())[:, 0]
    kept_K = success_KG.any(1) & ~success_KG.all(1)
    effect = filter_effect(p, size, estimator)
    for among_K, value in (
        (success_KG[:, 0], effect.correct),
        (success_KG[:, 0] & kept_K, effect.correct_kept),
        (~success_KG[:, 0], effect.incorrect),
        (~success_KG[:, 0] & kept_K, effect.incorrect_kept),
    ):
        assert (weights_K * advantages_K)[among_K].sum() / weights_K[among_K].sum() == pytest.approx(
            value, rel=1e-6
        )


def test_filter_amplifies_wrong_responses_more_exactly_below_one_half():
    for p in (0.1, 0.49):
        assert filter_factors(p, 8)[1] > filter_factors(p, 8)[0]
    assert filter_factors(0.5, 8)[1] == filter_factors(0.5, 8)[0]
    assert filter_factors(0.51, 8)[1] < filter_factors(0.51, 8)[0]


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_nothing_is_kept_at_zero_or_one(p):
    with pytest.raises(ValueError, match=f"success_probability={p}"):
        filter_factors(p, 8)


LOGITS = torch.tensor([0.2, -0.5, 1.0, 0.7], dtype=torch.float64)
CORRECT = torch.tensor([True, False, False, False])
PROBS = LOGITS.softmax(0)


def gradient_scale(after):
    """Expected gradient over all 4^5 groups / grad p, p the probability of the correct arm: one number.

    One number, because by symmetry the wrong arms' expected score is -p/(1-p) times the right arm's.
    """

    def estimator(rewards_PG, correct_PG, lengths_PG):
        return after(
            standardized(rewards_PG, correct_PG, lengths_PG), correct_PG, correct_PG.double().mean(1)
        )

    gradient_A = expected_gradient(LOGITS, CORRECT, 5, estimator)
    grad_p_A = PROBS[0] * (torch.eye(4, dtype=torch.float64)[0] - PROBS)
    scales_A = gradient_A / grad_p_A
    torch.testing.assert_close(scales_A, scales_A[:1].expand(4))  # amplification does not turn the gradient
    return scales_A[0].item()


@pytest.mark.parametrize(("mode", "expected"), [("none", 2.851759), ("daa", 4.981230)])
def test_bandit_anchor(mode, expected):
    assert gradient_scale(lambda *args: amplify(*args, mode=mode)) == pytest.approx(expected, abs=1e-6)


def test_daa_equals_a_symmetric_multiplier_that_knows_the_true_probability():
    """k correct: gradient ~ k A+ (lambda + p/(1-p)) = [k A+ / (1-p)] (1 + (lambda-1)(1-p)), p the truth."""

    def with_true_p(advantages_PG, positive_PG, rate_P):
        return advantages_PG * torch.where(rate_P < 0.5, 1 + (1 - PROBS[0]), 1.0)[:, None]

    assert gradient_scale(with_true_p) == pytest.approx(4.981230, abs=1e-6)


def test_symmetric_with_the_sampled_rate_falls_a_little_short():
    """A kept group has p_hat >= 1/5 > p = 0.186, so 1 + (1 - p_hat) is smaller than 1 + (1 - p)."""
    scale = gradient_scale(lambda *args: amplify(*args, mode="symmetric"))
    # Gated groups are k = 1, 2 of 5 with share w_k = C(5,k) p^k (1-p)^(5-k) sqrt(k (5-k)) of the gradient.
    p = PROBS[0].item()
    shares = {
        k: c * p**k * (1 - p) ** (5 - k) * (k * (5 - k)) ** 0.5 for k, c in ((1, 5), (2, 10), (3, 10), (4, 5))
    }
    multiplied = sum(w * (1 + (1 - k / 5) * (k < 2.5)) for k, w in shares.items())
    assert scale == pytest.approx(2.851759 * multiplied / sum(shares.values()), rel=1e-6)
