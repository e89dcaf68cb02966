"""Where a model comes from: a packaged one, a directory, a run, an adapter, or the Hugging Face hub."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hardwon.config import nearest

PACKAGED: Mapping[str, Mapping[str, Any]] = {
    "embedded": {
        "task": "chain_arithmetic", "prompt_template": "none", "max_prompt_tokens": 64, "max_new_tokens": 40,
    },
    "embedded_code": {
        "task": "tiny_programs", "prompt_template": "none", "max_prompt_tokens": 80, "max_new_tokens": 96,
    },
}  # fmt: skip
"""The models that ship with the package, by the name that `model=` takes: settings for what they learnt."""


ORIGIN = "hardwon_origin"
"""The key of config.json by which a packaged model, and whatever was trained from it, names the first."""

MODEL, ADAPTER, RUN = "config.json", "adapter_config.json", "config.yaml"
"""The file that makes a directory a model, an adapter, or a run."""


class Found(NamedTuple):
    """A full model (a directory or a hub name), and the adapters to merge into it, the innermost first."""

    base: str
    adapters: tuple[Path, ...] = ()


def find_model(model: str | Path, outer: tuple[Path, ...] = ()) -> Found:
    """What `model` stands for, see `resolve_model`; the base of an adapter is found by the name it gives.

    `outer` are the adapters that led here. ValueError if there is no such model, or no such base.
    """
    source = resolve_model(model)
    path = Path(source)
    if not (path / ADAPTER).is_file():
        return Found(source)
    base = _base_name(path)
    if path.resolve() in outer:
        raise ValueError(f"model={model} is an adapter of itself ({path / ADAPTER} names base {base!r})")
    try:
        found = find_model(base, (*outer, path.resolve()))
    except ValueError as error:
        raise ValueError(
            f"model={model} is an adapter, and its base is not here: {error}. Correct "
            f"base_model_name_or_path in {path / ADAPTER}"
        ) from error
    return Found(found.base, (*found.adapters, path))


def _base_name(adapter: Path) -> str:
    try:
        base = json.loads((adapter / ADAPTER).read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"model={adapter}: {ADAPTER} cannot be read: {error}") from error
    if not base:
        raise ValueError(
            f"model={adapter} is an adapter that does not say of which model: write "
            f"base_model_name_or_path into {adapter / ADAPTER}"
        )
    return str(base)


def tokenizer_source(model: str | Path) -> str:
    """Where the tokenizer lies: beside the outermost adapter that has one, else with the full model."""
    found = find_model(model)
    having = [str(path) for path in found.adapters if (path / "tokenizer_config.json").is_file()]
    return having[-1] if having else found.base


def origin_of(model: object) -> str | None:
    """The packaged model that `model` is or was trained from; None for any other.

    ValueError for a directory that holds no model.
    """
    origin = config_of(model).get(ORIGIN)
    return origin if isinstance(origin, str) and origin in PACKAGED else None


def context_of(model: object) -> int | None:
    """Tokens that prompt and response may have together, where that is known without the network."""
    config = config_of(model)
    text = config.get("text_config")
    found = (text if isinstance(text, dict) else config).get("max_position_embeddings")
    return found if isinstance(found, int) else None


def config_of(model: object) -> dict[str, Any]:
    """config.json of a packaged model or a directory; empty for any other, and where loading will complain.

    `model` may be a setting that is not validated. ValueError for a directory that holds no model.
    """
    if not isinstance(model, str | Path):
        return {}
    if str(model) not in PACKAGED and not os.path.isdir(Path(model).expanduser()):
        return {}
    try:
        config = json.loads((Path(find_model(model).base) / MODEL).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def resolve_model(model: str | Path) -> str:
    """The directory of a model or an adapter, or a hub name (`organisation/name`).

    `model` is a name of PACKAGED, such a directory, a run directory (its trained model), a checkpoint, or a
    hub name. What cannot be a hub name is never asked for on the network: it has to exist. That is a name
    without a slash, and a path: anything absolute, anything that begins with `.` or `~`, has more than one
    slash, or whose first part is a directory here.
    """
    text = str(model)
    if text in PACKAGED:
        return str(packaged_path(text))
    path = Path(text).expanduser()
    if path.is_dir():
        return str(_model_in(path))
    if path.is_file():
        raise ValueError(f"model={text} is a file; give the directory that holds config.json: {path.parent}")
    if _looks_like_a_path(text, path):
        raise ValueError(f"model={text} does not exist{_nearest(path)}")
    if "/" not in text:
        here = [p.name for p in Path().iterdir() if p.is_dir()]
        raise ValueError(
            f"model={text}: there is no such directory here, and a name on the Hugging Face hub is "
            f"organisation/name{nearest(text, [*PACKAGED, *here])}"
        )
    return text


def _model_in(path: Path) -> Path:
    """The model that a directory is, or that it holds as a run or a checkpoint; ValueError if it has none."""
    if (path / MODEL).is_file() or (path / ADAPTER).is_file():
        return path
    if (path / RUN).is_file():
        return trained_model(path)
    if (path / "model" / MODEL).is_file():  # a checkpoint
        return path / "model"
    names = sorted(p.name for p in path.iterdir())
    deeper = [n for n in names if (path / n / MODEL).is_file() or (path / n / ADAPTER).is_file()]
    hint = f"; did you mean {path / deeper[0]}?" if deeper else ""
    raise ValueError(
        f"model={path} holds no model: no {MODEL} (a model), {ADAPTER} (an adapter) or {RUN} (a run). "
        f"It holds {', '.join(names[:5]) or 'nothing'}{', ...' if len(names) > 5 else ''}{hint}"
    )


def trained_model(run: str | Path) -> Path:
    """A run's trained model, or that of a newer checkpoint if the run goes on or is not finished."""
    patterns = ("model", "checkpoints/iteration-*/model", "steps/iteration-*/policy")
    found = [path for pattern in patterns for path in sorted(Path(run).glob(pattern), reverse=True)]
    written = {path: (path / MODEL).stat().st_mtime for path in found if (path / MODEL).is_file()}
    if written:
        return max(written, key=lambda path: written[path])
    raise ValueError(f"{run} has no trained model yet: it was stopped before its first checkpoint")


