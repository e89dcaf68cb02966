"""Fill a batch with groups that carry a signal: bounded, by the group, with carry-over.

dapo's dynamic sampling (arXiv 2503.14476, section 3.2) keeps sampling until the batch is full
of groups that are neither all correct nor all wrong. Here the rounds are bounded, each round
asks only for what is still missing, and groups beyond the batch are trained on next time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hardwon.data import Group, Problem
from hardwon.form import is_answered

# Prompts a round, in batches: the generation batch of dapo's public recipe is three training batches.
MAX_ROUND_BATCHES = 3
# How fast the accept rate forgets, per round (ours).
ACCEPT_RATE_MEMORY = 0.9


def keep_varied(group: Group) -> bool:
    """True if the group has both a correct and a wrong response, by verdict.

    Rows whose verifier failed do not count. Rewards do not either: their standard deviation is
    not exactly zero on a constant group in float32, and overlong punishment varies it.
    """
    found = {rollout.verdict.correct for rollout in group.judged}
    return len(found) == 2


def keep_all(group: Group) -> bool:
    return True


class Epochs:
    """Places of problems in shuffled epochs, each as often as its weight is larger than the mean one.

    With equal weights each comes once before any comes again. The order depends on the key and the epoch
    alone, so the position is all there is to save.
    """

    def __init__(self, indices: Sequence[int], weights: Sequence[float], key: tuple[int, int]):
        self.indices, self.key = np.array(indices), key
        # Rounded, so that equal weights are exactly 1 whatever their mean was rounded to.
        self.rates = np.round(np.array(weights) / np.mean(weights), 9)
        self.phases = np.random.default_rng(key).integers(0, 2**20, len(self.indices)) / 2**20
        self.start(0, 0)

    def start(self, epoch: int, position: int) -> None:
        self.epoch, self.position = epoch, position
        # A rate of 2.5 is 2 or 3 times in an epoch, and 5 times in two of them.
        before, after = (np.floor(self.rates * e + self.phases) for e in (epoch, epoch + 1))
        order = np.repeat(self.indices, (after - before).astype(int))
        seed, number = self.key
        self._order = order[np.random.default_rng([seed, epoch, number]).permutation(len(order))]

    def next(self) -> int:
        while self.position == len(self._order):
            self.start(self.epoch + 1, 0)
        self.position += 1
        return int(self._order[self.position - 1])


class ProblemStream:
    """Problems in the order in which training asks them: shuffled epochs, by weight.

    Sources take turns in proportion to the weights of their problems together, as exactly as whole numbers
    allow. A source whose problems are all in this batch already leaves its turns to the others.
    """

    def __init__(self, problems: Sequence[Problem], seed: int):
        if not problems:
            raise ValueError("nothing to train on: the data has no problem that is not held out")
        self.problems = problems
        self.index = {problem.id: i for i, problem in enumerate(problems)}
        members: dict[str, list[int]] = {}
        weights: dict[str, list[float]] = {}
        for i, problem in enumerate(problems):
            members.setdefault(problem.source, []).append(i)
            weights.setdefault(problem.source, []).append(problem.weight)
        total = sum(sum(found) for found in weights.values())
        self.sizes = {name: len(found) for name, found in members.items()}
        self.shares = {name: sum(found) / total for name, found in weights.items()}
        self.epochs = {
            name: Epochs(members[name], weights[name], (seed, number)) for number, name in enumerate(members)
        }
        self.drawn = dict.fromkeys(members, 0)
        self.waiting: deque[int] = deque()  # taken from the order but not trained on: first in line

    def _next(self, sources: Collection[str]) -> int:
        """Who waits, or the next of the source that is furthest behind its share."""
        if self.waiting:
            return self.waiting.popleft()
        total = sum(self.drawn.values()) + 1
        return self.epochs[max(sources, key=lambda name: self.shares[name] * total - self.drawn[name])].next()

    def take(self, count: int, exclude: Collection[str] = ()) -> list[Problem]:
        """The next `count` problems outside `exclude`; fewer if no others exist.

        A problem that comes up while it is excluded or taken (at the edge of an epoch, or because of its
        weight) keeps one place in line.
        """
        taken: dict[str, Problem] = {}
        deferred: dict[int, None] = {}
        left = dict(self.sizes)
        for name in set(exclude):
            if name in self.index:
                left[self.problems[self.index[name]].source] -= 1
        while len(taken) < count and any(left.values()):
            index = self._next([name for name, number in left.items() if number])
            problem = self.problems[index]
            if problem.id in exclude or problem.id in taken:
                deferred[index] = None
            else:
                taken[problem.id] = problem
                left[problem.source] -= 1
                self.drawn[problem.source] += 1
        self.waiting.extendleft(reversed(deferred))
        return list(taken.values())

    def give_back(self, problems: Sequence[Problem]) -> None:
        """Put problems that were taken but not trained on at the head of the line."""
        for problem in reversed(problems):
            self.waiting.appendleft(self.index[problem.id])
            self.drawn[problem.source] -= 1

    def state_dict(self) -> dict[str, Any]:
        places = {name: (epochs.epoch, epochs.position) for name, epochs in self.epochs.items()}
        return {"epochs": places, "drawn": dict(self.drawn), "waiting": list(self.waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, place in state["epochs"].items():
            self.epochs[name].start(*place)
        self.drawn = dict(state["drawn"])
        self.waiting = deque(state["waiting"])


@dataclass(frozen=True)
class Fill:
    """One batch of groups, oldest first, and what else became of what was sampled.

    `sampled` are all groups drawn for this batch, kept or not: the honest success rate is theirs.
    `dropped` were not varied or are too old; nothing trains on them.
    """

    groups: list[Group]
    sampled: list[Group]
    dropped: list[Group]
    metrics: dict[str, float]


class DynamicSampler:
    """Draws groups until `num_groups` of them pass `keep`, for at most `max_rounds` rounds.

    A round asks for the missing groups divided by the running accept rate. Surplus groups are
    carried, with the log-probs they were sampled with, until they are `max_age` iterations old;
    then their problems go back to the head of the stream.
    """

    def __init__(
        self,
        stream: ProblemStream,
        draw: Callable[[list[Problem], int], list[Group]],
        *,
        keep: Callable[[Group], bool],
        num_groups: int,
        max_rounds: int,
        max_age: int,
    ):
        self.stream, self.draw, self.keep = stream, draw, keep
        self.num_groups, self.max_rounds, self.max_age = num_groups, max_rounds, max_age
        self.carried: list[Group] = []
        self.asked = self.accepted = 0.0

    @property
    def accept_rate(self) -> float:
        """Share of recent groups that were kept; starts at 1, so the first round asks for one batch."""
        return (self.accepted + 1) / (self.asked + 1)

    def fill(self, iteration: int) -> Fill:
        """A batch of `num_groups` groups for this iteration, or as many as the bounds allowed."""
        expired = self._expire(iteration)
        kept, sampled = list(self.carried), []
        num_carried, rounds = len(kept), 0
        seen = {g.state.problem.id for g in kept}
        while len(kept) < self.num_groups and rounds < self.max_rounds:
            problems = self.stream.take(self._round_size(self.num_groups - len(kept)), seen)
            if not problems:
                break
            seen |= {p.id for p in problems}
            groups = self.draw(problems, iteration)
            passed = [g for g in groups if self.keep(g)]
            sampled += groups
            kept += passed
            rounds += 1
            self.asked = ACCEPT_RATE_MEMORY * self.asked + len(groups)
            self.accepted = ACCEPT_RATE_MEMORY * self.accepted + len(passed)
        used, self.carried = kept[: self.num_groups], kept[self.num_groups :]
        dropped = [g for g in sampled if not self.keep(g)]
        metrics = self._metrics(used, sampled, dropped, expired, rounds, num_carried)
        return Fill(used, sampled, dropped + expired, metrics)

    def put_back(self, groups: list[Group]) -> None:
        """Keep groups of a batch that was not trained on, for the next one."""
        self.carried = groups + self.carried

    def _round_size(self, missing: int) -> int:
        return min(math.ceil(missing / self.accept_rate), MAX_ROUND_BATCHES * self.num_groups)

    def _expire(self, iteration: int) -> list[Group]:
        expired = [g for g in self.carried if iteration - g.iteration > self.max_age]
        self.carried = [g for g in self.carried if iteration - g.iteration <= self.max_age]
        self.stream.give_back([g.state.problem for g in expired])
        return expired

    def _metrics(
        self,
        used: list[Group],
        sampled: list[Group],
        dropped: list[Group],
        expired: list[Group],
        rounds: int,
        num_carried: int,
    ) -> dict[str, float]:
        """Counts of groups, all correct and all wrong of those sampled now, and of responses sampled now."""
        judged = [r for g in sampled for r in g.judged]
        return {
            "dynamic_sampling/judged": len(judged),
            "dynamic_sampling/answered": sum(is_answered(r) or r.verdict.correct for r in judged),
            "dynamic_sampling/rounds": rounds,
            "dynamic_sampling/kept": len(used),
            "dynamic_sampling/dropped": len(dropped),
            "dynamic_sampling/all_correct": sum(g.success_rate == 1 for g in sampled),
            "dynamic_sampling/all_wrong": sum(g.success_rate == 0 for g in sampled),
            "dynamic_sampling/carried": num_carried,
            "dynamic_sampling/expired": len(expired),
            "dynamic_sampling/accept_rate": self.accept_rate,
            "dynamic_sampling/wasted_tokens": sum(r.length for g in dropped + expired for r in g.rollouts),
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "stream": self.stream.state_dict(),
            "carried": [_with_problem(g, Problem(g.state.problem.id, "", "")) for g in self.carried],
            "asked": self.asked,
            "accepted": self.accepted,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state["stream"])
        problems, index = self.stream.problems, self.stream.index
        self.carried = [_with_problem(g, problems[index[g.state.problem.id]]) for g in state["carried"]]
        self.asked, self.accepted = state["asked"], state["accepted"]


def _with_problem(group: Group, problem: Problem) -> Group:
    """A saved group names its problem by id alone: the rest comes from the data, as does a new one."""
    return replace(group, state=replace(group.state, problem=problem))
