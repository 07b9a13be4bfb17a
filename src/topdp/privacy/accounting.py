"""The account of a plan: all privacy answers side by side, each as numbers or with the reason for a refusal.

This file only puts the answers together. `answers/` states what each answer guarantees.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from topdp.base.array_types import Floats
from topdp.base.number_text import rounded_up
from topdp.plan import Plan
from topdp.privacy.answers import ANSWERS, NOT_ASKED, Answer, AnswerKind, answer_kind, expect_on_request
from topdp.privacy.answers.answer_kind import largest_finite
from topdp.privacy.basics.privacy_loss import GaussianLoss
from topdp.privacy.basics.refusals import NotCovered, expect_deltas, expect_supported
from topdp.privacy.joint_loss import joint_answer
from topdp.privacy.observers.adaptive import expect_colluders
from topdp.privacy.observers.view import View
from topdp.privacy.published.claims import Analysis
from topdp.privacy.query import DEFAULT_QUERY, Query

# The false-alarm rates at which an account states the power of the best attacker.
FALSE_ALARMS = (0.01, 0.05)

# The most observers for which JSON lists each pair of owner and observer.
MAX_LISTED_OBSERVERS = 100

# The ε above which an account gives a warning.
MAX_USUAL_EPSILON = 10.0


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Account:
    """The account of a plan: all privacy answers, for each agent at its δ.

    `delta`: the δ of all agents, or a list with one for each agent.
    `answers`: by JSON key, in the order of `ANSWERS`; `account.adaptive` is `account.answers["adaptive"]`.
    `guarantee`: the name of the answer that meets the budget; None if the noise was given instead of a
    budget. `colluders`: the size of the coalitions, in the answers that depend on it. `warnings`: sentences
    for the user. `prepared`: what the answers include besides the plan, in a sentence; None: nothing.

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

    delta: float | list[float]
    analysis: Analysis
    answers: dict[str, Answer]
    warnings: tuple[str, ...] = ()
    guarantee: str | None = None
    colluders: int = 1
    prepared: str | None = None

    def __repr__(self) -> str:
        """Return the largest ε over agents of each answer."""
        asked_for = {ANSWERS[key].label: answer for key, answer in self.answers.items() if answer.asked}
        values = [
            f"{label} {answer.status if answer.largest is None else rounded_up(answer.largest)}"
            for label, answer in asked_for.items()
        ]
        deltas = " to ".join(dict.fromkeys(f"{end:g}" for end in (np.min(self.delta), np.max(self.delta))))
        return f"Account(ε: {', '.join(values)}; δ: {deltas}; guarantee: {self.guarantee or 'none'})"

    def __getattr__(self, key: str) -> Answer:
        if key not in ANSWERS:
            raise AttributeError(f"An account has no answer {key!r}; it has {', '.join(ANSWERS)}.")
        return self.answers.get(key, NOT_ASKED)

    @property
    def deltas(self) -> Floats:
        """The δ of each agent [agents]."""
        return expect_deltas(self.delta, len(self.analysis.batches))

    @property
    def views(self) -> dict[str, View]:
        """The loss of every owner to every observer, for each answer that has it, by JSON key."""
        return {key: answer.view for key, answer in self.answers.items() if answer.view is not None}

    @property
    def epsilon(self) -> dict[str, float | None]:
        """The largest ε over agents, by JSON key; None if it is infinite, refused or not requested."""
        return {key: answer.largest for key, answer in self.answers.items()}

    def answer(self, name: str) -> Answer:
        """Return the answer with this name (`worst-case`) or JSON key (`worst_case`)."""
        return self.answers.get(answer_kind(name).key, NOT_ASKED)

    def summary(self) -> dict[str, Any]:
        """Return the `privacy` object of a run, for JSON: the largest ε and μ over agents of each answer.

        A value that is infinite, refused or not requested is None; `reasons` states why.
        """
        reasons = {
            key: answer.reason for key, answer in self.answers.items() if answer.reason and answer.asked
        }
        return {
            "guarantee": self.guarantee,
            "delta": self.delta,
            "adjacency": self.analysis.adjacency,
            "unit": self.analysis.unit,
            "colluders": self.colluders,
            "epsilon": self.epsilon,
            "mu": {key: largest_finite(answer.mu) for key, answer in self.answers.items()},
            "status": {key: str(answer.status) for key, answer in self.answers.items()},
            **({"reasons": reasons} if reasons else {}),
            **({"warnings": list(self.warnings)} if self.warnings else {}),
            **({"prepared": self.prepared} if self.prepared else {}),
        }

    def details(self) -> dict[str, Any]:
        """Return the complete account for JSON (privacy.json), with values for each agent and observer."""
        answers = {key: answer for key, answer in self.answers.items() if answer.asked}
        return {
            **self.summary(),
            **self.analysis.facts(),
            "epsilon_per_agent": {key: _json(answer.epsilon) for key, answer in answers.items()},
            "mu_per_agent": {key: _json(answer.mu) for key, answer in answers.items()},
            "sees_most": {
                key: [list(members) for members in answer.observers]
                for key, answer in answers.items()
                if answer.observers is not None
            },
            "pairs": {
                key: _pairs_to_json(view)
                for key, view in self.views.items()
                if len(view.observers) <= MAX_LISTED_OBSERVERS
            },
            "assumptions": {key: ANSWERS[key].assumptions for key in answers},
        }

    @classmethod
    def from_details(cls, details: dict[str, Any], analysis: Analysis) -> Account:
        """Return the account that `details` wrote.

        If a loss is amplified by sampling, the account has ε and μ, but not the loss of each pair of owner
        and observer. If an older version wrote `details` without some answers, the account lacks them, too.
        """
        reasons, seen_by = details.get("reasons", {}), details["sees_most"]
        pairs = {} if analysis.exposure().sampled else details["pairs"]
        answers = dict.fromkeys((key for key in ANSWERS if key in details["status"]), NOT_ASKED)
        for key, values in details["epsilon_per_agent"].items():
            mu = details["mu_per_agent"][key]
            answers[key] = Answer(
                None if values is None else np.array([math.inf if e is None else e for e in values]),
                reasons.get(key),
                losses=tuple(GaussianLoss(math.inf if value is None else value) for value in mu or ()),
                observers=tuple(tuple(J) for J in seen_by[key]) if key in seen_by else None,
                view=_pairs_from_json(pairs[key]) if key in pairs else None,
            )
        return cls(
            delta=details["delta"],
            analysis=analysis,
            answers=answers,
            warnings=tuple(details.get("warnings", ())),
            guarantee=details["guarantee"],
            colluders=details["colluders"],
            prepared=details.get("prepared"),
        )


