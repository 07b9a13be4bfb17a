"""The findings of an audit: lower bounds on ε beside the proved upper bound, for people and for programs.

**Guarantees.** All bounds of one audit hold simultaneously with the stated confidence: the allowed error
probability is divided evenly among them. So the largest of them may be used. Except with that error
probability, one above a proved bound reveals a fault of the proof, of the code or of their assumptions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from topdp.audit.epsilon_bounds import Distance
from topdp.base.array_types import Bools, Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class KindFindings:
    """The scores of the canaries of one kind, and the bounds that follow."""

    scores: Floats
    present: Bools
    mu: float  # the mean distance of present and absent canaries according to the plan
    gaussian: Distance | None  # None if records are sampled at random
    epsilon_gaussian: float
    epsilon_guessing: float
    guesses: int

    @property
    def epsilon(self) -> float:
        return max(self.epsilon_gaussian, self.epsilon_guessing)

    def to_json(self) -> dict[str, Any]:
        """Return the findings; `spread`: the standard deviations of absent and of present canaries' scores,
        which theory says are 1 and 1.
        """
        parts = self.scores[~self.present], self.scores[self.present]
        return {
            "canaries": len(self.scores),
            "there": int(self.present.sum()),
            "mu_expected": _number(self.mu),
            "mu_estimate": _number(self.gaussian.estimate) if self.gaussian else None,
            "mu_lower": _number(self.gaussian.lower) if self.gaussian else None,
            "spread": [_number(float(part.std())) for part in parts],
            "epsilon_gaussian": _number(self.epsilon_gaussian) if self.gaussian else None,
            "epsilon_distribution_free": _number(self.epsilon_guessing),
            "guesses": self.guesses,
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class Findings:
    """The findings of one audit."""

    owner: int
    observer: str
    sees: str
    delta: float
    confidence: float
    seed: int
    kinds: dict[str, KindFindings]
    proved: float  # ε for this observer
    mu: float | None  # μ for this observer; None if records are sampled at random
    answers: dict[str, float | str]  # the account's answers for the owner: ε, or the status if there is none

    @property
    def lower(self) -> float:
        """The largest lower bound on ε."""
        return max(kind.epsilon for kind in self.kinds.values())

    @property
    def bounds(self) -> dict[str, float | str]:
        """The upper bounds on ε: the proved one, and the account's answers."""
        return {"proved": self.proved, **self.answers}

    @property
    def exceeds(self) -> list[str]:
        """The names of the upper bounds that `lower` exceeds. It must not exceed `proved`."""
        return [name for name, e in self.bounds.items() if not isinstance(e, str) and self.lower > e]

    @property
    def verdict(self) -> str:
        bound = f"ε ≥ {self.lower:.4g} ({100 * self.confidence:.4g}% confidence)"
        if "proved" in self.exceeds:
            return f"{bound}, above the proved {self.proved:.4g}: not as private as proved."
        exceeded = [name.replace("_", " ") for name in self.exceeds]
        also = f" It exceeds {' and '.join(exceeded)}." if exceeded else ""
        return f"{bound}, below the proved {self.proved:.4g}: consistent.{also}"

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
            "status": {name: _status(value) for name, value in self.bounds.items()},
            "exceeds": self.exceeds,
            "verdict": self.verdict,
            "kinds": {name: kind.to_json() for name, kind in self.kinds.items()},
        }

    def csv_lines(self) -> list[str]:
        """Return the lines of scores.csv, from which the picture is drawn."""
        rows = [
            f"{name},{int(present)},{score:.6g}"
            for name, kind in self.kinds.items()
            for present, score in zip(kind.present, kind.scores, strict=True)
        ]
        return ["kind,there,score", *rows]


def _number(value: float | str | None) -> float | None:
    """Return None for infinity, which JSON lacks."""
    return value if isinstance(value, float) and math.isfinite(value) else None


def _status(epsilon: float | str) -> str:
    if isinstance(epsilon, str):
        return epsilon
    return "finite" if math.isfinite(epsilon) else "infinite"
