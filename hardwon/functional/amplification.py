"""Direct Advantage Amplification of da3po (arXiv 2608.27982), and the controls of an honest comparison.

Shapes: `P` problems, `G` responses of a group.

Dynamic sampling drops groups that are all correct or all wrong. Given success probability p, that
multiplies the expected advantage of a wrong response by 1 / (1 - (1-p)^(G-1)) and of a correct one by
1 / (1 - p^(G-1)): on a hard problem the filter amplifies the wrong responses more. Amplification
multiplies the correct responses of hard problems. On-policy and in expectation that only rescales the
problem's gradient, so each control of this file applies a like force without one ingredient.

`symmetric` reads the sampled rate, as amplification does. With the true success probability in its
place its expected gradient equals that of `daa` exactly; with the sampled rate it falls a few per cent
short (4.757 against 4.981 in the bandit of tests/functional/test_theory.py).
"""

from __future__ import annotations

import difflib

import torch
from torch import Tensor

MODES = ("daa", "symmetric", "ungated", "shrink_incorrect", "mirrored", "exact", "none")


def amplify(
    advantages_PG: Tensor,
    positive_PG: Tensor,
    success_rate_P: Tensor,
    *,
    mode: str = "daa",
    factor: float = 2.0,
    threshold: float = 0.5,
    num_judged_P: Tensor | None = None,
) -> Tensor:
    """`advantages_PG` times the multiplier of `mode`: after normalisation and filtering, before the loss.

    `positive_PG` (bool) says which responses count as correct; `success_rate_P` is the raw share of
    correct responses, never read off the rewards. A group is hard if its rate is strictly below
    `threshold`. `num_judged_P` counts the responses that the rate is over, where a verifier failed on some
    (default: all). With lambda = `factor` (2 in the paper), p the rate and n the responses judged:

        daa               lambda on positive responses of hard groups (the paper's rule)
        symmetric         1 + (lambda - 1)(1 - p) on every response of hard groups
        ungated           lambda on every positive response
        shrink_incorrect  1 / lambda on the other responses of hard groups
        mirrored          lambda on the other responses where p > threshold
        exact             (1 - p^(n-1)) / (1 - (1-p)^(n-1)) on positive responses where p < 1/2: undoes
                          the filter's asymmetry; reads neither `factor` nor `threshold`
        none              1

    Nothing is renormalised afterwards; lambda = 1 returns the same bits in every mode but `exact`.
    """
    if mode not in MODES:
        nearest = difflib.get_close_matches(str(mode), MODES, n=1, cutoff=0)[0]
        raise ValueError(f"mode={mode!r} is unknown; did you mean {nearest!r}? Known: {', '.join(MODES)}")
    if not factor > 0:
        raise ValueError(f"factor={factor} must be positive; 1.0 turns amplification off")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold={threshold} is compared with a success rate; use a value in [0, 1]")

    p_P1 = success_rate_P.to(advantages_PG.dtype)[:, None]
    hard_P1, negative_PG = p_P1 < threshold, ~positive_PG
    if num_judged_P is None:
        num_judged_P = torch.full_like(success_rate_P, positive_PG.shape[1])
    others_P1 = num_judged_P[:, None] - 1
    # mode: (which responses, times what). At p = 0, where `exact` divides by 0, nothing is positive.
    rules: dict[str, tuple[Tensor, Tensor | float]] = {
        "daa": (hard_P1 & positive_PG, factor),
        "symmetric": (hard_P1, 1 + (factor - 1) * (1 - p_P1)),
        "ungated": (positive_PG, factor),
        "shrink_incorrect": (hard_P1 & negative_PG, 1 / factor),
        "mirrored": ((p_P1 > threshold) & negative_PG, factor),
        "exact": (
            (p_P1 > 0) & (p_P1 < 0.5) & positive_PG,
            (1 - p_P1**others_P1) / (1 - (1 - p_P1) ** others_P1),
        ),
        "none": (torch.zeros_like(positive_PG), 1.0),
    }
    where, multiplier = rules[mode]
    return advantages_PG * torch.where(where, torch.as_tensor(multiplier).to(advantages_PG), 1.0)
