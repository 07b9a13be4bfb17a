"""The findings of an audit: lower bounds on ε from the scores of canaries, beside the proved upper bound.

`gaussian` assumes that the scores of present and of absent canaries are normal with equal variance. Then the
distance of their means in units of the standard deviation is μ, and ε follows exactly. This is by far the
tightest bound where noise is Gaussian, as everywhere in topdp; but a broken mechanism may break the
assumption.

`guessing` makes no assumption. It guesses the coins of the canaries with extreme scores. A value of ε is
ruled out if more guesses are right than this ε allows (Steinke, Nasr and Jagielski 2023, arXiv:2305.08846).
The number of guesses must not depend on the scores, because the confidence would then be lost. Therefore
`guesses_for` derives it from the expected scores.

**Guarantees.** All lower bounds of one audit hold simultaneously with the stated confidence, because the
allowed error probability is divided evenly among them. Therefore the largest of them is also a lower bound
with this confidence. If a lower bound exceeds a proved upper bound, then, except with the allowed error
probability, the proof, the code or one of their assumptions is wrong.

Bounds can miss a fault, because noise that is wrong may hide canaries as well as noise that is right. So the
findings also contain the checks of `noise_checks`, with an error probability of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, expit, ndtr, ndtri

from topdp.audit.noise_checks import FALSE_FLAGS, Check
from topdp.base.array_types import Bools, Floats
from topdp.privacy.basics.gaussian import epsilon_of

MAX_EPSILON = 60.0
"""The upper end of the search for ε. No number of guesses that fits into a run could show a larger ε."""


@dataclass(frozen=True)
class Distance:
    """An estimate of μ, and a lower bound on μ with the requested confidence."""

    estimate: float
    lower: float

    def epsilon(self, delta: float) -> float:
        """Return the lower bound on ε that follows from `lower`."""
        return float(epsilon_of(max(self.lower, 0.0), delta))


def gaussian(scores: Floats, present: Bools, error: float) -> Distance:
    """Estimate μ from the scores. `lower` exceeds the true μ with probability at most `error`.

    Both are 0 if there are fewer than two present or two absent canaries.

    **Guarantees.** If all scores are independent and normal with the same variance, `t` has a noncentral t
    distribution with n - 2 degrees of freedom and noncentrality μ/√(1/n₁ + 1/n₀). Its quantile is
    approximated as in Johnson and Welch (1940). The approximation is below the exact quantile if `error` is
    at most 1/8 (tested).

    >>> import numpy as np
    >>> present = np.arange(1000) % 2 == 0
    >>> scores = np.random.default_rng(0).normal(size=1000) + present
    >>> mu = gaussian(scores, present, error=0.05)
    >>> round(mu.estimate, 2), round(mu.lower, 2)
    (0.94, 0.83)
    """
    n1, n0 = int(present.sum()), int((~present).sum())
    if min(n1, n0) < 2:
        return Distance(0.0, 0.0)
    free, width = n1 + n0 - 2, math.sqrt(1 / n1 + 1 / n0)
    spread = math.sqrt((n1 * scores[present].var() + n0 * scores[~present].var()) / free)
    distance = float(scores[present].mean() - scores[~present].mean()) / max(spread, np.finfo(float).tiny)
    t = distance / width
    lower = t * (1 - 1 / (4 * free)) - float(ndtri(1 - error)) * math.sqrt(1 + t**2 / (2 * free))
    return Distance(distance, lower * width)


def guessing(scores: Floats, present: Bools, guesses: int, delta: float, error: float) -> float:
    """Return a lower bound on ε that exceeds the true ε with probability at most `error`, for any scores.

    The `guesses`/2 canaries with the highest scores are guessed present. The `guesses`/2 canaries with the
    lowest scores are guessed absent. For the other canaries there is no guess.

    >>> import numpy as np
    >>> present = np.arange(1000) % 2 == 0
    >>> round(guessing(present * 1.0, present, 1000, delta=1e-5, error=0.05), 2)
    5.78
    """
    order = np.argsort(scores, kind="stable")
    per_side = guesses // 2
    right = int((~present[order[:per_side]]).sum() + present[order[len(order) - per_side :]].sum())
    return largest_excluded(len(scores), 2 * per_side, right, delta, error)


def largest_excluded(canaries: int, guesses: int, right: int, delta: float, error: float) -> float:
    """Return the largest ε that `right` correct guesses rule out, or 0 if they rule out none."""

    def ruled_out(epsilon: float) -> bool:
        return probability_bound(canaries, guesses, right, epsilon, delta) <= error

    if not ruled_out(0.0):
        return 0.0
    low, high = 0.0, MAX_EPSILON
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if ruled_out(middle) else (low, middle)
    return low


def probability_bound(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return an upper bound on the probability of at least `right` correct guesses if (ε, δ) holds.

    Theorem 5.2 of arXiv:2305.08846: P[W >= v] <= P[B >= v] + 2mδ·max_i P[v - i <= B < v]/i. W is the number
    of correct guesses. B is binomial, with `guesses` trials that succeed with probability e^ε/(1 + e^ε). m is
    the number of canaries.
    """
    counts = np.arange(1, right + 1)
    # P[B >= k] is the incomplete beta function; P[B >= 0] = 1.
    tail = np.append(1.0, betainc(counts, guesses - counts + 1, expit(epsilon)))
    largest = float(((tail[:-1] - tail[-1])[::-1] / counts).max(initial=0.0))
    return float(min(1.0, tail[-1] + 2 * canaries * delta * largest))


