"""Shards of features: each feature in the place of its record."""

import numpy as np
import pytest
import torch

from topdp.data import Dataset, Shards, featured_shards
from topdp.data.features.feature_maps import ScatteringFeatures
from topdp.data.features.user_features import UserFeatures
from topdp.errors import DataError


def dataset(records=40, tests=6):
    generator = np.random.default_rng(0)
    inputs = generator.integers(0, 256, (records + tests, 1, 8, 12), dtype=np.uint8)
    labels = np.arange(records + tests) % 3
    return Dataset(
        name="small",
        train_inputs=inputs[:records],
        train_targets=labels[:records],
        test_inputs=inputs[records:],
        test_targets=labels[records:],
        classes=3,
        mean=(0.5,),
        deviation=(0.25,),
    )


PARTS = [np.array([3, 39, 0]), np.array([7, 1, 20, 21, 5]), np.arange(22, 30)]


def directly(data, records):
    return ScatteringFeatures()(torch.from_numpy(data.scale(data.train_inputs[records])))


@pytest.fixture
def computed(monkeypatch):
    """How many records were mapped."""
    seen = []
    real = ScatteringFeatures.__call__

    def counted(self, records):
        seen.append(len(records))
        return real(self, records)

    monkeypatch.setattr(ScatteringFeatures, "__call__", counted)
    return seen


def near(one, other):
    torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_features_stand_in_the_places_of_their_records():
    data = dataset()
    plain = Shards.from_dataset(data, PARTS)
    shards = featured_shards.of_dataset(data, PARTS, ScatteringFeatures())
    assert shards.counts == (3, 5, 8) and shards.inputs.shape == (3, 8, 81, 2, 3)
    assert torch.equal(shards.targets, plain.targets) and shards.counts == plain.counts
    for agent, part in enumerate(PARTS):
        near(shards.inputs[agent, : len(part)], directly(data, part))
        assert not shards.inputs[agent, len(part) :].any()
    near(shards.test_inputs, ScatteringFeatures()(torch.from_numpy(data.test()[0])))
    assert torch.equal(shards.test_targets, plain.test_targets)


def test_held_out_records_become_test_records():
    data, held = dataset(), np.array([38, 2])
    shards = featured_shards.of_dataset(data, PARTS, ScatteringFeatures(), held)
    plain = Shards.from_dataset(data, PARTS, held)
    near(shards.test_inputs, directly(data, held))
    assert plain.test_targets.tolist() == shards.test_targets.tolist() == data.train_targets[held].tolist()
    np.testing.assert_array_equal(plain.test_inputs, data.scale(data.train_inputs[held]))
    with pytest.raises(DataError, match="record 3 at agents"):
        Shards.from_dataset(data, PARTS, np.array([3]))


def test_other_seeds_and_partitions_reuse_cached_features(computed):
    data = dataset()
    featured_shards.of_dataset(data, PARTS, ScatteringFeatures())
    assert sum(computed) == 46
    other = [np.arange(0, 20), np.arange(20, 35)]
    shards = featured_shards.of_dataset(data, other, ScatteringFeatures(), np.array([36, 37]))
    assert sum(computed) == 46
    near(shards.inputs[1, :15], directly(data, other[1]))


def test_for_a_few_records_only_their_features_are_computed(computed, own_cache):
    data, few = dataset(), [np.array([3, 9]), np.array([30])]
    held = np.array([5])
    shards = featured_shards.of_dataset(data, few, ScatteringFeatures(), held)
    assert sum(computed) == 4 and not (own_cache / "features").exists()
    near(shards.inputs[0], directly(data, few[0]))
    near(shards.test_inputs, directly(data, held))


def test_features_of_existing_shards(computed):
    images = np.random.default_rng(0).normal(size=(9, 3, 8, 8)).astype(np.float32)
    labels = np.arange(9) % 3
    shards = Shards.from_arrays(
        [(images[:2], labels[:2]), (images[2:6], labels[2:6])], test=(images[6:], labels[6:])
    )
    found = featured_shards.of_shards(shards, ScatteringFeatures(9))
    assert found.inputs.shape == (2, 4, 243, 2, 2) and sum(computed) == 9
    near(found.inputs[1], ScatteringFeatures(9)(torch.from_numpy(images[2:6])))
    assert not found.inputs[0, 2:].any()
    featured_shards.of_shards(shards, ScatteringFeatures(9))
    assert sum(computed) == 9 + 4  # those of this test, and of its comparison


def test_a_digest_identifies_the_records_and_the_map():
    """Last digits of features differ between machines; a run continues wherever its records are."""
    data, features = dataset(), ScatteringFeatures()
    plain = Shards.from_dataset(data, PARTS)
    one = featured_shards.of_dataset(data, PARTS, features)
    assert one.digest() == featured_shards.of_shards(plain, features).digest() != plain.digest()
    assert one.digest() != featured_shards.of_dataset(data, PARTS, ScatteringFeatures(9)).digest()
    assert one.digest() != featured_shards.of_dataset(data, [PARTS[0][::-1], *PARTS[1:]], features).digest()
    rough = [
        featured_shards.of_shards(plain, UserFeatures(lambda x, k=k: x[:, ::k])).digest() for k in (1, 2)
    ]
    assert rough[0] == plain.digest() != rough[1]
