"""Batch selection: the records used, the stated divisor, and draws that depend only on seed and round."""

from __future__ import annotations

from hashlib import sha256
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from topdp.data import batch_selection
from topdp.data.batch_selection import Selection, select_many, typical_batch_width
from topdp.errors import InputError
from topdp.plan import Batches, Cycle, Full, Poisson
from topdp.plan.noise_key import NoiseKey

KNOWN = {"full": "b7111f67426b821e", "cycle": "5edf86dfa597cc06", "poisson": "ae405b31a5062d71"}
"""Of the first version: the bytes of indices, weights and divisor of one round."""


def select(batches: list[Batches], seed: int, round: int) -> Selection:
    return batch_selection.select(batches, seed, round, key=NoiseKey.of_seed(seed))


def used(batches: list[Batches], seed: int, round: int) -> list[list[int]]:
    """The records each agent uses, one entry per unit of weight."""
    selection = select(batches, seed, round)
    n, longest = len(batches), max(one.records for one in batches)
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
@settings(max_examples=150)
def test_selection_contract(counts: tuple[int, ...], size: int, kind: str, seed: int, round: int) -> None:
    batches: list[Batches] = [
        Full(count) if kind == "full" else (Cycle if kind == "cycle" else Poisson)(count, size)
        for count in counts
    ]
    records = used(batches, seed, round)
    for count, own in zip(counts, records, strict=True):
        assert len(set(own)) == len(own)
        assert all(0 <= record < count for record in own)
    # Draws of other rounds have no effect: a resumed run equals an uninterrupted one.
    for other in (0, round + 1):
        select(batches, seed, other)
    assert used(batches, seed, round) == records
    # The divisor is the same in every round, and is the one that accountants use.
    divisors = [select(batches, seed, other).divisor.tolist() for other in (0, round)]
    assert divisors[0] == divisors[1] == [1 / one.sensitivity() for one in batches]
    if kind != "poisson":
        later = [round + one.period for one in batches]
        assert [used(batches, seed, r)[i] for i, r in enumerate(later)] == records


def test_full_batches_need_no_indices_if_sizes_are_equal() -> None:
    selection = select([Full(5), Full(5)], 0, 0)
    assert selection.indices is None and selection.weights is None and selection.divisor.tolist() == [5, 5]
    assert used([Full(2), Full(4)], 0, 0) == [[0, 1], [0, 1, 2, 3]]


