"""Privacy facts that a page shows beyond privacy.json: ε of edges, an attacker's power, the spending curve.

This module uses the account and the plan of a run, and the accountants of `privacy/`. It has no formula of
its own. Pages take the answers themselves from privacy.json.

**Guarantees.** Adjacency, sensitivity and δ are those of the account. The ε of an edge is at least what its
observer learns. It is the ε of a sound bound on μ, or the owner's own ε if that is smaller. Power is at least
that of the best attacker. Curves that would take long are omitted with a note, never estimated.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from topdp.base.array_types import Floats
from topdp.plan import Plan
from topdp.privacy.accounting import FALSE_ALARMS, Account
from topdp.privacy.answers import ANSWERS, BY_RANK, WORST_CASE, AnswerKind, answer_kind
from topdp.privacy.basics.gaussian import epsilon_of
from topdp.privacy.basics.privacy_loss import power_of_point
from topdp.privacy.basics.refusals import PrivacyError
from topdp.privacy.query import Query
from topdp.privacy.spending_curve import Spending, spending

MAX_CURVE_SECONDS = 8.0
"""The spending curve is omitted if its computation is estimated to take longer."""


def shown_answer(privacy: dict[str, Any]) -> AnswerKind:
    """Return the answer that a page shows first.

    This is the guarantee if the run has one, and otherwise the most reliable answer with an ε.
    """
    if privacy["guarantee"] is not None:
        return answer_kind(privacy["guarantee"])
    computed = (kind for kind in BY_RANK if privacy["status"][kind.key] in ("finite", "infinite"))
    return next(computed, WORST_CASE)


def link_losses(privacy: dict[str, Any], answer: str, agents: int) -> Floats | None:
    """Return the largest μ over the coalitions that contain the observer, [owner, observer].

    The μ of an observer in no coalition is NaN. Return None if privacy.json has no μ per pair for `answer`.
    """
    pairs = privacy["pairs"].get(answer)
    if pairs is None or pairs["mu"] is None or not any(pairs["observers"]):
        return None
    losses = np.full((agents, agents), np.nan)
    mu = np.array([[math.inf if value is None else value for value in row] for row in pairs["mu"]])
    for column, members in enumerate(pairs["observers"]):
        outside = np.setdiff1d(np.arange(agents), members)
        for member in members:
            losses[outside, member] = np.fmax(losses[outside, member], mu[outside, column])
    return losses


def link_epsilons(mu: Floats, own: list[float | None], deltas: Floats) -> Floats:
    """Return the ε of each μ, [owner, observer], or the owner's own ε if that is smaller.

    The ε of a μ that is NaN is NaN. `own` [agents]: the ε of each owner; None means infinite.
    `deltas` [agents]: the δ of each owner.
    """
    own_epsilon = np.array([math.inf if value is None else value for value in own])[:, None]
    defined = ~np.isnan(mu)
    epsilon = np.full(mu.shape, np.nan)
    epsilon[defined] = epsilon_of(mu[defined], deltas[np.nonzero(defined)[0]])
    bounded: Floats = np.fmin(epsilon, np.where(defined, own_epsilon, np.nan))
    return bounded


def powers(account: Account) -> dict[str, dict[str, Any]]:
    """Return for each answer an upper bound on an attacker's power, at each share of false alarms.

    `exact`: whether the bound is the power of the Neyman-Pearson test; for sampled batches it may follow from
    ε and δ alone.
    """
    sampled, powers_by_answer = account.analysis.exposure().sampled, {}
    for name, answer in account.answers.items():
        if answer.epsilon is None or not (answer.losses or ANSWERS[name].proved):
            continue
        values: dict[str, Any] = {"exact": bool(answer.losses) and not sampled}
        for share in FALSE_ALARMS:
            power = answer.power(share)  # without a known μ, sampled batches count as not hidden
            bounds = [] if power is None else [float(power.max())]
            if not values["exact"]:
                points = zip(answer.epsilon.tolist(), account.deltas.tolist(), strict=True)
                bounds.append(max(power_of_point(epsilon, delta, share) for epsilon, delta in points))
            values[f"{share:g}"] = min(bounds)
        powers_by_answer[name] = values
    return powers_by_answer


def spent_along(
    plan: Plan, account: Account, answer: str, max_seconds: float = MAX_CURVE_SECONDS
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return (spending curves of the agent with the largest ε, notes on missing curves).

    The value at a round is the ε of that agent if its records enter no later round. `epsilon` has a curve for
    `answer` and one for the worst case. `rounds` lists the rounds of the values, and `unit` is "round". If
    rounds differ in their number of releases, `rounds` lists releases, and `unit` is "release".
    `max_seconds`: curves that are estimated to take longer are missing.
    """
    values = account.answers[answer].epsilon
    if max_seconds <= 0:
        return None, []
    if account.analysis.sites > 1:
        return None, ["The spending curve is not shown, because ε is that of a person at several agents."]
    if account.prepared is not None:
        return None, ["The spending curve is not shown, because a part of ε is spent before training."]
    if values is None or not np.isfinite(values).all():
        return None, ["The spending curve is not shown, because ε is not finite."]
    owner = int(values.argmax())
    notes: list[str] = []
    delta = float(account.deltas[owner])
    try:
        spent = spending(plan, account.analysis, owner, delta, Query(colluders=account.colluders))
    except PrivacyError as error:
        return None, [f"The spending curve is not shown: {error}"]
    curves: dict[str, list[float]] = {}
    per_round, uneven = plan.releases_per_round, not plan.even
    points = _curve_points(spent, plan.releases)
    shown = points if uneven else sorted({release // per_round for release in points})
    ends = points if uneven else [(round + 1) * per_round - 1 for round in shown]  # last releases of rounds
    for kind in dict.fromkeys([ANSWERS[answer], WORST_CASE]):
        if not kind.takes_budget:
            continue
        # Sampled batches need a privacy loss distribution for each of 48 releases.
        if spent.batches.sampled or kind.curve_seconds(plan, spent.query) > max_seconds:
            notes.append(
                f"The spending curve of the answer {kind.name} is not shown, because it would take too long."
            )
            continue
        try:
            curve = spent.curve(kind.name)
        except PrivacyError as error:
            notes.append(f"The spending curve of the answer {kind.name} is not shown: {error}")
            continue
        curves[kind.key] = [float(curve[release]) for release in ends]
    if not curves:
        return None, notes
    unit = "release" if uneven else "round"
    return {"agent": owner, "unit": unit, "rounds": shown, "epsilon": curves}, notes


def _curve_points(spent: Spending, releases: int) -> list[int]:
    """Return the releases at which curves are computed. A release between two of them counts as the later."""
    points: list[int] = []
    while not points or points[-1] < releases - 1:
        points.append(spent.checkpoint(points[-1] + 1 if points else 0))
    return points
