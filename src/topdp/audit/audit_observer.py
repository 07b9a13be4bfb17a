"""The observer of an audit: from `worst`, `all`, `outsider` or `1,4` to a coalition and the proved bound.

**Guarantees.** The bound is the accountants' for exactly this observer. `received` treats gradients as fixed
inputs. `estimates` and `all` assume nothing about them, because the observer sees the points at which they
are taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topdp.audit.canaries import AuditError
from topdp.base.array_types import Bools, Floats
from topdp.plan import Plan
from topdp.privacy.accounting import Account
from topdp.privacy.answers import BY_RANK, OUTSIDER, guarantee_kind
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
"""The number of sweeps of the search for the best signs. A third one changed nothing on the tested plans."""


@dataclass(frozen=True, eq=False)
class Observer:
    """A coalition of agents and the rows that are public to it. Without agents: an outsider."""

    plan: Plan
    members: tuple[int, ...]
    sees: str

    @property
    def public(self) -> Public:
        return SEES[self.sees]

    @property
    def coalition(self) -> Bools:
        """Return which agents are in the coalition, boolean [agents]."""
        return np.isin(np.arange(self.plan.agents), self.members)

    def proved(self, exposure: Exposure, owner: int) -> Loss:
        """Return an upper bound on what this observer learns about a record of `owner`."""
        if self.public is Public.NOTHING:
            expect_supported(view_reason(self.plan))
        return view(self.plan, exposure, [self.members], [owner], public=self.public).loss(owner, 0)

    def aim(self, owner: int, period: int) -> Floats:
        """Return the sign of the owner's change in each release that this observer sees well, [releases].

        All signs are 1 in long plans, where the search would take too long.

        Only the strength of canaries depends on them.
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
    """Return the observer that `text` names. `worst`: the one that learns most about `owner` by the account.

    `sees`: received, estimates or all; see `seen_by_guarantee`.
    """
    expect_observer(text, sees, owner, plan.agents)
    if text == OUTSIDER.name:
        return Observer(plan, (), _seen(OUTSIDER.public))
    if text == "all" or (text == "worst" and sees == "all"):
        return Observer(plan, tuple(agent for agent in range(plan.agents) if agent != owner), sees)
    if text != "worst":
        return Observer(plan, _members(text, plan.agents, owner), sees)
    kind = next(kind for kind in BY_RANK if kind.public is SEES[sees])
    if (worst := account.answers[kind.key].observers) is not None:
        return Observer(plan, worst[owner], sees)
    losses = kind.observe(plan, account.analysis.exposure(), query)
    return Observer(plan, losses.observers[losses.sees_most(owner)], sees)


def seen_by_guarantee(guarantee: str) -> str:
    """Return what the observer of a guarantee sees, as `--sees` names it."""
    return _seen(guarantee_kind(guarantee).public)


def _seen(public: Public) -> str:
    """Return the name of the rows that are public to an observer."""
    return next(sees for sees, value in SEES.items() if value is public)


def expect_observer(text: str, sees: str | None, owner: int | None, agents: int) -> None:
    """Raise AuditError unless these name an observer. None for `sees` and `owner` means the default."""
    if sees is not None and sees not in SEES:
        raise AuditError(f"--sees: expected a known value, got {sees!r}.{did_you_mean(sees, list(SEES))}")
    if owner is not None:
        expect_agent("--owner", owner, agents)
    if text not in OBSERVER_NAMES:
        _members(text, agents, owner)


def expect_agent(name: str, agent: int, agents: int) -> int:
    if not 0 <= agent < agents:
        raise AuditError(f"{name}: expected an agent between 0 and {agents - 1}, got {agent}.")
    return agent


def _members(text: str, agents: int, owner: int | None) -> tuple[int, ...]:
    try:
        members = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise AuditError(
            "--observer: expected worst, all, outsider, an agent or several with commas, such as 1,4; got "
            f"{text!r}."
        ) from None
    for agent in members:
        expect_agent("--observer", agent, agents)
    if owner in members:
        raise AuditError(
            f"--observer: expected agents other than the audited one, got {owner}, which knows its own "
            "records. Name other agents, or another --owner."
        )
    return members


def _best_signs(M: Floats) -> Floats:
    """Return signs u with a large uᵀMu, by a local search from equal signs and from the first eigenvector."""
    ends, rounding = [], SHIFT_ROUNDING * float(M.diagonal().max(initial=0.0))
    for start in (np.ones(len(M)), np.linalg.eigh(M)[1][:, -1]):
        u = np.where(start >= 0, 1.0, -1.0)
        for _ in range(SIGN_SWEEPS):
            for r in range(len(M)):  # one by one, so that uᵀMu never falls
                others = float(M[r] @ u - M[r, r] * u[r])
                u[r] = np.sign(others) if abs(others) > rounding else u[r]
        ends.append(u)
    return max(ends, key=lambda u: float(u @ M @ u))
