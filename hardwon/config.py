"""Settings: from `key=value` words and YAML files to one validated, frozen value.

An algorithm's `Config` is made of the parts below, each owned by the code that reads it.
Defaults are the papers' values; a default of ours says so in its description.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator


class Settings(BaseModel):
    """Frozen settings; an unknown key or a value out of range is an error that names the choice."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


C = TypeVar("C", bound=Settings)

TEMPLATE_FILES = (".jinja", ".jinja2", ".j2")


class OnlyWith:
    """Marks a setting that acts only where each of these other settings has the value, or one of the values.

    Of several marks on one setting, any one is enough. `Annotated[int, OnlyWith(overlong="punish")]`
    """

    def __init__(self, **values: Any) -> None:
        self.values = {key: v if isinstance(v, tuple) else (v,) for key, v in values.items()}

    def holds(self, settings: Mapping[str, Any]) -> bool:
        return all(settings.get(key) in choices for key, choices in self.values.items())

    def __str__(self) -> str:
        return " and ".join(f"{k}={' or '.join(map(_word, choices))}" for k, choices in self.values.items())


def _word(value: Any) -> str:
    """A value as a user writes it."""
    return {None: "null", True: "true", False: "false"}.get(value, str(value))


class ModelSettings(Settings):
    model: str = Field(
        "embedded",
        description="Hugging Face name, `embedded`, `embedded_code`, or a directory: model, adapter or run",
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="bfloat16: autocast over float32 weights; auto: bfloat16 on a GPU that has it"
    )
    lora_rank: int = Field(0, ge=0, description="0 trains all weights")
    gradient_checkpointing: bool = False
    generator: Literal["hf", "vllm"] = Field("hf", description="what samples; vllm: extra `hardwon[vllm]`")
    vllm_server: Annotated[str | None, OnlyWith(generator="vllm")] = Field(
        None, description="URL of a vLLM server; default: in this process"
    )
    vllm_gpu_memory: Annotated[float, OnlyWith(generator="vllm", vllm_server=None)] = Field(
        0.5, gt=0, le=1, description="share of the GPU that vLLM in this process has while it samples (ours)"
    )


class PromptSettings(Settings):
    """How a problem is put to the model; docs/prompts.md."""

    chat_template: Literal[True, False, "auto"] = Field(
        "auto", description="auto: the model's chat template if it has one; false: raw text"
    )
    system_prompt: Annotated[str | None, OnlyWith(chat_template=(True, "auto"))] = None
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
    data: str | list[Any] | dict[str, Any] | None = Field(
        None, description="problems: files, a data set's name, or a list of sources (docs/data.md)"
    )
    eval_data: str | list[Any] | dict[str, Any] | None = Field(
        None, description="held-out problems; default: a fixed part of `data`"
    )
    columns: dict[str, str] | None = Field(
        None, description="part of a row -> its column or path: {prompt: question, answer: extra.final}"
    )
    row_function: str | None = Field(None, description="module:function that rewrites each row of the data")
    task_options: dict[str, Any] = Field(default_factory=dict, description="what the task itself takes")
    reward: str | None = Field(
        None,
        description="package.module:function with TRL's or verl's signature; a.b:f*0.5,c.d:g for several",
    )

    @property
    def sources(self) -> list[Mapping[str, Any]]:
        """The sources of a mixture that say more than where the data is."""
        given = [one for value in (self.data, self.eval_data) for one in _as_list(value)]
        return [one for one in given if isinstance(one, Mapping)]

    @property
    def has_reward_functions(self) -> bool:
        """Whether functions of the user judge, in the whole run or for a source of it."""
        return self.reward is not None or any(source.get("reward") for source in self.sources)

    @property
    def tasks(self) -> set[str]:
        return {self.task} | {source["task"] for source in self.sources if source.get("task")}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class SourceSettings(Settings):
    """One source of a mixture. What it leaves out is as the run's own settings say."""

    data: str | list[str] | None = Field(None, description="as the setting `data`; none: the task makes it")
    name: str | None = Field(None, description="in metrics and ids; default: the file's or data set's")
    weight: float = Field(1.0, gt=0, description="its share of the training problems, beside other weights")
    eval_data: str | list[str] | None = None
    task: str | None = None
    task_options: dict[str, Any] = Field(default_factory=dict)
    columns: dict[str, str] | None = None
    reward: str | None = None


