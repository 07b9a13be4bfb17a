"""Statistics beside stored results and persons: predictions standardise, and persons are refused."""

import numpy as np
import pytest
import torch

import topdp
from topdp.errors import InputError
from topdp.runs.config import ConfigError


def shards(persons=None):
    numbers = np.random.default_rng(0)
    pairs = [(numbers.normal(2.0, 0.3, (60, 4)), numbers.integers(0, 2, 60)) for _ in range(3)]
    return topdp.Shards.from_arrays(pairs, test=pairs[0], persons=persons)


def trained(**settings):
    return topdp.train(
        topdp.learning.models.linear(4, classes=2) if settings.pop("own", False) else "linear",
        shards(),
        topdp.topology.complete(3),
        standardise="private",
        standardise_norm=5.0,
        epsilon=4.0,
        rounds=5,
        clip=1.0,
        learning_rate=0.5,
        method="correlated",
        **settings,
    )


@pytest.mark.parametrize("own", [False, True])
def test_a_loaded_result_standardises_what_it_predicts(tmp_path, own):
    from topdp.learning.models import linear

    network = linear(4, classes=2) if own else None
    result = trained(out=tmp_path / "run", own=own)
    records = np.random.default_rng(1).normal(2.0, 1.0, (50, 4))
    expected = result.predict_proba(records)
    for place in (tmp_path / "run", result.save(tmp_path / "model.safetensors")):
        loaded = topdp.load(place, network=network)
        np.testing.assert_array_equal(loaded.predict_proba(records), expected)
        again = topdp.load(loaded.save(tmp_path / "again.safetensors"), network=network)
        np.testing.assert_array_equal(again.predict_proba(records), expected)
    plain = result.model()[1](torch.tensor(records, dtype=torch.float32)).softmax(1).detach().numpy()
    assert not np.allclose(plain, expected, atol=1e-3)  # without the layer predictions would differ


@pytest.mark.parametrize("guarantee", ["view", "claimed"])
def test_a_guarantee_that_does_not_cover_the_average_is_refused(guarantee):
    with pytest.raises(InputError, match="adaptive or worst-case"):
        topdp.aggregate(lambda x, y: x, shards(), topdp.topology.complete(3), bound=5.0, guarantee=guarantee)


def test_statistics_of_persons_are_refused():
    """One person could move a sum once for each record."""
    some = shards(persons=[np.arange(60) // 2 + 100 * agent for agent in range(3)])
    with pytest.raises(InputError, match="without persons"):
        topdp.aggregate(lambda x, y: x, some, topdp.topology.complete(3), bound=5.0)
    with pytest.raises(InputError, match="without persons"):
        topdp.linear_regression(some, topdp.topology.complete(3))
    with pytest.raises(ConfigError, match=r"privacy\.unit: expected the unit record"):
        topdp.train(
            "linear", some, topdp.topology.complete(3), unit="person", standardise="private",
            standardise_norm=5.0, rounds=2, clip=1.0, learning_rate=0.5, method="correlated",
        )  # fmt: skip
