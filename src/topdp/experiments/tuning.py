"""The search for the best setting of each contender at each budget.

At two budgets it climbs: from a start to the best step size near by, until none is better, then to the best
of the settings that differ in one thing, for a few turns. From there settings are carried over to all
budgets, the step size in proportion as it changed between the two, and looked at once more. All contenders
take each step together, so that their runs can be stacked. It runs nothing itself: a function given to it
says how accurate settings are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Case(NamedTuple):
    """What a best setting is sought for."""

    contender: str
    epsilon: float


class Candidate(NamedTuple):
    """A setting. The rate is per unit of clip: λ·C is what moves a clipped gradient."""

    rounds: int
    rate: float
    clip: float
    exponent: float  # of the noise along the rounds
    gossip: int  # steps of averaging between gradients


Measure = Callable[[list[tuple[Case, Candidate]]], list[float]]
"""The validation accuracy of settings."""

Knobs = Mapping[str, frozenset[str]]
"""What can be set of each contender, beside step size and clip: `rounds`, `exponent`, `gossip`."""


@dataclass(frozen=True)
class SearchSpace:
    """Where settings are sought: rates without end, of all else these values; the first to start with."""

    rounds: tuple[int, ...]
    rate: float  # to start with at ε = 1
    growth: float  # the power of ε with which the start grows
    clips: tuple[float, ...]
    exponents: tuple[float, ...] = (0.5, 0.25, 0.0)
    gossip: tuple[int, ...] = (6, 3)
    budgets: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    anchors: tuple[float, ...] = (0.5, 4.0)
    turns: int = 1  # of the search among other things than the step size
    seeds: tuple[int, ...] = (1000,)

    def start(self, case: Case, knobs: frozenset[str]) -> Candidate:
        """Few rounds, because they are cheap; all of them where that cannot be changed."""
        budget = min(case.epsilon, max(self.budgets))
        return Candidate(
            self.rounds[0] if "rounds" in knobs else max(self.rounds),
            self.rate * budget**self.growth,
            self.clips[0],
            self.exponents[0] if "exponent" in knobs else 0.0,
            self.gossip[0] if "gossip" in knobs else 0,
        )

    def rates(self, case: Case, candidate: Candidate) -> Iterator[Candidate]:
        for factor in (0.5, 2.0):
            yield candidate._replace(rate=factor * candidate.rate)

    def others(self, candidate: Candidate, knobs: frozenset[str]) -> Iterator[Candidate]:
        """The settings that differ in one thing."""
        for clip in _but(self.clips, candidate.clip):
            yield candidate._replace(clip=clip)
        for rounds in _but(self.rounds, candidate.rounds) if "rounds" in knobs else []:
            # As long steps, or as long a way in all.
            yield candidate._replace(rounds=rounds)
            yield candidate._replace(rounds=rounds, rate=candidate.rate * candidate.rounds / rounds)
        if "exponent" in knobs:
            for exponent in _but(self.exponents, candidate.exponent):
                yield candidate._replace(exponent=exponent)
        if "gossip" in knobs:
            for gossip in _but(self.gossip, candidate.gossip):
                yield candidate._replace(gossip=gossip)


class BestSetting(NamedTuple):
    """The best setting of a contender at a budget, and how many were tried for it."""

    case: Case
    candidate: Candidate
    tried: int


def tune(space: SearchSpace, knobs: Knobs, endless: frozenset[str], measure: Measure) -> list[BestSetting]:
    """The best setting of every contender at every budget; those in `endless` have none, and ε = ∞."""

    def cases(budgets: tuple[float, ...]) -> list[Case]:
        return [Case(c, e) for c in knobs for e in ((math.inf,) if c in endless else budgets)]

    climb = _Climb({case: space.start(case, knobs[case.contender]) for case in cases(space.anchors)}, measure)
    climb.move(space.rates)
    climb.move(lambda case, at: space.others(at, knobs[case.contender]), space.turns)
    climb.move(space.rates)
    wanted = cases(space.budgets)
    climb.best = {case: carried_over(climb.best, case) for case in wanted}
    climb.move(space.rates, 1)
    return [BestSetting(case, climb.best[case], climb.tried(case.contender)) for case in wanted]


def carried_over(best: Mapping[Case, Candidate], case: Case) -> Candidate:
    """The setting of the nearest budget; the step size by the power of ε that leads from one to the other."""
    known = {at.epsilon: setting for at, setting in best.items() if at.contender == case.contender}
    if case.epsilon in known:
        return known[case.epsilon]
    nearest = min(known, key=lambda epsilon: abs(math.log(epsilon / case.epsilon)))
    low, high = min(known), max(known)
    slope = 0.0
    if low < high:
        slope = math.log(known[high].rate / known[low].rate) / math.log(high / low)
    # On the grid of factors of two that climbs walk on: settings then meet, and are not run twice.
    power = round(slope * math.log2(case.epsilon / nearest))
    return known[nearest]._replace(rate=known[nearest].rate * 2.0**power)


class _Climb:
    """What was found so far, and the best of it."""

    def __init__(self, starts: dict[Case, Candidate], measure: Measure) -> None:
        self.best, self.measure = starts, measure
        self.known: dict[Case, dict[Candidate, float]] = {}

    def tried(self, contender: str) -> int:
        """Settings, at any budget."""
        found = (settings for case, settings in self.known.items() if case.contender == contender)
        return sum(len(settings) for settings in found)

    def move(self, onwards: Callable[[Case, Candidate], Iterator[Candidate]], turns: int = 8) -> None:
        """Onwards to the best, until nothing there is better, or so many times."""
        for _ in range(turns):
            around = [(case, p) for case, at in self.best.items() for p in (at, *onwards(case, at))]
            new = [(case, p) for case, p in dict.fromkeys(around) if p not in self.known.get(case, {})]
            for (case, candidate), accuracy in zip(new, self.measure(new), strict=True):
                self.known.setdefault(case, {})[candidate] = accuracy
            best = {}
            for case, at in self.best.items():
                heights = self.known[case]
                # Where others are as good it stays.
                best[case] = max((at, *onwards(case, at)), key=heights.__getitem__)
            if best == self.best:
                return
            self.best = best


def _but(values: tuple[T, ...], value: T) -> list[T]:
    return [other for other in values if other != value]
