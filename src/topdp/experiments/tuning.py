"""Search for the best setting of each contender at each budget.

The search begins at two *anchor* budgets. It moves to the best neighbouring step size until no neighbour is
better. Then, for a few turns, it moves to the best setting that differs in one respect. Then the settings
are carried over to all budgets, with the step size interpolated as a power of ε, and the step size is
improved once more. All contenders take each step of the search together, so that their runs can be stacked.
The search executes no runs itself: the caller passes a function that measures accuracies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar

Value = TypeVar("Value")

Knob = Literal["rounds", "exponent", "gossip"]
"""A setting that the search may vary, besides step size and clip."""


class Case(NamedTuple):
    """A contender and a budget. The search finds the best setting for each case."""

    contender: str
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A setting that the search may try."""

    rounds: int
    rate: float  # λ·C: the step size per clipped gradient of norm one
    clip: float
    exponent: float  # of the noise schedule
    gossip: int  # averaging steps between gradients


Measure = Callable[[list[tuple[Case, Candidate]]], list[float]]
"""Returns the validation accuracy of each setting."""

Knobs = Mapping[str, frozenset[Knob]]
"""The knobs of each contender."""


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """The values to search: any step size, and the listed values of everything else.

    The search starts with the first value of each list.
    """

    rounds: tuple[int, ...]
    rate: float  # the start at ε = 1
    growth: float  # the rate at the start grows as this power of ε
    clips: tuple[float, ...]
    exponents: tuple[float, ...] = (0.5, 0.25, 0.0)
    gossip: tuple[int, ...] = (6, 3)
    budgets: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    anchors: tuple[float, ...] = (0.5, 4.0)
    turns: int = 1  # of the search over settings other than the step size
    seeds: tuple[int, ...] = (1000,)

    def start(self, case: Case, knobs: frozenset[Knob]) -> Candidate:
        """Return the setting at which the search starts.

        It has the first number of rounds, which is cheap, or the largest if the rounds are not tuned.
        """
        budget = min(case.epsilon, max(self.budgets))
        return Candidate(
            rounds=self.rounds[0] if "rounds" in knobs else max(self.rounds),
            rate=self.rate * budget**self.growth,
            clip=self.clips[0],
            exponent=self.exponents[0] if "exponent" in knobs else 0.0,
            gossip=self.gossip[0] if "gossip" in knobs else 0,
        )

    def others(self, candidate: Candidate, knobs: frozenset[Knob]) -> Iterator[Candidate]:
        """Yield the settings that differ in one respect other than the step size."""
        for clip in _without(self.clips, candidate.clip):
            yield replace(candidate, clip=clip)
        for rounds in _without(self.rounds, candidate.rounds) if "rounds" in knobs else []:
            # Try the same step size, and the step size with which the sum of all steps stays the same.
            yield replace(candidate, rounds=rounds)
            yield replace(candidate, rounds=rounds, rate=candidate.rate * candidate.rounds / rounds)
        for exponent in _without(self.exponents, candidate.exponent) if "exponent" in knobs else []:
            yield replace(candidate, exponent=exponent)
        for gossip in _without(self.gossip, candidate.gossip) if "gossip" in knobs else []:
            yield replace(candidate, gossip=gossip)


class BestSetting(NamedTuple):
    """The best setting of a contender at a budget, and how many settings were tried for the contender."""

    case: Case
    candidate: Candidate
    tried: int


def tune(space: SearchSpace, knobs: Knobs, no_budget: frozenset[str], measure: Measure) -> list[BestSetting]:
    """Return the best setting of every contender at every budget.

    Contenders in `no_budget` have only one case, with ε = ∞.
    """

    def cases(budgets: tuple[float, ...]) -> list[Case]:
        return [Case(c, e) for c in knobs for e in ((math.inf,) if c in no_budget else budgets)]

    climb = _Climb({case: space.start(case, knobs[case.contender]) for case in cases(space.anchors)}, measure)
    climb.move(_other_rates)
    climb.move(lambda case, setting: space.others(setting, knobs[case.contender]), space.turns)
    climb.move(_other_rates)
    climb.best = {case: carried_over(climb.best, case) for case in cases(space.budgets)}
    climb.move(_other_rates, 1)
    return [BestSetting(case, best, climb.tried(case.contender)) for case, best in climb.best.items()]


def carried_over(best: Mapping[Case, Candidate], case: Case) -> Candidate:
    """Return the setting of the nearest budget, with the step size scaled by a power of ε."""
    settings = {other.epsilon: best[other] for other in best if other.contender == case.contender}
    if case.epsilon in settings:
        return settings[case.epsilon]
    nearest = min(settings, key=lambda epsilon: abs(math.log(epsilon / case.epsilon)))
    low, high = min(settings), max(settings)
    slope = 0.0
    if low < high:
        slope = math.log(settings[high].rate / settings[low].rate) / math.log(high / low)
    # Round to the factors of two that the search uses, so that equal settings are measured only once.
    power = round(slope * math.log2(case.epsilon / nearest))
    return replace(settings[nearest], rate=settings[nearest].rate * 2.0**power)


class _Climb:
    """The state of the search: all accuracies measured so far, and the best setting of each case."""

    def __init__(self, starts: dict[Case, Candidate], measure: Measure) -> None:
        self.best, self.measure = starts, measure
        self.accuracies: dict[tuple[Case, Candidate], float] = {}

    def tried(self, contender: str) -> int:
        """Return the number of settings measured for a contender, at any budget."""
        return sum(case.contender == contender for case, _ in self.accuracies)

    def move(self, neighbours: Callable[[Case, Candidate], Iterable[Candidate]], turns: int = 8) -> None:
        """Give every case the best of its current setting and the settings in `neighbours`.

        Repeat this until no setting changes, at most `turns` times.
        """
        for _ in range(turns):
            # The current setting comes first, so that it wins a tie.
            options = {case: (best, *neighbours(case, best)) for case, best in self.best.items()}
            settings = dict.fromkeys((case, one) for case, ways in options.items() for one in ways)
            new = [setting for setting in settings if setting not in self.accuracies]
            self.accuracies |= zip(new, self.measure(new), strict=True)
            best = {case: max(ways, key=lambda p: self.accuracies[case, p]) for case, ways in options.items()}
            if best == self.best:
                return
            self.best = best


def _other_rates(case: Case, candidate: Candidate) -> Iterable[Candidate]:
    return [replace(candidate, rate=factor * candidate.rate) for factor in (0.5, 2.0)]


def _without(values: tuple[Value, ...], value: Value) -> list[Value]:
    return [other for other in values if other != value]
