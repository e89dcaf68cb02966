"""A row of data as a problem.

Columns as TRL has them: `prompt` (text or chat messages) and `answer` or `solution`; or as verl has them:
`prompt`, `reward_model.ground_truth`, `data_source`, `extra_info`. Everything but the prompt goes to `info`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hardwon.data import Problem


class BadRowError(ValueError):
    """One fault of one row; `column` is where."""

    def __init__(self, column: str, fault: str) -> None:
        super().__init__(f"column {column!r}: {fault}")


def problem_of_row(row: Mapping[str, Any], default_id: str) -> Problem:
    """TRL's or verl's columns as a Problem; BadRowError names the column."""
    info = {key: value for key, value in row.items() if key != "prompt"}
    return Problem(row_id(row, default_id), row_prompt(row), row_answer(row), info)


def row_id(row: Mapping[str, Any], default: str) -> str:
    given = row.get("id")
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise BadRowError("id", f"text or a whole number is wanted, found {given!r:.80}")
    return str(given)


def row_prompt(row: Mapping[str, Any]) -> str | list[dict[str, str]]:
    prompt = column(row, "prompt")
    if isinstance(prompt, str):
        if not prompt.strip():
            raise BadRowError("prompt", "is empty")
        return prompt
    if not isinstance(prompt, Sequence) or not prompt:
        raise BadRowError("prompt", f"text or a list of chat messages is wanted, found {prompt!r:.80}")
    for message in prompt:
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise BadRowError(
                "prompt", f"a message with text 'role' and 'content' is wanted, found {message!r:.80}"
            )
    return [{"role": message["role"], "content": message["content"]} for message in prompt]


def answer_column(row: Mapping[str, Any]) -> str:
    if "reward_model" in row:
        return "reward_model.ground_truth"
    return "solution" if "solution" in row and "answer" not in row else "answer"


def row_answer(row: Mapping[str, Any]) -> str:
    name = answer_column(row)
    if name == "reward_model.ground_truth":
        model = row["reward_model"]
        if not isinstance(model, Mapping) or model.get("ground_truth") is None:
            raise BadRowError(name, f"is missing in {model!r:.80}")
        answer = model["ground_truth"]
    else:
        answer = column(row, name)
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise BadRowError(name, f"text or a number is wanted, found {answer!r:.80}")
    if not str(answer).strip() or answer != answer:
        raise BadRowError(name, "is empty")
    return str(answer).strip()


def column(row: Mapping[str, Any], name: str) -> Any:
    if row.get(name) is not None:
        return row[name]
    if name in row:
        raise BadRowError(name, "is empty")
    raise BadRowError(name, f"is missing; the row has {', '.join(map(str, row))}")
