"""The search for the best setting of each method at each budget: from a start to the best neighbour, until no
neighbour is better; then to more rounds, as long as these are better.

All methods and budgets take each step together, so that their runs can be stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Key(NamedTuple):
    """What a best setting is sought for."""

    method: str
    epsilon: float


class Point(NamedTuple):
    """A setting. The rate is per unit of clip: λ·C is what moves a clipped gradient."""

    rounds: int
    rate: float
    clip: float
    alpha: float
    mode: str


Measure = Callable[[list[tuple[Key, Point]]], list[float]]
"""The validation accuracy of settings."""


@dataclass(frozen=True)
class Search:
    """Where settings are sought: rates without end, of all else these values, in this order."""

    rounds: tuple[int, ...]
    rate: float  # to start with at ε = 1, and in proportion to ε
    clips: tuple[float, ...]
    alphas: tuple[float, ...]
    modes: tuple[str, ...]
    budgets: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    methods: tuple[str, ...] = ("plain", "top")

    def starts(self) -> dict[Key, Point]:
        """Few rounds, because they are cheap; the middle of all else."""
        middle = _middle(self.clips), _middle(self.alphas), _middle(self.modes)
        return {
            Key(method, epsilon): Point(self.rounds[0], self.rate * epsilon, *middle)
            for method in self.methods
            for epsilon in self.budgets
        }

    def around(self, point: Point) -> Iterator[Point]:
        """The settings one step away that take as many rounds."""
        for factor in (0.5, 2.0):
            yield point._replace(rate=factor * point.rate)
        for clip in _beside(self.clips, point.clip):
            yield point._replace(clip=clip)
        for alpha in _beside(self.alphas, point.alpha):
            yield point._replace(alpha=alpha)
        for mode in _beside(self.modes, point.mode):
            yield point._replace(mode=mode)

    def longer(self, point: Point) -> Iterator[Point]:
        """The next more rounds: as long a way in all, or as long steps."""
        for rounds in self.rounds[self.rounds.index(point.rounds) + 1 :][:1]:
            for rate in (point.rate * point.rounds / rounds, point.rate):
                yield point._replace(rounds=rounds, rate=rate)


class Tuning:
    """What was tried, with its accuracy, and the best of it."""

    def __init__(self, search: Search, measure: Measure) -> None:
        self.search, self.measure = search, measure
        self.best = search.starts()
        self.tried: dict[Key, dict[Point, float]] = {key: {} for key in self.best}

    def climb(self) -> None:
        """To the best neighbour, until no neighbour is better."""
        while self._improves({key: [at, *self.search.around(at)] for key, at in self.best.items()}):
            pass

    def lengthen(self) -> None:
        """To more rounds, as long as they are better."""
        while self._improves({key: [*self.search.longer(at)] for key, at in self.best.items()}):
            pass

    def _improves(self, points: Mapping[Key, list[Point]]) -> bool:
        """Tries what was not tried yet."""
        new = [(key, p) for key, several in points.items() for p in several if p not in self.tried[key]]
        for (key, point), accuracy in zip(new, self.measure(new), strict=True):
            self.tried[key][point] = accuracy
        before = self.best
        self.best = {key: max(tried, key=tried.__getitem__) for key, tried in self.tried.items()}
        return self.best != before


def _middle(values: tuple[T, ...]) -> T:
    return values[len(values) // 2]


def _beside(values: tuple[T, ...], value: T) -> tuple[T, ...]:
    at = values.index(value)
    return (*values[max(at - 1, 0) : at], *values[at + 1 : at + 2])
