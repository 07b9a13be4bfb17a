"""Who looks: from `worst`, `all` or `1,4` to a coalition, what it sees, and what is proved about that.

**Guarantees.** The bound is the accountant's for exactly this observer: the plan with those readers added
who are in it. `received` counts gradients as fixed inputs; `estimates` and `all` assume nothing of them,
since the points at which gradients are taken are seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from topdp.audit.canaries import AuditError
from topdp.plan import NOBODY, Full, PerRound, Plan
from topdp.plan.arrays import Bools, Floats
from topdp.privacy.basics.exposure import Exposure
from topdp.privacy.basics.loss import Loss
from topdp.privacy.observers.gram import ROUNDING, grams
from topdp.privacy.observers.view import LONG, view
from topdp.settings.config import did_you_mean

Progress = Callable[[int, int], None]

SEES = {
    "received": "the rows that it receives",
    "estimates": "the rows that it receives and everybody's estimates",
    "all": "every row of everybody",
}
SWEEPS = 5
"""Towards the best signs: on all plans we tried the third changes nothing."""

BY_GUARANTEE = {"claimed": "received", "view": "received", "adaptive": "estimates", "worst-case": "all"}
"""What the observer sees against whom a guarantee of a configuration is given."""


@dataclass(frozen=True, eq=False)
class Observer:
    """Agents that pool what they have, and the plan in which what they see has them as readers."""

    members: tuple[int, ...]
    sees: str
    plan: Plan

    @classmethod
    def of(cls, plan: Plan, members: tuple[int, ...], sees: str) -> Observer:
        if sees == "received":
            return cls(members, sees, plan)
        more = np.full(plan.rows, members[0])
        if sees == "estimates":
            more[plan.agents :] = NOBODY
        readers = plan.readers.values
        more = np.broadcast_to(more[:, None], (*readers.shape[:2], 1)).astype(readers.dtype)
        wider = PerRound(np.concatenate([readers, more], axis=2), plan.readers.which)
        return cls(members, sees, replace(plan, readers=wider))

    @property
    def coalition(self) -> Bools:
        """[agents]"""
        return np.isin(np.arange(self.plan.agents), self.members)

    def learns(self, exposure: Exposure, owner: int) -> float:
        """μ of a record of `owner`; of long plans that of one whose gradients all point one way."""
        bound: Literal["upper", "aligned"] = "upper" if self.plan.releases <= LONG else "aligned"
        found = view(self.plan, _as_if_full(exposure), [self.members], [owner], bound)
        return float((found.lower if found.upper is None else found.upper)[owner, 0])

    def aim(self, owner: int, period: int) -> Floats:
        """[releases]: signs of the owner's changes that this observer sees well; all alike in long plans.

        Nothing but the strength of canaries depends on them.
        """
        signs = np.ones(self.plan.releases)
        if self.plan.releases > LONG:
            return signs
        (M,) = grams(self.plan, self.coalition, np.array([owner]))
        if np.isfinite(M).all():
            for s in range(period):
                signs[s::period] = _climbed(M[s::period, s::period])
        return signs

    def proved(self, exposure: Exposure, owner: int) -> Loss:
        """What this observer learns of a record of `owner` at most."""
        return view(self.plan, exposure, [self.members], [owner]).loss(owner, 0)

    def __str__(self) -> str:
        who = "agent" if len(self.members) == 1 else "agents"
        some = ", ".join(map(str, self.members[:8])) + (", ..." if len(self.members) > 8 else "")
        return f"{who} {some}"


def named(
    text: str,
    plan: Plan,
    exposure: Exposure,
    owner: int,
    sees: str,
    colluders: int = 1,
    progress: Progress | None = None,
) -> Observer:
    """The observer by its name: `worst` learns most of all groups of `colluders`, found member by member."""
    if sees not in SEES:
        raise AuditError(f"--sees: got {sees!r}.{did_you_mean(sees, list(SEES))}")
    others = tuple(agent for agent in range(plan.agents) if agent != owner)
    if text == "all" or (text == "worst" and sees == "all"):
        return Observer.of(plan, others, sees)
    if text != "worst":
        return Observer.of(plan, _members(text, plan.agents, owner), sees)
    members: tuple[int, ...] = ()
    tries = [(round, agent) for round in range(max(1, colluders)) for agent in others]
    found: dict[int, float] = {}
    for done, (_, agent) in enumerate(tries):
        if agent not in members:
            group = tuple(sorted((*members, agent)))
            found[agent] = Observer.of(plan, group, sees).learns(exposure, owner)
        if agent == others[-1]:
            members = tuple(sorted((*members, max(found, key=lambda one: found[one]))))
            found = {}
        if progress is not None:
            progress(done + 1, len(tries))
    return Observer.of(plan, members, sees)


def expect_agent(name: str, agent: int, agents: int) -> int:
    if not 0 <= agent < agents:
        raise AuditError(f"{name}: expected an agent between 0 and {agents - 1}, got {agent}.")
    return agent


def _members(text: str, agents: int, owner: int) -> tuple[int, ...]:
    try:
        members = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise AuditError(
            f"--observer: expected worst, all, an agent or several with commas, such as 1,4; got {text!r}."
        ) from None
    for agent in members:
        expect_agent("--observer", agent, agents)
    if owner in members:
        raise AuditError(
            f"--observer: agent {owner} is the one that is audited, and knows its own data. Name others, or "
            "another --owner."
        )
    return members


def _climbed(M: Floats) -> Floats:
    """Signs u with a large uᵀMu, sought from all alike and from the first eigenvector on."""
    ends, rounding = [], ROUNDING * float(M.diagonal().max(initial=0.0))
    for start in (np.ones(len(M)), np.linalg.eigh(M)[1][:, -1]):
        u = np.where(start >= 0, 1.0, -1.0)
        for _ in range(SWEEPS):
            for r in range(len(M)):  # one by one, so that uᵀMu never falls
                others = float(M[r] @ u - M[r, r] * u[r])
                u[r] = np.sign(others) if abs(others) > rounding else u[r]
        ends.append(u)
    return max(ends, key=lambda u: float(u @ M @ u))


def _as_if_full(exposure: Exposure) -> Exposure:
    """Who learns most is asked as if every record were used every time, instead of by chance."""
    batches = tuple(Full(one.records) if one.sampled else one for one in exposure.batches)
    return replace(exposure, batches=batches)
