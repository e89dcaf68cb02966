"""What a model is asked: the exact text and ids, for chats and raw text, with templates and examples."""

from __future__ import annotations

import pytest
from tiny_models import CHAT, make_tokenizer
from tokenizers.processors import TemplateProcessing

from hardwon.data import Problem
from hardwon.models.prompts import PromptForm, encode_prompt, prompt_as_text
from hardwon.models.templates import compile_template
from hardwon.models.tokens import load_tokenizer
from hardwon.tasks.math import PROMPT_TEMPLATE
from hardwon.tasks.task import QUESTION_AND_ANSWER

# A chat template as plain as can be: [role]content, with an argument and tools.
PLAIN = (
    "{% if tools %}[tools]{{ tools | map(attribute='name') | join(',') }}{% endif %}"
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
    "{% if add_generation_prompt and enable_thinking is false %}<no thoughts>{% endif %}"
)


def text(problem, chat_template=PLAIN, **form):
    return prompt_as_text(make_tokenizer(chat_template), problem, PromptForm(**form))


SUM = Problem("sum/1", "3+4=", "7")


def adds_bos(tokenizer):
    """A tokenizer that puts <bos> before every text, as Llama's does."""
    tokenizer._tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return tokenizer


def test_text_prompt_is_one_user_message_under_a_chat_template():
    tokenizer = make_tokenizer()
    ids = encode_prompt(tokenizer, SUM)
    assert tokenizer.decode(ids) == "<|im_start|><unk><unk>e<unk>\n3+4=<|im_end|>\n<|im_start|>a\n"
    messages = Problem("sum/1", [{"role": "user", "content": "3+4="}], "7")
    assert encode_prompt(tokenizer, messages) == ids


def test_raw_text_has_no_template():
    tokenizer = make_tokenizer(chat_template=None)
    assert tokenizer.decode(encode_prompt(tokenizer, SUM, PromptForm(chat=False))) == "3+4="


@pytest.mark.parametrize("template", [CHAT, "<bos>" + CHAT, "<bos><bos>" + CHAT])
@pytest.mark.parametrize("chat", [True, False])
def test_exactly_one_bos_whoever_writes_it(template, chat):
    tokenizer = adds_bos(make_tokenizer(template))
    ids = encode_prompt(tokenizer, SUM, PromptForm(chat=chat))
    assert ids[0] == tokenizer.bos_token_id and ids.count(tokenizer.bos_token_id) == 1


def test_system_prompt_comes_first():
    tokenizer = make_tokenizer()
    text = tokenizer.decode(encode_prompt(tokenizer, SUM, PromptForm(system_prompt="add")))
    assert text.index("add") < text.index("3+4=")


def test_settings_that_do_not_fit_are_refused_by_name():
    with pytest.raises(ValueError, match="set chat_template=false"):
        encode_prompt(make_tokenizer(chat_template=None), SUM, PromptForm(chat=True))
    with pytest.raises(ValueError, match="chat_template=true"):
        encode_prompt(make_tokenizer(), SUM, PromptForm(chat=False, system_prompt="add"))
    messages = Problem("p", [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], "")
    with pytest.raises(ValueError, match="chat_template=true"):
        encode_prompt(make_tokenizer(), messages, PromptForm(chat=False))
    with pytest.raises(ValueError, match="system_prompt"):
        encode_prompt(make_tokenizer(), messages, PromptForm(system_prompt="add"))
    with pytest.raises(ValueError, match="no tokens"):
        encode_prompt(make_tokenizer(), Problem("p", "", ""), PromptForm(chat=False))


def test_a_model_without_a_chat_template_gets_raw_text_by_itself():
    assert text(SUM, None) == "3+4="
    one_message = Problem("sum/1", [{"role": "user", "content": "3+4="}], "7")
    assert text(one_message, None) == "3+4="
    with pytest.raises(ValueError, match="problem p is a list of chat messages"):
        text(Problem("p", [*one_message.prompt, {"role": "assistant", "content": "3"}], "7"), None)


