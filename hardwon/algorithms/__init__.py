"""The methods by name, for the command line. Each is a `Config` and a `train`, and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardwon.algorithms import direct_advantage, dpo, group_policy, ppo, sft
from hardwon.algorithms.group_recipes import RECIPES
from hardwon.config import build, idle, merged, nearest
from hardwon.models.paths import PACKAGED, origin_of
from hardwon.workbench import SharedSettings, within_context


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
    """The settings of a run: the paper's, ours for a packaged model and what descends from it, then `layers`.

    A layer that names its algorithm is what a run stored; every other one is what a user asks for, and a
    setting there that this algorithm has no use for is a ValueError that names those that have.
    """
    algorithm = find(name)
    given: Sequence[Mapping[str, Any]] = [dict(layer) for layer in layers]
    model = next((layer["model"] for layer in reversed(given) if "model" in layer), "embedded")
    origin = origin_of(model)
    packaged = [PACKAGED[origin], algorithm.embedded] if origin else []
    below = [{"algorithm": name}, algorithm.settings, *packaged]
    below.append(within_context(algorithm.config, merged({"model": model}, *below, *given)))
    for number, layer in enumerate(given):
        if "algorithm" not in layer:
            check_used(name, merged(*below, *given[:number]), layer)
        elif layer["algorithm"] != name:
            raise ValueError(f"algorithm={layer['algorithm']}: these are settings of another one than {name}")
    return build(algorithm.config, *below, *given)


def check_used(name: str, below: Mapping[str, Any], layer: Mapping[str, Any]) -> None:
    """ValueError for a setting of `layer` that `name` does not have, or that does nothing there."""
    config = ALGORITHMS[name].config
    for key, value in layer.items():
        having = [n for n, a in ALGORITHMS.items() if key in a.config.model_fields]
        if having and key not in config.model_fields:
            raise ValueError(f"{key}={value}: {name} has no such setting; these have: {', '.join(having)}")
    for key, acts, now in idle(config, below, layer):
        having = [
            n
            for n, a in ALGORITHMS.items()
            if key in a.config.model_fields and not idle(a.config, a.settings, {key: layer[key]})
        ]
        also = f". These have that: {', '.join(having)}" if having and name not in having else ""
        raise ValueError(f"{key}={layer[key]} does nothing in {name} with {now}: it acts with {acts}{also}")
