"""Optimisers that act after the noise: momentum, Adam, weight decay and averages of estimates.

A protocol writes a plan of plain steps. `optimised` adds the optimiser's state as memory rows, which no other
agent reads. So the engine and the agents execute the same plan that the accountants read, and memory rows are
saved, resumed and checked like all rows. No optimiser acts on gradients before the noise is added, because
its memory would then increase the sensitivity to one record (for heavy ball: by the factor 1/(1 - β)).

**Guarantees.** Memory rows carry no gradient and take no draw. They are functions of their owner's estimates.
Momentum, decay and averages are linear, so every account of the plan covers them, including accounts of
hidden rows and reused noise. Adam is not linear. Its plans state this need (`Plan.needs`), and only accounts
that count every row as seen cover them. The other accounts refuse such a plan.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any

import numpy as np

from topdp.base.array_types import Floats, Ints
from topdp.errors import InputError
from topdp.plan.adaptive_steps import ADAPTIVE_OPTIMISERS
from topdp.plan.plan import NOBODY, PerRound, Plan
from topdp.plan.schedules import Schedule

OPTIMISER_KINDS = ("sgd", "momentum", "nesterov", *ADAPTIVE_OPTIMISERS)
NO_RELEASES: Ints = np.empty(0, np.int64)


@dataclass(frozen=True)
class Optimiser:
    """An optimiser and its settings: how an agent's next step depends on the rows that it released.

    `momentum`: β, or Adam's decay rate of the first moment. `second_moment`: Adam's decay rate of the second
    moment. `floor`: the number that Adam adds to the square root of the second moment. `weight_decay`: every
    step multiplies the parameters by 1 - step size · `weight_decay`. `average`: the weight of earlier
    estimates in an average of the estimates, which is reported instead of the estimates; 0: no average.

    >>> Optimiser().plain, Optimiser("momentum", momentum=0.9).plain
    (True, False)
    """

    kind: str = "sgd"
    _: KW_ONLY
    momentum: float = 0.9
    second_moment: float = 0.999
    floor: float = 1e-8
    weight_decay: float = 0.0
    average: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in OPTIMISER_KINDS:
            raise InputError(f"Expected an optimiser out of {', '.join(OPTIMISER_KINDS)}, got {self.kind!r}.")
        for name in ("momentum", "second_moment", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"Expected 0 <= {name} < 1, got {getattr(self, name)}.")
        for name, least in (("floor", "> 0"), ("weight_decay", ">= 0")):
            value = getattr(self, name)
            if not np.isfinite(value) or value < 0 or (value == 0 and name == "floor"):
                raise InputError(f"Expected a finite {name} {least}, got {value}.")

    @property
    def adaptive(self) -> bool:
        """Whether each round ends with a non-linear step, in a separate release."""
        return self.kind in ADAPTIVE_OPTIMISERS

    @property
    def plain(self) -> bool:
        """Whether the optimiser leaves plans unchanged."""
        moves = self.kind != "sgd" and self.momentum > 0
        return not (self.adaptive or moves or self.weight_decay or self.average)

    def inner(self, schedule: Schedule) -> Schedule:
        """Return the schedule of the plan to which `optimised` adds this optimiser.

        For an adaptive optimiser, the rows of that plan carry gradients at the rate 1, because the adaptive
        step applies the step size. For other optimisers, it is `schedule`.
        """
        if not self.adaptive:
            return schedule
        return Schedule(np.ones(schedule.releases), schedule.noise / schedule.rate)


def optimised(plan: Plan, optimiser: Optimiser, rate: Floats) -> Plan:
    """Return `plan` with `optimiser`: its memory rows, and one adaptive step in each round if it is adaptive.

    `plan` must have been written with the schedule `optimiser.inner(schedule)`. `rate` [T+1]: the step sizes
    of `schedule`, which users set. A plain optimiser returns `plan` unchanged. Raise InputError if the weight
    decay would change the sign of parameters, or if an adaptive optimiser cannot be combined with `plan`.

    **Guarantees.** Each row that carries a gradient has the same draws as in `plan`, with the same standard
    deviations per unit of the gradient.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(3, 0.5), noise=np.full(3, 0.5))
    >>> plain = topdp.protocols.PlainSynchronous(0.25).plan(topdp.topology.ring(3), schedule, np.ones(3), 0)
    >>> plan = optimised(plain, Optimiser("momentum"), schedule.rate)
    >>> plan.rows, plan[2].source[0].tolist(), plan[2].weight[0].tolist()
    (6, [0, 1, 3], [1.15, 0.75, -0.9])

    The three sources are the agent's own row, a received row and a memory row.
    """
    if optimiser.plain:
        return plan
    # Nesterov's steps are longer (`_with_momentum`).
    largest = float(np.max(rate)) * (1 + optimiser.momentum if optimiser.kind == "nesterov" else 1)
    if optimiser.weight_decay * largest >= 1:
        raise InputError(
            f"Expected weight_decay times the step size below 1, got {optimiser.weight_decay:g} and steps up "
            f"to {largest:g}. Parameters would change their sign. Use a smaller weight_decay."
        )
    if optimiser.adaptive:
        plan = _with_adaptive_steps(plan, optimiser, rate)
    else:
        plan = _with_momentum(plan, optimiser)
    # A different protocol name, because published analyses of a method cover its plain steps only.
    plan = replace(plan, protocol=f"{plan.protocol} {optimiser.kind}")
    return _with_average(plan, optimiser.average) if optimiser.average else plan


def _with_momentum(plan: Plan, optimiser: Optimiser) -> Plan:
    """Return the plan with momentum: heavy ball (Polyak 1964), or Nesterov's (1983).

    Nesterov's momentum is written in the variables at which gradients are taken. Both kinds add a multiple of
    the difference between the estimate y and a memory row P:

        heavy ball   y' = mix + β (y - P) - λ g,               P' = y
        Nesterov     y' = mix + β²/(1+β) (y - P) - (1+β) λ g,  P' = (y + β P)/(1 + β)

    The second line is y = x + β (x - x₋) with x = y₋ - λ g(y₋), solved for y; P is x₋. The difference y - P
    includes the averaging with other agents, so noise that cancelled in the averaging does not return.
    """
    beta = 0.0 if optimiser.kind == "sgd" else optimiser.momentum
    nesterov = optimiser.kind == "nesterov"
    share, to_own = (beta**2 / (1 + beta), 1 / (1 + beta)) if nesterov else (beta, 1.0)
    if nesterov:
        plan = replace(plan, rate=plan.rate * (1 + beta), scale=plan.scale * (1 + beta))
    n, m = plan.agents, plan.rows
    own = np.arange(n)
    tables = _MixTables(plan, memories=1 if beta else 0)
    for r in range(plan.releases):
        source, weight = tables.table(r)
        rows = np.flatnonzero(plan.carries[r] & plan.exists[r])
        owner = plan.owner[rows].astype(np.int64)
        # Decoupled weight decay (Loshchilov and Hutter 2019): the step begins at (1 - λ w) times its sources.
        weight[rows] *= 1 - optimiser.weight_decay * plan.rate[r]
        if beta:
            moves = np.isin(own, rows) | (r == 0)
            source[m:, 0], weight[m:, 0] = own, np.where(moves, to_own if r else 1.0, 0.0)
            source[m:, 1], weight[m:, 1] = m + own, 1 - weight[m:, 0]
            if r:
                _add_source(source, weight, rows, owner, share)
                _add_source(source, weight, rows, m + owner, -share)
        tables.add(source, weight)
    return tables.applied(plan)


def _with_adaptive_steps(plan: Plan, optimiser: Optimiser, rate: Floats) -> Plan:
    """Return the plan with a non-linear step, such as Adam's, in one more release at the end of each round.

    In this release each agent makes its estimate from the estimate y and its memory rows. The first memory
    row is P, the estimate at which the round began. For Adam the others are the averages of d = P - y and of
    d². `Plan.adaptive` contains the step size of these releases and the other settings.

    Raise InputError unless each step of `plan` begins at the agent's estimate, and `rate` has one step size
    for each gradient release of `plan`.
    """
    kind = ADAPTIVE_OPTIMISERS[optimiser.kind]
    n, own, k = plan.agents, np.arange(plan.agents), kind.memories
    for r in range(1, plan.releases):
        if plan.carries[r].any() and not _begins_with_own(plan, r):
            raise InputError(
                f"Expected a method whose steps begin at averaged estimates for {kind.title}, got "
                f"{plan.protocol}. No account covers {kind.title} on hidden or unmixed rows. Use correlated "
                "or muffliato with gossip >= 1, or central; or optimiser = 'momentum', which every method "
                "supports."
            )
    carrying = np.asarray(plan.carries.values.any(axis=1))
    steps = np.flatnonzero(carrying[plan.carries.which])
    before = np.append(steps[1:], plan.releases)  # releases before which an adaptive one is inserted
    if len(before) != len(rate):
        raise InputError(f"Expected {len(rate)} rounds that carry gradients, got {len(before)}.")
    tables = _MixTables(plan, memories=k)
    memories = n + np.arange(k * n).reshape(k, n)  # the rows of P, then those of the other memories
    for r in range(plan.releases):
        source, weight = tables.table(r)
        source[n:, 0], weight[n:, 0] = memories.reshape(-1), 1.0
        if plan.carries[r].any():
            source[memories[0], 0] = own
        if r == 0:
            weight[n:, 0] = np.repeat([1.0, 0.0], [n, (k - 1) * n])  # averages begin at 0
        tables.add(source, weight)
        if r + 1 in before:
            together = np.concatenate([own[None], memories]).T  # [n, 1 + k]
            source[:, : 1 + k], weight[:, : 1 + k] = np.tile(together, (1 + k, 1)), 1.0
            source[:, 1 + k :], weight[:, 1 + k :] = NOBODY, 0.0  # the release mixes nothing else
            tables.add(source, weight)
    return replace(
        tables.applied(plan, before),
        adaptive=kind(
            rate=np.insert(np.zeros(plan.releases), before, rate),
            **{field.name: getattr(optimiser, field.name) for field in fields(kind) if field.name != "rate"},
        ),
    )


def _begins_with_own(plan: Plan, round: int) -> bool:
    """Return whether each row of `round` is an estimate, made only from its owner's estimate and a step."""
    if plan.rows > plan.agents or not plan.carries[round].all():
        return False
    used = (plan.source[round] >= 0) & (plan.weight[round] != 0)
    own = plan.source[round] == np.arange(plan.agents)[:, None]
    weight = np.where(used & own, plan.weight[round], 0.0).sum(axis=1)
    return bool((weight == 1).all() and not (used & ~own).any())


