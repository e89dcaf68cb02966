"""Every data set of reasoning_gym proves itself, and its known lax scorers don't pay for wrong answers."""

import subprocess
import sys
from fractions import Fraction

import pytest

pytest.importorskip("reasoning_gym")

import numpy as np
import sympy
from reasoning_gym.factory import DATASETS

from hardwon.tasks import load_task
from hardwon.tasks import reasoning_gym as task_module
from hardwon.tasks.reasoning_gym import MIXTURES, NO_SOLUTION
from hardwon.verifiers import reasoning_gym as gym
from hardwon.verifiers.sandbox_inside import plain
from hardwon.verifiers.worker_pool import Reply

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


def earn_full_reward(name, number):
    """Nothing of `number` problems was left out, and the verifier takes every gold answer."""
    task = load(name, train_size=number)
    problems = task.problems("train")
    assert not task.notes
    found = task.verify([(problem, task.gold(problem)) for problem in problems])
    wrong = [(p.prompt, p.answer, v.message) for p, v in zip(problems, found, strict=True) if not v.correct]
    assert problems and not wrong


# Those with several kinds of problems or of answers, which take little time to make.
VARIED = [
    "ab", "basic_arithmetic", "bitwise_arithmetic", "calendar_arithmetic", "codeio", "coin_flip",
    "complex_arithmetic", "countdown", "dice", "fraction_simplification", "gsm_symbolic", "list_functions",
    "number_sequence", "polynomial_equations", "propositional_logic", "puzzle24", "time_intervals",
]  # fmt: skip


@pytest.mark.parametrize("name", VARIED)
def test_twenty_gold_answers_earn_full_reward(name):
    earn_full_reward(name, 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(ALL) - set(VARIED) - set(NO_SOLUTION)))
def test_twenty_gold_answers_of_every_other_data_set(name):
    earn_full_reward(name, 20)


def test_an_empty_answer_is_an_answer():
    """In A::B all tokens may vanish; then nothing between the tags is right, and something is wrong."""
    task = load("ab", train_size=20)
    (problem,) = [p for p in task.problems("train") if p.answer == ""]
    found = task.verify([(problem, task.gold(problem)), (problem, "<answer>A#</answer>"), (problem, "")])
    assert [v.outcome for v in found] == ["correct", "wrong", "wrong"]


class PoolOf:
    """Makes problems in this process, but for some: index -> what becomes of the call."""

    def __init__(self, failing):
        self.failing, self.asked = failing, []

    def run(self, calls):
        self.asked += [index for *_, index in calls]
        return [self.failing.get(call[3]) or Reply("done", gym.work(*call)) for call in calls]

    def close(self):
        pass


def load_failing(monkeypatch, failing, name="leg_counting", **sizes):
    pool = PoolOf(failing)
    monkeypatch.setattr(task_module, "shared_pool", lambda seconds, workers: pool)
    return task_module.load(name, **sizes), pool


def test_a_problem_that_cannot_be_made_is_left_out_counted_and_said(monkeypatch):
    failing = {3: Reply("raised", "TypeError: a value of type Integer"), 12: Reply("timeout", "over 20 s")}
    with pytest.warns(
        UserWarning, match="leg_counting, train: 2 problems are left out of 20, because .*number 3"
    ):
        task, _ = load_failing(monkeypatch, failing, train_size=20, test_size=4)
    assert {p.id.rpartition("/")[2] for p in task.problems("train")} == {str(i) for i in range(20)} - {
        "3",
        "12",
    }
    assert len(task.problems("test")) == 3
    assert task.notes == (
        "train: 2 problems are left out of 20, because reasoning_gym cannot make them "
        "(number 3: TypeError: a value of type Integer).",
        "test: 1 problem is left out of 4, because reasoning_gym cannot make it "
        "(number 3: TypeError: a value of type Integer).",
    )


def test_a_data_set_of_which_nothing_can_be_made_is_refused_soon(monkeypatch):
    failing = {index: Reply("timeout", "over 20 s") for index in range(1000)}
    pool = PoolOf(failing)
    with pytest.raises(ValueError, match=r"leg_counting can't make any problem of .*: over 20 s"):
        task_module.problems(pool, "leg_counting", {"seed": 0, "size": 1000}, "p")
    assert pool.asked == list(range(8))


def test_numbers_of_other_types_become_plain_at_any_depth():
    """codeio's answers may be SymPy's Integer, gsm_symbolic's variables Fractions."""
    entry = {
        "a": [sympy.Integer(3), (sympy.Float(0.5), True)],
        sympy.Integer(2): {Fraction(1, 3)},
        "n": np.int64(4),
    }
    plainer = gym.plain_numbers(entry)
    assert plainer == {"a": [3, (0.5, True)], 2: {"1/3"}, "n": 4}
    assert plain.loads(plain.dumps(plainer)) == plainer
    with pytest.raises(TypeError, match="type Symbol is not plain data"):
        plain.dumps(gym.plain_numbers({"x": sympy.Symbol("x")}))


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
from hardwon.tasks.splits import fingerprint
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
