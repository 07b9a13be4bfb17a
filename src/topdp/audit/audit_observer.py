"""The observer of an audit: the coalition that `worst`, `all`, `outsider` or `1,4` names, and its bound.

**Guarantees.** The proved bound is the one that the accountants compute for exactly this observer. If the
observer sees only `received` rows, the bound treats gradients as fixed inputs. If it sees `estimates` or
`all` rows, the bound assumes nothing about gradients, because the observer then sees the points at which they
are taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topdp.audit.canaries import AuditError
from topdp.base.array_types import Bools, Floats
from topdp.plan import Plan
from topdp.privacy.accounting import Account
from topdp.privacy.answers import BY_RANK, OUTSIDER
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.privacy_loss import Loss
from topdp.privacy.basics.refusals import expect_supported
from topdp.privacy.observers.gram_matrix import LONG_PLAN_RELEASES, SHIFT_ROUNDING, grams
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.observers.view import view, view_reason
from topdp.privacy.query import DEFAULT_QUERY, Query
from topdp.runs.config import did_you_mean

SEES = {"received": Public.NOTHING, "estimates": Public.ESTIMATES, "all": Public.LINKS}

OBSERVER_NAMES = ("worst", "all", OUTSIDER.name)

SIGN_SWEEPS = 5
"""The sweeps of the search for the best signs. The tested plans did not change after the second sweep."""


@dataclass(frozen=True, eq=False)
class Observer:
    """A coalition of agents, and the rows that it sees in addition to those sent to it."""

    plan: Plan
    members: tuple[int, ...]  # empty for an outsider
    sees: str  # a key of SEES

    @property
    def public(self) -> Public:
        return SEES[self.sees]

    @property
    def coalition(self) -> Bools:
        """For each agent, whether it is in the coalition: a Boolean array [agents]."""
        return np.isin(np.arange(self.plan.agents), self.members)

    def proved(self, exposure: Exposure, owner: int) -> Loss:
        """Return an upper bound on what this observer learns about a record of `owner`."""
        if self.public is Public.NOTHING:
            expect_supported(view_reason(self.plan))
        return view(self.plan, exposure, [self.members], [owner], public=self.public).loss(owner, 0)

    def aim(self, owner: int, period: int) -> Floats:
        """Return the signs [releases] of a change in the owner's gradients that this observer sees well.

        Releases that are a multiple of `period` apart use the same records. Each such group of releases is
        searched separately. In long plans all signs are 1, because the search would take too long. The signs
        affect only how easily the observer recognises the canaries.
        """
        signs = np.ones(self.plan.releases)
        if self.plan.releases > LONG_PLAN_RELEASES:
            return signs
        (M,) = grams(self.plan, self.coalition, np.array([owner]), self.public)
        if np.isfinite(M).all():
            for s in range(period):
                signs[s::period] = _best_signs(M[s::period, s::period])
        return signs

    def __str__(self) -> str:
        if not self.members:
            return "an outsider"
        noun = "agent" if len(self.members) == 1 else "agents"
        listed = ", ".join(map(str, self.members[:8])) + (", ..." if len(self.members) > 8 else "")
        return f"{noun} {listed}"


def observer_named(
    text: str, sees: str, owner: int, plan: Plan, account: Account, query: Query = DEFAULT_QUERY
) -> Observer:
    """Return the observer that `text` names, after `expect_observer` has accepted it.

    Raise AuditError if it names `owner`. `worst` names the observer that learns most about `owner` according
    to the account. `sees`: the rows that it sees, as `received`, `estimates` or `all`.
    """
    if text == OUTSIDER.name:
        return Observer(plan, (), seen_by(OUTSIDER.public))
    if text == "all" or (text == "worst" and sees == "all"):
        return Observer(plan, tuple(agent for agent in range(plan.agents) if agent != owner), sees)
    if text != "worst":
        return Observer(plan, _members(text, plan.agents, owner), sees)
    kind = next(kind for kind in BY_RANK if kind.public is SEES[sees])
    if (worst := account.answers[kind.key].observers) is not None:
        return Observer(plan, worst[owner], sees)
    losses = kind.observe(plan, account.analysis.exposure(), query)
    return Observer(plan, losses.observers[losses.sees_most(owner)], sees)


def seen_by(public: Public) -> str:
    """Return the word of `--sees` for the rows that are public to an observer."""
    return next(sees for sees, value in SEES.items() if value is public)


def expect_observer(text: str, sees: str | None, owner: int | None, agents: int) -> None:
    """Raise AuditError unless the arguments name an observer. `sees`, `owner`: None for the default."""
    if sees is not None and sees not in SEES:
        raise AuditError(f"--sees: expected a known value, got {sees!r}.{did_you_mean(sees, list(SEES))}")
    if owner is not None:
        expect_agent("--owner", owner, agents)
    if text not in OBSERVER_NAMES:
        _members(text, agents, owner)


def expect_agent(name: str, agent: int, agents: int) -> None:
    if not 0 <= agent < agents:
        raise AuditError(f"{name}: expected an agent between 0 and {agents - 1}, got {agent}.")


def _members(text: str, agents: int, owner: int | None) -> tuple[int, ...]:
    try:
        members = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise AuditError(
            f"--observer: expected worst, all, outsider, or agents separated by commas, got {text!r}. Write "
            "agents as numbers, for example 1,4."
        ) from None
    for agent in members:
        expect_agent("--observer", agent, agents)
    if owner in members:
        raise AuditError(
            f"--observer: expected agents other than the audited agent, got {owner}, which knows its own "
            "records. Name other agents, or another --owner."
        )
    return members


def _best_signs(M: Floats) -> Floats:
    """Return signs u for which uᵀMu is large.

    One local search starts from equal signs, another from the eigenvector of the largest eigenvalue. Return
    the better of the two results.
    """
    results, rounding = [], SHIFT_ROUNDING * float(M.diagonal().max(initial=0.0))
    for start in (np.ones(len(M)), np.linalg.eigh(M)[1][:, -1]):
        u = np.where(start >= 0, 1.0, -1.0)
        for _ in range(SIGN_SWEEPS):
            for r in range(len(M)):  # one sign at a time, so that uᵀMu never decreases
                rest = float(M[r] @ u - M[r, r] * u[r])
                u[r] = np.sign(rest) if abs(rest) > rounding else u[r]
        results.append(u)
    return max(results, key=lambda u: float(u @ M @ u))
