import math

import pytest
import torch

from hardwon.functional.actor_critic import gae, value_loss
from hardwon.functional.preference import dpo

REWARDS = torch.tensor([[0.0, 0.0, 1.0]])
VALUES = torch.tensor([[0.2, 0.4, 0.6]])
ONES = torch.ones(1, 3)


def test_gae_by_hand():
    # gamma 0.9, lambda 0.5. delta: 1 - .6 = .4; .9 * .6 - .4 = .14; .9 * .4 - .2 = .16.
    # A: .4; .14 + .45 * .4 = .32; .16 + .45 * .32 = .304. Returns A + V.
    advantages_BT, returns_BT = gae(REWARDS, VALUES, ONES, gamma=0.9, lam=0.5)
    torch.testing.assert_close(advantages_BT, torch.tensor([[0.304, 0.32, 0.4]]))
    torch.testing.assert_close(returns_BT, torch.tensor([[0.504, 0.72, 1.0]]))


def test_gae_with_gamma_and_lambda_one_is_reward_minus_value():
    advantages_BT, returns_BT = gae(REWARDS, VALUES, ONES)
    torch.testing.assert_close(advantages_BT, 1 - VALUES)
    torch.testing.assert_close(returns_BT, torch.ones(1, 3))


def test_gae_steps_over_masked_tokens():
    """Masking the middle token, whatever it holds, is the response without it."""
    short = gae(REWARDS[:, [0, 2]], VALUES[:, [0, 2]], torch.ones(1, 2), gamma=0.9, lam=0.5)
    values_BT = torch.tensor([[0.2, 77.0, 0.6]])
    masked = gae(REWARDS, values_BT, torch.tensor([[1, 0, 1]]), gamma=0.9, lam=0.5)
    for short_BT, masked_BT in zip(short, masked, strict=True):
        torch.testing.assert_close(masked_BT[:, [0, 2]], short_BT)
        assert masked_BT[0, 1] == 0


def test_value_loss():
    # V 1.0, old 0.2, return 0.9: (0.1)^2 / 2; within 0.3 of the old value V is 0.5: (0.4)^2 / 2 is larger.
    values, old, returns = torch.tensor([[1.0]]), torch.tensor([[0.2]]), torch.tensor([[0.9]])
    assert value_loss(values, old, returns).item() == pytest.approx(0.005)
    assert value_loss(values, old, returns, clip=0.3).item() == pytest.approx(0.08)


def test_dpo_by_hand():
    # Log-ratios 1 and -1, beta 0.5: -log sigmoid(0.5 * 2); no difference: log 2.
    zero = torch.zeros(1)
    losses_B = dpo(zero + 1, zero - 1, zero, zero, beta=0.5)
    assert losses_B.item() == pytest.approx(math.log(1 + math.exp(-1)))
    assert dpo(zero, zero, zero, zero, beta=0.5).item() == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match="beta=0"):
        dpo(zero, zero, zero, zero, beta=0)
