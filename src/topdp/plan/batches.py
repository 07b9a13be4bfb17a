"""Batches: which of an agent's records a release averages, and what one record can change in it.

One frozen object per strategy and agent, read by all: the accountants take period, rate and sensitivity from
it, the engine and the agents the divisor. Not for drawing records: `data.selection` does that, with torch.

**Guarantees.** A release is a sum of clipped gradients over `divisor`, which is public, does not depend on
what was drawn, and stays when a record comes or goes (a short last batch of a cycle is divided by `size`
too). So with C the clip, one record moves a release by at most C / divisor under `add-remove`, by
2C / divisor under `replace-one`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, SupportsIndex, TypeAlias, final, get_args

from topdp.base.number_checks import expect_count
from topdp.errors import InputError

Adjacency = Literal["add-remove", "replace-one"]
"""Which data sets count as neighbours: one record more or less, or one record exchanged."""


@dataclass(frozen=True)
class _Strategy(ABC):
    """What the three have in common. `records`: how many the agent holds."""

    kind: ClassVar[str]

    records: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", expect_count("records", self.records))

    @property
    @abstractmethod
    def divisor(self) -> int:
        """What the sum of clipped gradients is divided by."""

    @property
    def period(self) -> int:
        """After how many releases a record comes again, where that is certain (1: it is in all of them)."""
        return 1

    @property
    def sampled(self) -> bool:
        """Whether chance decides which records a release averages."""
        return False

    @property
    def rate(self) -> float:
        """The share of the records in one release."""
        return self.divisor / self.records

    @final
    def participations(self, releases: SupportsIndex) -> int:
        """⌈releases / period⌉: in how many of so many releases one record can be."""
        return -(-expect_count("releases", releases) // self.period)

    @final
    def sensitivity(self, adjacency: Adjacency = "add-remove") -> float:
        """Δ / C: how far one record moves one release, per unit of clip."""
        return expect_adjacency(adjacency) / self.divisor

    @final
    def __str__(self) -> str:
        """When a record is used."""
        if self.sampled:
            return f"in each round with probability {self.rate:.4g}"
        return "in every round" if self.period == 1 else f"once in {self.period} rounds"


@final
@dataclass(frozen=True)
class Full(_Strategy):
    """Every record in every release, as in the paper; the divisor is the number of records.

    >>> print(Full(2000), Full(2000).sensitivity("replace-one"))
    in every round 0.001
    """

    kind: ClassVar[str] = "full"

    @property
    def divisor(self) -> int:
        return self.records


@dataclass(frozen=True)
class _Smaller(_Strategy):
    """Batches of `size` of the records, divided by `size`."""

    size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", expect_count("batch size", self.size))
        if self.size > self.records:
            raise InputError(
                f"Expected batch size={self.size} <= records={self.records}: take smaller batches, or full "
                "ones."
            )

    @property
    def divisor(self) -> int:
        return self.size


@final
@dataclass(frozen=True)
class Cycle(_Smaller):
    """Fixed batches of `size` records in turn: release r averages batch r modulo `period` = ⌈records / size⌉.

    So a record is used once in every `period` releases. Its place in the cycle is not secret, and the same in
    both of two neighbouring data sets: accountants take the worst place, and claim no amplification.

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
class Poisson(_Smaller):
    """Each record in each release by its own coin of probability `rate` = size / records.

    The divisor is the expected number of records, not the drawn one. Amplification by sampling holds only
    against observers who do not know what was drawn.

    >>> print(Poisson(records=2000, size=20))
    in each round with probability 0.01
    """

    kind: ClassVar[str] = "poisson"

    @property
    def sampled(self) -> bool:
        return self.size < self.records


Batches: TypeAlias = Full | Cycle | Poisson


def expect_adjacency(adjacency: str) -> int:
    """How many clipped gradients may differ: 1 under add-remove, 2 under replace-one."""
    if adjacency not in get_args(Adjacency):
        raise InputError(f"Expected adjacency={adjacency!r} to be one of {', '.join(get_args(Adjacency))}.")
    return 1 if adjacency == "add-remove" else 2
