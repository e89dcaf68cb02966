"""Policy objectives: the loss of each token, before any mean is taken (that is masked.py).

Shapes: `B` responses, `T` tokens. Every policy objective of the first part is called alike,

    losses_BT, stats = objective(log_probs_BT, old_log_probs_BT, advantages_BT, response_mask_BT,
                                 clip_low=..., clip_high=...)

whether or not it reads everything. `losses_BT` is to be minimised; where the mask is 0 it is finite and
has no gradient. `stats` are detached sums over unmasked tokens, so that they add up over micro-batches;
divided by the number of tokens they are means:

    clip_ratio/low_mean, clip_ratio/high_mean   tokens whose gradient the lower, the upper bound stopped
    ratio                                       exp(log_probs - old_log_probs)
    approx_kl                                   ratio - 1 - log ratio, the k3 estimate of KL(old || current)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from hardwon.functional.masked import masked_sum
from hardwon.functional.step_advantages import monte_carlo_values

MAX_LOG_RATIO = 20.0  # keeps exp() finite; a token that far off has no useful gradient either way

Losses = tuple[Tensor, dict[str, Tensor]]


def clipped(
    log_probs_BT: Tensor,
    old_log_probs_BT: Tensor,
    advantages_BT: Tensor,
    response_mask_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Losses:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = pi / pi_old (PPO, arXiv 1707.06347).

    Bounds of their own above and below are `dapo`'s clip-higher (arXiv 2503.14476). With A < 0 and a
    large ratio that loss is unbounded; `dual_clip` c > 1 caps it at -c A (arXiv 1912.09729).
    """
    _check_bounds(clip_low, clip_high)
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip={dual_clip} caps the ratio and must be greater than 1, e.g. 10.0")
    log_ratio_BT = _log_ratio(log_probs_BT, old_log_probs_BT, response_mask_BT)
    ratio_BT = log_ratio_BT.exp()
    losses_BT, low_BT, high_BT = _pessimistic(ratio_BT, advantages_BT, clip_low, clip_high)
    stats = _stats(log_ratio_BT, low_BT, high_BT, response_mask_BT)
    if dual_clip is not None:
        capped_BT = (advantages_BT < 0) & (ratio_BT > dual_clip)
        losses_BT = torch.where(capped_BT, -dual_clip * advantages_BT, losses_BT)
        stats["clip_ratio/dual_mean"] = masked_sum(capped_BT.float(), response_mask_BT)
    return losses_BT, stats


