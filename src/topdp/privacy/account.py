"""The answers to "how private?", side by side; or a refusal by name.

This file only puts the accountants together; each says in its own file what it guarantees. The claim and the
worst case cost nothing and are always there; of the others, those that are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from topdp.base.array_types import Floats
from topdp.base.progress import Progress
from topdp.plan import Plan
from topdp.privacy.basics.gaussian import mu_of
from topdp.privacy.basics.privacy_loss import GaussianLoss, Loss
from topdp.privacy.basics.refusals import NotCovered, expect_delta
from topdp.privacy.observers.adaptive import expect_colluders
from topdp.privacy.observers.observer_answers import ASKED, Look, expect_answers, observed
from topdp.privacy.observers.view import View
from topdp.privacy.observers.worst_case import worst_case
from topdp.privacy.published.claims import Analysis

GUARANTEES = ("claimed", "view", "adaptive", "worst-case")
"""What a budget can be on."""

FALSE_ALARMS = (0.01, 0.05)
"""At which the power of the best attacker is stated."""

PAIRS = 100
"""Observers are listed one by one, in JSON, up to so many."""


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
    NOT_ASKED = "not asked"
    """Nobody asked: it was not computed."""


@dataclass(frozen=True, eq=False)
class Answer:
    """[agents] ε; None where the accountant refused or was not asked, and `reason` says why.

    `losses`: one an agent, where more is known than ε at one δ. `observers`: who learns most of each agent.

    >>> import numpy as np
    >>> Answer(np.array([0.5, 1.0])).largest
    1.0
    >>> from topdp.privacy.basics.privacy_loss import GaussianLoss
    >>> known = Answer(np.array([1.0]), losses=(GaussianLoss(0.268),))
    >>> known.mu.tolist(), known.power(0.05).round(3).tolist()
    ([0.268], [0.084])
    """

    epsilon: Floats | None
    reason: str | None = None
    losses: tuple[Loss, ...] = ()
    observers: tuple[tuple[int, ...], ...] | None = None
    asked: bool = True

    @property
    def status(self) -> Status:
        if not self.asked:
            return Status.NOT_ASKED
        if self.epsilon is None:
            return Status.REFUSED
        return Status.FINITE if np.isfinite(self.epsilon).all() else Status.INFINITE

    @property
    def largest(self) -> float | None:
        """Over all agents; None when refused or infinite."""
        return _largest(self.epsilon)

    @property
    def mu(self) -> Floats | None:
        """[agents] the μ of Gaussian differential privacy; nan where none is known (amplified samples)."""
        return np.array([loss.mu for loss in self.losses]) if self.losses else None

    def power(self, false_alarms: float) -> Floats | None:
        """[agents]: with how much power a record can be told from none at this share of false alarms."""
        if not self.losses:
            return None
        return np.array([loss.power(false_alarms) for loss in self.losses])


NOT_ASKED = Answer(None, "Not asked for: name it in privacy.answers.", asked=False)


@dataclass(frozen=True, eq=False)
class Account:
    """What is known of a plan's privacy at one δ.

    `guarantee` names the answer that meets the budget; None where the noise was given. `colluders`: how many
    agents pool what they see, in the adaptive answer.

    >>> from topdp.privacy import Analysis, account
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Full, Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> analysis = Analysis("tight", (Full(100),) * 6, clip=100.0)
    >>> found = account(plan, analysis, delta=1e-5, answers=["view"])
    >>> round(found.worst_case.largest, 2), found.view.epsilon.round(2).tolist()
    (5.24, [2.94, 2.97, 2.95, 2.96, 3.06, 3.06])
    >>> print(found.answer("view").status, found.answer("adaptive").status, sep=", ")
    finite, not asked
    """

    delta: float
    analysis: Analysis
    claimed: Answer
    worst_case: Answer
    view: Answer = NOT_ASKED
    adaptive: Answer = NOT_ASKED
    outsider: Answer = NOT_ASKED
    views: dict[str, View] = field(default_factory=dict)  # every observer against every owner, by answer
    warnings: tuple[str, ...] = ()
    guarantee: str | None = None
    colluders: int = 1

    @property
    def answers(self) -> dict[str, Answer]:
        return {
            "claimed": self.claimed,
            "view": self.view,
            "adaptive": self.adaptive,
            "outsider": self.outsider,
            "worst_case": self.worst_case,
        }

    @property
    def epsilon(self) -> dict[str, float | None]:
        """The largest ε over agents, by answer; None where it is infinite, refused or not asked for."""
        return {name: answer.largest for name, answer in self.answers.items()}

    def answer(self, guarantee: str) -> Answer:
        """The answer that a guarantee of a configuration names."""
        return self.answers[guarantee.replace("-", "_")]

    def summary(self) -> dict[str, Any]:
        """The `privacy` object of a run: the largest ε and μ over agents, null with a reason."""
        reasons = {name: one.reason for name, one in self.answers.items() if one.reason and one.asked}
        return {
            "guarantee": self.guarantee,
            "delta": self.delta,
            "adjacency": self.analysis.adjacency,
            "colluders": self.colluders,
            "epsilon": self.epsilon,
            "mu": {name: _largest(answer.mu) for name, answer in self.answers.items()},
            "status": {name: str(answer.status) for name, answer in self.answers.items()},
            **({"reasons": reasons} if reasons else {}),
            **({"warnings": list(self.warnings)} if self.warnings else {}),
        }

    def details(self) -> dict[str, Any]:
        """Everything, per agent and per observer: privacy.json and `topdp account --json`."""
        answers = {name: answer for name, answer in self.answers.items() if answer.asked}
        return {
            **self.summary(),
            **self.analysis.facts(),
            "epsilon_per_agent": {name: _json(answer.epsilon) for name, answer in answers.items()},
            "mu_per_agent": {name: _json(answer.mu) for name, answer in answers.items()},
            "sees_most": {
                name: [list(J) for J in answer.observers]
                for name, answer in answers.items()
                if answer.observers is not None
            },
            "pairs": {name: _pairs(seen) for name, seen in self.views.items() if _listed(seen)},
            "assumptions": {name: ASSUMPTIONS[name] for name in answers},
        }

    @classmethod
    def from_details(cls, details: dict[str, Any], analysis: Analysis) -> Account:
        """What `details` wrote. Of amplified losses only ε and μ are in it, and not who sees what of them."""
        reasons, seen_by = details.get("reasons", {}), details["sees_most"]
        answers = {}
        for name, values in details["epsilon_per_agent"].items():
            mu = details["mu_per_agent"][name]
            answers[name] = Answer(
                None if values is None else np.array([math.inf if e is None else e for e in values]),
                reasons.get(name),
                tuple(GaussianLoss(math.inf if one is None else one) for one in mu or ()),
                tuple(tuple(J) for J in seen_by[name]) if name in seen_by else None,
            )
        sampled = analysis.exposure().sampled
        return cls(
            details["delta"],
            analysis,
            **answers,
            views={} if sampled else {name: _view_of(pairs) for name, pairs in details["pairs"].items()},
            warnings=tuple(details.get("warnings", ())),
            guarantee=details["guarantee"],
            colluders=details["colluders"],
        )


ASSUMPTIONS = {
    "claimed": "What the method's own analysis says of its full-scale noise; saved noise counts as free.",
    "view": (
        "Each other agent alone, honest but curious, with all rows it reads in all rounds, its own draws and "
        "data, and all random choices of the protocol, in training whose gradients do not react: others' "
        "later gradients may react to a changed record, and that is not in it. Information, no guarantee."
    ),
    "adaptive": (
        "Each other agent, or the colluders together, with all that the view gives them and also every "
        "agent's estimate in every round, the last included. No assumption on gradients."
    ),
    "outsider": (
        "Somebody who reads every link and every agent's estimate in every round, and knows nobody's draws. "
        "No assumption on gradients."
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
    answers: Collection[str] = (),
    guarantee: str | None = None,
    known: View | None = None,
    colluders: int = 1,
    patient: bool = False,
    progress: Progress | None = None,
    look: Look = observed,
) -> Account:
    """The claim and the worst case of every agent of `plan`, and the other answers that are asked for.

    `guarantee`: by which the noise was calibrated; its answer is there too, and `known`, where the
    calibration has it already, is what it rests on. `patient`: also what takes very long. `look`: who is
    asked what observers see.

    >>> from topdp.privacy import Analysis
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Full, Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> analysis = Analysis("tight", (Full(100),) * 6, clip=100.0)
    >>> found = account(plan, analysis, delta=1e-5, answers=["view", "adaptive"])
    >>> {name: round(answer.largest, 2) for name, answer in found.answers.items() if answer.asked}
    {'claimed': 2.59, 'view': 3.06, 'adaptive': 3.72, 'worst_case': 5.24}
    """
    delta = expect_delta(delta)
    expect_answers(answers)
    expect_colluders(colluders, plan.agents)
    exposure = analysis.exposure()
    said: list[str] = []
    most = max(batches.records for batches in analysis.batches)
    if delta * most >= 1:
        said.append(
            f"delta {delta:g} is not less than 1/{most}, one over the records of an agent: a record may be "
            "shown as it is under such a delta. Use a smaller one."
        )

    def claims() -> Answer:
        epsilon, warned = analysis.claim(plan, delta)
        said.extend(warned)
        exact = analysis.calibration == "tight" and not exposure.sampled and np.isfinite(epsilon).all()
        mu = mu_of(epsilon, delta) if exact and (epsilon > 0).all() else ()
        return Answer(epsilon, losses=tuple(GaussianLoss(float(one)) for one in mu))

    def worst() -> Answer:
        found = worst_case(plan, exposure)
        return Answer(found.epsilon(delta), losses=found.losses)

    claimed, of_all = _answer(claims), _answer(worst)
    found = Account(
        delta, analysis, claimed, of_all, warnings=tuple(said), guarantee=guarantee, colluders=colluders
    )
    for name in (name for name in ASKED if name in answers or name == guarantee):
        seen = known if name == guarantee else None
        found = also_answered(found, name, plan, seen, patient, progress, look)
    return found


def also_answered(
    found: Account,
    name: str,
    plan: Plan,
    known: View | None = None,
    patient: bool = False,
    progress: Progress | None = None,
    look: Look = observed,
) -> Account:
    """The account of `plan` with one answer more; `known`: what observers see, where that is known already.

    >>> from topdp.privacy import Analysis, account
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Full, Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> found = account(plan, Analysis("tight", (Full(100),) * 6, clip=100.0), delta=1e-5)
    >>> found.view.largest, round(also_answered(found, "view", plan).view.largest, 2)
    (None, 3.06)
    """
    expect_answers([name])
    said: list[str] = []
    views = dict(found.views)

    def seen() -> Answer:
        exposure, colluders, delta = found.analysis.exposure(), found.colluders, found.delta
        views[name] = known if known is not None else look(name, plan, exposure, colluders, patient, progress)
        one, owners = views[name], range(plan.agents)
        epsilon = one.worst_epsilon(delta)
        if one.note:
            said.append(f"{name}: {one.note}")
        if any(epsilon[i] < loss.epsilon(delta) for i, loss in one.samples.items()):
            said.append(
                f"{name}: Poisson samples count as if each record were in every round: no amplification is "
                "known where noise is reused. Full batches ask for less noise."
            )
        return Answer(
            epsilon,
            losses=tuple(one.largest(i) for i in owners),
            observers=tuple(one.observers[one.sees_most(i)] for i in owners),
        )

    answer: dict[str, Any] = {name: _answer(seen)}
    return replace(found, **answer, views=views, warnings=(*found.warnings, *said))


def _answer(ask: Callable[[], Answer]) -> Answer:
    try:
        answer = ask()
    except NotCovered as refusal:
        return Answer(None, str(refusal))
    if answer.epsilon is not None and np.isinf(answer.epsilon).any():
        who = np.flatnonzero(np.isinf(answer.epsilon))
        some = ", ".join(map(str, who[:5])) + (", ..." if len(who) > 5 else "")
        why = (
            f"What agents {some} send is not hidden by noise. Use a method with noise, alpha and "
            "own_share > 0, and a budget or sigma for every agent."
        )
        return replace(answer, reason=why)
    return answer


def _largest(values: Floats | None) -> float | None:
    if values is None:
        return None
    worst = float(values.max())
    return worst if math.isfinite(worst) else None


def _json(values: Floats | None) -> list[float | None] | None:
    """JSON has neither infinity nor nan: null stands for them, and the status is beside it."""
    if values is None:
        return None
    return [float(value) if math.isfinite(value) else None for value in values]


def _listed(seen: View) -> bool:
    return len(seen.observers) <= PAIRS


def _pairs(seen: View) -> dict[str, Any]:
    """μ [owner][observer] as bounded, and as a record reaches it whose gradients all point one way."""
    return {
        "observers": [list(J) for J in seen.observers],
        "mu": None if seen.upper is None else [_json(row) for row in seen.upper],
        "mu_aligned": [_json(row) for row in seen.lower],
    }


def _view_of(pairs: dict[str, Any]) -> View:
    """What `_pairs` wrote of a view in which everybody was asked about: nobody observes itself."""
    observers = tuple(tuple(J) for J in pairs["observers"])
    asked = np.array([[i not in J for J in observers] for i in range(len(pairs["mu"]))])
    lower, upper = (
        np.where(asked, [[math.inf if mu is None else mu for mu in row] for row in pairs[key]], np.nan)
        for key in ("mu_aligned", "mu")
    )
    return View(observers, lower, upper, asked)