def test_cycle_uses_every_record_once_in_its_period() -> None:
    cycle: list[Batches] = [Cycle(10, 3), Cycle(7, 3), Cycle(3, 3)]
    for agent, (one, period) in enumerate(zip(cycle, (4, 3, 1), strict=True)):
        batches = [used(cycle, 5, round)[agent] for round in range(2 * period)]
        assert sorted(chain.from_iterable(batches[:period])) == list(range(one.records))
        assert batches[:period] == batches[period:]
        assert all(len(batch) == 3 for batch in batches[: one.records // 3])
    assert select(cycle, 5, 3).divisor.tolist() == [3, 3, 3]
    assert used(cycle, 5, 0) != used(cycle, 6, 0)


def test_shards_smaller_than_the_cycle_have_empty_batches() -> None:
    mean = (2 + 100) / 2
    batches: list[Batches] = [Cycle(2, 5, mean_records=mean), Cycle(100, 5, mean_records=mean)]
    rounds = [used(batches, 3, round) for round in range(batches[0].period)]
    assert batches[0].period == batches[1].period == 11
    for agent, one in enumerate(batches):
        assert sorted(chain.from_iterable(own[agent] for own in rounds)) == list(range(one.records))
    assert sorted(len(own[0]) for own in rounds) == [0] * 9 + [1] * 2
    assert select(batches, 3, 0).divisor.tolist() == [5, 5]


def test_poisson_batches_of_unequal_shards_have_one_rate() -> None:
    mean, rounds = (10 + 90) / 2, 3000
    batches: list[Batches] = [Poisson(10, 5, mean_records=mean), Poisson(90, 5, mean_records=mean)]
    sizes = np.array([[len(own) for own in used(batches, 4, round)] for round in range(rounds)])
    for agent, one in enumerate(batches):
        expected, deviation = 0.1 * one.records, np.sqrt(0.1 * 0.9 * one.records / rounds)
        assert abs(sizes[:, agent].mean() - expected) < 5 * deviation


def test_the_divisor_is_rounded_up() -> None:
    """A smaller divisor would let a record exceed its sensitivity."""
    batches: list[Batches] = [Full(1, mean_records=1 + 2**-30), Full(3, mean_records=10 / 3, weight=0.7)]
    divisor = select(batches, 0, 0).divisor.double().numpy()
    exact = np.array([one.divisor for one in batches])
    assert (divisor >= exact).all() and (divisor <= exact * (1 + 2**-23)).all()


def test_cycle_shuffles_each_agent_separately() -> None:
    first, second = used([Cycle(50, 50)] * 2, 0, 0)
    assert first != second and first != sorted(first)


def test_agents_may_have_batches_of_different_sizes() -> None:
    """Each agent's draws do not depend on the batch sizes of other agents."""
    cycle: list[Batches] = [Cycle(10, 3), Cycle(12, 5)]
    for round in range(8):
        assert used(cycle, 2, round) == [
            used([Cycle(10, 3), Cycle(12, 3)], 2, round)[0],
            used([Cycle(10, 5), Cycle(12, 5)], 2, round)[1],
        ]
    drawn = [used([Poisson(40, 2), Poisson(40, 20)], 2, round) for round in range(400)]
    few, many = (np.mean([len(own[agent]) for own in drawn]) for agent in (0, 1))
    assert abs(few - 2) < 0.35 and abs(many - 20) < 0.8


def test_poisson_batches_are_independent_samples_at_the_stated_rate() -> None:
    counts, size, rounds = (20, 8), 4, 4000
    taken = [np.zeros((rounds, count), bool) for count in counts]
    for round in range(rounds):
        for agent, own in enumerate(used([Poisson(count, size) for count in counts], 11, round)):
            taken[agent][round, own] = True
    for matrix, count in zip(taken, counts, strict=True):
        q = size / count
        # Every record has probability q (chi-squared over records), and sizes are binomial.
        z = (matrix.sum(axis=0) - rounds * q) / np.sqrt(rounds * q * (1 - q))
        assert stats.chi2.sf((z**2).sum(), count) > 1e-4
        observed = np.bincount(matrix.sum(axis=1), minlength=count + 1)
        expected = rounds * stats.binom.pmf(np.arange(count + 1), count, q)
        big = expected > 5
        assert stats.chi2.sf(((observed - expected)[big] ** 2 / expected[big]).sum(), big.sum() - 1) > 1e-4
        # Records are sampled independently,
        correlation = np.corrcoef(matrix.T) - np.eye(count)
        assert np.abs(correlation).max() < 5 / np.sqrt(rounds)
    # and so are agents and rounds.
    assert abs(np.corrcoef(taken[0].sum(axis=1), taken[1].sum(axis=1))[0, 1]) < 5 / np.sqrt(rounds)
    assert abs(np.corrcoef(taken[0][1:, 0], taken[0][:-1, 0])[0, 1]) < 5 / np.sqrt(rounds)


def test_poisson_at_extreme_rates() -> None:
    assert used([Poisson(4, 4)] * 2, 0, 0) == [[0, 1, 2, 3]] * 2
    empty = [used([Poisson(50, 1)], 0, round)[0] == [] for round in range(200)]
    assert 40 < sum(empty) < 110  # (1 - 1/50)^50 = 0.364 of all rounds
    selection = select([Poisson(50, 1)], 0, empty.index(True))
    assert selection.weights is not None and selection.weights.tolist() == [[0.0]]


@pytest.mark.parametrize("batches", [[], [Full(4), Cycle(4, 2)], [Poisson(4, 2), Cycle(4, 2)]])
def test_batches_of_several_kinds_are_rejected(batches: list[Batches]) -> None:
    with pytest.raises(InputError, match="batches of one kind"):
        select(batches, 0, 0)


def known(selection: Selection) -> str:
    tensors = [selection.indices, selection.weights, selection.divisor]
    return sha256(b"".join(t.contiguous().numpy().tobytes() for t in tensors if t is not None)).hexdigest()[
        :16
    ]


@pytest.mark.parametrize("kind", KNOWN)
def test_the_records_that_a_seed_draws_never_change(kind: str) -> None:
    """A run continues, and a federation agrees, only if every version draws the same records."""
    batches: dict[str, list[Batches]] = {
        "full": [Full(20), Full(8), Full(9)],
        "cycle": [Cycle(20, 5), Cycle(8, 5), Cycle(9, 5)],
        "poisson": [Poisson(20, 5), Poisson(8, 5), Poisson(9, 5)],
    }
    assert known(select(batches[kind], 7, 5)) == KNOWN[kind]


@pytest.mark.parametrize("kind", [Full, Cycle, Poisson])
def test_select_many_equals_select_for_each_round(kind):
    batches = [kind(count) if kind is Full else kind(count, 3) for count in (10, 17, 4)]
    for round, chosen in zip(
        range(5, 12), select_many(batches, 3, range(5, 12), key=NoiseKey.of_seed(3)), strict=True
    ):
        expected = select(batches, 3, round)
        for one, other in zip(vars(chosen).values(), vars(expected).values(), strict=True):
            assert (one is None and other is None) or (one.dtype == other.dtype and torch.equal(one, other))


def test_poisson_batches_rarely_exceed_their_typical_width():
    batches = [Poisson(2000, 20)] * 30
    assert typical_batch_width(batches) == 50 and typical_batch_width([Poisson(3, 3)]) == 3
    assert typical_batch_width([Cycle(9, 4), Cycle(9, 2)]) == 4
    longest = [
        chosen.indices.shape[1] for chosen in select_many(batches, 0, range(200), key=NoiseKey.of_seed(0))
    ]
    assert 28 < max(longest) <= 50
