"""Reward functions written for TRL or verl run unchanged, and correctness is told apart from reward."""

import json

import pytest
import users_rewards  # noqa: F401 - on the path, as a user's module is

from hardwon.data import Problem
from hardwon.tasks import load_task
from hardwon.verifiers.custom import CustomVerifier, parse_rewards

PROBLEM = Problem("1", "1+1?", "2", {"data_source": "mine", "extra_info": {"index": 3}, "level": 4})
CHAT = Problem("2", [{"role": "user", "content": "ok?"}], "yes")
COLUMNS = {"answer", *PROBLEM.info}


def verdicts(setting, texts, problem=PROBLEM, **settings):
    with_ids = "encode" in settings
    rewards = parse_rewards(
        ",".join(f"users_rewards:{part}" for part in setting.split(",")), COLUMNS, with_ids=with_ids
    )
    verifier = CustomVerifier(rewards, num_workers=1, **settings)
    try:
        return verifier.verify([(problem, text) for text in texts])
    finally:
        verifier.close()


def brief(found):
    return [(v.outcome, v.score) for v in found]


@pytest.mark.parametrize("name", ["trl_accuracy", "trl_async", "compute_score"])
def test_both_signatures(name):
    assert brief(verdicts(name, ["it is 2", "it is 3"])) == [("correct", 1.0), ("wrong", 0.0)]


def test_a_response_votes_for_its_box_or_answer_line():
    found = verdicts("trl_accuracy", ["so \\boxed{0.5}", "Answer: 1/2", "Answer: 2", "<think>2", "it is 2"])
    assert [verdict.answer for verdict in found] == ["1/2", "1/2", "2", None, None]


def test_chat_prompts_give_chat_completions():
    assert brief(verdicts("trl_conversational", ["yes", "no"], CHAT)) == [("correct", 1.0), ("wrong", 0.0)]


def test_columns_and_token_ids_reach_the_function():
    assert brief(verdicts("trl_level", ["a"])) == [("correct", 4.0)]
    assert brief(verdicts("trl_ids", ["abc"], encode=lambda text: [ord(c) for c in text])) == [
        ("correct", 3.0)
    ]


def test_weights_sum_and_the_first_function_decides_correctness():
    # "2": 1 * 0.5 + len 1/10 * 2 = 0.7 and correct, though the sum is below 1.
    # "a long wrong answer!": 0 * 0.5 + len 20/10 * 2 = 4 and wrong, though the sum is above 1.
    found = verdicts("trl_accuracy*0.5,trl_length*2", ["2", "a long wrong answer!"])
    assert [v.outcome for v in found] == ["correct", "wrong"]
    assert [v.score for v in found] == pytest.approx([0.7, 4.0])


def test_verls_acc_is_correctness_whatever_the_score():
    assert brief(verdicts("compute_score_with_acc", ["2", "3"])) == [("correct", 1.0), ("wrong", -1.0)]
    assert brief(verdicts("shaped", ["2", "3"])) == [("correct", 0.2), ("wrong", 1.5)]


def test_the_threshold_decides_where_there_is_no_acc():
    assert [v.outcome for v in verdicts("trl_length", ["12345", "1234"], threshold=0.5)] == [
        "correct",
        "wrong",
    ]


def test_none_and_nan_are_errors_and_never_wrong():
    found = verdicts("trl_sometimes_none", ["none", "nan", "fine"])
    assert [v.outcome for v in found] == ["error", "error", "correct"]
    # None of a second function is left out of the sum, as in TRL; NaN is still an error.
    found = verdicts("trl_length,trl_sometimes_none", ["none", "nan"], threshold=0.4)
    assert brief(found)[0] == ("correct", 0.4) and found[1].outcome == "error"


def test_one_bad_response_does_not_spoil_its_batch():
    texts = ["a", "raise", "b", "c", "crash", "d"]
    found = verdicts("trl_fragile", texts)
    assert [v.outcome for v in found] == ["correct", "error", "correct", "correct", "error", "correct"]
    assert "no such thing" in found[1].message


def test_a_function_that_hangs_is_ended():
    assert {v.outcome for v in verdicts("trl_fragile", ["a", "hang"], seconds=0.5)} == {"error"}
    assert [v.outcome for v in verdicts("compute_score", ["2", "hang", "3"], seconds=0.5)] == [
        "correct",
        "timeout",
        "wrong",
    ]


def test_a_wrong_number_of_rewards_is_an_error_of_the_function():
    assert {(v.outcome, v.message) for v in verdicts("trl_too_few", ["a", "b"])} == {
        ("error", "1 rewards were returned for 2 responses")
    }
    assert verdicts("trl_too_few", []) == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("users_rewards", "'package.module:function'"),
        ("users_rewards:trl_length*x", "'package.module:function'"),
        ("users_rewards:trl_length*1e", "is no weight"),
        ("absent_module:f", "can't import 'absent_module'"),
        ("users_rewards:trl_lenght", "did you mean 'trl_length'"),
        ("users_rewards:unlike_any", "takes .text, gold.; wanted is TRL's"),
        ("users_rewards:trl_level", r"asks for \['level'\]; the data has the columns \['answer'\]"),
        ("users_rewards:trl_ids", "completion_ids, which needs a tokenizer"),
    ],
)
def test_what_cannot_work_is_refused_when_loaded(setting, message):
    with pytest.raises(ValueError, match=message):
        parse_rewards(setting, {"answer"})


def test_as_a_task_of_its_own_and_in_place_of_another_tasks_verifier(tmp_path):
    rows = [{"prompt": f"q{i}", "answer": f"anything {{{i}"} for i in range(4)]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    reward = "users_rewards:trl_accuracy"
    task = load_task("custom", data=str(path), reward=reward)
    train, test = task.problems("train"), task.problems("test")
    assert len(train) == 3 and len(test) == 1
    assert [v.outcome for v in task.verify([(p, task.gold(p)) for p in train])] == ["correct"] * 3
    task.close()
    with pytest.raises(ValueError, match="task='custom' needs reward="):
        load_task("custom", data=str(path))

    other = load_task(
        "reasoning_gym:leg_counting", train_size=2, test_size=1, reward=reward, verifier_workers=1
    )
    problem = other.problems("train")[0]
    found = other.verify([(problem, f"{problem.answer} without any tags"), (problem, "none")])
    assert [v.outcome for v in found] == ["correct", "wrong"]
    other.close()