def gspo(
    log_probs_BT: Tensor,
    old_log_probs_BT: Tensor,
    advantages_BT: Tensor,
    response_mask_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Losses:
    """The clipped loss of the sequence ratio s = (pi / pi_old)^(1/length) (GSPO, arXiv 2507.18071).

    In the paper's token form, sg[s] pi / sg[pi]: the value and, for one advantage a response, the gradient
    are those of the sequence form. Take the sequence mean of it. Published bounds: 3e-4 and 4e-4.
    """
    _check_bounds(clip_low, clip_high)
    log_ratio_BT = _log_ratio(log_probs_BT, old_log_probs_BT, response_mask_BT)
    sequence_B1 = _sequence_mean(log_ratio_BT, response_mask_BT).detach()
    ratio_BT = (sequence_B1 + log_ratio_BT - log_ratio_BT.detach()).exp()
    losses_BT, low_BT, high_BT = _pessimistic(ratio_BT, advantages_BT, clip_low, clip_high)
    return losses_BT, _stats(log_ratio_BT, low_BT, high_BT, response_mask_BT)


def cispo(
    log_probs_BT: Tensor,
    old_log_probs_BT: Tensor,
    advantages_BT: Tensor,
    response_mask_BT: Tensor,
    *,
    clip_low: float = 1.0,
    clip_high: float,
) -> Losses:
    """-sg[clip(r, 1 - clip_low, 1 + clip_high)] A log pi (CISPO, arXiv 2506.13585).

    The clipped ratio only weighs a token, so no token loses its gradient; the clip counts say how many
    weights were changed. `clip_low` 1.0 means no lower bound, as in the paper's experiments.
    """
    _check_bounds(clip_low, clip_high)
    log_ratio_BT = _log_ratio(log_probs_BT, old_log_probs_BT, response_mask_BT)
    ratio_BT = log_ratio_BT.detach().exp()
    weights_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    losses_BT = -weights_BT * advantages_BT * _unmasked(log_probs_BT, response_mask_BT)
    low_BT, high_BT = ratio_BT < 1 - clip_low, ratio_BT > 1 + clip_high
    return losses_BT, _stats(log_ratio_BT, low_BT, high_BT, response_mask_BT)


def gpg(
    log_probs_BT: Tensor,
    old_log_probs_BT: Tensor,
    advantages_BT: Tensor,
    response_mask_BT: Tensor,
    *,
    clip_low: float = 0.0,
    clip_high: float = 0.0,
) -> Losses:
    """-A log pi: the plain policy gradient, neither ratio nor bounds (GPG, arXiv 2504.02546)."""
    log_ratio_BT = _log_ratio(log_probs_BT, old_log_probs_BT, response_mask_BT)
    none_BT = torch.zeros_like(response_mask_BT, dtype=torch.bool)
    losses_BT = -advantages_BT * _unmasked(log_probs_BT, response_mask_BT)
    return losses_BT, _stats(log_ratio_BT, none_BT, none_BT, response_mask_BT)


def gmpo(
    log_probs_BT: Tensor,
    old_log_probs_BT: Tensor,
    advantages_BT: Tensor,
    response_mask_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Losses:
    """-A (geometric mean over the response of the clipped token ratios) (GMPO, arXiv 2507.20673).

    The bounds are on the log-ratio, -clip_low and clip_high (published: 0.4 each, ratios e^-0.4 to
    e^0.4), pessimistic a token as in `clipped`. Every token of a response carries the response's loss.
    Take the sequence mean of it.
    """
    log_ratio_BT = _log_ratio(log_probs_BT, old_log_probs_BT, response_mask_BT)
    low_BT = (advantages_BT < 0) & (log_ratio_BT < -clip_low)
    high_BT = (advantages_BT > 0) & (log_ratio_BT > clip_high)
    bounded_BT = torch.where(low_BT | high_BT, log_ratio_BT.clamp(-clip_low, clip_high), log_ratio_BT)
    losses_BT = -advantages_BT * _sequence_mean(bounded_BT, response_mask_BT).exp()
    return losses_BT, _stats(log_ratio_BT, low_BT, high_BT, response_mask_BT)


def sapo(
    log_probs_BT: Tensor,
    old_log_probs_BT: Tensor,
    advantages_BT: Tensor,
    response_mask_BT: Tensor,
    *,
    clip_low: float = 0.0,
    clip_high: float = 0.0,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> Losses:
    """-A (4 / tau) sigmoid(tau (r - 1)): a soft gate in the place of bounds (SAPO, arXiv 2511.20347).

    tau is `tau_positive` where A > 0 and `tau_negative` elsewhere. At r = 1 the gradient is that of r A.
    """
    log_ratio_BT = _log_ratio(log_probs_BT, old_log_probs_BT, response_mask_BT)
    tau_BT = torch.where(advantages_BT > 0, tau_positive, tau_negative)
    gate_BT = 4 / tau_BT * torch.sigmoid(tau_BT * (log_ratio_BT.exp() - 1))
    none_BT = torch.zeros_like(response_mask_BT, dtype=torch.bool)
    return -advantages_BT * gate_BT, _stats(log_ratio_BT, none_BT, none_BT, response_mask_BT)


def kl_k1(log_probs_BT: Tensor, reference_log_probs_BT: Tensor) -> Tensor:
    """log(pi / pi_ref): unbiased for KL(pi || pi_ref), may be negative. A reward term, not a loss:

    the expectation of its own gradient is 0.
    """
    return log_probs_BT - reference_log_probs_BT


def kl_k3(log_probs_BT: Tensor, reference_log_probs_BT: Tensor) -> Tensor:
    """pi_ref / pi - log(pi_ref / pi) - 1: unbiased and never negative (GRPO, arXiv 2402.03300)."""
    log_ratio_BT = (reference_log_probs_BT - log_probs_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return log_ratio_BT.exp() - log_ratio_BT - 1


def truncated_importance_weights(log_probs_BT: Tensor, sampled_log_probs_BT: Tensor, *, cap: float) -> Tensor:
    """min(pi / mu, cap) a token, detached: multiplies the losses where the generator mu differs from pi.

    pi is the trainer's policy at sampling time, mu what the inference engine reports for the same weights.
    """
    if not cap > 0:
        raise ValueError(f"cap={cap} must be positive, e.g. 2.0")
    return (log_probs_BT - sampled_log_probs_BT).detach().clamp(max=MAX_LOG_RATIO).exp().clamp(max=cap)


def direct_advantage(
    log_probs_BT: Tensor,
    reference_log_probs_BT: Tensor,
    advantages_B: Tensor,
    response_mask_BT: Tensor,
    *,
    beta: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """1/2 (A / beta - sum_t log(pi / pi_ref))^2 of each (state, step) pair (arXiv 2412.18279).

    A row is one step from one state; the mask marks the step's tokens, whose log-ratios are summed without
    a length norm. Returns `losses_B`, to be averaged over the pairs of the optimizer step, and detached
    sums over pairs: `log_ratio`, and `squared_target`, (A / beta)^2, half of which is the loss at pi_ref.
    """
    if not beta > 0:
        raise ValueError(f"beta={beta} must be positive; the paper uses 0.01 to 0.02")
    log_ratio_BT = _unmasked(log_probs_BT - reference_log_probs_BT, response_mask_BT)
    log_ratio_B = log_ratio_BT.sum(dim=1)
    target_B = advantages_B / beta
    stats = {"log_ratio": log_ratio_B.detach().sum(), "squared_target": target_B.square().sum()}
    return (target_B - log_ratio_B).square() / 2, stats


def critic_loss(logits_B: Tensor, successes_B: Tensor, trials_B: Tensor) -> Tensor:
    """`losses_B`: cross-entropy of sigmoid(logit) against the label successes / trials (arXiv 2412.18279).

    The counts are stored rather than a label: 3 of 8 is 0.375. Average over the states of the step.
    """
    labels_B = monte_carlo_values(successes_B, trials_B).to(logits_B.dtype)
    return binary_cross_entropy_with_logits(logits_B, labels_B, reduction="none")


def _check_bounds(clip_low: float, clip_high: float) -> None:
    if not (0 <= clip_low <= 1 and clip_high >= 0):
        raise ValueError(
            f"clip_low={clip_low}, clip_high={clip_high} bound the ratio to [1 - clip_low, 1 + clip_high]; "
            "clip_low must lie in [0, 1] and clip_high be at least 0"
        )


def _unmasked(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`x_BT` with zeros, and no gradient, where the mask is 0: padding may hold anything."""
    return torch.where(mask_BT.bool(), x_BT, 0.0)


def _log_ratio(log_probs_BT: Tensor, old_log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return _unmasked(log_probs_BT - old_log_probs_BT, mask_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _sequence_mean(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`(B, 1)` mean of `x_BT`, which is 0 where masked, over each response."""
    return x_BT.sum(dim=1, keepdim=True) / mask_BT.bool().sum(dim=1, keepdim=True).clamp(min=1)


def _pessimistic(
    ratio_BT: Tensor, advantages_BT: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """-min(r A, clip(r) A), and where the lower and the upper bound stopped the gradient."""
    low_BT = (advantages_BT < 0) & (ratio_BT < 1 - clip_low)
    high_BT = (advantages_BT > 0) & (ratio_BT > 1 + clip_high)
    bounded_BT = torch.where(low_BT | high_BT, ratio_BT.clamp(1 - clip_low, 1 + clip_high), ratio_BT)
    return -bounded_BT * advantages_BT, low_BT, high_BT


@torch.no_grad()
def _stats(log_ratio_BT: Tensor, low_BT: Tensor, high_BT: Tensor, mask_BT: Tensor) -> dict[str, Tensor]:
    ratio_BT = log_ratio_BT.exp()
    return {
        "clip_ratio/low_mean": masked_sum(low_BT.float(), mask_BT),
        "clip_ratio/high_mean": masked_sum(high_BT.float(), mask_BT),
        "ratio": masked_sum(ratio_BT, mask_BT),
        "approx_kl": masked_sum(ratio_BT - 1 - log_ratio_BT, mask_BT),
    }
