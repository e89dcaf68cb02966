"""The settings of prompts: templates by name, text or file, worked examples, and what `check` shows."""

from __future__ import annotations

import json
import shutil

import pytest

from hardwon.algorithms import resolve
from hardwon.check import check
from hardwon.config import PromptSettings, build, parse_words, read_yaml
from hardwon.models.paths import packaged_path
from hardwon.tasks import load_task
from hardwon.tasks.math import PROMPT_TEMPLATE
from hardwon.workbench import prompt_forms

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"


@pytest.fixture
def problems(tmp_path):
    path = tmp_path / "problems.jsonl"
    rows = [{"prompt": f"What is {i}+1?", "answer": str(i + 1), "level": i % 3} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def chat_model(tmp_path):
    path = tmp_path / "model"
    shutil.copytree(packaged_path("embedded"), path)
    (path / "chat_template.jinja").write_text(TURNS)
    config = json.loads((path / "config.json").read_text())
    del config["hardwon_origin"]  # a model like any other: it knows no task
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture
def base_model(chat_model):
    (chat_model / "chat_template.jinja").unlink()
    return chat_model


def findings(problems, model, **changes):
    settings = {"task": "math", "data": str(problems), "model": str(model), "max_prompt_tokens": 600}
    settings |= {"max_new_tokens": 8, "device": "cpu"}
    return {f.subject: f for f in check(resolve("grpo", settings, changes))}


def first_prompt(*given, **changes):
    finding = findings(*given, **changes)["first prompt"]
    assert finding.status == "ok", finding.text
    head, *lines = finding.text.split("\n    | ")
    return head, "\n".join(lines)


# ------------------------------------------------------------------------------------------- what is asked


def test_mathematics_is_asked_for_a_box_and_check_shows_it(problems, chat_model):
    head, text = first_prompt(problems, chat_model)
    question, _, rest = text.removeprefix("<bos>[user]").partition("\n\n")
    assert question.startswith("What is ") and rest == (
        "Please reason step by step, and put your final answer within \\boxed{}.[assistant]"
    )
    # This tokenizer has a token for each character, and one for <bos>.
    assert head == f"{len(text) - len('<bos>') + 1} tokens"


def test_a_base_model_gets_question_and_answer_by_itself(problems, base_model):
    _, text = first_prompt(problems, base_model)
    assert text.startswith("<bos>Question: What is ") and text.endswith("within \\boxed{}.\nAnswer:")


def test_a_token_that_opens_every_turn_is_a_bos_at_the_beginning_only(problems, chat_model):
    """So it is in SmolLM2, where <|im_start|> is both: a prompt of three turns has one BOS and not three."""
    (chat_model / "chat_template.jinja").write_text("<bos>a<bos>b" + TURNS)
    assert findings(problems, chat_model)["beginning"].text == "'<bos>' (1), which is the BOS"


def test_none_leaves_prompts_as_they_are(problems, base_model):
    _, text = first_prompt(problems, base_model, prompt_template="none")
    assert text.startswith("<bos>What is ") and text.endswith("+1?")


def test_packaged_models_are_asked_as_they_were_trained(problems):
    finding = findings(problems, "embedded", max_prompt_tokens=64)["first prompt"]
    assert finding.text.split("\n")[1].startswith("    | <bos>What is ") and "boxed" not in finding.text


def test_a_template_a_file_and_a_template_for_evaluation(problems, base_model, tmp_path):
    (tmp_path / "t.jinja").write_text("{{ level }}: {{ prompt }}\n")
    found = findings(
        problems, base_model, prompt_template=str(tmp_path / "t.jinja"), eval_prompt_template="none"
    )
    train, held_out = (found[name].text.split("| ")[1] for name in ("first prompt", "first held-out prompt"))
    assert train[6:].startswith(": What is ") and train[5] in "012"
    assert held_out.startswith("<bos>What is ")
    assert "first held-out prompt" not in findings(problems, base_model)


def test_a_long_prompt_is_shown_without_its_middle(tmp_path, base_model):
    path = tmp_path / "long.jsonl"
    rows = [{"prompt": f"begin{i}" + 4999 * "x" + f"{i}end", "answer": "1"} for i in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    head, text = first_prompt(path, base_model, prompt_template="none")
    # 6 + 4999 + 4 characters and <bos>, which is one token and is shown as 5 characters; 2000 are shown.
    assert head == "5010 tokens"
    assert text.startswith("<bos>begin") and text.endswith("end") and "(3,014 characters left out)" in text


# ------------------------------------------------------------------------------------------------ examples

EXAMPLES = [{"question": "1+1", "answer": "2"}, {"problem": "2+2", "solution": "4", "answer": "x"}]


def test_examples_come_from_a_list_or_a_file_of_rows(problems, chat_model, tmp_path):
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in EXAMPLES))
    for given in (EXAMPLES, str(path)):
        _, text = first_prompt(problems, chat_model, examples=given, prompt_template="{{ prompt }}?")
        assert text.startswith("<bos>[user]1+1?[assistant]2[user]2+2?[assistant]4[user]What is ")


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([{"prompt": "1+1"}], r"examples, row 1: no response \(a column response or solution or answer\)"),
        (
            [{"prompt": "1", "answer": "1"}, {"answer": "2"}],
            r"row 2: no prompt .* the row has answer",
        ),
        ([{"prompt": "1", "answer": " "}], r"row 1: no response"),
        ("nowhere.jsonl", r"examples='nowhere.jsonl': no such file"),
    ],
)
def test_bad_examples_are_named(problems, base_model, examples, message):
    finding = findings(problems, base_model, examples=examples)["prompts"]
    assert finding.status == "error"
    with pytest.raises(ValueError, match=message):
        raise ValueError(finding.text)


