"""Batches: divisor, period, sampling rate, sensitivity, and their description in words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topdp.errors import InputError
from topdp.plan.batches import Batches, Cycle, Full, Poisson, expect_adjacency


def test_period_rate_and_participations_of_the_papers_batches() -> None:
    batches = Cycle(2000, 20)
    assert (batches.period, batches.rate, batches.participations(1001)) == (100, 0.01, 11)
    assert Cycle(2001, 20).period == 101
    assert Poisson(2000, 20).participations(1001) == 1001
    assert Full(2000).sensitivity("replace-one") == 1e-3


@given(records=st.integers(1, 500), size=st.integers(1, 500), releases=st.integers(1, 500))
def test_divisor_sensitivity_and_rate_follow_from_the_counts(records: int, size: int, releases: int) -> None:
    size = min(size, records)
    each: list[Batches] = [Full(records), Cycle(records, size), Poisson(records, size)]
    assert [one.divisor for one in each] == [records, size, size]
    for one in each:
        assert one.sensitivity() == 1 / one.divisor and one.sensitivity("replace-one") == 2 / one.divisor
        assert one.rate == one.divisor / records and one.max_records >= one.typical_records == one.divisor
        assert one.participations(releases) == len(range(0, releases, one.period))
    # A batch of all records is a full batch to an accountant, whether it is sampled or cyclic.
    for one in each[1:] if size == records else []:
        assert (one.period, one.sampled, str(one)) == (1, False, str(each[0]))


def test_equal_batches_are_equal_objects_also_with_numpy_counts() -> None:
    assert Cycle(10, 3) == Cycle(np.int64(10), np.int32(3)) != Poisson(10, 3)
    assert len({Full(5), Full(5), Full(6)}) == 2
    assert repr(Cycle(np.int64(10), np.int32(3))) == "Cycle(records=10, size=3)"


def test_str_states_when_a_record_is_used() -> None:
    assert [str(one) for one in (Full(40), Cycle(40, 2), Poisson(40, 3), Cycle(40, 40))] == [
        "in every round",
        "once in 20 rounds",
        "in each round with probability 0.075",
        "in every round",
    ]


@pytest.mark.parametrize("bad", [0, -3, 2.5, True, "7"])
def test_invalid_counts_are_rejected_by_name(bad: int) -> None:
    for kind in (Cycle, Poisson):
        with pytest.raises(InputError, match=r"^Expected (a whole number as )?records( >= 1)?, got "):
            kind(bad, 1)
        with pytest.raises(InputError, match=r"^Expected (a whole number as )?batch size( >= 1)?, got "):
            kind(10, bad)
    with pytest.raises(InputError, match=r"^Expected (a whole number as )?records( >= 1)?, got "):
        Full(bad)
    with pytest.raises(InputError, match=r"^Expected (a whole number as )?releases( >= 1)?, got "):
        Full(10).participations(bad)


@pytest.mark.parametrize("kind", [Cycle, Poisson])
def test_batches_larger_than_the_record_count_are_rejected(kind: type[Cycle] | type[Poisson]) -> None:
    with pytest.raises(InputError, match="Expected a batch size <= 10 records, got 20"):
        kind(10, 20)


def test_unknown_adjacencies_are_rejected() -> None:
    with pytest.raises(InputError, match="got 'swap'"):
        expect_adjacency("swap")
    with pytest.raises(InputError, match="got 'swap'"):
        Full(3).sensitivity("swap")  # type: ignore[arg-type]


@given(
    records=st.lists(st.integers(1, 300), min_size=1, max_size=8),
    size=st.integers(1, 300),
    weight=st.sampled_from([1.0, 0.5, 0.1]),
)
def test_batches_of_the_mean_shard_give_every_agent_one_sensitivity(
    records: list[int], size: int, weight: float
) -> None:
    mean = sum(records) / len(records)
    size = max(1, min(size, int(mean)))
    for make in (Full, lambda n, **more: Cycle(n, size, **more), lambda n, **more: Poisson(n, size, **more)):
        each = [make(count, mean_records=mean, weight=weight) for count in records]
        assert len({one.sensitivity() for one in each}) == len({one.participation for one in each}) == 1
        assert len({one.releases_per_pass for one in each}) == 1
        # The average of all agents is the weighted gradient of the pooled records.
        assert np.mean([one.share for one in each]) == pytest.approx(weight)
        # An agent with the mean number of records has batches as if all agents had that many.
        if mean == int(mean):
            assert make(int(mean), mean_records=mean) == make(int(mean))
    assert Full(records[0], mean_records=mean, weight=weight).sensitivity() == pytest.approx(weight / mean)


@given(records=st.integers(1, 400), mean=st.floats(1, 400), size=st.integers(1, 400))
def test_a_cycle_deals_every_record_into_one_batch_in_proportion(
    records: int, mean: float, size: int
) -> None:
    cycle = Cycle(records, max(1, min(size, int(mean))), mean_records=mean)
    batch = cycle.batch_of(np.arange(records))
    assert (np.diff(batch) >= 0).all() and batch[0] == 0 and batch[-1] < cycle.period
    assert np.bincount(batch).max() <= cycle.max_records


def test_wrong_mean_shards_and_weights_are_rejected() -> None:
    for mean in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="mean_records > 0"):
            Full(5, mean_records=mean)
    for weight in (0.0, 1.1, float("nan")):
        with pytest.raises(InputError, match="weight > 0 and <= 1"):
            Full(5, weight=weight)
    with pytest.raises(InputError, match=r"batch size <= 2\.5 records"):
        Cycle(100, 3, mean_records=2.5)
