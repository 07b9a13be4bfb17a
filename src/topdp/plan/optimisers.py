"""What agents make of rows that were released: momentum, Adam, weight decay, an average of estimates.

A protocol writes a plan of plain steps; `optimised` writes the memory that an agent keeps into it, as rows
that nobody reads. So the engine and agents execute what the accountants read, and a memory is saved, resumed
and checked like any row. All of it comes after the noise; nothing here touches a gradient before its noise,
where a memory would change what one record can do (heavy ball: by 1/(1 - β)).

**Guarantees.** Memories carry no gradient and take no draw: they are functions of their owner's estimates.
Momentum, decay and averages are linear, so every account of the plan covers them, hidden rows and reused
noise included. Adam is not: its plans say so (`Plan.needs`), and only accounts in which every row counts
as seen cover them; the others refuse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from topdp.base.array_types import Floats, Ints
from topdp.errors import InputError
from topdp.plan.adaptive_steps import AdamSettings
from topdp.plan.plan import NOBODY, PerRound, Plan
from topdp.plan.schedules import Schedule

ADAPTIVE_KINDS = ("adam",)
KINDS = ("sgd", "momentum", "nesterov", *ADAPTIVE_KINDS)
NONE: Ints = np.empty(0, np.int64)


@dataclass(frozen=True)
class Optimiser:
    """How an agent goes on from what it released.

    `momentum`: β, or Adam's first moment; `second`, `floor`: Adam's second moment and what is added to its
    root. `weight_decay` shrinks parameters by itself times the step size in every step. `average`: the share
    of the past in an average of estimates, which is what is then reported; 0 is none.

    >>> Optimiser().plain, Optimiser("momentum", momentum=0.9).plain
    (True, False)
    """

    kind: str = "sgd"
    momentum: float = 0.9
    second: float = 0.999
    floor: float = 1e-8
    weight_decay: float = 0.0
    average: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"Expected an optimiser out of {', '.join(KINDS)}, got {self.kind!r}.")
        for name in ("momentum", "second", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"Expected 0 <= {name} < 1, got {getattr(self, name)}.")
        for name, least in (("floor", "> 0"), ("weight_decay", ">= 0")):
            value = getattr(self, name)
            if not np.isfinite(value) or value < 0 or (value == 0 and name == "floor"):
                raise InputError(f"Expected a finite {name} {least}, got {value}.")

    @property
    def adaptive(self) -> bool:
        """Whether a non-linear step ends each round, in a release of its own."""
        return self.kind in ADAPTIVE_KINDS

    @property
    def plain(self) -> bool:
        """Whether plans stay as protocols write them."""
        moves = self.kind != "sgd" and self.momentum > 0
        return not (self.adaptive or moves or self.weight_decay or self.average)

    def inner(self, schedule: Schedule) -> Schedule:
        """The schedule of the inner plan: before an adaptive step rows carry whole gradients."""
        if not self.adaptive:
            return schedule
        return Schedule(np.ones(schedule.releases), schedule.noise / schedule.rate)


def optimised(plan: Plan, optimiser: Optimiser, rate: Floats) -> Plan:
    """`plan` with the memories of `optimiser`. `rate` [T+1]: the step sizes that users set.

    **Guarantees.** Each row that carries a gradient has the draws that it had, and as much of them per unit
    of the gradient.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(3, 0.5), noise=np.full(3, 0.5))
    >>> plain = topdp.protocols.PlainSynchronous(0.25).plan(topdp.topology.ring(3), schedule, np.ones(3), 0)
    >>> plan = optimised(plain, Optimiser("momentum"), schedule.rate)
    >>> plan.rows, plan[2].source[0].tolist(), plan[2].weight[0].tolist()  # own, received, memory
    (6, [0, 1, 3], [1.15, 0.75, -0.9])
    """
    if optimiser.plain:
        return plan
    # Nesterov's gradients are taken ahead, where steps are longer (`_with_momentum`)
    largest = float(np.max(rate)) * (1 + optimiser.momentum if optimiser.kind == "nesterov" else 1)
    if optimiser.weight_decay * largest >= 1:
        raise InputError(
            f"Expected weight_decay times the step size below 1, got {optimiser.weight_decay:g} and steps up "
            f"to {largest:g}: parameters would change their sign. Use a smaller one."
        )
    if optimiser.adaptive:
        plan = _with_adam(plan, optimiser, rate)
    else:
        plan = _with_momentum(plan, optimiser)
    # Another name: what was published of a method is said of its plain steps.
    plan = replace(plan, protocol=f"{plan.protocol} {optimiser.kind}")
    return _with_average(plan, optimiser.average) if optimiser.average else plan


def _with_momentum(plan: Plan, optimiser: Optimiser) -> Plan:
    """Heavy ball (Polyak 1964), or Nesterov's (1983) in the variables at which gradients are taken.

    Both add a share of the way from a memory P to the estimate y:

        heavy ball   y' = mix + β (y - P) - λ g,               P' = y
        Nesterov     y' = mix + β²/(1+β) (y - P) - (1+β) λ g,  P' = (y + β P)/(1 + β)

    The second is y = x + β (x - x₋) with x = y₋ - λ g(y₋), solved for y; P is x₋. The way includes what
    averaging with others did, so noise that cancels there is not brought back.
    """
    beta = 0.0 if optimiser.kind == "sgd" else optimiser.momentum
    nesterov = optimiser.kind == "nesterov"
    share, to_own = (beta**2 / (1 + beta), 1 / (1 + beta)) if nesterov else (beta, 1.0)
    if nesterov:
        plan = replace(plan, rate=plan.rate * (1 + beta), scale=plan.scale * (1 + beta))
    n, m = plan.agents, plan.rows
    own = np.arange(n)
    sheets = _Sheets(plan, memories=1 if beta else 0)
    for r in range(plan.releases):
        source, weight = sheets.page(r)
        rows = np.flatnonzero(plan.carries[r] & plan.exists[r])
        owner = plan.owner[rows].astype(np.int64)
        # Decoupled weight decay (Loshchilov and Hutter 2019): (1 - λ w) of what the step begins with
        weight[rows] *= 1 - optimiser.weight_decay * plan.rate[r]
        if beta:
            moves = np.isin(own, rows) | (r == 0)
            source[m:, 0], weight[m:, 0] = own, np.where(moves, to_own if r else 1.0, 0.0)
            source[m:, 1], weight[m:, 1] = m + own, 1 - weight[m:, 0]
            if r:
                _add_source(source, weight, rows, owner, share)
                _add_source(source, weight, rows, m + owner, -share)
        sheets.add(source, weight)
    return sheets.bound(plan)


def _with_adam(plan: Plan, optimiser: Optimiser, rate: Floats) -> Plan:
    """Adam (Kingma and Ba 2015) on what a whole round changed: one more release at the end of each round.

    There an agent makes its estimate anew from where the round began, P, and from its averages of d = P - y
    and d²: `Plan.adaptive` has the step size of these releases and the other settings.
    """
    n, own = plan.agents, np.arange(plan.agents)
    for r in range(1, plan.releases):
        if plan.carries[r].any() and not _begins_with_own(plan, r):
            raise InputError(
                f"Expected a method whose steps begin at averaged estimates for Adam, got {plan.protocol}: "
                "what Adam makes of hidden or unmixed rows has no account. Use correlated or muffliato with "
                "gossip >= 1, or central; or optimiser = 'momentum', which every method has."
            )
    carrying = np.asarray(plan.carries.values.any(axis=1))
    steps = np.flatnonzero(carrying[plan.carries.which])
    before = np.append(steps[1:], plan.releases)  # releases before which one is put in
    if len(before) != len(rate):
        raise InputError(f"Expected {len(rate)} rounds that carry gradients, got {len(before)}.")
    sheets = _Sheets(plan, memories=3)
    first = n + np.arange(3 * n).reshape(3, n)  # P, and the averages of d and d²
    for r in range(plan.releases):
        source, weight = sheets.page(r)
        source[n:, 0], weight[n:, 0] = first.reshape(-1), 1.0
        if plan.carries[r].any():
            source[first[0], 0] = own
        if r == 0:
            weight[n:, 0] = np.repeat([1.0, 0.0], [n, 2 * n])  # averages begin at nothing
        sheets.add(source, weight)
        if r + 1 in before:
            everything = np.concatenate([own[None], first]).T  # [n, 4]
            source[:, :4], weight[:, :4] = np.tile(everything, (4, 1)), 1.0
            source[:, 4:], weight[:, 4:] = NOBODY, 0.0  # nothing of the mix before, whatever the degree
            sheets.add(source, weight)
    return replace(
        sheets.bound(plan, before),
        adaptive=AdamSettings(
            rate=np.insert(np.zeros(plan.releases), before, rate),
            momentum=optimiser.momentum,
            second_moment=optimiser.second,
            floor=optimiser.floor,
            weight_decay=optimiser.weight_decay,
        ),
    )


def _begins_with_own(plan: Plan, round: int) -> bool:
    """Whether all rows are estimates, and each carries a step from its owner's estimate and nothing else."""
    if plan.rows > plan.agents or not plan.carries[round].all():
        return False
    used = (plan.source[round] >= 0) & (plan.weight[round] != 0)
    own = plan.source[round] == np.arange(plan.agents)[:, None]
    weight = np.where(used & own, plan.weight[round], 0.0).sum(axis=1)
    return bool((weight == 1).all() and not (used & ~own).any())


