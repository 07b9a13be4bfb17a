"""Partitions: no record belongs to two agents, sizes are as stated, and rejections state the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topdp.data import PARTITIONS, partition
from topdp.errors import DataError, InputError

LABELS = np.repeat(np.arange(10), 60)
OPTIONS: dict[str, dict[str, Any]] = {
    "iid": {},
    "dirichlet": {"alpha": 1.0},
    "label": {"labels_per_agent": 2},
    "sizes": {"ratio": 3.0},
}


@given(
    kind=st.sampled_from(sorted(PARTITIONS)),
    agents=st.integers(1, 12),
    records=st.integers(60, 300),
    classes=st.integers(2, 5),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150)
def test_no_record_has_two_agents(kind: str, agents: int, records: int, classes: int, seed: int) -> None:
    labels = np.arange(records) % classes
    parts = partition(labels, agents, kind, seed, **OPTIONS[kind])
    together = np.concatenate(parts)
    assert len(parts) == agents and all(len(part) >= 1 and part.dtype == np.int64 for part in parts)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0 and together.max() < records


@pytest.mark.parametrize("kind", sorted(PARTITIONS))
def test_the_seed_determines_the_partition(kind: str) -> None:
    first, again, other = (partition(LABELS, 6, kind, seed, **OPTIONS[kind]) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("kind", sorted(PARTITIONS))
def test_fewer_records_than_agents_are_rejected(kind: str) -> None:
    with pytest.raises(DataError, match="at least 7 records for 7 agents, got 5"):
        partition(np.zeros(5, int), 7, kind, 0, **OPTIONS[kind])


def test_iid_gives_equal_sizes_and_leaves_out_less_than_one_record_per_agent() -> None:
    parts = partition(LABELS, 7, "iid", 0)
    assert [len(part) for part in parts] == [85] * 7
    # Shuffled: an agent sees all labels, which lie in order in LABELS.
    assert all(len(np.unique(LABELS[part])) == 10 for part in parts)


def test_dirichlet_assigns_all_records_and_alpha_sets_the_skew() -> None:
    def skew(alpha: float) -> float:
        parts = partition(LABELS, 5, "dirichlet", 3, alpha=alpha)
        assert sum(map(len, parts)) == len(LABELS)
        shares = np.array([np.bincount(LABELS[part], minlength=10) / 60 for part in parts])
        return float(shares.max(axis=0).mean())

    assert skew(0.05) > 0.8 > skew(1.0) > skew(1000.0)
    assert skew(1000.0) == pytest.approx(0.2, abs=0.05)


def test_dirichlet_keeps_the_minimum_or_explains_why_not() -> None:
    parts = partition(LABELS, 10, "dirichlet", 0, alpha=0.3, minimum=20)
    assert min(map(len, parts)) >= 20
    with pytest.raises(
        DataError, match=r"at least 60 records; in 5 draws of Dirichlet\(0\.01\).*larger alpha"
    ):
        partition(LABELS, 10, "dirichlet", 0, alpha=0.01, minimum=60, attempts=5)
    with pytest.raises(DataError, match="at least 610 records for 10 agents with 61 records each, got 600"):
        partition(LABELS, 10, "dirichlet", 0, minimum=61)


@pytest.mark.parametrize("wanted", [1, 2, 10])
def test_label_gives_each_agent_the_stated_number_of_labels(wanted: int) -> None:
    parts = partition(LABELS, 20, "label", 5, labels_per_agent=wanted)
    assert [len(np.unique(LABELS[part])) for part in parts] == [wanted] * 20
    assert sum(map(len, parts)) == len(LABELS)
    held = sum(np.isin(np.arange(10), LABELS[part]).astype(int) for part in parts)
    assert np.ptp(held) == 0


def test_label_refuses_impossible_numbers_of_labels() -> None:
    with pytest.raises(DataError, match=r"labels_per_agent in 1\.\.10, got 11"):
        partition(LABELS, 5, "label", 0, labels_per_agent=11)
    with pytest.raises(DataError, match="one record of label 1 for each of the 5 agents"):
        partition(np.array([0] * 9 + [1] * 2), 5, "label", 0, labels_per_agent=2)


def test_sizes_by_counts_fractions_and_ratio() -> None:
    def sizes(**given: Any) -> list[int]:
        return [len(part) for part in partition(LABELS, 3, "sizes", 0, **given)]

    assert sizes(sizes=[5, 1, 300]) == [5, 1, 300]
    assert sizes(sizes=[0.1, 0.2, 0.7]) == [60, 120, 420]
    first, second, third = sizes(ratio=4.0)
    assert first / third == pytest.approx(4, rel=0.05) and second / third == pytest.approx(2, rel=0.05)
    assert len(LABELS) - 3 < first + second + third <= len(LABELS)


@pytest.mark.parametrize(
    ("given", "error", "reason"),
    [
        ({}, InputError, "exactly one"),
        ({"sizes": [1, 1, 1], "ratio": 2.0}, InputError, "exactly one"),
        ({"sizes": [1, 1]}, InputError, "one size for each of 3 agents"),
        ({"sizes": [0, 1, 1]}, DataError, "got 0 of 600 for agent 0"),
        ({"sizes": [600, 1, 1]}, DataError, "at most 600 records, got 602"),
        ({"sizes": [0.9, 0.2, 0.1]}, InputError, "sum of at most 1"),
        ({"sizes": [0.5, float("nan"), 0.1]}, InputError, "fractions above 0"),
        ({"ratio": 0.5}, InputError, "ratio >= 1"),
        ({"ratio": 1e4}, DataError, "got 0 of 600 for agent 2"),
    ],
)
def test_impossible_sizes_are_refused(given: dict[str, Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        partition(LABELS, 3, "sizes", 0, **given)


def test_unknown_kinds_and_options_are_named() -> None:
    with pytest.raises(InputError, match="one of the partitions iid, dirichlet, label, sizes, got 'zipf'"):
        partition(LABELS, 3, "zipf", 0)
    with pytest.raises(InputError, match="only the options alpha, minimum, attempts, got beta"):
        partition(LABELS, 3, "dirichlet", 0, beta=1)
    with pytest.raises(InputError, match="at least 1 agent, got 0"):
        partition(LABELS, 0, "iid", 0)
    with pytest.raises(InputError, match="alpha > 0, got -1"):
        partition(LABELS, 3, "dirichlet", 0, alpha=-1)


@pytest.mark.parametrize("kind", ["label", "dirichlet"])
@pytest.mark.parametrize("targets", [np.arange(20) / 3, np.zeros((20, 2), int)])
def test_only_labels_can_be_partitioned_by_label(kind: str, targets: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"one integer label for each record .* partition iid or sizes"):
        partition(targets, 2, kind, 0)
    assert len(partition(targets, 2, "iid", 0)) == 2