def packaged_path(name: str) -> Path:
    """The directory of a packaged model."""
    return Path(__file__).parent / name


def from_pretrained(
    load: Callable[..., Any], model: str | Path, source: str | None = None, **kwargs: Any
) -> Any:
    """`load(source, **kwargs)` without remote code; ValueError naming the model if it fails.

    `source` is by default the full model that `model` stands for: for an adapter, its base.
    """
    source = source or find_model(model).base
    try:
        return load(source, trust_remote_code=False, local_files_only=Path(source).is_dir(), **kwargs)
    except Exception as error:  # of many kinds: the reader of each format, the network, the model's own code
        if Path(source).is_dir():
            raise ValueError(f"model={model} could not be loaded from this directory: {error}") from error
        reason = str(error).partition("\n")[0]  # what follows is advice on the library's own settings
        raise ValueError(
            f"model={model} could not be loaded from the Hugging Face hub or its local cache: {reason}"
        ) from error


def _looks_like_a_path(text: str, path: Path) -> bool:
    if path.is_absolute() or text.startswith((".", "~")) or text.endswith("/") or "\\" in text:
        return True
    return len(path.parts) > 2 or (len(path.parts) == 2 and Path(path.parts[0]).is_dir())


def _nearest(path: Path) -> str:
    """The part of the path that does exist, to show where it went wrong."""
    for parent in path.parents:
        if parent.is_dir() and str(parent) != ".":
            return f"; {parent} does, and holds {sorted(p.name for p in parent.iterdir())[:5]}"
    return ""
