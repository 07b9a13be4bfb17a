"""Plan: all rows of all releases, their sources, gradients, noise and readers.

A protocol writes a plan, the engine executes it, and the accountant reads it. A plan contains no data: it is
fixed before the first record is read.

A *row* is one flat parameter vector. Rows 0 .. n-1 are the estimates of agents 0 .. n-1; the others are
messages. Before round 0 every row is the public start x_0. In round r = 0 .. T each existing row becomes

    row = Σ_w weight·(source row of round r-1)  -  rate_r·carries·(owner's gradient)  +  scale_r·Σ_v std·draw

where draws are standard normal, fresh in every round, and the gradient of agent i is taken at its estimate of
round r-1. With `robust`, the rows received from others enter by that rule instead of by their weights. Round
0 is the release before the loop of the paper's algorithms: T rounds make T+1 releases. With `rounded`, each
number of a row is rounded once, after all of the above has been added; later rows are made from the rounded
ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topdp.base.array_types import Bools, Floats, Indices
from topdp.errors import InputError
from topdp.plan.adaptive_steps import AdaptiveSteps
from topdp.plan.capabilities import Capability, ReleaseKind, unsupported
from topdp.plan.robust_rules import Robust

ROUNDED_ROW_TYPES = ("bfloat16",)
NOBODY = -1  # pads the lists of sources, draws and readers
ADAPTIVE_RATE = "adjusts"  # the name of `AdaptiveSteps.rate` in plan files and digests


class PlanError(InputError):
    """An invalid plan: an index out of range, noise that is not a number, a foreign file.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(2, 0.5), noise=np.full(2, 0.5))
    >>> ring = topdp.topology.ring(3)
    >>> plan = topdp.protocols.PlainSynchronous(0.5).plan(ring, schedule, np.ones(3), seed=0)
    >>> plan.noise_scaled(-1.0)
    Traceback (most recent call last):
        ...
    topdp.plan.plan.PlanError: Expected a finite noise factor >= 0, got -1.0.
    """


@dataclass(frozen=True, eq=False)
class PerRound:
    """One array per round 0 .. T, stored once for all rounds that share it.

    >>> import numpy as np
    >>> ones = PerRound.same(np.ones(3), releases=100)
    >>> len(ones), ones.values.shape, ones[99]
    (100, (1, 3), array([1., 1., 1.]))
    """

    values: NDArray[Any]  # [kinds, ...]
    which: NDArray[np.int32]  # [releases] -> kind

    @classmethod
    def same(cls, value: NDArray[Any], releases: int) -> PerRound:
        """Return a `PerRound` with the same array `value` in every round."""
        return cls(value[None], np.zeros(releases, np.int32))

    @classmethod
    def each(cls, values: NDArray[Any]) -> PerRound:
        """Return a `PerRound` with a separate array for every round; `values` is [releases, ...]."""
        return cls(values, np.arange(len(values), dtype=np.int32))

    @classmethod
    def first_then(cls, first: NDArray[Any], then: NDArray[Any], releases: int) -> PerRound:
        """Return a `PerRound` with `first` in round 0 and `then` in all later rounds."""
        which = np.ones(releases, np.int32)
        which[0] = 0
        return cls(np.stack([first, then]), which)

    def __getitem__(self, round: int) -> NDArray[Any]:
        value: NDArray[Any] = self.values[self.which[round]]
        return value

    def __len__(self) -> int:
        return len(self.which)


@dataclass(frozen=True, eq=False, kw_only=True)
class Round:
    """One round of a plan, as plain arrays over all m rows.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(2, 0.5), noise=np.full(2, 0.5))
    >>> ring = topdp.topology.ring(4)
    >>> plan = topdp.protocols.PlainSynchronous(0.25).plan(ring, schedule, np.ones(4), seed=0)
    >>> plan[1].weight[0].tolist(), plan[1].std[0].tolist(), plan[1].readers[0].tolist()
    ([0.25, 0.75], [0.5], [1, 3])
    """

    source: Indices  # [m, w] rows of the previous round; NOBODY pads
    weight: Floats  # [m, w]
    step: Floats  # [m] -rate where the row carries its owner's gradient, else 0
    draw: Indices  # [m, v] the draws of this round that enter; NOBODY pads
    std: Floats  # [m, v]
    readers: Indices  # [m, q] agents that receive the row; NOBODY pads
    exists: Bools  # [m]


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """All rows of all releases: which agents make, mix, perturb and read which row.

    **Guarantees.** A plan contains every row that leaves an agent. `readers` states which agents see a row,
    and `known_by` which agents can subtract a draw; the accountant uses both. A pruned plan lacks rows that
    are sent, so the accountant refuses it.

    >>> import numpy as np
    >>> import topdp
    >>> rates = topdp.plan.learning_rates(0.5, rounds=20, fading="linear")
    >>> schedule = topdp.plan.schedule(rates, topdp.plan.step_decay(1.0, 1, rounds=20), "gradient")
    >>> plan = topdp.protocols.TopSynchronous(0.25).plan(topdp.topology.ring(5), schedule, np.ones(5), seed=0)
    >>> plan.agents, plan.rows, plan.releases  # each agent sends two messages and keeps its estimate
    (5, 15, 21)
    """

    agents: int
    owner: Indices  # [m] the agent that makes the row
    source: PerRound  # int [m, w]; a row whose sources are all NOBODY does not exist in that round
    weight: PerRound  # float [m, w]
    carries: PerRound  # bool [m]; in a stack of runs, each run's share of the rate
    rate: Floats  # [releases] λ_t
    draw: PerRound  # int [m, v]
    std: PerRound  # float [m, v], per unit of scale; negative where a shared draw enters with the other sign
    scale: Floats  # [releases]
    known_by: Indices  # [draws, u] agents that know the draw; NOBODY pads
    readers: PerRound  # int [m, q]
    protocol: str = "custom"
    pruned: bool = False
    reported: Indices | None = None  # [n] the rows that users get; None: the estimates
    adaptive: AdaptiveSteps | None = None  # steps of a non-linear optimiser, such as Adam; None: nowhere
    robust: Robust | None = None  # how received rows enter a mix; None: by their weights
    rounded: str | None = None  # the type to which rows are rounded; None: they are not

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def releases(self) -> int:
        """R = T + 1: the release before the loop, and one for each of the T rounds."""
        return len(self.rate)

    @property
    def rows(self) -> int:
        return len(self.owner)

    @property
    def draws(self) -> int:
        return len(self.known_by)

    def __getitem__(self, round: int) -> Round:
        source = self.source[round]
        return Round(
            source=source,
            weight=self.weight[round],
            step=-self.rate[round] * self.carries[round],
            draw=self.draw[round],
            std=self.std[round] * self.scale[round],
            readers=self.readers[round],
            exists=_exists(source),
        )

    def __iter__(self) -> Iterator[Round]:
        return (self[r] for r in range(self.releases))

    @property
    def full_scale(self) -> Floats:
        """[agents]: the standard deviation per unit of `scale` in an agent's first row: the paper's σ_i·C."""
        return np.asarray(self.std[0][: self.agents, 0])

    @cached_property
    def exists(self) -> Bools:
        """[releases, m]: whether a row is made in a round."""
        return _exists(self.source.values)[self.source.which]

    @cached_property
    def kinds(self) -> tuple[ReleaseKind, ...]:
        """The kind of each release."""
        carries = np.asarray(self.carries.values.any(axis=1))[self.carries.which]
        kinds = [ReleaseKind.GRADIENT] * self.releases
        mixing: dict[tuple[int, int], bool] = {}
        for r in np.flatnonzero(~carries).tolist():
            if self.adaptive is not None and self.adaptive.rate[r]:
                kinds[r] = ReleaseKind.ADAPTIVE
                continue
            which = int(self.source.which[r]), int(self.weight.which[r])
            if which not in mixing:
                mixing[which] = bool(self.received(r).any())
            if mixing[which]:
                kinds[r] = ReleaseKind.GOSSIP
        return tuple(kinds)

    @property
    def rounds(self) -> int:
        """T: the gradient releases, without the one before the loop."""
        return max(1, self.kinds.count(ReleaseKind.GRADIENT)) - 1

    @property
    def releases_per_round(self) -> int:
        """The number of releases in a round: a gradient release, and gossip and adaptive
        releases after it.
        """
        return self.releases // (self.rounds + 1)

    @cached_property
    def needs(self) -> frozenset[Capability]:
        """The capabilities that executors and accountants of the plan must support."""
        needs = {
            Capability.ADAPTIVE_STEPS: self.adaptive is not None,
            Capability.ROBUST_MIXING: self.robust is not None,
            Capability.ROUNDED_ROWS: self.rounded is not None,
            Capability.SHARED_DRAWS: self._shares_draws(),
            Capability.PRUNED_ROWS: self.pruned,
        }
        return frozenset(need for need, needed in needs.items() if needed)

    def _shares_draws(self) -> bool:
        shared = np.flatnonzero((self.known_by >= 0).sum(axis=1) > 1)
        return bool(len(shared)) and bool(np.isin(self.draw.values, shared).any())

    @cached_property
    def memories(self) -> Bools:
        """[m]: whether the row is a memory row: no reader, gradient or draw, and made only from its owner's
        estimates.
        """
        n, sources = self.agents, self.source.values
        noisy = ((self.draw.values >= 0).any(axis=(0, 2))) | (self.std.values != 0).any(axis=(0, 2))
        memory = ~noisy & ~self.carries.values.any(axis=0) & (self.readers.values == NOBODY).all(axis=(0, 2))
        memory[:n] = False
        while memory.any():
            own = (self.owner[sources] == self.owner[:, None]) & (memory[sources] | (sources < n))
            fewer = memory & (own | (sources < 0)).all(axis=(0, 2))
            if (fewer == memory).all():
                break
            memory = fewer
        return np.asarray(memory)

    def received(self, round: int) -> Bools:
        """Return [m, w]: whether the source in `round` is a row of another agent."""
        source = self.source[round]
        used = (source >= 0) & (self.weight[round] != 0)
        return np.asarray(used & (self.owner[source] != self.owner[:, None]))

    def noise_scaled(self, factor: float) -> Plan:
        """Return the same plan with every standard deviation multiplied by `factor`, which divides every μ by
        it.
        """
        if not (np.isfinite(factor) and factor >= 0):
            raise PlanError(f"Expected a finite noise factor >= 0, got {factor}.")
        return replace(self, scale=self.scale * factor)

    def digest(self) -> str:
        """Return the SHA-256 hex digest of all contents; plans with equal digests are equal."""
        sha = hashlib.sha256(f"{self.agents} {self.protocol} {self.pruned}".encode())
        if self.robust is not None:
            sha.update(repr(self.robust).encode())
        if self.rounded is not None:
            sha.update(f"rounded to {self.rounded}".encode())
        for name, array in sorted(arrays_of(self).items()):
            canonical = np.ascontiguousarray(array)
            sha.update(f"{name} {canonical.dtype.str} {canonical.shape}".encode())
            sha.update(canonical.tobytes())
        return sha.hexdigest()


def prune(plan: Plan) -> Plan:
    """Return the plan without the rows on which no later estimate depends.

    The estimates are the same under the same draws; about a third of the messages remain on the paper's
    graphs. For the simulator only: real agents send all rows, and the accountant reads all of them.

    >>> import numpy as np
    >>> import topdp
    >>> rates = topdp.plan.learning_rates(0.5, rounds=20, fading="linear")
    >>> schedule = topdp.plan.schedule(rates, topdp.plan.step_decay(1.0, 1, rounds=20), "gradient")
    >>> plan = topdp.protocols.TopSynchronous(0.25).plan(topdp.topology.ring(5), schedule, np.ones(5), seed=0)
    >>> int(plan.exists.sum()), int(prune(plan).exists.sum())
    (305, 283)
    """
    live = np.zeros((plan.releases, plan.rows), bool)
    live[:, : plan.agents] = True
    if plan.reported is not None:
        live[:, plan.reported] = True
    for r in range(plan.releases - 1, 0, -1):
        used = plan.source[r][live[r]]
        used = used[(used >= 0) & (plan.weight[r][live[r]] != 0)]
        live[r - 1, used] = True
    live &= plan.exists
    source = plan.source.values[plan.source.which]
    source[~live] = NOBODY
    return replace(plan, source=PerRound.each(source), pruned=True)


def _exists(source: Indices) -> Bools:
    return np.asarray((source >= 0).any(axis=-1))


def arrays_of(plan: Plan) -> dict[str, NDArray[Any]]:
    """Return all arrays of `plan` by name, as `digest` hashes and `save` stores them."""
    arrays: dict[str, NDArray[Any]] = {}
    for field in fields(plan):
        value = getattr(plan, field.name)
        if isinstance(value, PerRound):
            arrays[f"{field.name}.values"] = value.values
            arrays[f"{field.name}.which"] = value.which
        elif isinstance(value, AdaptiveSteps):
            arrays |= {ADAPTIVE_RATE: value.rate, value.stored_as: value.settings()}
        elif isinstance(value, np.ndarray):
            arrays[field.name] = value
    return arrays


def _validate(plan: Plan) -> None:
    n, m, R = plan.agents, plan.rows, plan.releases
    if n < 1 or m < n or not np.array_equal(plan.owner[:n], np.arange(n)):
        raise PlanError(
            f"Expected rows 0..{n - 1} to be the estimates of agents 0..{n - 1}, got other owners."
        )
    indices = [
        ("owner", plan.owner, n, 0),
        ("known_by", plan.known_by, n, NOBODY),
        ("source", plan.source.values, m, NOBODY),
        ("draw", plan.draw.values, plan.draws, NOBODY),
        ("readers", plan.readers.values, n, NOBODY),
        ("reported", np.arange(n) if plan.reported is None else plan.reported, m, 0),
    ]
    for name, array, top, low in indices:
        if array.size and (array.min() < low or array.max() >= top):
            raise PlanError(
                f"Expected {name} between {low} and {top - 1}, got {array.min()} to {array.max()}."
            )
    for name in ("source", "weight", "carries", "draw", "std", "readers"):
        part: PerRound = getattr(plan, name)
        if len(part) != R or part.values.shape[1] != m:
            raise PlanError(f"Expected {name} for {R} releases and {m} rows, got {part.values.shape}.")
        if len(part.which) and (part.which.min() < 0 or part.which.max() >= len(part.values)):
            raise PlanError(f"Expected {name}.which to point into {len(part.values)} arrays.")
    for name, array, least in [
        ("weight", plan.weight.values, -np.inf),
        ("std", plan.std.values, -np.inf),
        ("rate", plan.rate, 0.0),
        ("scale", plan.scale, 0.0),
    ]:
        if not np.isfinite(array).all() or (array < least).any():
            raise PlanError(f"Expected {name} to be finite" + (f" and >= {least:g}." if least == 0 else "."))
    if plan.reported is not None and not np.array_equal(plan.owner[plan.reported], np.arange(n)):
        raise PlanError(f"Expected one reported row for each of the agents 0..{n - 1}, in this order.")
    _validate_adaptive(plan)
    _validate_robust(plan)
    _validate_rounded(plan)
    if len(plan.scale) != R:
        raise PlanError(f"Expected scale for {R} releases, got {len(plan.scale)}.")


def _validate_adaptive(plan: Plan) -> None:
    steps = plan.adaptive
    if steps is None:
        return
    if steps.rate.shape != plan.rate.shape or not (np.isfinite(steps.rate) & (steps.rate >= 0)).all():
        raise PlanError(f"Expected {plan.releases} finite step sizes >= 0 for {steps.title}, got others.")
    r, sources = np.flatnonzero(steps.rate), 1 + steps.memories
    if plan.carries.values[plan.carries.which[r]].any() or (plan.draw.values[plan.draw.which[r]] >= 0).any():
        raise PlanError(f"Expected no gradients or draws in releases with a {steps.title} step, got some.")
    values, which = plan.source.values, plan.source.which[r]
    if values.shape[2] < sources or (values[which, : plan.agents, :sources] < 0).any():
        raise PlanError(f"Expected estimates that {steps.title} makes from {sources} rows each, got others.")


def _validate_rounded(plan: Plan) -> None:
    if plan.rounded is None:
        return
    if plan.rounded not in ROUNDED_ROW_TYPES:
        raise PlanError(f"Expected rows rounded to {', '.join(ROUNDED_ROW_TYPES)}, got {plan.rounded!r}.")
    linear = {Capability.ROUNDED_ROWS, Capability.SHARED_DRAWS, Capability.PRUNED_ROWS}
    if reason := unsupported(plan, linear):
        raise PlanError(
            f"Expected a plan of linear rows if they are rounded to {plan.rounded}, got {reason}."
        )


def _validate_robust(plan: Plan) -> None:
    if plan.robust is None or plan.pruned:
        return
    max_received = 0
    kinds = np.unique(np.stack([plan.source.which, plan.weight.which]), axis=1, return_index=True)[1]
    for r in kinds.tolist():
        others = plan.received(r)
        weight = np.where(others, plan.weight[r], 0.0)
        if (weight < 0).any() or (weight.sum(axis=1) > 1 + 1e-9).any():
            wrong = (
                f"a weight of {weight.min():g}"
                if (weight < 0).any()
                else f"a sum of {weight.sum(axis=1).max():g}"
            )
            raise PlanError(
                f"Expected received rows with weights >= 0 that add up to at most 1 for the robust rule "
                f"{plan.robust.rule}, got {wrong} in release {r}. Accelerated averaging breaks this rule: "
                "use chebyshev = false."
            )
        max_received = max(max_received, int(others.sum(axis=1).max(initial=0)))
    if max_received == 0:
        raise PlanError(f"Expected received rows in a mix for a robust rule, got none in {plan.protocol}.")
    if plan.robust.compares and max_received == 1:
        raise PlanError(
            f"Expected several received rows in a mix for the robust rule {plan.robust.rule}, but "
            f"{plan.protocol} mixes one at a time, which cannot be compared with others. Use dsgd, "
            "muffliato or correlated; or rule = 'clipped' with a given radius."
        )
