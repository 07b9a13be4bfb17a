"""Batches: which of an agent's records a release sums, and how much one record can change the release.

The batches of each agent are one frozen object. Accountants read its period, rate and sensitivity. The engine
and the agents read its divisor. `data.batch_selection` chooses the records, with torch.

Sizes refer to a *mean shard* of `mean_records` records. If it is the same number for all agents (records per
agent, on average), every record has the same weight in the average of all agents, and every agent has the
same sensitivity, however many records it holds. If it is an agent's own number of records, the default, the
agent's release is the mean gradient of its own records.

**Guarantees.** A release is a sum of clipped gradients divided by `divisor`. The divisor is public. It does
not depend on which records were drawn, and it does not change when a record counts or does not. (A short
batch of a cycle has the divisor of the others.) With the clip C, one record therefore moves a release by at
most C / divisor under `add-remove`, and by at most 2C / divisor under `replace-one`.

If the person is the unit of protection, all of this holds with persons in place of records: numbers of
records are numbers of persons, and the weighted gradients of one person count as one clipped gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, fields
from fractions import Fraction
from typing import ClassVar, Literal, SupportsIndex, TypeAlias, final, get_args

import numpy as np

from topdp.base.array_types import Ints
from topdp.base.number_checks import expect_count
from topdp.errors import InputError

Adjacency = Literal["add-remove", "replace-one"]
"""Which data sets count as neighbouring: one record added or removed, or one record replaced."""


@dataclass(frozen=True, repr=False)
class _Strategy(ABC):
    """Base class of the three kinds of batches.

    `records`: the number of records of the agent. `mean_records`: that of the mean shard; None: the agent's
    own. `weight`: a public factor of the agent's gradient, in (0, 1].
    """

    kind: ClassVar[str]

    records: int
    _: KW_ONLY
    mean_records: float | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", expect_count("records", self.records))
        mean = self.records if self.mean_records is None else float(self.mean_records)
        if not (math.isfinite(mean) and mean > 0):
            raise InputError(f"Expected a finite number of mean_records > 0, got {mean}.")
        if not 0 < self.weight <= 1:
            raise InputError(f"Expected a weight > 0 and <= 1, got {self.weight}.")
        object.__setattr__(self, "mean_records", None if mean == self.records else mean)
        object.__setattr__(self, "weight", float(self.weight))

    @final
    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.mean_records is None:
            del values["mean_records"]
        if self.weight == 1:
            del values["weight"]
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in values.items())})"

    @property
    @abstractmethod
    def divisor(self) -> float:
        """The public number by which the sum of clipped gradients is divided."""

    @property
    @abstractmethod
    def max_records(self) -> int:
        """The largest number of records that a release can use."""

    @property
    def typical_records(self) -> int:
        """The number of records of a full batch, or the expected number, rounded up."""
        return self.max_records

    @property
    def period(self) -> int:
        """The number of releases from one use of a record to its next use; 1 if every release may use it."""
        return 1

    @property
    def sampled(self) -> bool:
        """Whether the records of a release are drawn at random."""
        return False

    @property
    def rate(self) -> float:
        """The (expected) share of the records that one release uses."""
        return 1.0

    @property
    def releases_per_pass(self) -> int:
        """The number of releases in which each record is (expected to be) used once."""
        return 1

    @final
    @property
    def participation(self) -> tuple[int, float]:
        """How a record is used: (period, probability). If it is equal, agents differ in sensitivity only."""
        return self.period, self.rate if self.sampled else 1.0

    @final
    @property
    def share(self) -> float:
        """The weight of the agent's mean gradient in the average of all agents; 1 for the mean shard."""
        return self.weight * self.records / self._mean

    @final
    def participations(self, releases: SupportsIndex) -> int:
        """Return ⌈releases / period⌉: of `releases` releases, the largest number that can use one record."""
        return -(-expect_count("releases", releases) // self.period)

    @final
    def sensitivity(self, adjacency: Adjacency = "add-remove") -> float:
        """Return Δ / C: the largest change of one release that one record can cause, per unit of the clip."""
        return expect_adjacency(adjacency) / self.divisor

    @final
    def __str__(self) -> str:
        """Return in words how often a record is used."""
        if self.sampled:
            return f"in each round with probability {self.rate:.4g}"
        return "in every round" if self.period == 1 else f"once in {self.period} rounds"

    @final
    @property
    def _mean(self) -> float:
        return self.records if self.mean_records is None else self.mean_records


@final
@dataclass(frozen=True, repr=False)
class Full(_Strategy):
    """Batches that contain every record in every release; the divisor is that of the mean shard.

    >>> print(Full(2000), Full(2000).sensitivity("replace-one"))
    in every round 0.001
    >>> Full(20, mean_records=100).divisor, Full(500, mean_records=100).divisor
    (100.0, 100.0)
    """

    kind: ClassVar[str] = "full"

    @property
    def divisor(self) -> float:
        return self._mean / self.weight

    @property
    def max_records(self) -> int:
        return self.records


@dataclass(frozen=True, repr=False)
class _MiniBatch(_Strategy):
    """Base class of batches with `size` records of the mean shard; the divisor is `size`.

    Other shards have batches in proportion. A shard that is smaller than the number of batches has empty
    batches, which are released like others.
    """

    size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", expect_count("batch size", self.size))
        if self.size > self._mean:
            raise InputError(
                f"Expected a batch size <= {self._mean:g} records, got {self.size}. Use a smaller size."
            )

    @property
    def divisor(self) -> float:
        return self.size / self.weight

    @property
    def rate(self) -> float:
        return self.size / self._mean

    @property
    def releases_per_pass(self) -> int:
        return math.ceil(Fraction(self._mean) / self.size)

    @final
    @property
    def _expected(self) -> int:
        """The number of records of this shard in a batch, rounded up."""
        return math.ceil(Fraction(self.records * self.size) / Fraction(self._mean))


@final
@dataclass(frozen=True, repr=False)
class Cycle(_MiniBatch):
    """Fixed batches that are used in turn: release r uses batch r modulo `period`.

    The number of batches is `period` = ⌈mean_records / size⌉, so a record is used once in every `period`
    releases. The position of a record in the cycle is not secret, and is the same in two neighbouring data
    sets. Accountants therefore use the worst position and claim no amplification.

    >>> batches = Cycle(records=2000, size=20)
    >>> print(batches, batches.participations(1001))
    once in 100 rounds 11
    >>> small = Cycle(records=30, size=20, mean_records=2000)
    >>> small.period, small.max_records, small.divisor
    (100, 1, 20.0)
    """

    kind: ClassVar[str] = "cycle"

    @property
    def period(self) -> int:
        return self.releases_per_pass

    @property
    def max_records(self) -> int:
        return self._expected

    def batch_of(self, position: Ints) -> Ints:
        """Return the batch of the record at each `position` of the order of the cycle."""
        batch = np.floor(position * self._mean / (self.records * self.size)).astype(np.int64)
        return np.minimum(batch, self.period - 1)


@final
@dataclass(frozen=True, repr=False)
class Poisson(_MiniBatch):
    """Random batches: each release uses each record independently, with the probability `rate`.

    The rate is size / mean_records. The divisor does not depend on the records that were drawn. Amplification
    by sampling holds only against observers that do not know which records were drawn.

    >>> print(Poisson(records=2000, size=20))
    in each round with probability 0.01
    >>> Poisson(records=10_000, size=20, mean_records=2000).rate
    0.01
    """

    kind: ClassVar[str] = "poisson"

    @property
    def max_records(self) -> int:
        return self.records

    @property
    def typical_records(self) -> int:
        return self._expected

    @property
    def sampled(self) -> bool:
        return self.size < self._mean


Batches: TypeAlias = Full | Cycle | Poisson


def expect_adjacency(adjacency: str) -> int:
    """Return how many clipped gradients may differ: 1 under add-remove, 2 under replace-one.

    Raise InputError if `adjacency` is neither.
    """
    if adjacency not in get_args(Adjacency):
        raise InputError(f"Expected adjacency out of {', '.join(get_args(Adjacency))}, got {adjacency!r}.")
    return 1 if adjacency == "add-remove" else 2
