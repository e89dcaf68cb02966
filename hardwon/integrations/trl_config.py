"""Settings of the TRL plug-in: GRPOConfig with dapo's published defaults, and what is ours."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

import trl
from trl import GRPOConfig

from hardwon.functional.amplification import MODES

TESTED = "1.16"

if not trl.__version__.startswith(f"{TESTED}."):
    raise ImportError(
        f"hardwon.integrations.trl overrides private methods of TRL and was tested with {TESTED}.0; "
        f"trl {trl.__version__} is installed. Use: pip install 'trl>={TESTED},<1.17'"
    )


@dataclass
class DA3POConfig(GRPOConfig):
    """GRPOConfig with dapo's published defaults and the settings of dynamic sampling and amplification.

    `warmup_steps` counts optimizer steps: dapo's 20 rollout steps are 320 at 16 updates a generation.
    """

    num_generations: int | None = field(default=16, metadata={"help": "G, responses of a group."})
    max_completion_length: int | None = field(default=20480, metadata={"help": "Longest response."})
    epsilon_high: float | None = field(default=0.28, metadata={"help": "Upper clip bound (clip-higher)."})
    lr_scheduler_type: str = field(default="constant_with_warmup", metadata={"help": "As published."})
    warmup_steps: float = field(default=20, metadata={"help": "Optimizer steps of linear warm-up."})
    weight_decay: float = field(default=0.1, metadata={"help": "As published."})
    amplification: str = field(default="daa", metadata={"help": f"One of {', '.join(MODES)}."})
    amplification_factor: float = field(default=2.0, metadata={"help": "lambda"})
    amplification_threshold: float = field(default=0.5, metadata={"help": "tau, strict"})
    amplify_by: str = field(
        default="verdict", metadata={"help": "What makes a response positive: 'verdict' or 'reward' > 0."}
    )
    dynamic_sampling: bool = field(default=True, metadata={"help": "Drop groups all correct or all wrong."})
    max_rounds: int = field(default=10, metadata={"help": "Rounds of generation for one batch."})
    max_age: int = field(
        default=1, metadata={"help": "Generation batches that a surplus group may wait (ours); 0 drops it."}
    )
    on_shortfall: str = field(
        default="train", metadata={"help": "A batch not full after max_rounds: 'train' on it, or 'fail'."}
    )
    correct_at_least: float = field(
        default=0.5, metadata={"help": "Reward from which a response counts as correct (see the module)."}
    )
    overlong_buffer: int | None = field(
        default=None,
        metadata={"help": "Tokens of soft overlong punishment; 0: off; None: a fifth of the longest."},
    )

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except ValueError as error:
            raise ValueError(_with_nearest_batch(self, str(error))) from error
        _one_of("amplification", self.amplification, MODES)
        _one_of("amplify_by", self.amplify_by, ("verdict", "reward"))
        _one_of("on_shortfall", self.on_shortfall, ("train", "fail"))
        if self.max_rounds < 1 or self.max_age < 0:
            raise ValueError(
                f"max_rounds={self.max_rounds} must be at least 1 and max_age={self.max_age} at least 0"
            )
        if self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                f"multi_objective_aggregation={self.multi_objective_aggregation!r}: advantages are taken of "
                "the summed reward; use 'sum_then_normalize'"
            )
        longest = self.max_completion_length
        if longest is None:
            raise ValueError("max_completion_length=None: responses need a bound, e.g. 20480")
        if self.overlong_buffer is None:
            self.overlong_buffer = max(longest // 5, 1)
        if not 0 <= self.overlong_buffer <= longest:
            raise ValueError(
                f"overlong_buffer={self.overlong_buffer} must be between 0 (off) and "
                f"max_completion_length={self.max_completion_length}"
            )


def _one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        nearest = difflib.get_close_matches(str(value), known, n=1, cutoff=0)[0]
        raise ValueError(f"{name}={value!r} is unknown; did you mean {nearest!r}? Known: {', '.join(known)}")


def _with_nearest_batch(config: DA3POConfig, message: str) -> str:
    """TRL's message on batch and group sizes, with the numbers behind it and the nearest valid batch."""
    size, num = config.generation_batch_size, config.num_generations
    if not size or not num or size % num == 0:
        return message
    step = config.world_size * config.per_device_train_batch_size
    valid = next(n for n in range(size, size * num + 1) if n % num == 0 and n % step == 0)
    return (
        f"{message} {config.world_size} processes x per_device_train_batch_size="
        f"{config.per_device_train_batch_size} x "
        f"steps_per_generation={config.steps_per_generation} is {size}; "
        f"the nearest valid generation_batch_size is {valid}"
    )