def account(
    plan: Plan,
    analysis: Analysis,
    delta: ArrayLike,
    answers: Collection[str] = (),
    guarantee: str | None = None,
    known: View | None = None,
    query: Query = DEFAULT_QUERY,
) -> Account:
    """Return the account of `plan`: all answers that are quick to compute, and others on request.

    `delta`: one number, or one for each agent; the ε of an agent is at its δ.
    `answers`: the names of the other answers to compute. `guarantee`: the answer to which the noise was
    calibrated; it is always computed. `known`: the view of this answer, if the calibration has already
    computed it. An answer that does not cover the plan is refused, with the reason.

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
    deltas = expect_deltas(delta, len(analysis.batches))
    expect_on_request(answers)
    expect_colluders(query.colluders, plan.agents)
    result = Account(
        delta=float(deltas[0]) if np.ndim(delta) == 0 else deltas.tolist(),
        analysis=analysis,
        answers=dict.fromkeys(ANSWERS, NOT_ASKED),
        warnings=_large_delta(deltas, analysis),
        guarantee=guarantee,
        colluders=query.colluders,
    )
    for kind in ANSWERS.values():
        if not kind.on_request or kind.name in answers or kind.name == guarantee:
            result = with_answer(result, kind, plan, known if kind.name == guarantee else None, query)
    return replace(result, warnings=(*result.warnings, *_large_epsilon_warnings(result)))


def _large_epsilon_warnings(account: Account) -> list[str]:
    """Return a warning if ε is large under the guarantee, or under every proved answer if there is none."""
    proved = [kind.name for kind in ANSWERS.values() if kind.proved]
    relied = [account.answer(name).largest for name in ([account.guarantee] if account.guarantee else proved)]
    smallest = min((value for value in relied if value is not None), default=0.0)
    if smallest <= MAX_USUAL_EPSILON:
        return []
    epsilon = rounded_up(smallest)
    return [
        f"epsilon {epsilon} is larger than {MAX_USUAL_EPSILON:g}: one {account.analysis.unit} can make what "
        f"others see up to e^{epsilon} times as likely, which is little protection. Use more noise or fewer "
        "rounds."
    ]


def with_answer(
    account: Account, kind: AnswerKind, plan: Plan, view: View | None = None, query: Query = DEFAULT_QUERY
) -> Account:
    """Return `account` with the answer `kind` of `plan` added.

    `view`: the losses to the observers of the answer, if already computed.

    >>> from topdp.privacy import Analysis, account
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Full, Schedule
    >>> from topdp.privacy.answers import VIEW
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> before = account(plan, Analysis("tight", (Full(100),) * 6, clip=100.0), delta=1e-5)
    >>> before.view.largest, round(with_answer(before, VIEW, plan).view.largest, 2)
    (None, 3.06)
    """
    try:
        expect_supported(kind.supports(plan, query) or kind.covers(account.analysis))
        answer = kind.account(plan, account.analysis, account.deltas, query, view)
        answer = joint_answer(answer, account.analysis.sites, account.deltas)
    except NotCovered as refusal:
        answer = Answer(None, str(refusal))
    if answer.epsilon is not None and np.isinf(answer.epsilon).any():
        exposed = np.flatnonzero(np.isinf(answer.epsilon))
        first = ", ".join(map(str, exposed[:5])) + (", ..." if len(exposed) > 5 else "")
        reason = (
            f"What agents {first} send is not hidden by noise. Use a method with noise, alpha and "
            "own_share > 0, and a budget or sigma for every agent."
        )
        answer = replace(answer, reason=reason)
    return replace(
        account, answers={**account.answers, kind.key: answer}, warnings=(*account.warnings, *answer.warnings)
    )


def _large_delta(deltas: Floats, analysis: Analysis) -> tuple[str, ...]:
    """Return a warning if the δ of an agent is so large that the agent may publish one of its records.

    If the person is the unit, it is about all records of one of its persons.
    """
    records = np.array([batches.records for batches in analysis.batches])
    worst = int((deltas * records).argmax())
    delta, count = deltas[worst], records[worst]
    if delta * count < 1:
        return ()
    a_unit = "a record" if analysis.unit == "record" else "all records of a person"
    return (
        f"delta {delta:g} is not less than 1/{count}, and an agent has {count} {analysis.unit}s. Such a "
        f"delta permits a method that publishes {a_unit} unprotected. Use a smaller delta.",
    )


def _json(values: Floats | None) -> list[float | None] | None:
    """Return `values` for JSON, with None for infinity and nan, which JSON cannot represent."""
    if values is None:
        return None
    return [float(value) if math.isfinite(value) else None for value in values]


def _pairs_to_json(view: View) -> dict[str, Any]:
    """Return μ [owner][observer] for JSON: the upper bound `mu`, and the value of the aligned record."""
    return {
        "observers": [list(members) for members in view.observers],
        "mu": None if view.upper is None else [_json(row) for row in view.upper],
        "mu_aligned": [_json(row) for row in view.lower],
    }


def _pairs_from_json(pairs: dict[str, Any]) -> View:
    """Return the view that `_pairs_to_json` wrote, if it had all owners. No agent observes itself."""
    observers = tuple(tuple(members) for members in pairs["observers"])
    asked = np.array([[i not in members for members in observers] for i in range(len(pairs["mu"]))])
    lower, upper = (
        np.where(asked, [[math.inf if mu is None else mu for mu in row] for row in pairs[key]], np.nan)
        for key in ("mu_aligned", "mu")
    )
    return View(observers=observers, lower=lower, upper=upper, asked=asked)
