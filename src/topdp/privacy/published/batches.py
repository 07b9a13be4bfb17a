"""Which of an agent's records a release averages, and what one record can change in it.

Not for drawing batches: the engine does that, as the plan says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, SupportsIndex, get_args

from topdp.privacy.basics.errors import PrivacyError, expect_count

Adjacency = Literal["add-remove", "replace-one"]
Kind = Literal["full", "cycle", "poisson"]


@dataclass(frozen=True)
class Batches:
    """How the `records` of an agent enter its releases, each a sum of clipped gradients divided by `size`.

    `full`: every record in every release. `cycle`: fixed batches of `size` records, taken in turn, so that a
    record is in every `period`-th release. `poisson`: each record in each release by its own coin of
    probability `rate` = size / records; `size` is then the expected number.

    **Guarantees.** The divisor is `size`, public, and stays when a record comes or goes (a short last batch
    of a cycle is divided by `size` too). Under `add-remove` one record then moves a release by at most C /
    size, under `replace-one` by 2C / size, with C the clip. In a cycle a record keeps its place in both data
    sets.

    >>> Batches.cycle(records=2000, size=20).participations(1001)
    11
    """

    records: int
    size: int
    kind: Kind = "full"

    def __post_init__(self) -> None:
        expect_count("records", self.records)
        expect_count("batch size", self.size)
        if self.kind not in get_args(Kind):
            raise PrivacyError(
                f"Expected batches kind={self.kind!r} to be one of {', '.join(get_args(Kind))}."
            )
        if self.size > self.records or (self.kind == "full" and self.size != self.records):
            raise PrivacyError(
                f"Expected batch size={self.size} <= records={self.records}, and equal for full batches."
            )

    @staticmethod
    def full(records: SupportsIndex) -> Batches:
        count = expect_count("records", records)
        return Batches(count, count, "full")

    @staticmethod
    def cycle(records: SupportsIndex, size: SupportsIndex) -> Batches:
        return Batches(expect_count("records", records), expect_count("batch size", size), "cycle")

    @staticmethod
    def poisson(records: SupportsIndex, size: SupportsIndex) -> Batches:
        return Batches(expect_count("records", records), expect_count("batch size", size), "poisson")

    @property
    def sampled(self) -> bool:
        """Whether chance decides which records a release averages."""
        return self.kind == "poisson" and self.size < self.records

    @property
    def rate(self) -> float:
        """The share of the records in one release."""
        return self.size / self.records

    @property
    def period(self) -> int:
        """After how many releases a record comes again, where that is certain (1: it is in all of them)."""
        return -(-self.records // self.size) if self.kind == "cycle" else 1

    def participations(self, releases: SupportsIndex) -> int:
        """In how many of so many releases one record can be."""
        return cyclic_releases(releases, self.period)

    def sensitivity(self, adjacency: Adjacency = "add-remove") -> float:
        """Δ / C: how far one record moves one release, per unit of clip."""
        return expect_adjacency(adjacency) / self.size


def cyclic_releases(releases: SupportsIndex, period: SupportsIndex) -> int:
    """⌈T / p⌉: the most of T releases that hold one record when it is used every p-th time."""
    return -(-expect_count("releases", releases) // expect_count("period", period))


def expect_adjacency(adjacency: str) -> int:
    """How many clipped gradients may differ: 1 under add-remove, 2 under replace-one."""
    if adjacency not in get_args(Adjacency):
        raise PrivacyError(f"Expected adjacency={adjacency!r} to be one of {', '.join(get_args(Adjacency))}.")
    return 1 if adjacency == "add-remove" else 2
