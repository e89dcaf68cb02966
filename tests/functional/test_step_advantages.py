import math

import pytest
import torch

from hardwon.functional.step_advantages import (
    action_values,
    advantage_gaps,
    monte_carlo_values,
    select_states,
    smoothed_rates,
    step_advantages,
    value_standard_errors,
)


def test_three_of_eight_is_a_rate_and_not_a_label():
    assert monte_carlo_values(torch.tensor([3, 0, 16]), torch.tensor([8, 16, 16])).tolist() == [0.375, 0, 1]


def test_smoothing_keeps_rates_off_the_edges():
    # 0 of 16 -> (1/2) / 17 = 1/34; 16 of 16 the opposite; 4 of 8 -> 1/2.
    successes, trials = torch.tensor([0, 16, 4]), torch.tensor([16, 16, 8])
    torch.testing.assert_close(smoothed_rates(successes, trials), torch.tensor([1 / 34, 33 / 34, 0.5]))


def test_standard_errors():
    # 4 of 8: sqrt(1/4 / 8); 0 of 16 at rate 1/34: sqrt(33 / 34^2 / 16), not 0.
    errors = value_standard_errors(torch.tensor([4, 0]), torch.tensor([8, 16]))
    torch.testing.assert_close(errors, torch.tensor([math.sqrt(1 / 32), math.sqrt(33 / 34**2 / 16)]))


@pytest.mark.parametrize("function", [monte_carlo_values, smoothed_rates, value_standard_errors])
def test_impossible_counts_are_refused(function):
    with pytest.raises(ValueError, match="at least one trial"):
        function(torch.tensor([0]), torch.tensor([0]))


def test_terminal_actions_use_their_reward():
    values_SM = action_values(
        torch.tensor([[0.8, 0.5, 0.6]]), torch.tensor([[1, 0, 0]]), torch.tensor([[False, True, True]])
    )
    torch.testing.assert_close(values_SM, torch.tensor([[0.8, 0.0, 0.0]]))


def test_step_advantages():
    # .8 .5 .2 -> mean .5 -> .3 0 -.3, whatever padding holds.
    values_SM = torch.tensor([[0.8, 0.5, 0.2, math.nan]])
    advantages_SM = step_advantages(values_SM, torch.tensor([[1, 1, 1, 0]]))
    torch.testing.assert_close(advantages_SM, torch.tensor([[0.3, 0.0, -0.3, 0.0]]))


def test_mean_over_all_samples_counts_repeats():
    # .8 drawn three times, .4 once: mean over all .7, over unique actions .6.
    values_SM, counts_SM = torch.tensor([[0.8, 0.4]]), torch.tensor([[3, 1]])
    for baseline, expected in (("all", [[0.1, -0.3]]), ("unique", [[0.2, -0.2]])):
        advantages_SM = step_advantages(values_SM, counts_SM, baseline=baseline)
        torch.testing.assert_close(advantages_SM, torch.tensor(expected))


def test_unknown_baseline_is_named():
    with pytest.raises(ValueError, match="baseline='mean'"):
        step_advantages(torch.zeros(1, 2), torch.ones(1, 2), baseline="mean")


def test_gap_filter():
    # Gaps .09 (dropped), .11 (kept), exactly .1 in float32 (kept), one action and no action (dropped).
    values_SM = torch.tensor([[0.5, 0.59], [0.5, 0.61], [0.7, 0.8], [0.5, 0.9], [0.0, 1.0]])
    counts_SM = torch.tensor([[1, 1], [2, 1], [1, 1], [4, 0], [0, 0]])
    torch.testing.assert_close(advantage_gaps(values_SM, counts_SM), torch.tensor([0.09, 0.11, 0.1, 0, 0]))
    assert select_states(values_SM, counts_SM).tolist() == [False, True, True, False, False]
    advantages_SM = step_advantages(values_SM, counts_SM)  # the gap of advantages is the gap of values
    assert select_states(advantages_SM, counts_SM).tolist() == [False, True, True, False, False]