class SamplingSettings(Settings):
    max_prompt_tokens: int = Field(2048, gt=0)
    max_new_tokens: int = Field(20480, gt=0)
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0: off")
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, description="a response ends with the token that completes one of these strings"
    )


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
    run: str | None = Field(None, description="run directory; default runs/<algorithm>-<date>-<time>")
    seed: int = 0
    checkpoint_every: int = Field(50, gt=0, description="iterations (ours)")
    keep_checkpoints: int = Field(2, gt=0, description="the last N and the best (ours)")
    log_to: list[Literal["tensorboard", "wandb"]] = Field(
        default_factory=list, description="beside metrics.jsonl"
    )


class OnlineSettings(Settings):
    """What a method has that samples while it trains."""

    iterations: int = Field(1000, gt=0, description="(ours)")
    reward_from: Annotated[Literal["verdict", "score"], OnlyWith(reward=None)] = Field(
        "verdict", description="verdict: +1 or -1; score: the verifier's own grade, as `reward` always is"
    )
    eval_every: int = Field(50, ge=0, description="iterations; 0: only before and after (ours)")


class EvaluationSettings(Settings):
    eval_problems: int = Field(500, gt=0, description="held-out problems (ours)")
    eval_samples: int = Field(4, gt=0, description="responses per problem, beside a greedy one (ours)")
    eval_temperature: float | None = Field(
        None, gt=0, description="of sampled evaluations and validations; this and the next: null, as training"
    )
    eval_top_p: float | None = Field(None, gt=0, le=1)
    eval_top_k: int | None = Field(None, ge=0)
    eval_max_new_tokens: int | None = Field(None, gt=0, description="also of greedy evaluations")


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


# No YAML value begins like this, but patterns of files and Jinja text do: they are taken as they are.
PLAIN_TEXT = ("*", "{{", "{%")
# YAML reads 1e-6 as text, since it wants a dot before the exponent. In quotes it is text for us, too.
EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def _parse_value(key: str, text: str) -> Any:
    if text.startswith(PLAIN_TEXT):
        return text
    if EXPONENT.fullmatch(text):
        return float(text)
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        hint = "put text with signs of YAML in quotes of its own: key='\"...\"'"
        raise ValueError(f"{key}={text}: not a YAML value ({error}); {hint}") from None
    except RecursionError:
        raise ValueError(f"{key}={text:.40}...: too deeply nested") from None


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


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all layers, the later over the earlier."""
    return {key: value for layer in layers for key, value in layer.items()}


def build(kind: type[C], *layers: Mapping[str, Any]) -> C:
    """Settings of `kind` from layers of values, the later over the earlier.

    Raises ValueError that names each bad setting, its value and the nearest valid choice.
    """
    try:
        return kind(**merged(*layers))
    except ValidationError as error:
        raise ValueError("\n".join(_explain(kind, e) for e in error.errors())) from None


class Idle(NamedTuple):
    """A setting that does nothing: where it would act, and the values that it would depend on."""

    key: str
    acts: str
    now: str


def idle(kind: type[Settings], below: Mapping[str, Any], layer: Mapping[str, Any]) -> list[Idle]:
    """The settings of `layer` that do nothing with its other values over those `below`.

    Values are looked at before they are validated. A later layer may turn off what an earlier one set: a
    command line that says overlong=none is not at odds with a file that holds an overlong_buffer.
    """
    fields = kind.model_fields
    defaults = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    values = {**defaults, **below, **layer}
    found = []
    for key in layer:
        marks = [m for m in fields[key].metadata if isinstance(m, OnlyWith)] if key in fields else []
        if marks and layer[key] is not None and not any(mark.holds(values) for mark in marks):
            others = dict.fromkeys(name for mark in marks for name in mark.values)
            now = ", ".join(f"{name}={_word(values[name])}" for name in others)
            found.append(Idle(key, ", or with ".join(map(str, marks)), now))
    return found


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


def load_function(setting: str, path: str) -> Callable[..., Any]:
    """The function that a setting names as "package.module:function". ValueError says why it can't be had."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(f"{setting}={path!r}: 'package.module:function' is wanted")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a user's module often lies where the command is given
    try:
        found = importlib.import_module(module)
    except Exception as error:  # a module of the user may raise anything
        raise ValueError(
            f"{setting}={path!r}: can't import {module!r} ({type(error).__name__}: {error})"
        ) from error
    function = getattr(found, name, None)
    if not callable(function):
        functions = [other for other in dir(found) if callable(getattr(found, other))]
        raise ValueError(f"{setting}={path!r}: {module!r} has no function {name!r}{nearest(name, functions)}")
    return cast(Callable[..., Any], function)


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
