"""Batches: which of an agent's records a release averages, and how much one record can change it.

The batches of each agent are one frozen object. Accountants read its period, rate and sensitivity. The engine
and the agents read its divisor. `data.batch_selection` chooses the records, with torch.

**Guarantees.** A release is a sum of clipped gradients divided by `divisor`. The divisor is public. It does
not depend on which records were drawn, and it does not change when a record is added or removed. (A short
last batch of a cycle is also divided by `size`.) With the clip C, one record therefore moves a release by at
most C / divisor under `add-remove`, and by at most 2C / divisor under `replace-one`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, SupportsIndex, TypeAlias, final, get_args

from topdp.base.number_checks import expect_count
from topdp.errors import InputError

Adjacency = Literal["add-remove", "replace-one"]
"""Which data sets count as neighbouring: one record added or removed, or one record replaced."""


@dataclass(frozen=True)
class _Strategy(ABC):
    """Base class of the three kinds of batches. `records`: the number of records of the agent."""

    kind: ClassVar[str]

    records: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", expect_count("records", self.records))

    @property
    @abstractmethod
    def divisor(self) -> int:
        """The public number by which the sum of clipped gradients is divided."""

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
        return self.divisor / self.records

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
@dataclass(frozen=True)
class Full(_Strategy):
    """Batches that contain every record in every release; the divisor is `records`.

    >>> print(Full(2000), Full(2000).sensitivity("replace-one"))
    in every round 0.001
    """

    kind: ClassVar[str] = "full"

    @property
    def divisor(self) -> int:
        return self.records


@dataclass(frozen=True)
class _MiniBatch(_Strategy):
    """Base class of batches of `size` records; the divisor is `size`."""

    size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", expect_count("batch size", self.size))
        if self.size > self.records:
            raise InputError(
                f"Expected a batch size <= {self.records} records, got {self.size}. Use a smaller size."
            )

    @property
    def divisor(self) -> int:
        return self.size


@final
@dataclass(frozen=True)
class Cycle(_MiniBatch):
    """Fixed batches of `size` records, used in turn: release r uses batch r modulo `period`.

    The number of batches is `period` = ⌈records / size⌉, so a record is used once in every `period` releases.
    The position of a record in the cycle is not secret, and is the same in two neighbouring data sets.
    Accountants therefore use the worst position and claim no amplification.

    >>> batches = Cycle(records=2000, size=20)
    >>> print(batches, batches.participations(1001))
    once in 100 rounds 11
    """

    kind: ClassVar[str] = "cycle"

    @property
    def period(self) -> int:
        return -(-self.records // self.size)


@final
@dataclass(frozen=True)
class Poisson(_MiniBatch):
    """Random batches: each release uses each record independently, with probability `rate` = size / records.

    The divisor is the expected number of records in a batch, not the number that was drawn. Amplification by
    sampling holds only against observers that do not know which records were drawn.

    >>> print(Poisson(records=2000, size=20))
    in each round with probability 0.01
    """

    kind: ClassVar[str] = "poisson"

    @property
    def sampled(self) -> bool:
        return self.size < self.records


Batches: TypeAlias = Full | Cycle | Poisson


def expect_adjacency(adjacency: str) -> int:
    """Return how many clipped gradients may differ: 1 under add-remove, 2 under replace-one.

    Raise InputError if `adjacency` is neither.
    """
    if adjacency not in get_args(Adjacency):
        raise InputError(f"Expected adjacency out of {', '.join(get_args(Adjacency))}, got {adjacency!r}.")
    return 1 if adjacency == "add-remove" else 2