def _with_average(plan: Plan, share: float) -> Plan:
    """Return the plan with memory rows that average the estimates at which steps begin; they are reported.

    The average is a plain mean at first. Later, the previous average has the weight `share`.
    """
    n, m = plan.agents, plan.rows
    own = np.arange(n)
    tables, count = _MixTables(plan, memories=1), np.zeros(n)
    for r in range(plan.releases):
        source, weight = tables.table(r)
        moves = (plan.carries[r] & plan.exists[r])[:n]
        past = np.minimum(share, 1 - 1 / np.maximum(count, 1)) if r else np.zeros(n)
        source[m:, 0], weight[m:, 0] = own, np.where(moves | (r == 0), 1 - past, 0.0)
        source[m:, 1], weight[m:, 1] = m + own, 1 - weight[m:, 0]
        tables.add(source, weight)
        count += moves
    return replace(tables.applied(plan), reported=m + own)


class _MixTables:
    """The source and weight tables of a plan to which memory rows are added; equal tables are stored once."""

    def __init__(self, plan: Plan, memories: int) -> None:
        self.plan, self.more = plan, memories * plan.agents
        self._index: dict[bytes, int] = {}
        self._kinds: list[tuple[Ints, Floats]] = []
        self._which: list[int] = []

    def table(self, round: int) -> tuple[Ints, Floats]:
        """Return sources and weights of `round`, with empty memory rows and space for two more sources."""
        source, weight = self.plan.source[round], self.plan.weight[round]
        width = max(1 + self.more // self.plan.agents, source.shape[1] + 2)
        sources = np.full((len(source) + self.more, width), NOBODY, np.int64)
        weights = np.zeros(sources.shape)
        sources[: len(source), : source.shape[1]] = source
        weights[: len(weight), : weight.shape[1]] = weight
        return sources, weights

    def add(self, source: Ints, weight: Floats) -> None:
        """Append the tables of one more release."""
        key = source.tobytes() + weight.tobytes()
        if key not in self._index:
            self._index[key] = len(self._kinds)
            self._kinds.append((source.copy(), weight.copy()))
        self._which.append(self._index[key])

    def applied(self, plan: Plan, at: Ints = NO_RELEASES) -> Plan:
        """Return `plan` with these tables, with memory rows, and with a release inserted before each of `at`.

        The inserted releases have no gradient, draw or reader.
        """
        which = np.array(self._which, np.int32)
        source, weight = (np.stack(part) for part in zip(*self._kinds, strict=True))
        used = (source != NOBODY).any(axis=(0, 1))

        def padded(part: PerRound, fill: Any) -> PerRound:
            """Return `part` with `fill` in memory rows and in inserted releases."""
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


def _add_source(source: Ints, weight: Floats, rows: Ints, added: Ints, share: float) -> None:
    """Add `share` times the row `added[i]` to the row `rows[i]`, for each i.

    If `added[i]` is a source already, its weight grows. Otherwise it gets the first empty column.
    """
    present = source[rows] == added[:, None]
    column = np.where(present.any(axis=1), present.argmax(axis=1), (source[rows] == NOBODY).argmax(axis=1))
    # Without an empty column, `argmax` would name column 0, and the plan would lose a source.
    assert (present.any(axis=1) | (source[rows, column] == NOBODY)).all()
    source[rows, column] = added
    weight[rows, column] += share
