"""Which of its records an agent uses in a round. Draws indices only; the gradient is taken elsewhere.

The sum of an agent's clipped gradients in a round is divided by a `divisor` that does not depend on the draw,
so that adding or removing one record changes the mean by at most C / divisor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from topdp.errors import DataError
from topdp.plan.arrays import Ints
from topdp.plan.streams import stream

Device = str | torch.device | None
Sizes = Sequence[int] | Tensor
"""The records of each agent: best `Shards.counts`, which costs no transfer from a device."""


@dataclass(frozen=True, eq=False)
class Selection:
    """The records of one round, b per agent, padded with weight 0.

    The mean gradient of agent i is sum over k of weights[i, k] * gradient(record indices[i, k]) / divisor[i].
    `indices` None stands for all records in order (b = N_max), `weights` None for all ones.
    """

    indices: Tensor | None
    """[n, b], int64."""
    weights: Tensor | None
    """[n, b], float32, 0 or 1."""
    divisor: Tensor
    """[n], float32."""


@dataclass(frozen=True)
class Full:
    """Every record in every round, as in the paper. The divisor is the size of the shard.

    Guarantees: the divisor is the agent's number of records, treated as public. The mean changes by at most
    C / N when one record is added or removed and the divisor is held, by 2C / N when one is replaced.
    """

    def select(self, sizes: Sizes, seed: int, round: int, device: Device = None) -> Selection:
        """All records; `seed` and `round` do not matter."""
        counts = _counts(sizes)
        return _full(counts, str(device or "cpu"))

    def describe(self) -> str:
        return "all records in every round"


@dataclass(frozen=True)
class Cycle:
    """Fixed batches in turn: the shard is shuffled once and cut into ceil(N / size) batches.

    Every record is in exactly one batch and is used once in every ceil(N / size) rounds. The last batch may
    be smaller; its divisor is `size` all the same.

    Guarantees: adding or removing one record changes one batch, and its mean by at most C / size, with the
    other records held in their batches. No amplification by sampling is claimed: the order counts as known.
    """

    size: int

    def __post_init__(self) -> None:
        _check_whole("Cycle", self.size)

    def select(self, sizes: Sizes, seed: int, round: int, device: Device = None) -> Selection:
        """Batch `round` mod ceil(N / size) of every agent."""
        counts = _counts(sizes)
        indices, weights, periods, divisor = _cycles(counts, self.size, seed, str(device or "cpu"))
        turn = torch.from_numpy(round % periods).to(indices.device)
        row = torch.arange(len(counts), device=indices.device)
        return Selection(indices[row, turn], weights[row, turn], divisor)

    def describe(self) -> str:
        return f"fixed batches of {self.size} in a cycle"


@dataclass(frozen=True)
class Poisson:
    """Each record independently with probability size / N in each round; the divisor is `size`.

    Guarantees: the divisor is the expected, not the drawn, number of records, so adding or removing one
    record changes the mean by at most C / size. Amplification by sampling holds only against observers who do
    not know the draw.
    """

    size: int

    def __post_init__(self) -> None:
        _check_whole("Poisson", self.size)

    def select(self, sizes: Sizes, seed: int, round: int, device: Device = None) -> Selection:
        """A fresh draw for this `round`, padded to the longest (at least 1)."""
        counts = _counts(sizes)
        _check_size(counts, self.size)
        N = np.array(counts)[:, None]
        q = self.size / N
        generator = stream(seed, "poisson", round)
        # The gaps between the chosen records of independent trials are geometric: this is Poisson sampling
        # exactly, at the cost of the chosen records instead of all of them.
        columns = int(self.size + 6 * self.size**0.5) + 4
        places = np.cumsum(generator.geometric(q, (len(counts), columns)), axis=1) - 1
        while (places[:, -1] < N[:, 0]).any():
            more = np.cumsum(generator.geometric(q, (len(counts), columns)), axis=1)
            places = np.concatenate([places, places[:, -1:] + more], axis=1)
        chosen = places < N
        longest = max(1, int(chosen.sum(axis=1).max()))
        chosen = chosen[:, :longest]
        indices = np.where(chosen, places[:, :longest], 0)
        return Selection(
            torch.from_numpy(indices).to(device or "cpu"),
            torch.from_numpy(chosen.astype(np.float32)).to(device or "cpu"),
            torch.full((len(counts),), float(self.size), device=device),
        )

    def describe(self) -> str:
        return f"Poisson sampling, {self.size} records expected"


Batches = Full | Cycle | Poisson


class Selects(Protocol):
    """Whatever says which records a round uses."""

    def select(self, sizes: Sequence[int], seed: int, round: int, device: Device = None) -> Selection: ...


@lru_cache(maxsize=8)
def _full(counts: tuple[int, ...], device: str) -> Selection:
    N = torch.tensor(counts, device=device)
    if len(set(counts)) == 1:
        return Selection(None, None, N.float())
    return Selection(None, (torch.arange(max(counts), device=device) < N[:, None]).float(), N.float())


@lru_cache(maxsize=8)
def _cycles(
    counts: tuple[int, ...], size: int, seed: int, device: str
) -> tuple[Tensor, Tensor, Ints, Tensor]:
    """All batches of all agents: indices and weights [n, longest period, size], periods [n], divisor [n]."""
    _check_size(counts, size)
    periods = np.array([-(-count // size) for count in counts])
    indices = np.zeros((len(counts), int(periods.max()) * size), np.int64)
    weights = np.zeros(indices.shape, np.float32)
    for agent, count in enumerate(counts):
        indices[agent, :count] = stream(seed, "cycle", agent).permutation(count)
        weights[agent, :count] = 1
    shape = (len(counts), int(periods.max()), size)
    divisor = torch.full((len(counts),), float(size), device=device)
    return (
        torch.from_numpy(indices.reshape(shape)).to(device),
        torch.from_numpy(weights.reshape(shape)).to(device),
        periods,
        divisor,
    )


def _counts(sizes: Sizes) -> tuple[int, ...]:
    return tuple(sizes.tolist()) if isinstance(sizes, Tensor) else tuple(sizes)


def _check_whole(name: str, size: int) -> None:
    if not isinstance(size, int) or size < 1:
        raise DataError(f"Expected {name}(size) with a whole size >= 1, got {size!r}.")


def _check_size(counts: tuple[int, ...], size: int) -> None:
    smallest = min(counts)
    if size > smallest:
        raise DataError(
            f"Expected batches of at most {smallest} records, all that agent {counts.index(smallest)} holds, "
            f"got {size}. Use smaller batches, fewer agents or a more even partition."
        )