def test_an_example_must_not_be_a_held_out_problem(problems, base_model):
    task = load_task("math", data=str(problems))
    task.close()
    shown = [{"prompt": f" {task.problems('test')[0].prompt}\n", "answer": "1"}]
    finding = findings(problems, base_model, examples=shown)["prompts"]
    assert finding.status == "error" and "examples, row 1 is the held-out problem" in finding.text


# ------------------------------------------------------------------------------------------------ settings


def test_templates_are_read_from_words_and_yaml(tmp_path):
    words = parse_words(
        [r"prompt_template='{{ prompt }} in \boxed{}'", "chat_template_kwargs.enable_thinking=false"]
    )
    settings = build(PromptSettings, words)
    assert settings.prompt_template == r"{{ prompt }} in \boxed{}"
    assert settings.chat_template_kwargs == {"enable_thinking": False}
    assert build(PromptSettings, parse_words(["prompt_template=null"])).prompt_template == "none"
    (tmp_path / "c.yaml").write_text("prompt_template: |\n  Solve it.\n  {{ prompt }}\n")
    assert (
        build(PromptSettings, read_yaml(tmp_path / "c.yaml")).prompt_template == "Solve it.\n{{ prompt }}\n"
    )


def test_a_template_file_is_kept_as_text_and_a_missing_one_is_named(tmp_path):
    (tmp_path / "box.jinja").write_text("{{ prompt }}!")
    given = {"eval_prompt_template": str(tmp_path / "box.jinja")}
    assert build(PromptSettings, given).eval_prompt_template == "{{ prompt }}!"
    with pytest.raises(ValueError, match=r"prompt_template=.*no such file; did you mean 'box.jinja'"):
        build(PromptSettings, {"prompt_template": str(tmp_path / "bx.jinja")})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"chat_template": "aut"}, r"chat_template='aut': .*did you mean 'auto'"),
        ({"promt_template": "x"}, r"unknown setting 'promt_template'; did you mean 'prompt_template'"),
    ],
)
def test_settings_out_of_range_name_the_nearest_choice(given, message):
    with pytest.raises(ValueError, match=message):
        build(PromptSettings, given)


def test_auto_is_the_tasks_own_template(problems):
    task = load_task("math", data=str(problems))
    task.close()
    for value, template in (("auto", PROMPT_TEMPLATE), ("none", None), ("{{ prompt }}", "{{ prompt }}")):
        config = resolve("grpo", {"model": "some/model", "task": "math", "prompt_template": value})
        form, eval_form = prompt_forms(config, task)
        assert form == eval_form and form.template == template
    assert resolve("grpo", {}).prompt_template == "none", "the packaged models have a form of their own"
