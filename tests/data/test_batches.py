"""Batches: which records take part, the promised divisor, and draws that depend on (seed, round) only."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from topdp.data import Batches, Cycle, DataError, Full, Poisson
from topdp.privacy import published


def used(batches: Batches, counts: tuple[int, ...], seed: int, round: int) -> list[list[int]]:
    """The records each agent uses, one entry per unit of weight."""
    selection = batches.select(counts, seed, round)
    n, longest = len(counts), max(counts)
    indices = torch.arange(longest).expand(n, -1) if selection.indices is None else selection.indices
    weights = torch.ones(indices.shape) if selection.weights is None else selection.weights
    assert indices.shape == weights.shape and indices.dtype == torch.int64 and weights.dtype == torch.float32
    assert bool(((weights == 0) | (weights == 1)).all())
    return [row[mask > 0].tolist() for row, mask in zip(indices, weights, strict=True)]


@given(
    counts=st.lists(st.integers(4, 40), min_size=1, max_size=6).map(tuple),
    size=st.integers(1, 4),
    kind=st.sampled_from(["full", "cycle", "poisson"]),
    seed=st.integers(0, 2**32),
    round=st.integers(0, 10**6),
)
@settings(deadline=None, max_examples=150)
def test_contract(counts: tuple[int, ...], size: int, kind: str, seed: int, round: int) -> None:
    choice: dict[str, Batches] = {"full": Full(), "cycle": Cycle(size), "poisson": Poisson(size)}
    batches = choice[kind]
    records = used(batches, counts, seed, round)
    for count, own in zip(counts, records, strict=True):
        assert len(set(own)) == len(own)
        assert all(0 <= record < count for record in own)
    # What was drawn in other rounds does not matter: a resumed run equals an unbroken one.
    for other in (0, round + 1):
        batches.select(counts, seed, other)
    assert used(batches, counts, seed, round) == records
    # The divisor is the same in every round, and is what an accountant is told.
    divisors = [batches.select(counts, seed, other).divisor.tolist() for other in (0, round)]
    told = [
        published.Batches(count, count if kind == "full" else size, kind)  # type: ignore[arg-type]
        for count in counts
    ]
    assert divisors[0] == divisors[1] == [1 / batch.sensitivity() for batch in told]
    if kind == "cycle":
        later = [round + batch.period for batch in told]
        assert [used(batches, counts, seed, r)[i] for i, r in enumerate(later)] == records


@pytest.mark.parametrize("batches", [Cycle(3), Poisson(3)])
def test_sizes_may_be_a_tensor(batches: Batches) -> None:
    counts = (10, 7, 5)
    ours, theirs = batches.select(counts, 1, 2), batches.select(torch.tensor(counts), 1, 2)
    assert (
        ours.indices is not None and theirs.indices is not None and torch.equal(ours.indices, theirs.indices)
    )


def test_full_needs_no_gather_when_sizes_are_equal() -> None:
    selection = Full().select((5, 5), 0, 0)
    assert selection.indices is None and selection.weights is None and selection.divisor.tolist() == [5, 5]
    assert used(Full(), (2, 4), 0, 0) == [[0, 1], [0, 1, 2, 3]]


def test_cycle_uses_every_record_once_in_its_period() -> None:
    counts, cycle = (10, 7, 3), Cycle(3)
    assert [published.Batches.cycle(count, 3).period for count in counts] == [4, 3, 1]
    for agent, (count, period) in enumerate(zip(counts, (4, 3, 1), strict=True)):
        batches = [used(cycle, counts, 5, round)[agent] for round in range(2 * period)]
        assert sorted(chain.from_iterable(batches[:period])) == list(range(count))
        assert batches[:period] == batches[period:]
        assert all(len(batch) == 3 for batch in batches[: count // 3])
    assert cycle.select(counts, 5, 3).divisor.tolist() == [3, 3, 3]
    assert used(cycle, counts, 5, 0) != used(cycle, counts, 6, 0)


def test_cycle_shuffles_each_agent_by_itself() -> None:
    first, second = used(Cycle(50), (50, 50), 0, 0)
    assert first != second and first != sorted(first)


def test_poisson_is_poisson_sampling() -> None:
    counts, size, rounds = (20, 8), 4, 4000
    taken = [np.zeros((rounds, count), bool) for count in counts]
    for round in range(rounds):
        for agent, own in enumerate(used(Poisson(size), counts, 11, round)):
            taken[agent][round, own] = True
    for matrix, count in zip(taken, counts, strict=True):
        q = size / count
        # Every record with probability q: chi-squared over records, and sizes are binomial.
        z = (matrix.sum(axis=0) - rounds * q) / np.sqrt(rounds * q * (1 - q))
        assert stats.chi2.sf((z**2).sum(), count) > 1e-4
        observed = np.bincount(matrix.sum(axis=1), minlength=count + 1)
        expected = rounds * stats.binom.pmf(np.arange(count + 1), count, q)
        big = expected > 5
        assert stats.chi2.sf(((observed - expected)[big] ** 2 / expected[big]).sum(), big.sum() - 1) > 1e-4
        # Records do not know of each other.
        correlation = np.corrcoef(matrix.T) - np.eye(count)
        assert np.abs(correlation).max() < 5 / np.sqrt(rounds)
    # Nor do agents, nor rounds.
    assert abs(np.corrcoef(taken[0].sum(axis=1), taken[1].sum(axis=1))[0, 1]) < 5 / np.sqrt(rounds)
    assert abs(np.corrcoef(taken[0][1:, 0], taken[0][:-1, 0])[0, 1]) < 5 / np.sqrt(rounds)


def test_poisson_at_the_ends() -> None:
    assert used(Poisson(4), (4, 4), 0, 0) == [[0, 1, 2, 3]] * 2
    empty = [used(Poisson(1), (50,), 0, round)[0] == [] for round in range(200)]
    assert 40 < sum(empty) < 110  # (1 - 1/50)^50 = 0.364 of all rounds
    selection = Poisson(1).select((50,), 0, empty.index(True))
    assert selection.weights is not None and selection.weights.tolist() == [[0.0]]


@pytest.mark.parametrize("kind", [Cycle, Poisson])
def test_refusals(kind: type[Cycle] | type[Poisson]) -> None:
    with pytest.raises(DataError, match=r"at most 5 records, all that agent 1 holds, got 6"):
        kind(6).select((9, 5, 7), 0, 0)
    for size in (0, 2.5):
        with pytest.raises(DataError, match=f"whole size >= 1, got {size}"):
            kind(size)  # type: ignore[arg-type]


def test_describe_is_one_line() -> None:
    assert [batches.describe() for batches in (Full(), Cycle(20), Poisson(20))] == [
        "all records in every round",
        "fixed batches of 20 in a cycle",
        "Poisson sampling, 20 records expected",
    ]
