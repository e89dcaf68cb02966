"""da3po inside verl: advantage estimators, registered by name when verl is imported.

verl loads this module in every process, through the entry-point group `verl.plugins` or through
VERL_USE_EXTERNAL_MODULES=hardwon.integrations.verl, and then knows

    algorithm.adv_estimator=da3po             and, for comparison, the controls
    da3po_symmetric  da3po_ungated  da3po_shrink_incorrect  da3po_mirrored  da3po_exact  da3po_none

An estimator gets verl's scores, not its `acc`, so the score must be raw correctness: 1 right, 0 (or -1)
wrong, NaN if the verifier failed. hardwon.integrations.verl_reward gives that. The reward that
advantages are taken of is made here: +1 or -1, and soft overlong punishment from the lengths in
`response_mask`. verl's AlgoConfig takes no settings of others, so ours are in a YAML file that the
environment variable HARDWON_VERL_CONFIG names (see `VerlSettings`; without it, the published values).

verl hides a plug-in that fails to load, so ask before a run:

    python -m hardwon.integrations.verl --check
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from hardwon.config import Settings, build, read_yaml
from hardwon.functional.advantages import standardized
from hardwon.functional.amplification import MODES, amplify
from hardwon.functional.reward_shaping import soft_overlong_punishment

TESTED = "0.9.1"
SETTINGS_VARIABLE = "HARDWON_VERL_CONFIG"
REWARD_MANAGER = ("pkg://hardwon.integrations.verl_reward", "HardwonRewardManager")
SAMPLER = ("pkg://hardwon.integrations.verl_sampler", "DynamicReplayBuffer")


class VerlSettings(Settings):
    """What verl's own configuration has no place for. Published values unless marked ours."""

    amplification_factor: float = Field(2.0, gt=0, description="lambda")
    amplification_threshold: float = Field(0.5, ge=0, le=1, description="tau, strict")
    amplify_by: Literal["verdict", "reward"] = "verdict"
    std: Literal["population", "sample"] = Field("population", description="verl's own grpo uses sample")
    correct_at_least: float = Field(0.5, description="score from which a response is correct (ours)")
    max_response_length: int = Field(20480, gt=0, description="equal to data.max_response_length")
    overlong_buffer: int = Field(4096, ge=0, description="tokens of soft overlong punishment; 0: off")

    @model_validator(mode="after")
    def _check(self) -> VerlSettings:
        if self.overlong_buffer > self.max_response_length:
            raise ValueError(
                f"overlong_buffer={self.overlong_buffer} is longer than "
                f"max_response_length={self.max_response_length}; 0 turns the punishment off"
            )
        return self


def load_settings() -> VerlSettings:
    path = os.environ.get(SETTINGS_VARIABLE)
    return build(VerlSettings, read_yaml(path) if path else {})


