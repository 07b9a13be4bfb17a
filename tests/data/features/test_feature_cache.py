"""Cached features: written atomically, named by content, and computed again if damaged."""

import errno
import os
import stat

import numpy as np
import pytest
import torch

from topdp.data.features import feature_cache
from topdp.data.features.feature_cache import FeatureSource
from topdp.errors import DataError


class Doubled:
    """A map that counts its records."""

    def __init__(self, identity="doubled 1"):
        self.identity = identity
        self.seen = 0

    def shape(self, example):
        return tuple(example.shape)

    def __call__(self, records):
        self.seen += len(records)
        return records * 2


def source(features=None, records=25, seed=0, scaling="as it is"):
    values = np.random.default_rng(seed).normal(size=(records, 3)).astype(np.float32)
    return FeatureSource(
        features=features or Doubled(),
        records=values,
        scale=lambda array: array,
        scaling=scaling,
        name="test",
    )


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(feature_cache, "RECORDS_PER_CHUNK", 10)


def files(own_cache):
    return sorted((own_cache / "features").iterdir()) if (own_cache / "features").exists() else []


def expected(of):
    return torch.from_numpy(of.records) * 2


def test_features_are_computed_once_and_then_read_from_the_cache(own_cache):
    features = Doubled()
    records, said = source(features), []
    first = records.all(progress=lambda *args, **details: said.append(args))
    assert torch.equal(first, expected(records)) and features.seen == 25
    assert [line[1:] for line in said] == [(0, 300), (120, 300), (240, 300)]
    assert torch.equal(source(features).all(), first) and features.seen == 25
    (file,) = files(own_cache)
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(file.parent).st_mode) == 0o700


@pytest.mark.parametrize(
    "other",
    [source(seed=1), source(records=24), source(scaling="another"), source(Doubled("doubled 2"))],
)
def test_other_records_scalings_or_maps_have_separate_files(own_cache, other):
    source().all()
    assert torch.equal(other.all(), expected(other))
    assert other.features.seen == len(other.records) and len(files(own_cache)) == 2


def test_a_map_without_identity_is_computed_each_time(own_cache):
    features = Doubled(identity=None)
    for _ in range(2):
        source(features).all()
    assert features.seen == 50 and files(own_cache) == []


@pytest.mark.parametrize("place", [0, 60, 130, -1, -40])
def test_a_damaged_file_is_computed_again(own_cache, place):
    source().all()
    (file,) = files(own_cache)
    whole = file.read_bytes()
    content = bytearray(whole)
    content[place] ^= 1
    file.write_bytes(content)
    features = Doubled()
    assert torch.equal(source(features).all(), expected(source())) and features.seen == 25
    assert file.read_bytes() == whole


@pytest.mark.parametrize("length", [0, 5, 70, 200])
def test_a_truncated_file_is_computed_again(own_cache, length):
    source().all()
    (file,) = files(own_cache)
    file.write_bytes(file.read_bytes()[:length])
    features = Doubled()
    assert torch.equal(source(features).all(), expected(source())) and features.seen == 25


def test_an_interrupted_computation_leaves_no_file(own_cache):
    class Breaks(Doubled):
        def __call__(self, records):
            if self.seen >= 10:
                raise KeyboardInterrupt
            return super().__call__(records)

    with pytest.raises(KeyboardInterrupt):
        source(Breaks()).all()
    assert files(own_cache) == []
    running = source().chunks()
    next(running)
    assert len(files(own_cache)) == 1
    running.close()
    assert files(own_cache) == []


def test_a_cache_that_cannot_be_written_costs_a_warning(own_cache):
    own_cache.mkdir()
    (own_cache / "features").write_text("in the way")
    with pytest.warns(UserWarning, match="not cached.*TOPDP_CACHE"):
        found = source().all()
    assert torch.equal(found, expected(source()))


def test_a_disk_that_fills_up_on_the_way_costs_a_warning(own_cache, monkeypatch):
    real, calls = feature_cache._digest, []

    def full(content):
        calls.append(content)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(content)

    monkeypatch.setattr(feature_cache, "_digest", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        found = source().all()
    assert torch.equal(found, expected(source())) and files(own_cache) == []


def test_features_that_are_not_finite_name_the_record():
    records = source()
    records.records[17] = np.inf
    with pytest.raises(DataError, match=r"t: expected finite features.* 1 records, the first at index 17"):
        records.all()
