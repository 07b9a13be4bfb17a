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
from topdp.base.progress import Progress, silent
from topdp.plan import Plan
from topdp.privacy.account import Account
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.privacy_loss import Loss
from topdp.privacy.observers.gram_matrix import ROUNDING, grams
from topdp.privacy.observers.observer_answers import observed
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.observers.view import LONG, expect_viewable, view
from topdp.runs.config import did_you_mean

SEES = {"received": Public.NOTHING, "estimates": Public.ESTIMATES, "all": Public.LINKS}

BY_GUARANTEE = {"claimed": "received", "view": "received", "adaptive": "estimates", "worst-case": "all"}
"""What the observer of each guarantee sees."""

OBSERVER_NAMES = ("worst", "all", "outsider")

SIGN_SWEEPS = 5
"""Sweeps of the search for the best signs. On all plans we tried, the third changes nothing."""


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
        """[agents]: who belongs to the coalition."""
        return np.isin(np.arange(self.plan.agents), self.members)

    def proved(self, exposure: Exposure, owner: int) -> Loss:
        """Return an upper bound on what this observer learns about a record of `owner`."""
        if self.public is Public.NOTHING:
            expect_viewable(self.plan)
        return view(self.plan, exposure, [self.members], [owner], public=self.public).loss(owner, 0)

    def aim(self, owner: int, period: int) -> Floats:
        """Return signs of the owner's changes that this observer sees well, [releases]; all 1 in long plans.

        Only the strength of canaries depends on them.
        """
        signs = np.ones(self.plan.releases)
        if self.plan.releases > LONG:
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
    text: str,
    sees: str,
    owner: int,
    plan: Plan,
    account: Account,
    allow_slow: bool = False,
    progress: Progress = silent,
) -> Observer:
    """Return the observer that `text` names; `worst` learns most about the owner by the account."""
    expect_observer(text, sees, owner, plan.agents)
    if text == "outsider":
        return Observer(plan, (), "all")
    if text == "all" or (text == "worst" and sees == "all"):
        return Observer(plan, tuple(agent for agent in range(plan.agents) if agent != owner), sees)
    if text != "worst":
        return Observer(plan, _members(text, plan.agents, owner), sees)
    answer = "view" if sees == "received" else "adaptive"
    worst = account.answers[answer].observers
    if worst is None:
        exposure = account.analysis.exposure()
        losses = observed(answer, plan, exposure, account.colluders, allow_slow, progress)
        return Observer(plan, losses.observers[losses.sees_most(owner)], sees)
    return Observer(plan, worst[owner], sees)


def expect_observer(text: str, sees: str | None, owner: int | None, agents: int) -> None:
    """Raise AuditError unless these name an observer. None for `sees` and `owner` means the default."""
    if sees is not None and sees not in SEES:
        raise AuditError(f"--sees: got {sees!r}.{did_you_mean(sees, list(SEES))}")
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
            f"--observer: expected agents other than the audited one, got {owner}, which knows its own data. "
            "Name others, or another --owner."
        )
    return members


def _best_signs(M: Floats) -> Floats:
    """Return signs u with a large uᵀMu, by a local search from equal signs and from the first eigenvector."""
    ends, rounding = [], ROUNDING * float(M.diagonal().max(initial=0.0))
    for start in (np.ones(len(M)), np.linalg.eigh(M)[1][:, -1]):
        u = np.where(start >= 0, 1.0, -1.0)
        for _ in range(SIGN_SWEEPS):
            for r in range(len(M)):  # one by one, so that uᵀMu never falls
                others = float(M[r] @ u - M[r, r] * u[r])
                u[r] = np.sign(others) if abs(others) > rounding else u[r]
        ends.append(u)
    return max(ends, key=lambda u: float(u @ M @ u))