def estimate(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    config: Any = None,
    index: Sequence[Any] | None = None,
    *,
    mode: str,
    settings: VerlSettings | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """verl's estimator interface: `(advantages_BT, returns_BT)`, the same tensor twice, as its grpo does.

    `token_level_rewards` (B, T) sum to each response's raw score and `index` (B) says whose group it
    is in. Rows without a response token are verl's padding.
    """
    if index is None:
        raise ValueError("da3po compares the responses of one prompt, and verl gave no `uid` for them")
    settings = settings or load_settings()
    _refuse(config, settings)
    lengths_B = response_mask.sum(dim=1).long()
    if settings.overlong_buffer and int(lengths_B.max()) > settings.max_response_length:
        raise ValueError(
            f"a response has {int(lengths_B.max())} tokens, more than max_response_length="
            f"{settings.max_response_length}. Set it to data.max_response_length in ${SETTINGS_VARIABLE}"
        )
    scores_B = token_level_rewards.sum(dim=1)
    advantages_B = advantages_of(scores_B, lengths_B, list(index), settings, mode)
    advantages_BT = advantages_B.to(token_level_rewards.dtype)[:, None] * response_mask
    return advantages_BT, advantages_BT


def advantages_of(
    scores_B: Tensor, lengths_B: Tensor, index: Sequence[Any], settings: VerlSettings, mode: str
) -> Tensor:
    """Amplified standardised advantages (B, float64) from raw scores.

    Groups may differ in size, as verl drops responses that failed; a single response has nothing to be
    compared with and gets 0. ValueError if all are single.
    """
    groups: dict[Any, list[int]] = defaultdict(list)
    for row, uid in enumerate(index):
        if lengths_B[row] > 0:
            groups[uid].append(row)
    by_size: dict[int, list[list[int]]] = defaultdict(list)
    for rows in groups.values():
        by_size[len(rows)].append(rows)
    if set(by_size) == {1}:
        raise ValueError(
            "actor_rollout_ref.rollout.n=1 leaves nothing to compare a response with; use at least 2"
        )
    advantages_B = torch.zeros(len(scores_B), dtype=torch.float64, device=scores_B.device)
    for size, members in by_size.items():
        if size > 1:
            rows_PG = torch.tensor(members, device=scores_B.device)
            advantages_B[rows_PG] = _advantages_PG(scores_B[rows_PG], lengths_B[rows_PG], settings, mode)
    return advantages_B


def _advantages_PG(scores_PG: Tensor, lengths_PG: Tensor, settings: VerlSettings, mode: str) -> Tensor:
    judged_PG = ~scores_PG.isnan()
    correct_PG = judged_PG & (scores_PG >= settings.correct_at_least)
    rewards_PG = torch.where(correct_PG, 1.0, -1.0).double()
    if settings.overlong_buffer:
        rewards_PG += soft_overlong_punishment(
            lengths_PG, settings.max_response_length, settings.overlong_buffer
        )
    rewards_PG = rewards_PG.masked_fill(~judged_PG, torch.nan)
    return amplify(
        standardized(rewards_PG, correct_PG, lengths_PG, std=settings.std),
        correct_PG if settings.amplify_by == "verdict" else rewards_PG > 0,
        correct_PG.sum(dim=1) / judged_PG.sum(dim=1),
        mode=mode,
        factor=settings.amplification_factor,
        threshold=settings.amplification_threshold,
        num_judged_P=judged_PG.sum(dim=1),
    )


def _refuse(config: Any, settings: VerlSettings) -> None:
    """Settings of verl under which the scores or the lengths would no longer be raw."""
    if config is None:
        return
    if config.get("use_kl_in_reward", False):
        raise ValueError(
            "algorithm.use_kl_in_reward=True mixes the KL into the score that says what is correct; "
            "use actor_rollout_ref.actor.use_kl_loss=True"
        )
    correction = config.get("rollout_correction", None) or {}
    if settings.overlong_buffer and correction.get("rollout_rs", None):
        raise ValueError(
            f"algorithm.rollout_correction.rollout_rs={correction.get('rollout_rs')} takes tokens out of the "
            "response mask, from which lengths are read; set overlong_buffer=0 or use rollout_is"
        )


ESTIMATORS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "da3po" if mode == "daa" else f"da3po_{mode}": partial(estimate, mode=mode) for mode in MODES
}


def register() -> None:
    from verl.trainer.ppo.core_algos import register_adv_est

    for name, estimator in ESTIMATORS.items():
        register_adv_est(name)(estimator)


def unregistered() -> list[str]:
    """Names of ours that verl, once imported, does not know as ours."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    def is_ours(function: Any) -> bool:
        # Under `python -m` this module is another copy of the one that verl loads, so compare by name.
        return getattr(getattr(function, "func", None), "__module__", "") == "hardwon.integrations.verl"

    return [name for name in ESTIMATORS if not is_ours(ADV_ESTIMATOR_REGISTRY.get(name))]


def check() -> list[str]:
    """What would stop a run, found the way verl itself finds things; empty if all is well."""
    if importlib.util.find_spec("verl") is None:
        return [f"verl is not installed in this environment: pip install verl=={TESTED}"]
    verl = importlib.import_module("verl")
    faults = []
    if verl.__version__.rpartition(".")[0] != TESTED.rpartition(".")[0]:
        faults.append(f"verl {verl.__version__} is installed; this plug-in was tested with {TESTED}")
    missing = unregistered()
    if missing:
        faults.append(
            f"verl did not register {', '.join(missing)}. Install hardwon here (its entry point is "
            "verl.plugins), or set VERL_USE_EXTERNAL_MODULES=hardwon.integrations.verl; "
            f"VERL_USE_EXTERNAL_PLUGINS is {os.environ.get('VERL_USE_EXTERNAL_PLUGINS', 'not set')}"
        )
    load = importlib.import_module("verl.utils.import_utils").load_extern_object
    for path, name in (REWARD_MANAGER, SAMPLER):
        try:
            load(path, name)
        except Exception as error:
            faults.append(f"{name} of {path} does not load: {type(error).__name__}: {error}")
    try:
        print(f"settings ({os.environ.get(SETTINGS_VARIABLE, 'published values')}): {load_settings()}")
    except ValueError as error:
        faults.append(f"${SETTINGS_VARIABLE}: {error}")
    return faults


def main(arguments: Sequence[str]) -> int:
    if list(arguments) != ["--check"]:
        print("usage: python -m hardwon.integrations.verl --check", file=sys.stderr)
        return 2
    faults = check()
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    if not faults:
        print(f"verl knows {', '.join(ESTIMATORS)}; reward manager and sampler load")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
else:
    register()
