"""Prompts of rows: text, or chat messages in one of the forms in which data sets write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hardwon.tasks.layouts.layout import BadRowError, Layout, Row, at, is_list, needed

Prompt = str | list[dict[str, str]]

ROLES = {"human": "user", "gpt": "assistant"}  # as ShareGPT names them


def prompt_at(row: Row, path: str) -> Prompt:
    """Text as it is, or messages with `role` and `content`; BadRowError for anything else."""
    value = needed(row, path)
    if isinstance(value, str):
        if not value.strip():
            raise BadRowError(path, "is empty")
        return value
    if not is_list(value) or not value:
        raise BadRowError(path, f"text or a list of chat messages is wanted, found {value!r:.80}")
    return [message_of(path, message) for message in value]


def prompt_of(row: Row, layout: Layout) -> Prompt:
    """The prompt of a row, wherever its layout has it."""
    return prompt_at(row, layout.prompt) if isinstance(layout.prompt, str) else layout.prompt(row)


def message_of(path: str, message: Any) -> dict[str, str]:
    """OpenAI's form (content as text, or as a list of text parts) or ShareGPT's (from, value)."""
    if isinstance(message, Mapping):
        role = message.get("role", message.get("from"))
        content = message.get("content", message.get("value"))
        if is_list(content) and all(isinstance(at(part, "text"), str) for part in content):
            content = "".join(at(part, "text") for part in content)
        if isinstance(role, str) and isinstance(content, str):
            return {"role": ROLES.get(role, role), "content": content}
    raise BadRowError(path, f"a message with text 'role' and 'content' is wanted, found {message!r:.80}")


def conversation(path: str) -> Callable[[Row], Prompt]:
    """The messages up to the last answer, which a training example for imitation ends with."""

    def read(row: Row) -> Prompt:
        prompt = prompt_at(row, path)
        if isinstance(prompt, str) or prompt[-1]["role"] != "assistant":
            return prompt
        if len(prompt) == 1:
            raise BadRowError(path, "holds an answer and no question")
        return prompt[:-1]

    return read


def joined(*paths: str, between: str = " ") -> Callable[[Row], Prompt]:
    """The texts at several places as one prompt; an empty one is left out."""

    def read(row: Row) -> Prompt:
        texts = [str(at(row, path) or "").strip() for path in paths]
        if not any(texts):
            raise BadRowError(paths[0], "is empty")
        return between.join(filter(None, texts))

    return read