@lru_cache(maxsize=64)
def guesses_for(canaries: int, mu: float, delta: float, error: float) -> int:
    """Return the number of guesses with the largest expected lower bound on ε.

    The expectation assumes that a fair coin decides whether the score of a canary is N(0, 1) or N(μ, 1).
    `error`: the largest probability that the bound is wrong.
    """

    def expected(per_side: int) -> float:
        def too_many(edge: float) -> float:
            return float(ndtr(-edge) + ndtr(mu - edge)) - 2 * per_side / canaries

        edge = brentq(too_many, -40.0, 40.0 + mu)
        share = ndtr(mu - edge) / (ndtr(mu - edge) + ndtr(-edge))
        return largest_excluded(canaries, 2 * per_side, int(2 * per_side * share), delta, error)

    choices = {max(1, int(canaries / 2**k / 2)) for k in np.arange(0, 6.5, 0.5)}
    return 2 * max(sorted(choices, reverse=True), key=expected)


@dataclass(frozen=True, eq=False, kw_only=True)
class KindFindings:
    """The scores of the canaries of one kind, and the bounds that follow."""

    scores: Floats
    present: Bools
    mu: float  # the distance of the mean scores of present and absent canaries, according to the plan
    gaussian: Distance | None  # None if records are sampled at random
    epsilon_gaussian: float
    epsilon_guessing: float
    guesses: int

    @property
    def epsilon(self) -> float:
        return max(self.epsilon_gaussian, self.epsilon_guessing)

    def to_json(self) -> dict[str, Any]:
        """Return the findings as JSON.

        `spread`: the standard deviations of the scores of absent and of present canaries. Both are 1 in
        theory.
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
    checks: tuple[Check, ...]  # of the noise and the clipping

    @property
    def deviations(self) -> list[Check]:
        """The checks by which the run does not follow its plan."""
        return [check for check in self.checks if check.flagged]

    @property
    def flagged(self) -> bool:
        """Whether the audit found a fault: a bound above the proved ε, or a deviation from the plan."""
        return "proved" in self.exceeds or bool(self.deviations)

    @property
    def lower(self) -> float:
        """The largest lower bound on ε."""
        return max(kind.epsilon for kind in self.kinds.values())

    @property
    def bounds(self) -> dict[str, float | str]:
        """The values of ε with which `lower` is compared: the proved upper bound, and the account's answers.

        An answer that has no ε is represented by its status.
        """
        return {"proved": self.proved, **self.answers}

    @property
    def exceeds(self) -> list[str]:
        """The names of the `bounds` that `lower` exceeds. It must not exceed `proved`."""
        return [name for name, e in self.bounds.items() if not isinstance(e, str) and self.lower > e]

    @property
    def verdict(self) -> str:
        bound = f"ε ≥ {self.lower:.4g} ({100 * self.confidence:.4g}% confidence)"
        differs = f" The run does not follow its plan: {'; '.join(map(str, self.deviations))}."
        if "proved" in self.exceeds:
            text = f"{bound}, above the proved {self.proved:.4g}: not as private as proved."
            return text + differs * bool(self.deviations)
        if self.deviations:
            return (
                f"{bound}, below the proved {self.proved:.4g}, but the proof is about another run.{differs}"
            )
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
            "checks": {check.name: check.to_json() for check in self.checks},
            "false_flags": FALSE_FLAGS,
            "verdict": self.verdict,
            "kinds": {name: kind.to_json() for name, kind in self.kinds.items()},
        }

    def csv_lines(self) -> list[str]:
        """Return the lines of scores.csv. From these numbers the picture can be drawn."""
        rows = [
            f"{name},{int(present)},{score:.6g}"
            for name, kind in self.kinds.items()
            for present, score in zip(kind.present, kind.scores, strict=True)
        ]
        return ["kind,there,score", *rows]


def _number(value: float | str | None) -> float | None:
    """Return `value`, or None if it is not a finite number, which JSON cannot represent."""
    return value if isinstance(value, float) and math.isfinite(value) else None


def _status(epsilon: float | str) -> str:
    if isinstance(epsilon, str):
        return epsilon
    return "finite" if math.isfinite(epsilon) else "infinite"
