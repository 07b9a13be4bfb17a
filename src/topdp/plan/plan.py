"""Plan: all rows of all releases, their sources, gradients, noise and readers.

A protocol writes a plan, the engine executes it, and the accountant reads it. A plan contains no data: it is
fixed before the first record is read.

A *row* is one flat parameter vector. Rows 0 .. n-1 are the estimates of agents 0 .. n-1. The other rows are
messages. Before round 0 every row is the public start x_0. In round r = 0 .. T each existing row becomes

    row = Σ_w weight·(source row of round r-1)  -  rate_r·carries·(owner's gradient)  +  scale_r·Σ_v std·draw

where draws are standard normal, fresh in every round, and the gradient of agent i is taken at its estimate of
round r-1. Round 0 is the release before the loop of the paper's algorithms, so T rounds make T+1 releases.

If `robust` is set, received rows enter by that rule instead of by their weights. If `rounded` is set, each
number of a row is rounded once, after all terms have been added. Later rows are made from the rounded rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topdp.base.array_types import Bools, Floats, Indices
from topdp.errors import InputError
from topdp.plan.adaptive_steps import AdaptiveSteps
from topdp.plan.capabilities import Capability, ReleaseKind, needs_of, unsupported
from topdp.plan.robust_rules import Robust

ROUNDED_ROW_TYPES = ("bfloat16",)
NOBODY = -1  # pads the lists of sources, draws and readers
ADAPTIVE_RATE = "adjusts"  # the name of `AdaptiveSteps.rate` in plan files and digests


class PlanError(InputError):
    """An invalid plan, such as an index out of range, noise that is not a number, or a foreign file.

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


@dataclass(frozen=True, eq=False, repr=False)
class PerRound:
    """One array for each round; rounds with equal arrays share one stored array.

    >>> import numpy as np
    >>> ones = PerRound.same(np.ones(3), releases=100)
    >>> len(ones), ones.values.shape, ones[99]
    (100, (1, 3), array([1., 1., 1.]))
    """

    values: NDArray[Any]  # [kinds, ...] the different arrays
    which: NDArray[np.int32]  # [releases] the index in `values` of each release's array

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

    def __repr__(self) -> str:
        shape = self.values.shape[1:]
        return f"PerRound({len(self)} releases, {len(self.values)} different arrays of shape {shape})"

    def __getitem__(self, round: int) -> NDArray[Any]:
        value: NDArray[Any] = self.values[self.which[round]]
        return value

    def __len__(self) -> int:
        return len(self.which)