def test_the_packaged_model_is_asked_as_it_was_trained():
    tokenizer = load_tokenizer("embedded")
    ids = encode_prompt(tokenizer, Problem("p", "3+7-9", "1"))
    assert tokenizer.decode(ids) == "<bos>3+7-9\n"
    assert ids == (1, 24, 16, 28, 18, 30, 4)


# ------------------------------------------------------------------------------------------- templates


def test_a_template_may_use_every_column_by_name():
    problem = Problem("p", "3+4=", "7", {"level": 2, "Level of school": "b", "question": "other"})
    assert text(
        problem, None, template="{{ prompt }} {{ question }} {{ level }} {{ row['Level of school'] }}"
    ) == ("3+4= other 2 b")
    assert text(SUM, None, template="{{ question }}|{{ problem }}") == "3+4=|3+4="
    assert text(SUM, template="Add: {{ prompt }}") == "[user]Add: 3+4=[assistant]"


def test_of_a_chat_the_last_message_of_the_user_is_worded():
    messages = [("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4")]
    problem = Problem("p", [{"role": role, "content": content} for role, content in messages], "7")
    assert text(problem, template="<{{ prompt }}>") == "[user]1[assistant]2[user]<3>[assistant]4"
    assert problem.prompt[2]["content"] == "3", "the problem itself stays as it is"


def test_text_of_a_row_is_never_run_as_a_template():
    assert text(Problem("p", "{{ 7 * 7 }}", "7"), None, template="{{ prompt }}!") == "{{ 7 * 7 }}!"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ levl }}", r"prompt_template, problem p: 'levl' is undefined; did you mean 'level'\?"),
        ("{{ zzzz }}", r"'zzzz' is undefined; there are asks_for_form, .*prompt"),
        ("{{ prompt", r"prompt_template, line 1: "),
        ("{% if x %}\n{{ prompt }}", r"prompt_template, line 2: "),
        ("Add!", r"'Add!' uses no column.*write \{\{ prompt \}\}"),
        ("non", r"'non' uses no column.*did you mean 'none'\?"),
        ("{{ prompt }} in \boxed{}", r"double quotes"),
        ("{{ prompt / 2 }}", r"problem p: unsupported operand"),
        ("{{ prompt.__class__.__mro__ }}", r"problem p: access to attribute '__class__'"),
    ],
)
def test_a_template_that_fails_names_setting_place_and_neighbour(template, message):
    with pytest.raises(ValueError, match=message):
        text(Problem("p", "3+4=", "7", {"level": 1}), None, template=template)


BOX = "put your final answer within \\boxed{}."
LETTER = "put the letter of the right choice within \\boxed{}."


def test_mathematics_asks_for_the_box():
    form = {"template": PROMPT_TEMPLATE}
    assert text(SUM, **form) == f"[user]3+4=\n\nPlease reason step by step, and {BOX}[assistant]"
    assert text(SUM, None, **form) == f"Question: 3+4=\nPlease reason step by step, and {BOX}\nAnswer:"


@pytest.mark.parametrize(
    "prompt",
    [
        "3+4? Put it in \\boxed{}.",
        "3+4? Write the result boxed.",
        "3+4? Reply with <answer>7</answer>.",
        "3+4? End with a line of the form Answer: $NUMBER",
        "3+4? End with #### and the number.",
        "3+4? Close with 'The final answer is 7'.",
    ],
)
def test_a_prompt_that_says_how_to_answer_is_not_told_again(prompt):
    form = {"template": PROMPT_TEMPLATE}
    assert text(Problem("p", prompt, "7"), **form) == f"[user]{prompt}[assistant]"
    assert text(Problem("p", prompt, "7"), None, **form) == f"Question: {prompt}\nAnswer:"
    said_before = [{"role": "system", "content": prompt}, {"role": "user", "content": "3+4"}]
    assert text(Problem("p", said_before, "7"), **form) == f"[system]{prompt}[user]3+4[assistant]"
    assert (
        text(Problem("p", "3+4", "7"), system_prompt=prompt, **form)
        == f"[system]{prompt}[user]3+4[assistant]"
    )