def _with_average(plan: Plan, share: float) -> Plan:
    """An average of the estimates that steps begin with: plain at first, then with `share` of the past."""
    n, m = plan.agents, plan.rows
    own = np.arange(n)
    sheets, count = _Sheets(plan, memories=1), np.zeros(n)
    for r in range(plan.releases):
        source, weight = sheets.page(r)
        moves = (plan.carries[r] & plan.exists[r])[:n]
        past = np.minimum(share, 1 - 1 / np.maximum(count, 1)) if r else np.zeros(n)
        source[m:, 0], weight[m:, 0] = own, np.where(moves | (r == 0), 1 - past, 0.0)
        source[m:, 1], weight[m:, 1] = m + own, 1 - weight[m:, 0]
        sheets.add(source, weight)
        count += moves
    return replace(sheets.bound(plan), reported=m + own)


class _Sheets:
    """Sources and weights of a plan that gets more rows: pages that are alike are stored once."""

    def __init__(self, plan: Plan, memories: int) -> None:
        self.plan, self.more = plan, memories * plan.agents
        self._pages: dict[bytes, int] = {}
        self._kinds: list[tuple[Ints, Floats]] = []
        self._which: list[int] = []

    def page(self, round: int) -> tuple[Ints, Floats]:
        """The plan's own page, with empty rows for the memories and room for two more sources, or four."""
        source, weight = self.plan.source[round], self.plan.weight[round]
        width = max(4, source.shape[1] + 2)
        sources = np.full((len(source) + self.more, width), NOBODY, np.int64)
        weights = np.zeros(sources.shape)
        sources[: len(source), : source.shape[1]] = source
        weights[: len(weight), : weight.shape[1]] = weight
        return sources, weights

    def add(self, source: Ints, weight: Floats) -> None:
        key = source.tobytes() + weight.tobytes()
        if key not in self._pages:
            self._pages[key] = len(self._kinds)
            self._kinds.append((source.copy(), weight.copy()))
        self._which.append(self._pages[key])

    def bound(self, plan: Plan, at: Ints = NONE) -> Plan:
        """`plan` with these pages, those put in before the releases `at` with no gradient, draw or reader."""
        which = np.array(self._which, np.int32)
        source, weight = (np.stack(part) for part in zip(*self._kinds, strict=True))
        used = (source != NOBODY).any(axis=(0, 1))

        def padded(part: PerRound, fill: Any) -> PerRound:
            values = part.values
            if len(at):
                values = np.concatenate([values, np.full_like(values[:1], fill)])
            rows = np.full((len(values), self.more, *values.shape[2:]), fill, values.dtype)
            kinds = np.insert(part.which, at, len(part.values)).astype(np.int32)
            return PerRound(np.concatenate([values, rows], axis=1), kinds)

        return replace(
            plan,
            owner=np.concatenate([plan.owner, np.resize(np.arange(plan.agents), self.more)]),
            source=PerRound(source[:, :, used], which),
            weight=PerRound(weight[:, :, used], which),
            carries=padded(plan.carries, False),
            rate=np.insert(plan.rate, at, 0.0),
            draw=padded(plan.draw, NOBODY),
            std=padded(plan.std, 0.0),
            scale=np.insert(plan.scale, at, 0.0),
            readers=padded(plan.readers, NOBODY),
        )


def _add_source(source: Ints, weight: Floats, rows: Ints, what: Ints, share: float) -> None:
    """`share` of row `what` for each of `rows`: to what they have of it, or in their first empty place."""
    there = source[rows] == what[:, None]
    place = np.where(there.any(axis=1), there.argmax(axis=1), (source[rows] == NOBODY).argmax(axis=1))
    source[rows, place] = what
    weight[rows, place] += share
