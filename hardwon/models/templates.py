"""Prompt templates: Jinja text that puts the columns of a row into a question. It runs in Jinja's sandbox."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hardwon.config import nearest

# Line breaks after a block are dropped, as in chat templates, so that a loop can stand on lines of its own.
ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)

# What YAML makes of \b, \f, \a, \v and \e between double quotes, where \boxed or \frac was meant.
ESCAPES = {"\b": r"\b", "\f": r"\f", "\a": r"\a", "\v": r"\v", "\x1b": r"\e"}


@lru_cache(maxsize=16)
def compile_template(setting: str, text: str) -> Template:
    """The template in the setting called `setting`. ValueError if it is none, or uses no column."""
    escape = next((name for character, name in ESCAPES.items() if character in text), None)
    if escape:
        raise ValueError(
            f"{setting}: YAML reads {escape} between double quotes as one control character; "
            "use single quotes or a block (|), where a backslash is a backslash"
        )
    try:
        template = ENVIRONMENT.from_string(text)
    except TemplateSyntaxError as error:
        raise ValueError(f"{setting}, line {error.lineno}: {error.message}") from None
    if not used_names(text):
        raise ValueError(
            f"{setting}={text!r:.80} uses no column, so that all problems would read the same"
            f"{nearest(text, ['auto', 'none']) or '; write {{ prompt }} where the question belongs'}"
        )
    return template


@lru_cache(maxsize=16)
def used_names(text: str) -> frozenset[str]:
    """The variables that a template reads."""
    return frozenset(meta.find_undeclared_variables(ENVIRONMENT.parse(text)))


def render(setting: str, text: str, variables: Mapping[str, Any], where: str) -> str:
    """The template filled in. ValueError names the setting, `where`, and the nearest known variable."""
    template = compile_template(setting, text)
    try:
        return template.render(variables)
    except Exception as error:  # of every kind: a template calls methods of the row's values
        raise ValueError(f"{setting}, {where}: {error}{_nearest_name(str(error), variables)}") from None


def _nearest_name(message: str, variables: Mapping[str, Any]) -> str:
    unknown = re.match(r"'(\w+)' is undefined", message)
    if not unknown:
        return ""
    names = [name for name in variables if name.isidentifier()]
    return nearest(unknown[1], names) or f"; there are {', '.join(sorted(names))}"
