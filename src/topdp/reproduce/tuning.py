"""The search for the best setting of each method at each budget: in each mode from a start to the best
neighbour, until no neighbour is better; then to more rounds, as long as these are better.

Neighbours share the noise of one seed, so that one seed compares them well. Other rounds are other noise:
they are compared by the mean over several seeds. All methods, budgets and modes take each step together, so
that their runs can be stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Key(NamedTuple):
    """What a best setting is sought for."""

    method: str
    epsilon: float
    mode: str


class Point(NamedTuple):
    """A setting. The rate is per unit of clip: λ·C is what moves a clipped gradient."""

    rounds: int
    rate: float
    clip: float
    alpha: float


Seeds = tuple[int, ...]

Measure = Callable[[list[tuple[Key, Point]], Seeds], list[float]]
"""The validation accuracy of settings: the mean over seeds."""


@dataclass(frozen=True)
class Search:
    """Where settings are sought: rates without end, of all else these values, in this order."""

    rounds: tuple[int, ...]
    rate: float  # to start with at ε = 1; at others it is ε times that
    clips: tuple[float, ...]
    alphas: tuple[float, ...]
    modes: tuple[str, ...]
    seeds: Seeds
    budgets: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    methods: tuple[str, ...] = ("plain", "top")

    def starts(self) -> dict[Key, Point]:
        """Few rounds, because they are cheap; the middle of all else."""
        clip, alpha = _middle(self.clips), _middle(self.alphas)
        return {
            Key(method, epsilon, mode): Point(self.rounds[0], self.rate * epsilon, clip, alpha)
            for method in self.methods
            for epsilon in self.budgets
            for mode in self.modes
        }

    def around(self, point: Point) -> Iterator[Point]:
        """The settings one step away that take as many rounds."""
        for factor in (0.5, 2.0):
            yield point._replace(rate=factor * point.rate)
        for clip in _beside(self.clips, point.clip):
            yield point._replace(clip=clip)
        for alpha in _beside(self.alphas, point.alpha):
            yield point._replace(alpha=alpha)

    def longer(self, point: Point) -> Iterator[Point]:
        """The next more rounds: as long a way in all, or as long steps."""
        for rounds in self.rounds[self.rounds.index(point.rounds) + 1 :][:1]:
            for rate in (point.rate * point.rounds / rounds, point.rate):
                yield point._replace(rounds=rounds, rate=rate)


class Found(NamedTuple):
    """The best setting of a method at a budget, and how many were tried for it."""

    key: Key
    point: Point
    tried: int


def tune(search: Search, measure: Measure) -> list[Found]:
    """The best setting of every method at every budget, of any mode."""
    tuning = _Tuning(search.starts(), measure)
    tuning.move(search.around, search.seeds[:1])
    heights = tuning.move(search.longer, search.seeds)
    found = []
    for method in search.methods:
        for epsilon in search.budgets:
            keys = [Key(method, epsilon, mode) for mode in search.modes]
            best = max(keys, key=heights.__getitem__)
            found.append(Found(best, tuning.best[best], sum(len(tuning.tried[key]) for key in keys)))
    return found


class _Tuning:
    """What was tried so far, and the best of it."""

    def __init__(self, starts: dict[Key, Point], measure: Measure) -> None:
        self.best, self.measure = starts, measure
        self.tried: dict[Key, set[Point]] = {key: set() for key in starts}

    def move(self, onwards: Callable[[Point], Iterator[Point]], seeds: Seeds) -> dict[Key, float]:
        """Onwards to the best, until nothing there is better; the accuracies that it ends with."""
        known: dict[Key, dict[Point, float]] = {key: {} for key in self.best}
        while True:
            points = [(key, p) for key, at in self.best.items() for p in (at, *onwards(at))]
            new = [(key, p) for key, p in points if p not in known[key]]
            for (key, point), accuracy in zip(new, self.measure(new, seeds), strict=True):
                known[key][point] = accuracy
                self.tried[key].add(point)
            best = {key: max(several, key=several.__getitem__) for key, several in known.items()}
            if best == self.best:
                return {key: known[key][point] for key, point in best.items()}
            self.best = best


def _middle(values: tuple[T, ...]) -> T:
    return values[len(values) // 2]


def _beside(values: tuple[T, ...], value: T) -> tuple[T, ...]:
    at = values.index(value)
    return (*values[max(at - 1, 0) : at], *values[at + 1 : at + 2])
