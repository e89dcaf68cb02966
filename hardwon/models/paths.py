"""Where a model comes from: the packaged one, a directory, or a name on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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


def resolve_model(model: str | Path) -> str:
    """A name of PACKAGED, a directory or a hub name (`organisation/name`), as from_pretrained wants it.

    What cannot be a hub name is never asked for on the network: it has to exist. That is a name without
    a slash, and a path: anything absolute, anything that begins with `.` or `~`, has more than one slash,
    or whose first part is a directory here.
    """
    text = str(model)
    if text in PACKAGED:
        return str(packaged_path(text))
    path = Path(text).expanduser()
    if path.is_dir():
        return str(path)
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


def packaged_path(name: str) -> Path:
    """The directory of a packaged model."""
    return Path(__file__).parent / name


def from_pretrained(load: Callable[..., Any], model: str | Path, **kwargs: Any) -> Any:
    """`load(resolved model, **kwargs)` without remote code; ValueError naming the model if it fails."""
    source = resolve_model(model)
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
