"""Privacy facts of a page beyond privacy.json: ε of links, an attacker's power, spending along the rounds.

Reads the account and the plan of a run; asks the accountants of `privacy/` and has no formula of its own but
that of `power_of_point`. Not for the answers themselves: those are in privacy.json, and shown as they are.

**Guarantees.** Adjacency, sensitivity and δ are the account's. A link's ε is at least what its observer
learns: that of a sound μ, or the owner's own where that is less. Power is at least that of the best attacker.
What would take long is left out and said, never estimated.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from topdp.base.array_types import Floats
from topdp.plan import Plan
from topdp.privacy.accounting import FALSE_ALARMS, Account
from topdp.privacy.answers import ADAPTIVE, ANSWERS, WORST_CASE, AnswerKind, answer_kind
from topdp.privacy.basics.gaussian import epsilon_of
from topdp.privacy.basics.refusals import PrivacyError
from topdp.privacy.query import Query
from topdp.privacy.spending_curve import Spending, spending

MAX_CURVE_SECONDS = 8.0
"""The estimated time above which the spending along the rounds is left out."""


def shown_answer(privacy: dict[str, Any]) -> AnswerKind:
    """The answer that a page shows first: the budget's; where noise was given, the strongest one."""
    if privacy["guarantee"] is not None:
        return answer_kind(privacy["guarantee"])
    return ADAPTIVE if privacy["status"][ADAPTIVE.key] in ("finite", "infinite") else WORST_CASE


def link_losses(privacy: dict[str, Any], answer: str, agents: int) -> Floats | None:
    """[owner, observer] the largest μ of a coalition with that observer; None where no pairs are kept."""
    pairs = privacy["pairs"].get(answer)
    if pairs is None or pairs["mu"] is None or not any(pairs["observers"]):
        return None
    losses = np.full((agents, agents), np.nan)
    mu = np.array([[math.inf if one is None else one for one in row] for row in pairs["mu"]])
    for column, members in enumerate(pairs["observers"]):
        outside = np.setdiff1d(np.arange(agents), members)
        for member in members:
            losses[outside, member] = np.fmax(losses[outside, member], mu[outside, column])
    return losses


def link_epsilons(mu: Floats, own: list[float | None], delta: float) -> Floats:
    """[owner, observer] ε of these μ; nobody learns more than the owner's own ε says."""
    most = np.array([math.inf if one is None else one for one in own])[:, None]
    known = ~np.isnan(mu)
    epsilon = np.full(mu.shape, np.nan)
    epsilon[known] = epsilon_of(mu[known], delta)
    least: Floats = np.fmin(epsilon, np.where(known, most, np.nan))
    return least


def powers(account: Account) -> dict[str, dict[str, Any]]:
    """By answer: at most how often an attacker recognises a record, at each share of false alarms.

    `exact` says whether it is the test of Neyman and Pearson, or a bound from ε and δ alone (samples).
    """
    sampled, powers_by_answer = account.analysis.exposure().sampled, {}
    for name, answer in account.answers.items():
        if answer.epsilon is None or not (answer.losses or ANSWERS[name].proved):
            continue
        values: dict[str, Any] = {"exact": bool(answer.losses) and not sampled}
        for share in FALSE_ALARMS:
            known = answer.power(share)  # samples without a known μ count as not hidden at all
            bounds = [] if known is None else [float(known.max())]
            if not values["exact"]:
                bounds.append(power_of_point(float(answer.epsilon.max()), account.delta, share))
            values[f"{share:g}"] = min(bounds)
        powers_by_answer[name] = values
    return powers_by_answer


def power_of_point(epsilon: float, delta: float, false_alarms: float) -> float:
    """At most how often an attacker recognises a record under (ε, δ), whatever the noise."""
    # power <= e^ε·α + δ and <= 1 - e^-ε(1 - δ - α): both sides of (ε, δ)-privacy (arXiv:1311.0776)
    if math.isinf(epsilon):
        return 1.0
    upper = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    return min(1.0, upper, 1 - math.exp(-epsilon) * (1 - delta - false_alarms))


def spent_along(
    plan: Plan, account: Account, answer: str, patience: float = MAX_CURVE_SECONDS
) -> tuple[dict[str, Any] | None, list[str]]:
    """ε of the agent that loses most, if its data enter no round after the one named; and what is missing.

    `epsilon` has the answer a page speaks of, and the worst case beside it. `rounds` are 0 .. T; where rounds
    differ in how many releases they have, these are counted instead (`unit` says which).
    """
    values = account.answers[answer].epsilon
    if patience <= 0:
        return None, []
    if values is None or not np.isfinite(values).all():
        return None, ["What was used along the rounds is not shown: there is no finite ε."]
    owner = int(values.argmax())
    notes: list[str] = []
    try:
        spent = spending(plan, account.analysis, owner, account.delta, Query(colluders=account.colluders))
    except PrivacyError as error:
        return None, [f"What was used along the rounds is not shown: {error}"]
    curves: dict[str, list[float]] = {}
    each, left = plan.releases_per_round, plan.releases % (plan.rounds + 1)
    places = _places(spent, plan.releases)
    shown = places if left else sorted({place // each for place in places})
    after = places if left else [(round + 1) * each - 1 for round in shown]  # the last release of a round
    for kind in dict.fromkeys([ANSWERS[answer], WORST_CASE]):
        if not kind.takes_budget:
            continue
        # Poisson samples need a loss distribution for each of 48 places.
        if spent.batches.sampled or kind.curve_seconds(plan, spent.query) > patience:
            notes.append(
                f"What was used along the rounds under {kind.name} is not shown: it would take too long."
            )
            continue
        try:
            curve = spent.curve(kind.name)
        except PrivacyError as error:
            notes.append(f"What was used along the rounds under {kind.name} is not shown: {error}")
            continue
        curves[kind.key] = [float(curve[place]) for place in after]
    if not curves:
        return None, notes
    unit = "release" if left else "round"
    return {"agent": owner, "unit": unit, "rounds": shown, "epsilon": curves}, notes


def _places(spent: Spending, releases: int) -> list[int]:
    """Where curves are computed; between two of these the later one counts."""
    places: list[int] = []
    while not places or places[-1] < releases - 1:
        places.append(spent.checkpoint(places[-1] + 1 if places else 0))
    return places