@pytest.mark.parametrize("prompt", ["Q: 3+4?\nA:", "Question: 3+4?\nAnswer:", "3+4?\nSolution: "])
def test_a_prompt_that_waits_for_its_answer_stays_as_it_is(prompt):
    assert text(Problem("p", prompt, "7"), None, template=PROMPT_TEMPLATE) == prompt


@pytest.mark.parametrize(
    "prompt",
    [
        "Give your answer as a fraction.",
        "Tom buys 3 boxed lunches. How many boxes hold them?",
        "The final answer is 12. What was the first number?",
        "Points A: and B",
    ],
)
def test_ordinary_questions_do_not_look_like_instructions(prompt):
    assert BOX in text(Problem("p", prompt, "7"), template=PROMPT_TEMPLATE)


def test_multiple_choice_asks_for_the_letter():
    listed = "Which is even?\nA) 3\nB) 4"
    assert LETTER in text(Problem("p", listed, "B"), template=PROMPT_TEMPLATE)
    assert LETTER in text(Problem("p", "Which?", "B", {"choices": ["3", "4"]}), template=PROMPT_TEMPLATE)
    assert BOX in text(Problem("p", listed, "4"), template=PROMPT_TEMPLATE), "the answer is a number"
    assert BOX in text(Problem("p", "Which letter is first?", "A"), template=PROMPT_TEMPLATE)


def test_question_and_answer_is_for_models_without_a_chat():
    assert text(SUM, None, template=QUESTION_AND_ANSWER) == "Question: 3+4=\nAnswer:"
    assert text(SUM, template=QUESTION_AND_ANSWER) == "[user]3+4=[assistant]"


# -------------------------------------------------------------------------------------------- examples

SHOWN = ({"prompt": "1+1", "response": "2"}, {"prompt": "2+2", "response": "4"})


def test_examples_are_turns_of_a_chat_worded_like_the_question():
    assert text(SUM, examples=SHOWN) == "[user]1+1[assistant]2[user]2+2[assistant]4[user]3+4=[assistant]"
    given = text(SUM, examples=SHOWN[:1], template="{{ prompt }}?", system_prompt="add")
    assert given == "[system]add[user]1+1?[assistant]2[user]3+4=?[assistant]"
    own = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    assert (
        text(Problem("p", own, "7"), examples=SHOWN[:1]) == "[system]s[user]1+1[assistant]2[user]q[assistant]"
    )


def test_examples_are_paragraphs_of_raw_text():
    given = text(SUM, None, examples=SHOWN, template=QUESTION_AND_ANSWER)
    assert given == "Question: 1+1\nAnswer: 2\n\nQuestion: 2+2\nAnswer: 4\n\nQuestion: 3+4=\nAnswer:"


def test_a_template_may_place_the_examples_itself():
    template = "{% for e in examples %}\n{{ e.prompt }} -> {{ e.response }}\n{% endfor %}\n{{ prompt }}"
    assert text(SUM, None, examples=SHOWN, template=template) == "1+1 -> 2\n2+2 -> 4\n3+4="
    assert text(SUM, examples=SHOWN, template=template) == "[user]1+1 -> 2\n2+2 -> 4\n3+4=[assistant]"


def test_an_example_that_lacks_a_column_is_named():
    with pytest.raises(ValueError, match="problem 2 of examples: 'level' is undefined"):
        text(
            Problem("p", "3+4=", "7", {"level": 1}),
            template="{{ level }} {{ prompt }}",
            examples=({**SHOWN[0], "level": 3}, SHOWN[1]),
        )


# ------------------------------------------------------------------------------ chat templates' arguments


def test_arguments_of_the_chat_template_come_from_settings_and_rows():
    off = {"enable_thinking": False}
    assert text(SUM, arguments=off) == "[user]3+4=[assistant]<no thoughts>"
    for column in (off, '{"enable_thinking": false}', {**off, "other": None}):
        row = Problem("p", "3+4=", "7", {"chat_template_kwargs": column})
        assert text(row, arguments={"enable_thinking": True}) == "[user]3+4=[assistant]<no thoughts>"
    without = Problem("p", "3+4=", "7", {"chat_template_kwargs": None, "tools": []})
    assert text(without) == "[user]3+4=[assistant]"


