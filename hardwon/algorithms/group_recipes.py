"""The group-relative family as values: what one paper changes against another, side by side.

Read from the top: each recipe is the one it derives from, with the paper's differences. The
`settings` are the paper's values, which a user's settings override.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from torch import Tensor

from hardwon.functional import objectives
from hardwon.functional.advantages import (
    batch_normalized,
    centered,
    gpg,
    group_then_batch_normalized,
    leave_one_out,
    length_weighted,
    max_rl,
    pass_at_k,
    standardized,
)
from hardwon.functional.objectives import cispo, clipped, gmpo, gspo, sapo


def _settings(**values: Any) -> Mapping[str, Any]:
    return MappingProxyType(values)


@dataclass(frozen=True)
class Recipe:
    """One member of the family.

    advantages   (rewards_PG, correct_PG, lengths_PG) -> advantages_PG
    objective    (log_probs_BT, old_log_probs_BT, advantages_BT, response_mask_BT, ...) -> losses_BT
    aggregation  how token losses become one number; its denominator is that of the whole step
    kl_in_reward the KL term is part of the reward and not of the loss
    by_verdict   advantages read the verdicts alone, so that no shape of the reward changes them
    min_group_size  fewer rollouts of a prompt have nothing to compare
    settings     the paper's values for the Config
    """

    paper: str
    advantages: Callable[..., Tensor]
    objective: Callable[..., tuple[Tensor, dict[str, Tensor]]]
    aggregation: Literal["token_mean", "sequence_mean", "sequence_mean_token_sum"]
    kl_in_reward: bool = False
    by_verdict: bool = False
    min_group_size: int = 2
    settings: Mapping[str, Any] = field(default_factory=_settings)

    def but(self, paper: str, *, settings: Mapping[str, Any] | None = None, **changes: Any) -> Recipe:
        """This recipe with a paper's changes; its settings lie over those here."""
        merged = MappingProxyType({**self.settings, **(settings or {})})
        return replace(self, paper=paper, settings=merged, **changes)


GRPO = Recipe(
    "arXiv 2402.03300",
    advantages=standardized,
    objective=clipped,
    aggregation="sequence_mean",
    settings=_settings(clip_low=0.2, clip_high=0.2, kl_coef=0.04),
)
DAPO = GRPO.but(
    "arXiv 2503.14476",
    aggregation="token_mean",
    settings=_settings(clip_high=0.28, kl_coef=0.0, dynamic_sampling=True, overlong="punish"),
)
DA3PO = DAPO.but("arXiv 2608.27982", settings=_settings(amplification="daa"))
DR_GRPO = GRPO.but(
    "arXiv 2503.20783",
    advantages=centered,
    aggregation="sequence_mean_token_sum",
    settings=_settings(kl_coef=0.0),
)
RLOO = GRPO.but("arXiv 2402.14740", advantages=leave_one_out, settings=_settings(kl_coef=0.0))
REINFORCE_PP = GRPO.but(
    "arXiv 2501.03262",
    advantages=batch_normalized,
    aggregation="token_mean",
    kl_in_reward=True,
    settings=_settings(kl_coef=0.01),
)
REINFORCE_PP_BASELINE = GRPO.but(
    "arXiv 2501.03262", advantages=group_then_batch_normalized, aggregation="token_mean"
)
GSPO = GRPO.but(
    "arXiv 2507.18071",
    objective=gspo,
    settings=_settings(clip_low=3e-4, clip_high=4e-4, kl_coef=0.0),
)
CISPO = DAPO.but(
    "arXiv 2506.13585",
    objective=cispo,
    settings=_settings(clip_low=1.0, dynamic_sampling=False, overlong="none"),
)
GPG = GRPO.but(
    "arXiv 2504.02546",
    advantages=gpg,
    objective=objectives.gpg,
    aggregation="token_mean",
    settings=_settings(clip_low=None, clip_high=None, kl_coef=0.0),
)
GMPO = GRPO.but(
    "arXiv 2507.20673",
    objective=gmpo,
    settings=_settings(clip_low=0.4, clip_high=0.4, kl_coef=0.0),
)
SAPO = GRPO.but(
    "arXiv 2511.20347",
    objective=sapo,
    settings=_settings(clip_low=None, clip_high=None, kl_coef=0.0),
)
OPO = GRPO.but(
    "arXiv 2505.23585",
    advantages=length_weighted,
    aggregation="token_mean",
    settings=_settings(kl_coef=0.0),
)
MAXRL = GRPO.but(
    "arXiv 2602.02710",
    advantages=max_rl,
    aggregation="token_mean",
    by_verdict=True,
    settings=_settings(kl_coef=0.0),
)
PASSK = DAPO.but(
    "arXiv 2508.10751",
    advantages=partial(pass_at_k, k=4),
    min_group_size=5,
    by_verdict=True,
    settings=_settings(dynamic_sampling=False, overlong="none"),
)

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "da3po": DA3PO,
        "dapo": DAPO,
        "grpo": GRPO,
        "dr_grpo": DR_GRPO,
        "rloo": RLOO,
        "reinforce_pp": REINFORCE_PP,
        "reinforce_pp_baseline": REINFORCE_PP_BASELINE,
        "gspo": GSPO,
        "cispo": CISPO,
        "gpg": GPG,
        "gmpo": GMPO,
        "sapo": SAPO,
        "opo": OPO,
        "maxrl": MAXRL,
        "passk": PASSK,
    }
)
