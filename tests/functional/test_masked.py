import pytest
import torch

from hardwon.functional.masked import sequence_mean, sequence_mean_token_sum, token_mean

# Lengths 1 and 3 with token losses (1) and (2, 2, 2); what lies under the mask is garbage.
LOSSES = torch.tensor([[1.0, torch.nan, 9.0], [2.0, 2.0, 2.0]])
MASK = torch.tensor([[1, 0, 0], [1, 1, 1]])


def test_token_mean_weighs_tokens():
    assert token_mean(LOSSES, MASK, 4) == 7 / 4  # (1 + 2 + 2 + 2) / 4


def test_sequence_mean_weighs_sequences():
    assert sequence_mean(LOSSES, MASK, 2) == 3 / 2  # (1/1 + 6/3) / 2


def test_sequence_mean_token_sum_divides_by_a_constant():
    assert sequence_mean_token_sum(LOSSES, MASK, 2, constant=5) == pytest.approx(7 / 10)  # (1 + 6) / (2 * 5)


def test_constant_must_be_positive():
    with pytest.raises(ValueError, match="constant=0"):
        sequence_mean_token_sum(LOSSES, MASK, 2, constant=0)


def test_token_mean_is_the_same_in_one_batch_and_in_two_micro_batches():
    """A is one token of loss 1, B three tokens of loss 0: 1/4, where a mean of means gives 1/2."""
    losses_BT = torch.tensor([[1.0, 0, 0], [0, 0, 0]])
    whole = token_mean(losses_BT, MASK, 4)
    parts = [token_mean(losses_BT[i : i + 1], MASK[i : i + 1], 4) for i in range(2)]
    assert whole == sum(parts) == 0.25


def test_masked_tokens_are_in_neither_numerator_nor_denominator():
    """30 tokens of loss 1 of which a truncated response's 5 are masked: 25 / 25, not 25 / 30."""
    mask_BT = torch.ones(6, 5)
    mask_BT[2] = 0
    assert token_mean(torch.ones(6, 5), mask_BT, mask_BT.sum()) == 1.0


@pytest.mark.parametrize("count", [0, torch.tensor(0)])
def test_everything_masked_is_a_finite_zero_with_a_gradient_path(count):
    means = [token_mean, sequence_mean, lambda x, m, n: sequence_mean_token_sum(x, m, n, 8)]
    for mean in means:
        x_BT = torch.randn(2, 3, requires_grad=True)
        loss = mean(x_BT, torch.zeros(2, 3), count)
        loss.backward()
        assert loss == 0
        assert torch.equal(x_BT.grad, torch.zeros(2, 3))
