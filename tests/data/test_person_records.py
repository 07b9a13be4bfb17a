"""Persons: their weights, their records in every kind of batch, and identifiers, which become numbers."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from topdp.data import Shards
from topdp.data.batch_selection import select
from topdp.data.person_records import PersonRecords, number_persons, person_weights
from topdp.errors import DataError
from topdp.plan import Cycle, Full, Poisson
from topdp.plan.noise_key import NoiseKey

KEY = NoiseKey.of_seed(0)


def test_the_weights_of_a_person_never_sum_to_more_than_one():
    records = np.array([*range(1, 5000), 2**20 + 1, 2**23 + 9, 2**24 + 1, 2**28 - 1])
    for count, weight in zip(records.tolist(), person_weights(records), strict=True):
        total = count * Fraction(float(weight))
        assert 1 - Fraction(1, 2**22) <= total <= 1
    assert (person_weights(records) > 1 / records).sum() == 0
    assert ((1 / records).astype(np.float32).astype(np.float64) * records > 1).any()  # rounding alone fails


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=30), min_size=1, max_size=4),
    st.sampled_from(["full", "cycle", "poisson"]),
    st.integers(0, 20),
)
def test_a_batch_has_all_records_of_a_person_or_none(persons, kind, round):
    numbers = [np.array(each) for each in persons]
    own = PersonRecords(numbers)
    mean = sum(own.counts) / len(own.counts)
    size = max(1, int(mean / 3))
    make = {
        "full": lambda count: Full(count, mean_records=mean),
        "cycle": lambda count: Cycle(count, size, mean_records=mean),
        "poisson": lambda count: Poisson(count, size, mean_records=mean),
    }[kind]
    batches = [make(count) for count in own.counts]
    chosen = select(batches, 0, round, key=KEY)
    records = own.of_selection(chosen)
    assert torch.equal(records.divisor, chosen.divisor)
    for agent, person in enumerate(numbers):
        width = own.counts[agent] if chosen.indices is None else chosen.indices.shape[1]
        drawn = np.arange(width) if chosen.indices is None else chosen.indices[agent].numpy()
        if chosen.weights is not None:
            drawn = drawn[chosen.weights[agent, : len(drawn)].numpy() > 0]
        first = list(dict.fromkeys(person.tolist()))
        expected = {first[place] for place in drawn}
        at = np.arange(len(person)) if records.indices is None else records.indices[agent].numpy()
        weight = np.ones(len(at)) if records.weights is None else records.weights[agent].numpy()[: len(at)]
        used = at[weight > 0]
        assert sorted(used.tolist()) == np.flatnonzero(np.isin(person, list(expected))).tolist()
        for one in expected:
            total = weight[(weight > 0) & (person[at] == one)].astype(np.float64).sum()
            assert 1 - 1e-6 < total <= 1


@pytest.mark.parametrize("kind", [Full, Cycle, Poisson])
def test_persons_with_one_record_each_are_records(kind):
    own = PersonRecords([np.arange(9), np.array([4, 2, 8])])
    batches = [kind(count, *(() if kind is Full else (2,)), mean_records=6) for count in own.counts]
    chosen = select(batches, 0, 3, key=KEY)
    assert own.of_selection(chosen) is chosen


def test_padded_agents_share_the_layout_of_the_records():
    own = PersonRecords([np.array([0, 0, 0, 1]), np.array([5])])
    records = own.of_selection(select([Full(2), Full(1)], 0, 0))
    assert records.indices is None and records.weights.shape == (2, 4)
    assert records.weights[1].tolist() == [1, 0, 0, 0] and records.weights[0, 3] == 1


def test_layers_take_the_nth_record_of_every_person():
    own = PersonRecords([np.array([0, 1, 0, 0, 2])])
    records, weights = own.nth_record(0, np.array([2, 0, 1]), 1)
    assert records.tolist() == [4, 2, 1] and weights[[0, 2]].tolist() == [0, 0]
    assert weights[1] == person_weights(np.array([3]))[0]


# Identifiers

X, Y = np.zeros((3, 2)), np.array([0, 1, 0])


def test_shards_contain_numbers_in_place_of_identifiers():
    shards = Shards.from_arrays([(X, Y), (X, Y)], persons=[["ann", "bob", "ann"], ["cem", "cem", "cem"]])
    assert shards.persons.tolist() == [[0, 1, 0], [2, 2, 2]]
    assert shards.unit_counts == (2, 1) and shards.sites_per_person == 1
    assert "ann" not in repr([getattr(shards, field.name) for field in fields(shards)])
    assert shards.pooled().unit_counts == (3,) and shards.padded(5).unit_counts == (2, 1)


def test_a_person_at_two_agents_is_one_person():
    shards = Shards.from_arrays([(X, Y), (X, Y)], persons=[[1, 2, 2], np.array(["2", "3", "4 "])])
    assert shards.sites_per_person == 2 and shards.pooled().unit_counts == (4,)


def test_the_digest_depends_on_who_has_which_records():
    one, other, none = (
        Shards.from_arrays([(X, Y)], persons=persons)
        for persons in ([["a", "b", "a"]], [["a", "a", "b"]], None)
    )
    renamed = Shards.from_arrays([(X, Y)], persons=[[7, 3, 7]])
    assert len({one.digest(), other.digest(), none.digest()}) == 3 and one.digest() == renamed.digest()


@pytest.mark.parametrize("missing", [None, float("nan"), "", " NA "])
def test_a_missing_identifier_is_refused(missing):
    with pytest.raises(DataError, match="person identifier for every record, got none for 1 of 3"):
        Shards.from_arrays([(X, Y)], persons=[["a", missing, "b"]])


@pytest.mark.parametrize("persons", [["a", "b", "a"], [["a", "b"]], "abc", [[["a"], ["b"], ["c"]]]])
def test_identifiers_of_another_shape_are_refused(persons):
    with pytest.raises(
        DataError, match=r"persons as a list|one person identifier for each|as texts or numbers"
    ):
        Shards.from_arrays([(X, Y)], persons=persons)


def test_numbers_follow_first_appearance():
    assert [part.tolist() for part in number_persons([["x", "y"], ["y", "z"]])] == [[0, 1], [1, 2]]


# Files

CSV = "patient,age,ill\np1,10,no\np2,20,yes\np1,30,no\n"
SCHEMA = {"target": "ill", "classes": ["no", "yes"], "ranges": {"age": [0, 100]}}


def test_the_column_of_persons_is_no_input(tmp_path):
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "test.csv").write_text(CSV.replace("p1", ""))  # test records are not protected
    shards = Shards.from_files([tmp_path / "a.csv"], tmp_path / "test.csv", SCHEMA, person="patient")
    assert shards.inputs.shape == (1, 3, 1) and shards.unit_counts == (2,)
    frame = {"patient": [7, 8, 7], "age": [10, 20, 30], "ill": ["no", "yes", "no"]}
    of_frame = Shards.from_frames([frame], frame, SCHEMA, person="patient")
    assert of_frame.persons.equal(shards.persons) and of_frame.inputs.equal(shards.inputs)
    np.savez(tmp_path / "a.npz", inputs=X, labels=Y, patient=np.array(["p1", "p2", "p1"]))
    arrays = Shards.from_files([tmp_path / "a.npz"], person="patient")
    assert arrays.persons.equal(shards.persons)


def test_unusable_columns_of_persons_are_refused_with_their_place(tmp_path):
    (tmp_path / "a.csv").write_text(CSV.replace("p2", ""))
    with pytest.raises(DataError, match=r"a\.csv, line 3: expected a person identifier in 'patient'"):
        Shards.from_files([tmp_path / "a.csv"], None, SCHEMA, person="patient")
    with pytest.raises(DataError, match=r"expected a column 'who' with the identifier"):
        Shards.from_files([tmp_path / "a.csv"], None, {**SCHEMA, "ignore": ["patient"]}, person="who")
    with pytest.raises(Exception, match="a model must not see who a record is about"):
        Shards.from_files([tmp_path / "a.csv"], None, {**SCHEMA, "ignore": ["patient"]}, person="age")
    np.savez(tmp_path / "a.npz", train_inputs=X, train_labels=Y)
    with pytest.raises(DataError, match="expected an array 'train_person'"):
        Shards.from_files([tmp_path / "a.npz"], person="person")
