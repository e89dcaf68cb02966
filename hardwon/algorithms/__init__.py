"""The methods by name, for the command line. Each is a `Config` and a `train`, and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardwon.algorithms import direct_advantage, dpo, group_policy, ppo, sft
from hardwon.algorithms.group_recipes import RECIPES
from hardwon.config import build, nearest
from hardwon.models.paths import PACKAGED
from hardwon.workbench import SharedSettings


@dataclass(frozen=True)
class Algorithm:
    """`settings` are the paper's values over the Config's; `embedded` are ours for the packaged models.

    `several_processes`: it divides its work over ranks under torchrun.
    """

    config: type[SharedSettings]
    train: Callable[..., Path]
    settings: Mapping[str, Any]
    embedded: Mapping[str, Any]
    several_processes: bool = False

    def check_processes(self, number: int) -> None:
        """ValueError if it runs in one process only and there are more."""
        if number > 1 and not self.several_processes:
            names = ", ".join(name for name, a in ALGORITHMS.items() if a.several_processes)
            raise ValueError(
                f"{number} processes: this algorithm runs in one. Start it without torchrun, or with "
                f"--nproc-per-node 1. Those that divide their work: {names}"
            )


ALGORITHMS: dict[str, Algorithm] = {
    name: Algorithm(
        group_policy.Config,
        group_policy.train,
        recipe.settings,
        group_policy.EMBEDDED,
        several_processes=True,
    )
    for name, recipe in RECIPES.items()
} | {
    module.__name__.rpartition(".")[2]: Algorithm(
        module.Config, module.train, {}, module.EMBEDDED, several_processes=module in (direct_advantage, sft)
    )
    for module in (direct_advantage, ppo, dpo, sft)
}


def find(name: str) -> Algorithm:
    """The algorithm called `name`; ValueError names the nearest and all others."""
    if name not in ALGORITHMS:
        raise ValueError(
            f"unknown algorithm {name!r}{nearest(name, ALGORITHMS)} Known: {', '.join(ALGORITHMS)}"
        )
    return ALGORITHMS[name]


def resolve(name: str, *layers: Mapping[str, Any]) -> SharedSettings:
    """The settings of a run: the paper's, ours for a packaged model where one is used, then `layers`."""
    algorithm = find(name)
    given: Sequence[Mapping[str, Any]] = [dict(layer) for layer in layers]
    model = next((layer["model"] for layer in reversed(given) if "model" in layer), "embedded")
    packaged = [PACKAGED[model], algorithm.embedded] if model in PACKAGED else []
    return build(algorithm.config, {"algorithm": name}, algorithm.settings, *packaged, *given)
