"""From a problem to the token ids that its response continues: prompt template, examples, chat template.

A prompt template (hardwon.models.templates) words the question. It may use every column of the row by its
name, and beside them:

    prompt             the question; `question` and `problem` are the same where the row has no such column
    row                all columns, for names with spaces: row["Level of school"]
    examples           the worked examples, for a template that places them itself
    chat               true where the model's chat template frames the prompt, false for raw text
    asks_for_form      true where the prompt already says how to write the answer
    multiple_choice    true where the answer is the letter of one of several choices
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from hardwon.config import nearest
from hardwon.data import Message, Problem
from hardwon.models.templates import compile_template, render, used_names

Chat = Literal[True, False, "auto"]

# Signs of a form, and not of a question about boxed lunches or about an answer.
ASKS_FOR_FORM = re.compile(
    r"""\\f?box|boxed\s*\{|\bboxed\s+(?:answer|result|form)|\b(?:answer|result)\b[^.?!\n]{0,40}\bboxed\b
    |</?answer>|\#\#\#\#|\banswer\s*:
    |["'`*]\s*(?:so\s+|therefore,?\s+)?the\ (?:final\ )?answer\ is\b|\bfinal\ answer\ is\s*[:<\[({$]
    |^\s*(?:a|solution)\s*:\s*\Z""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
CHOICE_LINES = re.compile(r"^\s*\(?A\s*[).:].*^\s*\(?B\s*[).:]", re.M | re.S)
CHOICE_COLUMNS = ("choices", "options")
# Arguments of a chat template that hardwon sets itself.
OWN_ARGUMENTS = (
    "conversation", "messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message",
    "tokenize", "return_dict",
)  # fmt: skip


@dataclass(frozen=True)
class PromptForm:
    """How problems are put to a model.

    ValueError for a template that is none.

    template      text of a prompt template, from the setting called `setting`; None: prompts as they are
    chat          true: the chat template frames the prompt; false: raw text; "auto": a chat if there is one
    examples      rows with a `prompt` and a `response`, and whatever else the template uses. They are turns
                  before the question, or paragraphs of raw text, each worded by the template; a template
                  that names `examples` places them itself.
    arguments     what the chat template takes, as enable_thinking
    """

    template: str | None = None
    chat: Chat = "auto"
    system_prompt: str | None = None
    examples: Sequence[Mapping[str, Any]] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    setting: str = "prompt_template"

    def __post_init__(self) -> None:
        if self.template is not None:
            compile_template(self.setting, self.template)

    @property
    def places_examples(self) -> bool:
        return self.template is not None and "examples" in used_names(self.template)


AS_IT_IS = PromptForm()


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, problem: Problem, form: PromptForm = AS_IT_IS
) -> tuple[int, ...]:
    """Token ids that the response continues.

    The ids begin with exactly one BOS if the tokenizer or its template uses one, else with none. ValueError
    names the problem and the setting or column that does not fit.
    """
    text = prompt_as_text(tokenizer, problem, form)
    ids = _with_one_bos(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"])
    if not ids:
        raise ValueError(f"problem {problem.id}: the prompt {problem.prompt!r} has no tokens")
    return tuple(ids)


def prompt_as_text(tokenizer: PreTrainedTokenizerBase, problem: Problem, form: PromptForm = AS_IT_IS) -> str:
    """The whole prompt as one text, before it is cut into tokens."""
    if uses_chat(tokenizer, form.chat):
        return _chat_text(tokenizer, problem, form)
    return _raw_text(problem, form)


def uses_chat(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> bool:
    """Whether prompts are framed by a chat template. ValueError for one that is wanted and not there."""
    if chat is True and tokenizer.chat_template is None:
        raise ValueError(
            "chat_template=true, but this tokenizer has no chat template: set chat_template=false to use "
            "prompts as raw text, or save a template with the tokenizer"
        )
    return tokenizer.chat_template is not None if chat == "auto" else chat


# ---------------------------------------------------------------------------------------------- the question


def _worded(problem: Problem, question: str, form: PromptForm, *, chat: bool, context: str = "") -> str:
    """The question in the words of the prompt template; `context` is what else the model reads."""
    if form.template is None:
        return question
    columns = {str(name): value for name, value in problem.info.items()}
    variables = {
        "question": question,
        "problem": question,
        **columns,
        "source_name": problem.source,
        "prompt": question,
        "row": columns,
        "examples": form.examples,
        "chat": chat,
        "asks_for_form": bool(ASKS_FOR_FORM.search(f"{context}\n{question}")),
        "multiple_choice": is_multiple_choice(problem, question),
    }
    return render(form.setting, form.template, variables, f"problem {problem.id}")


def is_multiple_choice(problem: Problem, question: str) -> bool:
    """Whether the answer is one letter and there are choices: a column of them, or lines A) and B)."""
    one_letter = re.fullmatch(r"[A-Z]", str(problem.answer).strip()) is not None
    listed = any(problem.info.get(name) for name in CHOICE_COLUMNS)
    return one_letter and (listed or CHOICE_LINES.search(question) is not None)


def _example_turns(form: PromptForm, *, chat: bool) -> list[tuple[str, str]]:
    """(question, response) of each example that the template does not place itself."""
    if form.places_examples:
        return []
    problems = [
        Problem(f"{number} of examples", str(row["prompt"]), str(row.get("answer", "")), row)
        for number, row in enumerate(form.examples, 1)
    ]
    return [
        (
            _worded(p, str(p.prompt), form, chat=chat, context=form.system_prompt or ""),
            str(p.info["response"]),
        )
        for p in problems
    ]


# ----------------------------------------------------------------------------------------------------- chat


def _chat_text(tokenizer: PreTrainedTokenizerBase, problem: Problem, form: PromptForm) -> str:
    prompt = problem.prompt
    messages: list[Message] = (
        [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    )
    opening = messages[:1] if messages and messages[0]["role"] == "system" else []
    if opening and form.system_prompt is not None:
        raise ValueError(f"problem {problem.id} has its own system message: leave system_prompt unset")
    messages = _worded_messages(problem, messages, form)[len(opening) :]
    if form.system_prompt is not None:
        opening = [{"role": "system", "content": form.system_prompt}]
    shown: list[Message] = []
    for question, response in _example_turns(form, chat=True):
        shown += [{"role": "user", "content": question}, {"role": "assistant", "content": response}]
    return _apply_chat_template(tokenizer, problem, [*opening, *shown, *messages], form)


def _worded_messages(problem: Problem, messages: list[Message], form: PromptForm) -> list[Message]:
    """The messages with the last one of the user worded by the template."""
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    if form.template is None or not users:
        return messages
    last = users[-1]
    others = [message["content"] for i, message in enumerate(messages) if i != last]
    context = "\n".join([form.system_prompt or "", *others])
    content = _worded(problem, messages[last]["content"], form, chat=True, context=context)
    return [*messages[:last], {**messages[last], "content": content}, *messages[last + 1 :]]


def _apply_chat_template(
    tokenizer: PreTrainedTokenizerBase, problem: Problem, messages: list[Message], form: PromptForm
) -> str:
    tools, arguments = row_tools(problem), {**form.arguments, **row_arguments(problem)}
    _check_arguments(tokenizer, problem, tools, arguments)
    conversation = [dict(message) for message in messages]
    continued = conversation[-1]["content"] if conversation and _is_begun(conversation) else None
    if continued is not None:
        conversation[-1]["content"] = continued + END_OF_BEGINNING
    try:
        text = str(
            tokenizer.apply_chat_template(
                conversation,
                tools=tools,
                tokenize=False,
                add_generation_prompt=continued is None,
                **arguments,
            )
        )
    except Exception as error:  # of every kind: a chat template is a program of the model's author
        raise ValueError(
            f"problem {problem.id}: the chat template of {tokenizer.name_or_path or 'this model'} "
            f"can't render it: {error}"
        ) from error
    return text if continued is None else _before_the_end(text, continued, problem)


# Stands after the message to continue while it is rendered. No blank at its ends: templates strip those.
END_OF_BEGINNING = "<hardwon:the-response-goes-on-here>"


def _is_begun(conversation: Sequence[Message]) -> bool:
    return conversation[-1]["role"] == "assistant"


def _before_the_end(text: str, beginning: str, problem: Problem) -> str:
    """The rendered chat up to the end of its last message, which the response continues."""
    before, found, _ = text.rpartition(END_OF_BEGINNING)
    if not found or not before.endswith(beginning.lstrip()):
        raise ValueError(
            f"problem {problem.id} ends with an assistant's message, which the response would continue, but "
            "the chat template changes that message: leave it out, or set chat_template=false"
        )
    return before


def row_tools(problem: Problem) -> list[Any] | None:
    """The row's `tools`: JSON schemas of functions, also as JSON text; None without them."""
    tools = _without_nulls(_from_json(problem, "tools"))
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise ValueError(f"problem {problem.id}, column 'tools': a list of JSON schemas is wanted")
    return [dict(tool) for tool in tools]


def row_arguments(problem: Problem) -> dict[str, Any]:
    """The row's `chat_template_kwargs`, which go over those of the settings."""
    arguments = _without_nulls(_from_json(problem, "chat_template_kwargs"))
    if not arguments:
        return {}
    if not isinstance(arguments, Mapping):
        raise ValueError(f"problem {problem.id}, column 'chat_template_kwargs': a mapping is wanted")
    return dict(arguments)


def _from_json(problem: Problem, column: str) -> Any:
    value = problem.info.get(column)
    if not isinstance(value, str) or not value.strip():
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"problem {problem.id}, column {column!r}: not JSON ({error})") from None


def _without_nulls(value: Any) -> Any:
    """Parquet gives every row all keys of the column, null where the row has none."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list | tuple) else value


def _check_arguments(
    tokenizer: PreTrainedTokenizerBase,
    problem: Problem,
    tools: list[dict[str, Any]] | None,
    arguments: Mapping[str, Any],
) -> None:
    """ValueError for what the chat template never reads: it would change nothing, in silence."""
    if not tools and not arguments:
        return
    words = set(re.findall(r"[A-Za-z_]\w*", tokenizer.get_chat_template(tools=tools)))
    if tools and "tools" not in words:
        raise ValueError(
            f"problem {problem.id} has tools, which this model's chat template does not show: take the "
            "column out, or use a model with tools"
        )
    for name in arguments:
        if name in OWN_ARGUMENTS:
            raise ValueError(f"chat_template_kwargs.{name}: hardwon sets this itself; leave it out")
        if name not in words:
            raise ValueError(
                f"problem {problem.id}: chat_template_kwargs.{name}: this model's chat template does not "
                f"use it{nearest(name, sorted(words))}"
            )


# ------------------------------------------------------------------------------------------------- raw text


def _raw_text(problem: Problem, form: PromptForm) -> str:
    _check_raw(problem, form)
    question = problem.prompt if isinstance(problem.prompt, str) else problem.prompt[0]["content"]
    shown = [
        question + ("" if question[-1:].isspace() else " ") + response.strip() + "\n\n"
        for question, response in _example_turns(form, chat=False)
    ]
    return "".join([*shown, _worded(problem, question, form, chat=False)])


def _check_raw(problem: Problem, form: PromptForm) -> None:
    """ValueError for what only a chat has a place for. One message of a user is text like any other."""
    needs = {
        "system_prompt": form.system_prompt is not None,
        "chat_template_kwargs": bool(form.arguments),
        f"column 'tools' of problem {problem.id}": bool(row_tools(problem)),
        f"column 'chat_template_kwargs' of problem {problem.id}": bool(row_arguments(problem)),
    }
    for name, given in needs.items():
        if given:
            raise ValueError(
                f"{name} needs chat_template=true and a model with a chat template: raw text has no place "
                "for it"
            )
    if not isinstance(problem.prompt, str) and [m["role"] for m in problem.prompt] != ["user"]:
        raise ValueError(
            f"problem {problem.id} is a list of chat messages, which raw text has no place for: use "
            "chat_template=true and a model with a chat template, or give prompts as text"
        )


def _with_one_bos(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[int]:
    """Templates often write a BOS that the tokenizer would add again; some leave it to the tokenizer."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return ids
    start = next((i for i, token in enumerate(ids) if token != bos), len(ids))
    tokenizer_adds_it = tokenizer("a")["input_ids"][:1] == [bos]
    return [bos, *ids[start:]] if start or tokenizer_adds_it else ids
