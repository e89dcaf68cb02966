"""Group-relative advantages: what each response of a group is worth beside the others.

Shapes: `P` problems, `G` responses of a group, `T` tokens. Every estimator takes the same three
tensors, whether or not it reads them all, so that a recipe can hold any of them:

    rewards_PG   float; NaN marks a response that the verifier could not judge
    correct_PG   bool, the raw verdict
    lengths_PG   int, response tokens

and returns `advantages_PG`. Take advantages of whole groups first and mask responses out afterwards:
dropping a row earlier would shift its group. A NaN row is left out of every statistic and gets
advantage 0, and so does a degenerate group (all rewards equal) under every estimator that has a group
baseline. Because degenerate groups are found by their range, no estimator needs an epsilon beside its
standard deviation, which would rescale the others.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

TOLERANCE = 1e-6  # ours: far above float32 rounding of equal rewards, far below a real difference


def degenerate(rewards_PG: Tensor, tolerance: float = TOLERANCE) -> Tensor:
    """`bool_P`: groups whose judged rewards span at most `tolerance`, or with fewer than two judged.

    The range is the test, never the standard deviation: eight rewards of 0.1 have a float32 standard
    deviation of 8e-9, and dividing by it makes advantages of order 1 out of rounding.
    """
    judged_PG = ~rewards_PG.isnan()
    highest_P = rewards_PG.masked_fill(~judged_PG, -torch.inf).amax(dim=1)
    lowest_P = rewards_PG.masked_fill(~judged_PG, torch.inf).amin(dim=1)
    return (highest_P - lowest_P <= tolerance) | (judged_PG.sum(dim=1) < 2)


def centered(rewards_PG: Tensor, correct_PG: Tensor, lengths_PG: Tensor) -> Tensor:
    """R - mean(R) over the group (Dr. GRPO, arXiv 2503.20783)."""
    _check_group_size(rewards_PG)
    return _only_live(rewards_PG - _mean(rewards_PG), rewards_PG)


def standardized(
    rewards_PG: Tensor,
    correct_PG: Tensor,
    lengths_PG: Tensor,
    *,
    std: Literal["population", "sample"] = "population",
) -> Tensor:
    """(R - mean) / std over the group (GRPO, arXiv 2402.03300; dapo, arXiv 2503.14476).

    The papers do not say which standard deviation; `sample` (n - 1) is what TRL and verl use.
    """
    _check_group_size(rewards_PG)
    if std not in ("population", "sample"):
        raise ValueError(f"std={std!r} is unknown; use 'population' or 'sample'")
    squares_PG = (rewards_PG - _mean(rewards_PG)).square().nan_to_num(nan=0.0)
    judged_P1 = (~rewards_PG.isnan()).sum(dim=1, keepdim=True)
    divisor_P1 = (judged_P1 - int(std == "sample")).clamp(min=1)
    std_P1 = (squares_PG.sum(dim=1, keepdim=True) / divisor_P1).sqrt()
    return _only_live((rewards_PG - _mean(rewards_PG)) / std_P1, rewards_PG)


def leave_one_out(rewards_PG: Tensor, correct_PG: Tensor, lengths_PG: Tensor) -> Tensor:
    """R minus the mean of the other responses, = n/(n-1) (R - mean) (RLOO, arXiv 2402.14740)."""
    _check_group_size(rewards_PG)
    judged_P1 = (~rewards_PG.isnan()).sum(dim=1, keepdim=True)
    scale_P1 = judged_P1 / (judged_P1 - 1).clamp(min=1)
    return _only_live(scale_P1 * (rewards_PG - _mean(rewards_PG)), rewards_PG)


def length_weighted(rewards_PG: Tensor, correct_PG: Tensor, lengths_PG: Tensor) -> Tensor:
    """R - sum(length R) / sum(length) over the group (OPO, arXiv 2505.23585)."""
    _check_group_size(rewards_PG)
    return _only_live(rewards_PG - _mean(rewards_PG, weights_PG=lengths_PG), rewards_PG)


def max_rl(rewards_PG: Tensor, correct_PG: Tensor, lengths_PG: Tensor) -> Tensor:
    """(R - mean) / mean over the group (MaxRL, arXiv 2602.02710), R being 1 if correct and 0 if not.

    The method maximises the likelihood of success, so it reads the verdict, not the shaped reward:
    a reward of -1 or a length penalty would turn the sign of the mean.
    """
    _check_group_size(rewards_PG)
    success_PG = _success(rewards_PG, correct_PG)
    return _only_live((success_PG - _mean(success_PG)) / _mean(success_PG), success_PG)


def pass_at_k(rewards_PG: Tensor, correct_PG: Tensor, lengths_PG: Tensor, *, k: int) -> Tensor:
    """Analytical pass@k advantages (arXiv 2508.10751), from verdicts.

    Take every k-subset of the n judged responses as a candidate that earns 1 if any member is correct.
    Those rewards have mean 1 - C(wrong, k) / C(n, k) and standard deviation sqrt(mean (1 - mean)).
    A response's advantage is the standardised mean reward of the subsets that hold it: 1 for a correct
    one, 1 - C(wrong - 1, k - 1) / C(n - 1, k - 1) for a wrong one. k = 1 is `standardized`.
    """
    _check_group_size(rewards_PG)
    group_size = rewards_PG.shape[1]
    if not 1 <= k <= group_size:
        raise ValueError(f"k={k} must be between 1 and the group size, {group_size}")
    success_PG = _success(rewards_PG, correct_PG)
    judged_P1 = (~success_PG.isnan()).sum(dim=1, keepdim=True)
    wrong_P1 = (success_PG == 0).sum(dim=1, keepdim=True)

    all_wrong_P1 = _subset_share(wrong_P1, judged_P1, k)
    others_wrong_P1 = _subset_share(wrong_P1 - 1, judged_P1 - 1, k - 1)
    mean_P1 = 1 - all_wrong_P1
    std_P1 = (mean_P1 * all_wrong_P1).sqrt()
    share_PG = torch.where(success_PG == 1, 1.0, 1 - others_wrong_P1)
    advantages_PG = torch.where(std_P1 > 0, (share_PG - mean_P1) / std_P1, 0.0)
    return _only_live(advantages_PG.to(rewards_PG.dtype), success_PG)


def gpg(rewards_PG: Tensor, correct_PG: Tensor, lengths_PG: Tensor, *, scale: float = 1.0) -> Tensor:
    """alpha (R - mean) / scale, alpha = B / (B - M) (GPG, arXiv 2504.02546; its F_norm is `scale`).

    B counts the judged responses of the whole batch and M those in degenerate groups, which give no
    gradient; alpha makes up for them. Call it with all groups of the iteration, whatever its mini-batches.
    """
    _check_group_size(rewards_PG)
    judged_PG = ~rewards_PG.isnan()
    live_PG = judged_PG & ~degenerate(rewards_PG)[:, None]
    alpha = judged_PG.sum() / live_PG.sum().clamp(min=1)
    return _only_live(alpha * (rewards_PG - _mean(rewards_PG)) / scale, rewards_PG)


def batch_normalized(
    rewards_PG: Tensor,
    correct_PG: Tensor,
    lengths_PG: Tensor,
    *,
    kl_PGT: Tensor | None = None,
    kl_coef: float = 0.0,
) -> Tensor:
    """Rewards normalised over all tokens of the batch: no group baseline (REINFORCE++, arXiv 2501.03262).

    With `kl_PGT`, a per-token estimate of the KL to the reference policy, token t is worth
    R - kl_coef * sum of the KL from t to the end, and `advantages_PGT` is returned; without it
    `advantages_PG`. A group of equal rewards keeps its signal, as it has no baseline of its own; a batch
    of equal values gives zeros. The batch is the paper's global one, all that was sampled for the iteration:
    call it before mini-batches are made, so that their split changes no advantage.
    """
    if kl_PGT is None:
        return _normalize_over_tokens(rewards_PG, lengths_PG * ~rewards_PG.isnan())
    position_T = torch.arange(kl_PGT.shape[2], device=kl_PGT.device)
    mask_PGT = (position_T < lengths_PG[:, :, None]) & ~rewards_PG.isnan()[:, :, None]
    kl_PGT = kl_PGT.masked_fill(~mask_PGT, 0.0)
    kl_to_go_PGT = kl_PGT.flip(2).cumsum(2).flip(2)
    return _normalize_over_tokens(rewards_PG[:, :, None] - kl_coef * kl_to_go_PGT, mask_PGT)


def group_then_batch_normalized(rewards_PG: Tensor, correct_PG: Tensor, lengths_PG: Tensor) -> Tensor:
    """R - group mean, then normalised over all tokens of the batch (REINFORCE++-baseline, arXiv 2501.03262).

    The batch is all that was sampled for the iteration, as in `batch_normalized`.
    """
    centered_PG = centered(rewards_PG, correct_PG, lengths_PG)
    return _only_live(_normalize_over_tokens(centered_PG, lengths_PG * ~rewards_PG.isnan()), rewards_PG)


def per_token(advantages_PG: Tensor, lengths_PG: Tensor) -> Tensor:
    """`advantages_PGT`: each response's advantage on each of its tokens, 0 after its end; T = longest."""
    position_T = torch.arange(int(lengths_PG.max()), device=lengths_PG.device)
    return torch.where(position_T < lengths_PG[:, :, None], advantages_PG[:, :, None], 0.0)


