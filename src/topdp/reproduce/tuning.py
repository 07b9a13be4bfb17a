"""The search for the best setting of each method at each budget.

It climbs: in each mode from a start to the best neighbour, until no neighbour is better; then to more rounds,
as long as these are better. Neighbours share the noise of one seed, so that one seed compares them well.
Other rounds are other noise: they are compared by the mean over several seeds. All methods, budgets and modes
take each step together, so that their runs can be stacked. It runs nothing itself: a function given to it
says how accurate settings are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Case(NamedTuple):
    """What a best setting is sought for."""

    method: str
    epsilon: float
    mode: str


class Candidate(NamedTuple):
    """A setting. The rate is per unit of clip: λ·C is what moves a clipped gradient."""

    rounds: int
    rate: float
    clip: float
    alpha: float


Seeds = tuple[int, ...]

Measure = Callable[[list[tuple[Case, Candidate]], Seeds], list[float]]
"""The validation accuracy of settings: the mean over seeds."""


@dataclass(frozen=True)
class SearchSpace:
    """Where settings are sought: rates without end, of all else these values, in this order."""

    rounds: tuple[int, ...]
    rate: float  # to start with at ε = 1; at others it is ε times that
    clips: tuple[float, ...]
    alphas: tuple[float, ...]
    modes: tuple[str, ...]
    seeds: Seeds
    budgets: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    methods: tuple[str, ...] = ("plain", "top")

    def starts(self) -> dict[Case, Candidate]:
        """Few rounds, because they are cheap; the middle of all else."""
        clip, alpha = _middle(self.clips), _middle(self.alphas)
        return {
            Case(method, epsilon, mode): Candidate(self.rounds[0], self.rate * epsilon, clip, alpha)
            for method in self.methods
            for epsilon in self.budgets
            for mode in self.modes
        }

    def around(self, candidate: Candidate) -> Iterator[Candidate]:
        """The settings one step away that take as many rounds."""
        for factor in (0.5, 2.0):
            yield candidate._replace(rate=factor * candidate.rate)
        for clip in _beside(self.clips, candidate.clip):
            yield candidate._replace(clip=clip)
        for alpha in _beside(self.alphas, candidate.alpha):
            yield candidate._replace(alpha=alpha)

    def longer(self, candidate: Candidate) -> Iterator[Candidate]:
        """The next more rounds: as long a way in all, or as long steps."""
        for rounds in self.rounds[self.rounds.index(candidate.rounds) + 1 :][:1]:
            for rate in (candidate.rate * candidate.rounds / rounds, candidate.rate):
                yield candidate._replace(rounds=rounds, rate=rate)


class BestSetting(NamedTuple):
    """The best setting of a method at a budget, and how many were tried for it."""

    case: Case
    candidate: Candidate
    tried: int


def tune(space: SearchSpace, measure: Measure) -> list[BestSetting]:
    """The best setting of every method at every budget, of any mode."""
    climb = _Climb(space.starts(), measure)
    climb.move(space.around, space.seeds[:1])
    heights = climb.move(space.longer, space.seeds)
    found = []
    for method in space.methods:
        for epsilon in space.budgets:
            cases = [Case(method, epsilon, mode) for mode in space.modes]
            best = max(cases, key=heights.__getitem__)
            tried = sum(len(climb.tried[case]) for case in cases)
            found.append(BestSetting(best, climb.best[best], tried))
    return found


class _Climb:
    """What was tried so far, and the best of it."""

    def __init__(self, starts: dict[Case, Candidate], measure: Measure) -> None:
        self.best, self.measure = starts, measure
        self.tried: dict[Case, set[Candidate]] = {case: set() for case in starts}

    def move(self, onwards: Callable[[Candidate], Iterator[Candidate]], seeds: Seeds) -> dict[Case, float]:
        """Onwards to the best, until nothing there is better; the accuracies that it ends with."""
        known: dict[Case, dict[Candidate, float]] = {case: {} for case in self.best}
        while True:
            candidates = [(case, p) for case, at in self.best.items() for p in (at, *onwards(at))]
            new = [(case, p) for case, p in candidates if p not in known[case]]
            for (case, candidate), accuracy in zip(new, self.measure(new, seeds), strict=True):
                known[case][candidate] = accuracy
                self.tried[case].add(candidate)
            best = {case: max(several, key=several.__getitem__) for case, several in known.items()}
            if best == self.best:
                return {case: known[case][candidate] for case, candidate in best.items()}
            self.best = best


def _middle(values: tuple[T, ...]) -> T:
    return values[len(values) // 2]


def _beside(values: tuple[T, ...], value: T) -> tuple[T, ...]:
    at = values.index(value)
    return (*values[max(at - 1, 0) : at], *values[at + 1 : at + 2])
