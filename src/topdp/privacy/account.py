"""Three answers to "how private?", side by side: claimed, view, worst-case; or a refusal by name.

This file only puts the three accountants together; each says in its own file what it guarantees.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from topdp.plan import Plan
from topdp.plan.arrays import Floats
from topdp.privacy.basics.checks import NotCovered, expect_delta
from topdp.privacy.observers.effort import WIDEST, expect_bearable
from topdp.privacy.observers.view import Progress, View, view
from topdp.privacy.observers.worst_case import worst_case
from topdp.privacy.published.claims import Analysis

GUARANTEES = ("claimed", "view", "worst-case")


class Status(StrEnum):
    """What kind of answer it is: for programs, as `reason` is for people.

    >>> from topdp.privacy import Answer
    >>> Answer(None, "No analysis covers it.").status is Status.REFUSED
    True
    """

    FINITE = "finite"
    INFINITE = "infinite"
    """Some agent is not hidden by noise."""
    REFUSED = "refused"
    """No analysis covers the question."""


@dataclass(frozen=True, eq=False)
class Answer:
    """[agents] ε; None where the accountant refused, and `reason` says why. Infinite is said as such.

    >>> import numpy as np
    >>> Answer(np.array([0.5, 1.0])).largest
    1.0
    """

    epsilon: Floats | None
    reason: str | None = None

    @property
    def status(self) -> Status:
        if self.epsilon is None:
            return Status.REFUSED
        return Status.FINITE if np.isfinite(self.epsilon).all() else Status.INFINITE

    @property
    def largest(self) -> float | None:
        """Over all agents; None when refused or infinite."""
        if self.epsilon is None:
            return None
        worst = float(self.epsilon.max())
        return worst if math.isfinite(worst) else None

    def list(self) -> list[float | None] | None:
        """JSON has no infinity: null stands for it, and the reason is beside it."""
        if self.epsilon is None:
            return None
        return [float(e) if math.isfinite(e) else None for e in self.epsilon]


@dataclass(frozen=True, eq=False)
class Account:
    """What is known of a plan's privacy at one δ.

    `guarantee` names the answer that meets the budget; None where the noise was given.

    >>> from topdp.privacy import Analysis, account
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Full, Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> analysis = Analysis("tight", (Full(100),) * 6, clip=100.0)
    >>> found = account(plan, analysis, delta=1e-5)
    >>> round(found.worst_case.largest, 2), found.view.epsilon.round(2).tolist()
    (5.24, [2.94, 2.97, 2.95, 2.96, 3.06, 3.06])
    >>> print(found.answer("view").status)
    finite
    """

    delta: float
    analysis: Analysis
    claimed: Answer
    view: Answer
    worst_case: Answer
    seen: View | None  # every agent alone against every other; None when the view refused
    warnings: tuple[str, ...] = ()
    guarantee: str | None = None

    @property
    def answers(self) -> dict[str, Answer]:
        return {"claimed": self.claimed, "view": self.view, "worst_case": self.worst_case}

    @property
    def epsilon(self) -> dict[str, float | None]:
        """The largest ε over agents, by answer; None where it is infinite or refused."""
        return {name: answer.largest for name, answer in self.answers.items()}

    def answer(self, guarantee: str) -> Answer:
        """The answer that a guarantee of a configuration names."""
        return self.answers[guarantee.replace("-", "_")]

    def summary(self) -> dict[str, Any]:
        """The `privacy` object of a run: the largest ε over agents, null with a reason."""
        reasons = {name: answer.reason for name, answer in self.answers.items() if answer.reason}
        return {
            "guarantee": self.guarantee,
            "delta": self.delta,
            "adjacency": self.analysis.adjacency,
            "epsilon": self.epsilon,
            "status": {name: str(answer.status) for name, answer in self.answers.items()},
            **({"reasons": reasons} if reasons else {}),
            **({"warnings": list(self.warnings)} if self.warnings else {}),
        }

    def details(self) -> dict[str, Any]:
        """Everything, per agent and per observer: privacy.json and `topdp account --json`."""
        return {
            **self.summary(),
            **self.analysis.facts(),
            "epsilon_per_agent": {name: answer.list() for name, answer in self.answers.items()},
            "mu_view": _matrix(self.seen.upper if self.seen else None),
            "mu_view_aligned": _matrix(self.seen.lower if self.seen else None),
            "assumptions": ASSUMPTIONS,
        }

    @classmethod
    def from_details(cls, details: dict[str, Any], analysis: Analysis) -> Account:
        """What `details` wrote. Losses of Poisson samples are not in it: then there is no `seen`."""
        answers = {
            name: Answer(_array(values), details.get("reasons", {}).get(name))
            for name, values in details["epsilon_per_agent"].items()
        }
        seen = None
        if details["mu_view"] is not None and not analysis.exposure().sampled:
            upper, lower = _square(details["mu_view"]), _square(details["mu_view_aligned"])
            alone = tuple((agent,) for agent in range(len(upper)))
            seen = View(alone, lower, upper, ~np.eye(len(upper), dtype=bool))
        said = tuple(details.get("warnings", ()))
        return cls(
            details["delta"], analysis, **answers, seen=seen, warnings=said, guarantee=details["guarantee"]
        )


ASSUMPTIONS = {
    "claimed": "What the method's own analysis says of its full-scale noise; saved noise counts as free.",
    "view": (
        "Each other agent alone, honest but curious, with all rows it reads in all rounds, its own draws and "
        "data, and all random choices of the protocol. Gradients count as fixed inputs: that others' later "
        "gradients react to a changed record is not in it (exact for a linear loss)."
    ),
    "worst_case": (
        "All other agents together, who see every row the agent makes, its own estimate included. "
        "No assumption on gradients."
    ),
}


def account(
    plan: Plan,
    analysis: Analysis,
    delta: float,
    seen: View | None = None,
    progress: Progress | None = None,
    patient: bool = False,
    guarantee: str | None = None,
) -> Account:
    """The three answers for every agent of `plan`.

    `seen`: its view, where a calibration has it already. `patient`: also the view of a very long plan.
    `guarantee`: by which the noise was calibrated.

    >>> from topdp.privacy import Analysis
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Full, Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> analysis = Analysis("tight", (Full(100),) * 6, clip=100.0)
    >>> found = account(plan, analysis, delta=1e-5)
    >>> {name: round(answer.largest, 2) for name, answer in found.answers.items()}
    {'claimed': 2.59, 'view': 3.06, 'worst_case': 5.24}
    """
    delta = expect_delta(delta)
    exposure = analysis.exposure()
    said: list[str] = []

    def claims() -> Floats:
        epsilon, warned = analysis.claim(plan, delta)
        said.extend(warned)
        return epsilon

    def views() -> Floats:
        nonlocal seen
        if seen is None and not exposure.sampled:
            expect_bearable(plan, patient)
        widest = None if patient else WIDEST
        seen = seen or view(plan, exposure, owners="all", progress=progress, widest=widest)
        return np.asarray(np.nanmax(seen.epsilon(delta), axis=1))

    claimed, viewed = _answer(claims), _answer(views)
    worst = _answer(lambda: worst_case(plan, exposure).epsilon(delta))
    return Account(delta, analysis, claimed, viewed, worst, seen, tuple(said), guarantee)


def _answer(ask: Callable[[], Floats]) -> Answer:
    try:
        epsilon = ask()
    except NotCovered as refusal:
        return Answer(None, str(refusal))
    if np.isinf(epsilon).any():
        who = np.flatnonzero(np.isinf(epsilon))
        some = ", ".join(map(str, who[:5])) + (", ..." if len(who) > 5 else "")
        return Answer(epsilon, f"Infinite: what agents {some} send is not hidden by noise.")
    return Answer(epsilon)


def _matrix(mu: Floats | None) -> list[list[float | None]] | None:
    if mu is None:
        return None
    return [[float(value) if math.isfinite(value) else None for value in row] for row in mu]


def _array(values: list[float | None] | None) -> Floats | None:
    """What `Answer.list` wrote."""
    return None if values is None else np.array([math.inf if e is None else e for e in values])


def _square(rows: list[list[float | None]]) -> Floats:
    """What `_matrix` wrote of a view in which every pair was asked for: nobody observes itself."""
    mu = np.array([[math.inf if value is None else value for value in row] for row in rows])
    np.fill_diagonal(mu, np.nan)
    return mu