def _check_group_size(rewards_PG: Tensor) -> None:
    if rewards_PG.shape[1] < 2:
        raise ValueError(
            f"group_size={rewards_PG.shape[1]} leaves nothing to compare a response with; use at least 2"
        )


def _mean(rewards_PG: Tensor, weights_PG: Tensor | None = None) -> Tensor:
    """Weighted mean of each group's judged rewards, `(P, 1)`; 0 where there are none."""
    judged_PG = ~rewards_PG.isnan()
    weights_PG = judged_PG if weights_PG is None else judged_PG * weights_PG
    weights_PG = weights_PG.to(rewards_PG.dtype)
    total_P1 = (weights_PG * rewards_PG.nan_to_num(nan=0.0)).sum(dim=1, keepdim=True)
    return total_P1 / weights_PG.sum(dim=1, keepdim=True).clamp(min=1)


def _only_live(advantages_PG: Tensor, rewards_PG: Tensor) -> Tensor:
    """Advantage exactly 0 for unjudged rows and for degenerate groups."""
    dead_PG = rewards_PG.isnan() | degenerate(rewards_PG)[:, None]
    return advantages_PG.masked_fill(dead_PG, 0.0)


def _success(rewards_PG: Tensor, correct_PG: Tensor) -> Tensor:
    """1 correct, 0 not, NaN unjudged."""
    return correct_PG.to(rewards_PG.dtype).masked_fill(rewards_PG.isnan(), torch.nan)


def _subset_share(chosen_P1: Tensor, total_P1: Tensor, k: int) -> Tensor:
    """C(chosen, k) / C(total, k), float64: the share of k-subsets that lie within the chosen ones."""
    share_P1 = torch.ones_like(chosen_P1, dtype=torch.float64)
    for i in range(k):
        share_P1 = share_P1 * (chosen_P1 - i).clamp(min=0) / (total_P1 - i).clamp(min=1)
    return share_P1


def _normalize_over_tokens(x: Tensor, weights: Tensor) -> Tensor:
    """(x - mean) / population std under `weights` (tokens that carry the value); 0 where the weight is 0."""
    alive = weights > 0
    spread = degenerate(x.masked_fill(~alive, torch.nan).reshape(1, -1))
    weights, x = weights.to(x.dtype), x.masked_fill(~alive, 0.0)
    total = weights.sum().clamp(min=1)
    mean = (weights * x).sum() / total
    std = ((weights * (x - mean).square()).sum() / total).sqrt()
    return ((x - mean) / std).masked_fill(~alive | spread, 0.0)
