"""Settings: from `key=value` words and YAML files to one validated, frozen value.

An algorithm's `Config` is made of the parts below, each owned by the code that reads it.
Defaults are the papers' values; a default of ours says so in its description.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator


class Settings(BaseModel):
    """Frozen settings; an unknown key or a value out of range is an error that names the choice."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


C = TypeVar("C", bound=Settings)

TEMPLATE_FILES = (".jinja", ".jinja2", ".j2")


class ModelSettings(Settings):
    model: str = Field("embedded", description="Hugging Face name, a path, `embedded` or `embedded_code`")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="bfloat16: autocast over float32 weights; auto: bfloat16 on a GPU that has it"
    )
    lora_rank: int = Field(0, ge=0, description="0 trains all weights")
    gradient_checkpointing: bool = False
    generator: Literal["hf", "vllm"] = Field("hf", description="what samples; vllm: extra `hardwon[vllm]`")
    vllm_server: str | None = Field(None, description="URL of a vLLM server; default: in this process")
    vllm_gpu_memory: float = Field(
        0.5, gt=0, le=1, description="share of the GPU that vLLM in this process has while it samples (ours)"
    )


class PromptSettings(Settings):
    """How a problem is put to the model; docs/prompts.md."""

    chat_template: Literal[True, False, "auto"] = Field(
        "auto", description="auto: the model's chat template if it has one; false: raw text"
    )
    system_prompt: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="what the chat template takes, as enable_thinking"
    )
    prompt_template: str = Field(
        "auto", description="auto: the task's own; none: prompts as they are; Jinja text, or a .jinja file"
    )
    eval_prompt_template: str | None = Field(
        None, description="the same for held-out problems; default: prompt_template"
    )
    examples: str | list[dict[str, Any]] = Field(
        default_factory=list, description="worked examples (prompt, response): a list, or a file of rows"
    )

    @field_validator("prompt_template", mode="before")
    @classmethod
    def _null_is_none(cls, value: Any) -> Any:
        return "none" if value is None else value

    @field_validator("prompt_template", "eval_prompt_template")
    @classmethod
    def _read_template(cls, value: str | None) -> str | None:
        """The text of a template's file, so that the run keeps it even if the file changes."""
        if value is None or not value.endswith(TEMPLATE_FILES):
            return value
        path = Path(value).expanduser()
        if not path.is_file():
            names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
            raise ValueError(f"no such file{nearest(path.name, names)}")
        return path.read_text(encoding="utf-8")


class TaskSettings(Settings):
    task: str = Field(
        "chain_arithmetic",
        description="chain_arithmetic, tiny_programs, math, code, reasoning_gym:<dataset>",
    )
    data: str | None = Field(None, description="problems: .jsonl, .parquet or a data set's name")
    eval_data: str | None = Field(None, description="held-out problems; default: a fixed part of `data`")
    task_options: dict[str, Any] = Field(default_factory=dict, description="what the task itself takes")
    reward: str | None = Field(
        None,
        description="package.module:function with TRL's or verl's signature; a.b:f*0.5,c.d:g for several",
    )
    reward_from: Literal["verdict", "score"] = Field(
        "verdict", description="verdict: +1 or -1; score: the verifier's own grade, as `reward` always is"
    )


class SamplingSettings(Settings):
    max_prompt_tokens: int = Field(2048, gt=0)
    max_new_tokens: int = Field(20480, gt=0)
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0: off")


class OptimizerSettings(Settings):
    learning_rate: float = Field(1e-6, gt=0)
    warmup_iterations: int = Field(20, ge=0)
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = "constant"
    weight_decay: float = Field(0.1, ge=0)
    adam_beta2: float = Field(0.999, gt=0, lt=1)
    max_grad_norm: float = Field(1.0, gt=0)
    micro_batch_tokens: int = Field(16384, gt=0, description="padded tokens a forward pass (ours)")


class RunSettings(Settings):
    algorithm: str = ""
    iterations: int = Field(1, gt=0)
    run: str | None = Field(None, description="run directory; default runs/<algorithm>-<date>-<time>")
    seed: int = 0
    checkpoint_every: int = Field(50, gt=0, description="iterations (ours)")
    keep_checkpoints: int = Field(2, gt=0, description="the last N and the best (ours)")
    log_to: list[Literal["tensorboard", "wandb"]] = Field(
        default_factory=list, description="beside metrics.jsonl"
    )


class EvaluationSettings(Settings):
    eval_every: int = Field(50, ge=0, description="iterations; 0: only before and after (ours)")
    eval_problems: int = Field(500, gt=0, description="held-out problems (ours)")
    eval_samples: int = Field(4, gt=0, description="responses a problem, sampled as in training (ours)")


def parse_words(words: Sequence[str]) -> dict[str, Any]:
    """`["a=1", "b=[x, y]", "c.d=2"]` -> `{"a": 1, "b": ["x", "y"], "c": {"d": 2}}`; values are YAML.

    Raises ValueError for a word without `=` and for a key given twice.
    """
    out: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ValueError(f"expected key=value, got {word!r}")
        *parents, last = key.split(".")
        place = out
        for parent in parents:
            place = place.setdefault(parent, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last in place:
            raise ValueError(f"setting {key!r} is given twice")
        place[last] = _parse_value(key, text)
    return out


def _parse_value(key: str, text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{key}={text}: not a YAML value ({error})") from None
    except RecursionError:
        raise ValueError(f"{key}={text:.40}...: too deeply nested") from None
    # YAML reads 1e-6 as text, since it wants a dot before the exponent.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A recipe or config file. Raises ValueError if it is not there or not a mapping."""
    try:
        value = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"config file {str(path)!r} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"config file {str(path)!r} is not YAML: {error}") from None
    except RecursionError:
        raise ValueError(f"config file {str(path)!r} is too deeply nested") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(
            f"config file {str(path)!r} must hold `key: value` lines, not a {type(value).__name__}"
        )
    return {str(k): v for k, v in value.items()}


def build(kind: type[C], *layers: Mapping[str, Any]) -> C:
    """Settings of `kind` from layers of values, the later over the earlier.

    Raises ValueError that names each bad setting, its value and the nearest valid choice.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(layer)
    try:
        return kind(**merged)
    except ValidationError as error:
        raise ValueError("\n".join(_explain(kind, e) for e in error.errors())) from None


def _explain(kind: type[Settings], error: Any) -> str:
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"unknown setting {key!r}{nearest(key, kind.model_fields)}"
    message = error["msg"].removeprefix("Value error, ")
    if not key:
        return message
    hint = ""
    field = kind.model_fields.get(str(error["loc"][0]))
    if error["type"] == "literal_error" and field is not None:
        hint = nearest(str(error["input"]), [str(c) for c in get_args(field.annotation)])
    return f"{key}={error['input']!r}: {message}{hint}"


def nearest(word: str, choices: Sequence[str] | Mapping[str, Any]) -> str:
    """`; did you mean 'x'?` for the choice closest to `word`, or nothing if none is close."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""


def non_default(settings: Settings) -> dict[str, Any]:
    """The settings that differ from their defaults, for a short print."""
    fields = type(settings).model_fields
    return {
        k: v
        for k, v in settings.model_dump().items()
        if v != fields[k].get_default(call_default_factory=True)
    }
