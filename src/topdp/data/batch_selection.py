"""The records that each agent uses in a round, as tensors of indices that depend only on (seed, key, round).

If the person is the unit of protection, `select` chooses persons instead, as `plan.batches` counts them, and
`person_records` turns the choice into one of their records.

`plan.batches` defines what a batch is, and by what its sum is divided. Gradients are computed elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import shake_256

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from topdp.base.array_types import Floats, Ints
from topdp.errors import InputError
from topdp.plan.batches import Batches, Cycle, Full, Poisson
from topdp.plan.noise_key import NoiseKey
from topdp.plan.random_streams import stream

Device = str | torch.device | None


@dataclass(frozen=True, eq=False)
class Selection:
    """The records of one round: b per agent, where padding has the weight 0.

    The mean gradient of agent i is the sum over k of weights[i, k] * gradient(record indices[i, k]), divided
    by divisor[i]. If `indices` is None, an agent uses all records in order (b = N_max). If `weights` is None,
    all weights are 1.
    """

    indices: Tensor | None
    """[n, b], int64."""
    weights: Tensor | None
    """[n, b], float32, 0 or 1; for the records of persons, up to 1 over the records of the person."""
    divisor: Tensor
    """[n], float32."""

    def padded(self, width: int) -> Selection:
        """Return the same records with padding up to `width` per agent, unless agents use all records.

        Matrix products of other shapes are rounded differently. This may switch a unit of a model on or off,
        and so change a record's gradient.
        """
        if self.indices is None or self.weights is None:
            return self
        more = (0, max(0, width - self.indices.shape[1]))
        return Selection(functional.pad(self.indices, more), functional.pad(self.weights, more), self.divisor)


def select(
    batches: Sequence[Batches], seed: int, round: int, device: Device = None, key: NoiseKey | None = None
) -> Selection:
    """Return the records of `round`, with one batch per agent.

    All agents must have batches of one kind. `Full`: all records. `Cycle`: the shard is shuffled once and cut
    into batches, of which this is number `round` modulo the period. `Poisson`: a random choice that is new in
    every round, padded to the longest batch (at least 1).

    **Guarantees.** In every round, the divisor is that of the batches. The order of a cycle follows from the
    public `seed` alone. Poisson choices follow from the secret `key` alone, which they need: whoever knows a
    choice has no amplification by sampling. The choice of a round is independent of those of other rounds.

    >>> select([Full(3), Full(3)], seed=0, round=7).divisor.tolist()
    [3.0, 3.0]
    >>> select([Cycle(3, size=1)], seed=0, round=2).indices.shape
    torch.Size([1, 1])
    """
    return select_many(batches, seed, range(round, round + 1), device, key)[0]


def select_many(
    batches: Sequence[Batches], seed: int, rounds: range, device: Device = None, key: NoiseKey | None = None
) -> list[Selection]:
    """Return the result of `select` for each of `rounds`. This is faster than one call per round.

    >>> [chosen.indices.tolist() for chosen in select_many([Cycle(4, size=2)], 0, range(2))]
    [[[2, 3]], [[1, 0]]]
    """
    frozen_batches, device_name = tuple(batches), str(device or "cpu")
    kinds = {type(batch) for batch in frozen_batches}
    if kinds == {Full}:
        return [_full_batches(frozen_batches, device_name)] * len(rounds)
    if kinds == {Cycle}:
        return _cycle_batches(frozen_batches, seed, rounds, device_name)
    if kinds == {Poisson}:
        if key is None:
            raise InputError("Expected a key for Poisson batches, which must be secret, got none.")
        return [_poisson_batch(frozen_batches, key, round, device_name) for round in rounds]
    got = ", ".join(sorted(kind.kind for kind in kinds)) or "none"
    raise InputError(f"Expected batches of one kind, one for each agent, got {got}.")


def select_for_agents(
    agents: Sequence[int],
    batches: Sequence[Batches],
    seed: int,
    round: int,
    device: Device = None,
    key: NoiseKey | None = None,
) -> Selection:
    """Return the rows of `agents` in the result of `select`, where `batches` are those of all agents."""
    selection, rows = select(batches, seed, round, device, key), list(agents)
    return Selection(
        None if selection.indices is None else selection.indices[rows],
        None if selection.weights is None else selection.weights[rows],
        selection.divisor[rows],
    )


@lru_cache(maxsize=8)
def _full_batches(batches: tuple[Batches, ...], device: str) -> Selection:
    counts = [batch.records for batch in batches]
    N, divisor = torch.tensor(counts, device=device), _divisor(batches, device)
    if len(set(counts)) == 1:
        return Selection(None, None, divisor)
    return Selection(None, (torch.arange(max(counts), device=device) < N[:, None]).float(), divisor)


def _cycle_batches(batches: tuple[Batches, ...], seed: int, rounds: range, device: str) -> list[Selection]:
    indices, weights, periods, divisor = _cycles(batches, seed, device)
    turns = torch.from_numpy(np.asarray(rounds)[:, None] % periods).to(indices.device)
    row = torch.arange(len(batches), device=indices.device)
    selections = zip(indices[row, turns], weights[row, turns], strict=True)
    return [Selection(chosen, weight, divisor) for chosen, weight in selections]


@lru_cache(maxsize=8)
def _cycles(batches: tuple[Batches, ...], seed: int, device: str) -> tuple[Tensor, Tensor, Ints, Tensor]:
    """Return all batches of all agents: the indices and weights of records, the periods and the divisors.

    Indices and weights are [n, longest period, largest size]; periods and divisors are [n].
    """
    periods = np.array([batch.period for batch in batches])
    shape = (len(batches), int(periods.max()), max(batch.max_records for batch in batches))
    indices, weights = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    for agent, batch in enumerate(batches):
        assert isinstance(batch, Cycle)
        order = stream(seed, "cycle", agent).permutation(batch.records)
        turn = batch.batch_of(np.arange(batch.records))
        position = np.arange(batch.records) - np.searchsorted(turn, turn)
        indices[agent, turn, position] = order
        weights[agent, turn, position] = 1
    return (
        torch.from_numpy(indices).to(device),
        torch.from_numpy(weights).to(device),
        periods,
        _divisor(batches, device),
    )


@lru_cache(maxsize=8)
def _poisson_settings(batches: tuple[Batches, ...], device: str) -> tuple[Ints, Floats, int, Tensor]:
    """Return the record counts and rates [n, 1], the largest expected batch, and the divisors [n]."""
    N = np.array([batch.records for batch in batches])[:, None]
    q = np.array([batch.rate for batch in batches])[:, None]
    return N, q, max(batch.typical_records for batch in batches), _divisor(batches, device)


def typical_batch_width(batches: Sequence[Batches]) -> int:
    """Return the largest number of records of one agent in a round.

    For Poisson batches, return a number that is hardly ever exceeded.
    """
    largest = max(batch.typical_records for batch in batches)
    if not any(isinstance(batch, Poisson) for batch in batches):
        return largest
    return min(max(batch.records for batch in batches), _geometric_draws(largest))


def _geometric_draws(largest: int) -> int:
    return int(largest + 6 * largest**0.5) + 4


def _poisson_batch(batches: tuple[Batches, ...], key: NoiseKey, round: int, device: str) -> Selection:
    N, q, largest, divisor = _poisson_settings(batches, device)
    # If records are chosen by independent trials, the gaps between chosen records are geometric. So this is
    # exact Poisson sampling, and its cost depends on the number of chosen records instead of all records.
    columns, part = _geometric_draws(largest), 0
    places = np.cumsum(_geometric(q, columns, key.derive("poisson", round, part)), axis=1) - 1
    while (places[:, -1] < N[:, 0]).any():
        part += 1
        more = np.cumsum(_geometric(q, columns, key.derive("poisson", round, part)), axis=1)
        places = np.concatenate([places, places[:, -1:] + more], axis=1)
    chosen = places < N
    longest = max(1, int(chosen.sum(axis=1).max()))
    chosen = chosen[:, :longest]
    indices = np.where(chosen, places[:, :longest], 0)
    return Selection(
        torch.from_numpy(indices).to(device),
        torch.from_numpy(chosen.astype(np.float32)).to(device),
        divisor,
    )


def _geometric(q: Floats, columns: int, key: bytes) -> Ints:
    """Return [n, columns] geometric numbers from 1 on, with the probabilities q [n, 1], from a secret key."""
    words = np.frombuffer(shake_256(key).digest(8 * len(q) * columns), "<u8").reshape(len(q), columns)
    u = (words + 1.0) * 2.0**-64  # in (0, 1]
    # P(gap > k) = (1 - q)^k = P(u <= (1 - q)^k). Gaps are cut off far beyond the end of any shard.
    with np.errstate(divide="ignore"):  # q = 1: every gap is 1
        gaps = np.minimum(np.log(u) / np.log1p(-q), 2.0**40)
    return 1 + np.floor(gaps).astype(np.int64)


def _divisor(batches: tuple[Batches, ...], device: str) -> Tensor:
    """Return the divisors [n] in float32, rounded up, so that no release exceeds its sensitivity."""
    exact = np.array([batch.divisor for batch in batches])
    rounded = exact.astype(np.float32)
    rounded = np.where(rounded < exact, np.nextafter(rounded, np.float32(np.inf)), rounded)
    return torch.from_numpy(rounded).to(device)