@dataclass(frozen=True, eq=False, kw_only=True)
class Round:
    """One release of a plan, as plain arrays over all m rows.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(2, 0.5), noise=np.full(2, 0.5))
    >>> ring = topdp.topology.ring(4)
    >>> plan = topdp.protocols.PlainSynchronous(0.25).plan(ring, schedule, np.ones(4), seed=0)
    >>> plan[1].weight[0].tolist(), plan[1].std[0].tolist(), plan[1].readers[0].tolist()
    ([0.25, 0.75], [0.5], [1, 3])
    """

    source: Indices  # [m, w] the rows of the previous round that are mixed; NOBODY pads
    weight: Floats  # [m, w] the weight of each source
    step: Floats  # [m] -rate if the row carries its owner's gradient, otherwise 0
    draw: Indices  # [m, v] the draws of this round that are added; NOBODY pads
    std: Floats  # [m, v] the standard deviation of each draw
    readers: Indices  # [m, q] agents that receive the row; NOBODY pads
    exists: Bools  # [m]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Plan:
    """All rows of all releases: which agents make, mix, perturb and read which row.

    **Guarantees.** A plan contains every row that leaves an agent. `readers` states which agents see a row.
    `known_by` states which agents know a draw and can subtract it. The accountant relies on both. A pruned
    plan lacks rows that are sent, so the accountant refuses it.

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
    carries: PerRound  # bool [m]: the row carries its owner's gradient; in stacked runs, a share of the rate
    rate: Floats  # [releases] λ_t
    draw: PerRound  # int [m, v]
    std: PerRound  # float [m, v], per unit of scale; negative if a shared draw is subtracted
    scale: Floats  # [releases] the noise scale
    known_by: Indices  # [draws, u] agents that know the draw; NOBODY pads
    readers: PerRound  # int [m, q]
    protocol: str = "custom"
    pruned: bool = False
    reported: Indices | None = None  # [n] the rows that users get; None: the estimates
    adaptive: AdaptiveSteps | None = None  # steps of a non-linear optimiser, such as Adam; None: no such step
    robust: Robust | None = None  # how received rows enter a mix; None: by their weights
    rounded: str | None = None  # the type to which rows are rounded; None: rows are not rounded

    def __post_init__(self) -> None:
        _validate(self)

    def __repr__(self) -> str:
        return (
            f"Plan({self.protocol!r}, agents={self.agents}, rows={self.rows}, releases={self.releases}"
            f"{', pruned' if self.pruned else ''})"
        )

    @property
    def releases(self) -> int:
        """The number R of releases; R = T + 1 in a plan without averaging and adaptive steps."""
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

    @property
    def full_scale(self) -> Floats:
        """The standard deviation of each agent's first row [agents], per unit of `scale` (paper: σ_i·C)."""
        return np.asarray(self.std[0][: self.agents, 0])

    @cached_property
    def exists(self) -> Bools:
        """For each release and row, whether the row is made in that release, as Booleans [releases, m]."""
        return _exists(self.source.values)[self.source.which]

    @cached_property
    def kinds(self) -> tuple[ReleaseKind, ...]:
        """The kind of each release.

        A release is a gradient release unless it has an adaptive step, or no row carries a gradient and some
        row mixes received rows.
        """
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
        """The number T of rounds: of all gradient releases except the one before the loop."""
        return max(1, self.kinds.count(ReleaseKind.GRADIENT)) - 1

    @property
    def releases_per_round(self) -> int:
        """The number of releases in a round: the gradient release and the averaging and adaptive steps."""
        return self.releases // (self.rounds + 1)

    @property
    def even(self) -> bool:
        """Whether all rounds have the same number of releases."""
        return self.releases % (self.rounds + 1) == 0

    @cached_property
    def needs(self) -> dict[Capability, str]:
        """The capabilities that executors and accountants of the plan must support, with descriptions."""
        shared = np.isin(self.draw.values, np.flatnonzero((self.known_by >= 0).sum(axis=1) > 1)).any()
        others = [Capability.SHARED_DRAWS] * bool(shared) + [Capability.PRUNED_ROWS] * self.pruned
        return needs_of(self.adaptive, self.robust, self.rounded, others)

    @cached_property
    def memories(self) -> Bools:
        """For each row, whether it is a memory row, as Booleans [m].

        A memory row has no reader, gradient or draw. It is made only from estimates and memory rows of its
        owner.
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
        """Return for each source in `round` whether it is a row of another agent, as Booleans [m, w]."""
        source = self.source[round]
        used = (source >= 0) & (self.weight[round] != 0)
        return np.asarray(used & (self.owner[source] != self.owner[:, None]))

    def noise_scaled(self, factor: float) -> Plan:
        """Return the same plan with every standard deviation multiplied by `factor`.

        Every μ is then divided by `factor`.
        """
        if not (np.isfinite(factor) and factor >= 0):
            raise PlanError(f"Expected a finite noise factor >= 0, got {factor}.")
        return replace(self, scale=self.scale * factor)

    def digest(self) -> str:
        """Return the hexadecimal SHA-256 digest of all contents; plans with equal digests are equal."""
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

    The estimates stay the same if the draws are the same. On the paper's graphs, about a third of the
    messages remain. Only the simulator uses pruned plans. Real agents send all rows, and the accountant reads
    all rows.

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
    """Return for each row of `source` [..., m, w] whether it has any source, as Booleans [..., m]."""
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
    """Raise PlanError if an array of the plan has a wrong shape or values out of range."""
    n, m, R = plan.agents, plan.rows, plan.releases
    if n < 1 or m < n or not np.array_equal(plan.owner[:n], np.arange(n)):
        raise PlanError(
            f"Expected rows 0..{n - 1} to be the estimates of agents 0..{n - 1}, got owners {plan.owner[:n]}."
        )
    parts: dict[str, PerRound] = {
        name: getattr(plan, name) for name in ("source", "weight", "carries", "draw", "std", "readers")
    }
    indices = [
        ("owner", plan.owner, n, 0),
        ("known_by", plan.known_by, n, NOBODY),
        ("source", plan.source.values, m, NOBODY),
        ("draw", plan.draw.values, plan.draws, NOBODY),
        ("readers", plan.readers.values, n, NOBODY),
        ("reported", np.arange(n) if plan.reported is None else plan.reported, m, 0),
        *((f"{name}.which", part.which, len(part.values), 0) for name, part in parts.items()),
    ]
    for name, array, top, low in indices:
        if array.size and (array.min() < low or array.max() >= top):
            raise PlanError(
                f"Expected {name} between {low} and {top - 1}, got {array.min()} to {array.max()}."
            )
    for name, part in parts.items():
        rows = part.values.shape[1]
        if len(part) != R or rows != m:
            raise PlanError(f"Expected {name} for {R} releases and {m} rows, got {len(part)} and {rows}.")
    numbers = {"weight": plan.weight.values, "std": plan.std.values, "rate": plan.rate, "scale": plan.scale}
    for name, array in numbers.items():
        limit = " >= 0" if name in ("rate", "scale") else ""
        invalid = array[~np.isfinite(array) | ((array < 0) & bool(limit))]
        if invalid.size:
            raise PlanError(f"Expected finite values{limit} in {name}, got {invalid[0]}.")
    if plan.reported is not None and not np.array_equal(plan.owner[plan.reported], np.arange(n)):
        raise PlanError(
            f"Expected one reported row for each of the agents 0..{n - 1}, in this order, got rows of the "
            f"agents {plan.owner[plan.reported]}."
        )
    _validate_adaptive(plan)
    _validate_robust(plan)
    _validate_rounded(plan)
    if len(plan.scale) != R:
        raise PlanError(f"Expected scale for {R} releases, got {len(plan.scale)}.")


def _validate_adaptive(plan: Plan) -> None:
    """Raise PlanError if the releases with adaptive steps do not have the form that `optimised` writes."""
    steps = plan.adaptive
    if steps is None:
        return
    valid = np.isfinite(steps.rate) & (steps.rate >= 0)
    if steps.rate.shape != plan.rate.shape or not valid.all():
        raise PlanError(
            f"Expected {plan.releases} finite step sizes >= 0 for {steps.title}, got {valid.sum()} among "
            f"{valid.size} step sizes."
        )
    r, sources = np.flatnonzero(steps.rate), 1 + steps.memories
    if plan.carries.values[plan.carries.which[r]].any() or (plan.draw.values[plan.draw.which[r]] >= 0).any():
        raise PlanError(f"Expected no gradient or draw in releases with a {steps.title} step, got one.")
    values = plan.source.values[plan.source.which[r], : plan.agents, :sources]
    fewest = (values >= 0).sum(axis=2).min(initial=values.shape[2])
    if fewest < sources:
        raise PlanError(
            f"Expected {sources} source rows for each estimate in a {steps.title} step, got {fewest}. Write "
            "the plan with `optimised`."
        )


def _validate_rounded(plan: Plan) -> None:
    """Raise PlanError if the plan rounds rows to an unknown type, or rounds rows that are not linear."""
    if plan.rounded is None:
        return
    if plan.rounded not in ROUNDED_ROW_TYPES:
        raise PlanError(f"Expected rows rounded to {', '.join(ROUNDED_ROW_TYPES)}, got {plan.rounded!r}.")
    linear = {Capability.ROUNDED_ROWS, Capability.SHARED_DRAWS, Capability.PRUNED_ROWS}
    if reason := unsupported(plan, linear):
        raise PlanError(
            f"Expected linear mixing and a linear optimiser in a plan with rows rounded to {plan.rounded}, "
            f'got {reason}. Use train.rows = "model", or choose another optimiser or robust rule.'
        )


def _validate_robust(plan: Plan) -> None:
    """Raise PlanError if the weights or the number of received rows do not fit the robust rule."""
    if plan.robust is None or plan.pruned:
        return
    max_received = 0
    kinds = np.unique(np.stack([plan.source.which, plan.weight.which]), axis=1, return_index=True)[1]
    for r in kinds.tolist():
        others = plan.received(r)
        weight = np.where(others, plan.weight[r], 0.0)
        least, largest_sum = weight.min(initial=0.0), weight.sum(axis=1).max()
        if least < 0 or largest_sum > 1 + 1e-9:
            raise PlanError(
                f"Expected received rows with weights >= 0 that add up to at most 1 for the robust rule "
                f"{plan.robust.rule}, got weights from {least:g} and sums up to {largest_sum:g} in release "
                f"{r}. Accelerated averaging has such weights: use chebyshev = false."
            )
        max_received = max(max_received, int(others.sum(axis=1).max(initial=0)))
    if max_received == 0:
        raise PlanError(f"Expected received rows in a mix for a robust rule, got none in {plan.protocol}.")
    if plan.robust.compares and max_received == 1:
        raise PlanError(
            f"Expected several received rows in a mix for the robust rule {plan.robust.rule}, got one at a "
            f"time in {plan.protocol}. One row cannot be compared with others. Use dsgd, muffliato or "
            "correlated; or rule = 'clipped' with a given radius."
        )
