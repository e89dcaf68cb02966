"""Every data set of reasoning_gym proves itself, and its known lax scorers don't pay for wrong answers."""

import subprocess
import sys

import pytest

pytest.importorskip("reasoning_gym")

from reasoning_gym.factory import DATASETS

from hardwon.tasks import load_task
from hardwon.tasks.reasoning_gym import MIXTURES, NO_SOLUTION

ALL = sorted(set(DATASETS) - set(MIXTURES))


def load(name, seed=0, train_size=2, **options):
    return load_task(f"reasoning_gym:{name}", seed=seed, train_size=train_size, test_size=1, **options)


@pytest.fixture(scope="module", autouse=True)
def end_workers():
    yield
    load("leg_counting").close()


@pytest.mark.parametrize("name", ALL)
def test_gold_answers_earn_full_reward(name):
    if name in NO_SOLUTION:
        pytest.skip(f"no gold answer: {NO_SOLUTION[name]}")
    task = load(name, train_size=1)
    problems = task.problems("train") + task.problems("test")
    pairs = [(p, f"I think <answer>wrong</answer>, no: {task.gold(p)}") for p in problems]
    assert [v.outcome for v in task.verify(pairs)] == ["correct"] * len(problems)


@pytest.mark.parametrize("name", ALL)
def test_garbage_earns_nothing_and_is_no_error(name):
    task = load(name, train_size=1)
    (problem,) = task.problems("test")
    texts = [
        "",
        "no tags",
        "<answer></answer>",
        "<answer>wrong zz",
        "<answer>wrong zz</answer>",
        "<answer>nan</answer>",
    ]
    found = task.verify([(problem, text) for text in texts])
    assert [v.outcome for v in found] == ["wrong"] * len(texts), [v.message for v in found]


@pytest.mark.parametrize("name", sorted(NO_SOLUTION))
def test_data_sets_without_solutions_say_so(name):
    task = load(name)
    with pytest.raises(ValueError, match="has no solution to show"):
        task.gold(task.problems("train")[0])


LAX = {  # what reasoning_gym 0.1.25 itself scores as 1, made from the gold answer
    "coin_flip": lambda gold: gold[:1],
    "complex_arithmetic": lambda gold: "nan",
    "countdown": lambda gold: f"{gold} + y - y",  # y/y is 1, so any number can be made
    "fraction_simplification": lambda gold: f"{gold}, $\\frac{{1}}{{2}}$",
    "game_of_life_halting": lambda gold: "whatever",
    "gsm_symbolic": lambda gold: f"-{gold}",
    "puzzle24": lambda gold: "1*1*4*6",
    "word_sorting": lambda gold: f"{gold}, zebra",
}


@pytest.mark.parametrize("name", sorted(LAX))
def test_lax_scorers_are_checked_again(name):
    task = load(name, train_size=8)
    pairs = [(p, f"<answer>{LAX[name](p.answer)}</answer>") for p in task.problems("train")]
    pairs = [(p, text) for p, text in pairs if text != task.gold(p)]
    scores = [
        DATASETS[name][0](DATASETS[name][1]()).score_answer(text[8:-9], p.info["entry"]) for p, text in pairs
    ]
    found = task.verify(pairs)
    assert max(scores) >= 1  # so that this test falls when the package is repaired
    assert {v.outcome for v in found} == {"wrong"}


@pytest.mark.parametrize("name", ["simple_integration", "intermediate_integration"])
def test_the_problem_again_is_no_integral(name):
    """The package's scorer differentiates the answer: that of Integral(f, x) is f."""
    task = load(name, train_size=4)
    pairs = []
    for problem in task.problems("train"):
        metadata = problem.info["entry"]["metadata"]
        variable = metadata["variable"]
        pairs.append((problem, f"<answer>Integral({metadata['integrand']}, {variable})</answer>"))
        pairs.append((problem, task.gold(problem)))
    assert [v.outcome for v in task.verify(pairs)] == ["wrong", "correct"] * 4


def test_the_verdict_carries_what_stands_in_the_tags_after_thinking():
    task = load("leg_counting")
    problem = task.problems("train")[0]
    texts = ["<think><answer>1</answer></think><answer> 7.0 </answer>", "7", "<think><answer>7</answer>"]
    assert [v.answer for v in task.verify([(problem, text) for text in texts])] == ["7", None, None]


def test_partial_credit_is_a_score_and_not_correct():
    task = load("leg_counting")
    problem = task.problems("train")[0]
    (found,) = task.verify([(problem, f"<answer>about {problem.answer}</answer>")])
    assert found.outcome == "wrong" and 0 < found.score < 1


def test_sizes_seeds_and_disjoint_splits():
    task = load_task(
        "reasoning_gym:basic_arithmetic", seed=5, train_size=300, test_size=50, min_digits=1, max_digits=1
    )
    train, test = task.problems("train"), task.problems("test")
    assert 0 < len(train) <= 300 and 0 < len(test) <= 50
    assert not {p.prompt for p in train} & {p.prompt for p in test}
    assert len({p.prompt for p in train}) == len(train)
    again = load("leg_counting", seed=5, train_size=20)
    other = load("leg_counting", seed=6, train_size=20)
    assert again.problems("train") == load("leg_counting", seed=5, train_size=20).problems("train")
    assert again.problems("train") != other.problems("train")
    assert again.problems("test") == other.problems("test")


SCRIPT = """
from hardwon.tasks import load_task
from hardwon.tasks.rows import fingerprint
task = load_task("reasoning_gym:ransom_note", train_size=20, test_size=1, verifier_workers=1)
print(fingerprint(task.problems("train")))
"""


def test_problems_do_not_depend_on_the_hash_seed_of_the_process():
    # Six data sets iterate over sets of text while generating; ransom_note is one of them.
    both = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT], env={"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True
        )
        for seed in ("1", "2")
    ]
    prints = [process.communicate()[0] for process in both]
    assert prints[0] == prints[1] != ""


def test_unknown_names_and_options():
    with pytest.raises(ValueError, match="did you mean 'leg_counting'"):
        load("leg_countin")
    with pytest.raises(ValueError, match="takes no 'max_animal'; did you mean 'max_animals'"):
        load("leg_counting", max_animal=3)
    with pytest.raises(ValueError, match="leg_counting with"):
        load("leg_counting", min_animals=-1)
    with pytest.raises(ValueError, match="name one data set"):
        load("composite")
    with pytest.raises(ValueError, match="needs a data set: reasoning_gym:<dataset>"):
        load_task("reasoning_gym")
