"""What an audit found: lower bounds beside what was proved, for people and for programs.

**Guarantees.** All bounds of one audit hold at once with the stated confidence: the error that is allowed is
shared out evenly among them. So the largest of them may be taken, and one above a proved bound is a fault of
that proof, of the code or of what either assumes, but for that error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from topdp.audit.epsilon_bounds import Distance
from topdp.base.array_types import Bools, Floats


@dataclass(frozen=True, eq=False)
class Kind:
    """The canaries of one kind: what they scored, and what follows."""

    scores: Floats
    there: Bools
    mu: float  # what the plan says their distance is, on average
    gaussian: Distance | None  # None where records are drawn by chance
    epsilon_gaussian: float
    epsilon_guessing: float
    guesses: int

    @property
    def epsilon(self) -> float:
        return max(self.epsilon_gaussian, self.epsilon_guessing)

    def spread(self) -> tuple[float, float]:
        """The standard deviations of the scores of canaries that are not there, and that are: 1 and 1."""
        return float(self.scores[~self.there].std()), float(self.scores[self.there].std())

    def to_json(self) -> dict[str, Any]:
        return {
            "canaries": len(self.scores),
            "there": int(self.there.sum()),
            "mu_expected": _number(self.mu),
            "mu_estimate": _number(self.gaussian.estimate) if self.gaussian else None,
            "mu_lower": _number(self.gaussian.lower) if self.gaussian else None,
            "spread": [_number(value) for value in self.spread()],
            "epsilon_gaussian": _number(self.epsilon_gaussian) if self.gaussian else None,
            "epsilon_distribution_free": _number(self.epsilon_guessing),
            "guesses": self.guesses,
        }


@dataclass(frozen=True, eq=False)
class Findings:
    """One audit."""

    owner: int
    observer: str
    sees: str
    delta: float
    confidence: float
    seed: int
    kinds: dict[str, Kind]
    proved: float  # ε for this observer
    mu: float | None  # the same as μ; None where records are drawn by chance
    answers: dict[str, float | str]  # of the account for the owner, by name; in words where there is none

    @property
    def lower(self) -> float:
        """The largest lower bound on ε."""
        return max(kind.epsilon for kind in self.kinds.values())

    @property
    def exceeds(self) -> list[str]:
        """Which of the numbers it exceeds; `proved` is the one that must not be."""
        named = {"proved": self.proved, **self.answers}
        return [name for name, e in named.items() if not isinstance(e, str) and self.lower > e]

    @property
    def verdict(self) -> str:
        sure = f"{self.confidence:.4g} confidence"
        if "proved" in self.exceeds:
            return (
                f"Not as private as proved: at least ε = {self.lower:.4g} with {sure}, where "
                f"{self.proved:.4g} was proved."
            )
        share = f", {self.lower / self.proved:.0%} of it" if 0 < self.proved < math.inf else ""
        found = f"At least ε = {self.lower:.4g} with {sure}{share}: nothing against what was proved."
        over = [name.replace("_", " ") for name in self.exceeds]
        return found + (f" But more than {' and '.join(over)}." if over else "")

    def to_json(self) -> dict[str, Any]:
        return {
            "owner": self.owner,
            "observer": self.observer,
            "sees": self.sees,
            "delta": self.delta,
            "confidence": self.confidence,
            "seed": self.seed,
            "epsilon_lower": _number(self.lower),
            "epsilon_proved": _number(self.proved),
            "mu_proved": _number(self.mu),
            "epsilon_of_owner": {name: _number(value) for name, value in self.answers.items()},
            "status": {"proved": _status(self.proved)}
            | {name: _status(value) for name, value in self.answers.items()},
            "exceeds": self.exceeds,
            "verdict": self.verdict,
            "kinds": {name: kind.to_json() for name, kind in self.kinds.items()},
        }

    def lines(self) -> list[str]:
        """scores.csv: what the picture is drawn from."""
        rows = [
            f"{name},{int(there)},{score:.6g}"
            for name, kind in self.kinds.items()
            for there, score in zip(kind.there, kind.scores, strict=True)
        ]
        return ["kind,there,score", *rows]


def _number(value: float | str | None) -> float | None:
    """JSON has no infinity."""
    return value if isinstance(value, float) and math.isfinite(value) else None


def _status(epsilon: float | str) -> str:
    if isinstance(epsilon, str):
        return epsilon
    return "finite" if math.isfinite(epsilon) else "infinite"
