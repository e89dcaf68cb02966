"""How good is a policy: every held-out problem, several responses each, and what can be said from them.

An `Evaluation` keeps what each response came to and derives the rest, so that it can be compared with
another one problem by problem long after the model is gone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardwon.checkpoints import numbered
from hardwon.data import Group, Outcome, Problem, Sampling, State
from hardwon.form import is_answered, is_boxed
from hardwon.records import prompt_text
from hardwon.rollouts import Sampler, sample_groups
from hardwon.statistics import (
    Comparison,
    Estimate,
    compare_paired,
    compare_recipes,
    count_votes,
    estimate,
    estimate_ratio,
    majority_at_k,
    mean_at_k,
    pass_at_k,
)

if TYPE_CHECKING:
    from hardwon.run import Run
    from hardwon.workbench import SharedSettings, Workbench

# The sampling streams of an evaluation are those of no training iteration, and always the same ones:
# two policies are compared on the same random numbers.
EVALUATION = -1


@dataclass(frozen=True)
class Evaluation:
    """Responses to `P` problems, `K` each; outer tuples run over problems, inner ones over responses."""

    task: str
    sampling: Sampling
    seed: int
    problem_ids: tuple[str, ...]
    fingerprint: str  # of prompts and answers: equal ids do not make equal problems
    outcomes: tuple[tuple[Outcome, ...], ...]
    answers: tuple[tuple[str, ...], ...]  # as the verifier read them; "" where a response has none
    lengths: tuple[tuple[int, ...], ...]
    truncated: tuple[tuple[bool, ...], ...]
    answered: tuple[tuple[bool, ...], ...]  # has an answer in the wanted form
    boxed: tuple[tuple[bool, ...], ...]
    sources: tuple[str, ...] = ()  # of a mixture, one per problem

    @property
    def num_samples(self) -> int:
        return max((len(row) for row in self.outcomes), default=0)

    @cached_property
    def num_judged_P(self) -> np.ndarray:
        """Responses a problem that a verifier judged; its own failures are left out everywhere."""
        return np.array([sum(o != "error" for o in row) for row in self.outcomes])

    @cached_property
    def num_correct_P(self) -> np.ndarray:
        return np.array([row.count("correct") for row in self.outcomes])

    @property
    def num_errors(self) -> int:
        return sum(row.count("error") for row in self.outcomes)

    def mean_at_k(self) -> Estimate:
        """Accuracy of a response: the mean over problems of their fraction of correct responses."""
        return estimate(mean_at_k(self.num_correct_P, self.num_judged_P))

    def pass_at_k(self, k: int) -> Estimate:
        """The chance that k responses hold a correct one; problems with fewer than k are left out."""
        return estimate(pass_at_k(self.num_correct_P, self.num_judged_P, k))

    def majority_at_k(self, k: int) -> Estimate:
        """The chance that a vote among k responses is right; problems with fewer than k are left out."""
        shares_P = []
        for outcomes, answers in zip(self.outcomes, self.answers, strict=True):
            judged = [(a, o == "correct") for a, o in zip(answers, outcomes, strict=True) if o != "error"]
            votes = count_votes([answer for answer, _ in judged], [right for _, right in judged])
            shares_P.append(majority_at_k(*votes, k=k))
        return estimate(shares_P)

    def summary(self) -> dict[str, Estimate]:
        """mean@1, estimated from all K responses, and pass@k and majority@k for larger k.

        There is no vote where the verifier does not say what it reads as the answer.
        """
        rows = {"mean@1": self.mean_at_k()}
        for k in report_ks(self)[1:]:
            rows[f"pass@{k}"] = self.pass_at_k(k)
            if k > 2 and self.names_answers:  # a vote of two, with ties drawn, is one response
                rows[f"majority@{k}"] = self.majority_at_k(k)
        return rows

    @property
    def names_answers(self) -> bool:
        """False if a correct response has no answer: then the verifier does not say what it reads as one."""
        pairs = zip(self.outcomes, self.answered, strict=True)
        return all(has or o != "correct" for pair in pairs for o, has in zip(*pair, strict=True))

    def form_values(self) -> dict[str, np.ndarray]:
        """Shares of each problem's judged responses: "answered", "boxed" and "truncated"; NaN without any.

        "answered" is missing where the verifier does not say what it reads as the answer.
        """
        names = ("answered",) * self.names_answers + ("boxed", "truncated")
        return {name: mean_at_k(self._count_judged(getattr(self, name)), self.num_judged_P) for name in names}

    def form(self) -> dict[str, Estimate]:
        """What the responses have of the wanted form, and how right those with an answer are, if it is known.

        mean@1 is about "answered" times "accuracy_if_answered": the first is form, the second reasoning.
        """
        shares = {name: estimate(values_P) for name, values_P in self.form_values().items()}
        if not self.names_answers:
            return shares
        answered_P = self._count_judged(self.answered)
        return shares | {"accuracy_if_answered": estimate_ratio(self.num_correct_P, answered_P)}

    def _count_judged(self, rows: Sequence[Sequence[bool]]) -> np.ndarray:
        """Responses per problem that were judged and have this."""
        pairs = zip(rows, self.outcomes, strict=True)
        return np.array([sum(has and o != "error" for has, o in zip(*pair, strict=True)) for pair in pairs])

    def mean_length(self) -> float:
        """Tokens per response."""
        return float(np.mean([n for row in self.lengths for n in row]))

    def frac_truncated(self) -> float:
        return float(np.mean([t for row in self.truncated for t in row]))

    def by_source(self) -> dict[str, Evaluation]:
        """The evaluation of each source of a mixture; of problems that are no mixture, nothing."""
        names = [name for name in dict.fromkeys(self.sources) if name]
        return {name: self._part([i for i, s in enumerate(self.sources) if s == name]) for name in names}

    def _part(self, indices: Sequence[int]) -> Evaluation:
        """Some of the problems: every field that is a tuple has one item per problem."""
        rows = {key: value for key, value in vars(self).items() if isinstance(value, tuple)}
        some: dict[str, Any] = {key: tuple(value[i] for i in indices) for key, value in rows.items()}
        return replace(self, **some)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Evaluation:
        """The reverse of `to_dict`, also after a round trip through JSON."""
        rows = {
            name: tuple(tuple(row) for row in stored[name])
            for name in ("outcomes", "answers", "lengths", "truncated", "answered", "boxed")
        }
        sampling = {**stored["sampling"], "stop": tuple(stored["sampling"]["stop"])}
        return cls(
            **{
                **stored,
                **rows,
                "sampling": Sampling(**sampling),
                "problem_ids": tuple(stored["problem_ids"]),
                "sources": tuple(stored.get("sources", ())),
            }
        )


def load_evaluation(path: str | Path) -> Evaluation:
    """Reads an evaluation from JSON. Raises ValueError naming the file if it is none."""
    try:
        return Evaluation.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not an evaluation: {error}") from error


def report_ks(evaluation: Evaluation) -> list[int]:
    """1, 2, 4, 8, ... and the number of judged responses per problem: the k worth reporting."""
    largest = max(1, int(evaluation.num_judged_P.max()))
    return sorted({2**i for i in range(largest.bit_length())} | {largest})


def evaluate(
    sampler: Sampler, problems: Sequence[Problem], *, sampling: Sampling, num_samples: int
) -> Evaluation:
    """`num_samples` responses to every problem. Greedy sampling (temperature 0) has one only.

    Raises ValueError without problems, or for several greedy responses, which would be equal.
    """
    if not problems:
        raise ValueError("nothing to evaluate on: the task has no held-out problems")
    if sampling.temperature == 0 and num_samples != 1:
        raise ValueError(f"{num_samples} samples at temperature 0 would all be the same: choose 1")
    groups = sample_groups(
        [State(problem) for problem in problems],
        sampler=sampler,
        sampling=sampling,
        num_samples=num_samples,
        iteration=EVALUATION,
    )
    return evaluation_of(groups, task=sampler.task.name, sampling=sampling, seed=sampler.seed)


def evaluate_both(bench: Workbench, config: SharedSettings) -> dict[str, Evaluation]:
    """The held-out problems "sampled" as the settings say, and "greedy" with one response each."""
    sampling = config.eval_sampling
    kinds = {
        "sampled": (sampling, config.eval_samples),
        "greedy": (replace(sampling, temperature=0.0, top_p=1.0, top_k=0), 1),
    }
    return {
        name: evaluate(bench.sampler, bench.held_out, sampling=sampling, num_samples=number)
        for name, (sampling, number) in kinds.items()
    }


def evaluation_of(groups: Sequence[Group], *, task: str, sampling: Sampling, seed: int) -> Evaluation:
    """The evaluation that judged groups amount to."""
    return Evaluation(
        task=task,
        sampling=sampling,
        seed=seed,
        problem_ids=tuple(group.state.problem.id for group in groups),
        fingerprint=_fingerprint([group.state.problem for group in groups]),
        outcomes=tuple(tuple(r.verdict.outcome for r in group.rollouts) for group in groups),
        answers=tuple(tuple(r.verdict.answer or "" for r in group.rollouts) for group in groups),
        lengths=tuple(tuple(r.length for r in group.rollouts) for group in groups),
        truncated=tuple(tuple(r.truncated for r in group.rollouts) for group in groups),
        answered=tuple(tuple(is_answered(r) for r in group.rollouts) for group in groups),
        boxed=tuple(tuple(is_boxed(r) for r in group.rollouts) for group in groups),
        sources=tuple(group.state.problem.source for group in groups),
    )


def _fingerprint(problems: Sequence[Problem]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for problem in problems:
        # The length of each part goes in as well, so that parts cannot run into each other.
        for part in (problem.id, prompt_text(problem), str(problem.answer)):
            content = part.encode("utf-8", "surrogatepass")
            digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


# ------------------------------------------------------------------------------------ during training


def evaluate_and_record(
    bench: Workbench, run: Run, config: SharedSettings, iteration: int
) -> dict[str, float]:
    """Evaluates the policy after `iteration`, sampled and greedily; stores both, returns the metrics."""
    evaluations = evaluate_both(bench, config)
    for name, evaluation in evaluations.items():
        run.save_evaluation(iteration, name, evaluation.to_dict())
    return evaluation_metrics(evaluations["sampled"], evaluations["greedy"])


FORM_METRICS = {
    "answered": "frac_answered",
    "boxed": "frac_boxed",
    "accuracy_if_answered": "accuracy_if_answered",
}


def evaluation_metrics(sampled: Evaluation, greedy: Evaluation) -> dict[str, float]:
    """What metrics.jsonl keeps of an evaluation. mean@1 is estimated from all samples of a problem."""
    metrics: dict[str, float] = {}
    form = {FORM_METRICS[name]: share for name, share in sampled.form().items() if name in FORM_METRICS}
    estimates = sampled.summary() | {"greedy": greedy.mean_at_k()} | form
    for name, result in estimates.items():
        metrics |= {
            f"eval/{name}": result.value,
            f"eval/{name}_low": result.low,
            f"eval/{name}_high": result.high,
        }
    for name, part in sampled.by_source().items():
        result = part.mean_at_k()
        metrics |= {
            f"eval/{name}/mean@1": result.value,
            f"eval/{name}/mean@1_low": result.low,
            f"eval/{name}/mean@1_high": result.high,
        }
    return metrics | {
        "eval/mean_length": sampled.mean_length(),
        "eval/clipped_ratio": sampled.frac_truncated(),
        "eval/errors": float(sampled.num_errors + greedy.num_errors),
    }


# ------------------------------------------------------------------------------------------- compare


def compare(a: Evaluation, b: Evaluation, *, allow_different_sampling: bool = False) -> Comparison:
    """B minus A in mean@k, paired over the same problems.

    Raises ValueError if the problems are not the same, or sampled differently and that is not allowed.
    """
    check_same_problems([a, b], allow_different_sampling)
    return compare_paired(*(mean_at_k(e.num_correct_P, e.num_judged_P) for e in (a, b)))


def compare_seeds(
    a: Sequence[Evaluation], b: Sequence[Evaluation], *, allow_different_sampling: bool = False
) -> Comparison:
    """B minus A in mean@k for two recipes, each an evaluation for every seed that was trained.

    With one of each it is `compare`, which tells nothing about the luck of seeds.
    """
    if len(a) == len(b) == 1:
        return compare(a[0], b[0], allow_different_sampling=allow_different_sampling)
    check_same_problems([*a, *b], allow_different_sampling)
    a_SP, b_SP = (np.stack([mean_at_k(e.num_correct_P, e.num_judged_P) for e in side]) for side in (a, b))
    return compare_recipes(a_SP, b_SP)


def check_same_problems(evaluations: Sequence[Evaluation], allow_different_sampling: bool = False) -> None:
    """ValueError, saying what differs, unless all evaluations are of the same problems in the same way."""
    first = evaluations[0]
    for other in evaluations[1:]:
        if first.task != other.task:
            raise ValueError(f"evaluations of different tasks: {first.task} and {other.task}")
        if first.problem_ids != other.problem_ids:
            only = sorted(set(first.problem_ids) ^ set(other.problem_ids))
            where = f"{only[0]} is in one only" if only else "their order differs"
            raise ValueError(
                f"evaluations of different problems ({len(first.problem_ids)} and "
                f"{len(other.problem_ids)}): {where}; evaluate both on the same problems"
            )
        if first.fingerprint != other.fingerprint:
            raise ValueError("the problems have the same ids but other prompts or answers")
    differences = sampling_differences(evaluations)
    if differences and not allow_different_sampling:
        greedy = len({evaluation.sampling.temperature == 0 for evaluation in evaluations}) > 1
        how = (
            "one evaluation is greedy and the other sampled"
            if greedy
            else "the evaluations sampled differently"
        )
        raise ValueError(f"{how} ({differences}): compare like with like, or say --allow-different-sampling")


def sampling_differences(evaluations: Sequence[Evaluation]) -> str:
    """What differs in how the evaluations sampled, as `temperature 1.0 and 0.6`; empty if nothing does."""
    found = {
        field.name: list(dict.fromkeys(getattr(e.sampling, field.name) for e in evaluations))
        for field in fields(Sampling)
    }
    return ", ".join(
        f"{name} {' and '.join(str(value) for value in values)}"
        for name, values in found.items()
        if len(values) > 1
    )


def stored_evaluations(run_path: str | Path, name: str) -> dict[int, Path]:
    """The evaluations `name` ("sampled" or "greedy") that a run stored: iteration -> file."""
    return dict(numbered(Path(run_path) / "evaluations", f"iteration-*-{name}.json"))