ADD = {"name": "add", "type": "function"}


def test_a_rows_tools_are_shown_to_the_model():
    for column in ([ADD], '[{"name": "add", "type": "function"}]', [{**ADD, "parameters": None}]):
        assert text(Problem("p", "3+4=", "7", {"tools": column})) == "[tools]add[user]3+4=[assistant]"


@pytest.mark.parametrize(
    ("info", "template", "form", "message"),
    [
        (
            {},
            PLAIN,
            {"enable_thinkin": 1},
            r"enable_thinkin: .* does not use it; did you mean 'enable_thinking'",
        ),
        ({}, PLAIN, {"tokenize": True}, r"chat_template_kwargs.tokenize: hardwon sets this itself"),
        ({"chat_template_kwargs": {"depth": 1}}, PLAIN, {}, r"problem p: chat_template_kwargs.depth"),
        ({"chat_template_kwargs": "{"}, PLAIN, {}, r"problem p, column 'chat_template_kwargs': not JSON"),
        ({"chat_template_kwargs": [1]}, PLAIN, {}, r"column 'chat_template_kwargs': a mapping is wanted"),
        ({"tools": [ADD]}, CHAT, {}, r"problem p has tools, which this model's chat template does not show"),
        ({"tools": {"name": "add"}}, PLAIN, {}, r"problem p, column 'tools': a list"),
        ({"tools": [ADD]}, None, {}, r"column 'tools' of problem p needs chat_template=true"),
        ({"chat_template_kwargs": {"a": 1}}, None, {}, r"'chat_template_kwargs' of problem p needs"),
        ({}, None, {"enable_thinking": False}, r"chat_template_kwargs needs chat_template=true"),
    ],
)
def test_what_the_model_would_never_see_is_refused_by_name(info, template, form, message):
    with pytest.raises(ValueError, match=message):
        text(Problem("p", "3+4=", "7", info), template, arguments=form)


def test_an_error_inside_a_chat_template_names_the_problem_and_the_model():
    failing = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ValueError, match=r"problem sum/1: the chat template of .* roles must alternate"):
        text(SUM, failing)
    with pytest.raises(ValueError, match=r"problem sum/1: the chat template of"):
        text(SUM, "{{ messages[0]['content'] + 1 }}")


# ---------------------------------------------------------------------- prompts that begin the response


def begun(content):
    return Problem("p", [{"role": "user", "content": "3+4="}, {"role": "assistant", "content": content}], "7")


def test_an_assistants_message_at_the_end_is_continued():
    tokenizer = make_tokenizer()
    ids = encode_prompt(tokenizer, begun("3+4"))
    asked = [{"role": "user", "content": "3+4="}, {"role": "assistant", "content": "3+4"}]
    assert list(ids) == tokenizer.apply_chat_template(asked, continue_final_message=True, return_dict=False)
    # ... and no <|im_end|> (4) after it, which would end the turn: the last ids are those of 3, + and 4.
    assert ids[-3:] == tuple(tokenizer("3+4")["input_ids"]) and ids.count(4) == 1


def test_blanks_at_the_end_of_the_message_stay():
    trims = PLAIN.replace("{{ m['content'] }}", "{{ m['content'] | trim }}")
    assert text(begun("so 3+4 is \n"), trims) == "[user]3+4=[assistant]so 3+4 is \n"
    assert text(begun(" so"), trims) == "[user]3+4=[assistant]so"


def test_a_template_that_rewrites_the_message_is_refused():
    rewrites = PLAIN.replace("{{ m['content'] }}", "{{ m['content'] | upper }}")
    with pytest.raises(ValueError, match="problem p ends with an assistant's message"):
        text(begun("so"), rewrites)


def test_templates_are_compiled_once():
    assert compile_template("prompt_template", "{{ prompt }}") is compile_template(
        "prompt_template", "{{ prompt }}"
    )
