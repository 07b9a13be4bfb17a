"""`topdp.linear_regression` against least squares without noise, and its ridge against the noise."""

import numpy as np
import pytest
import torch

import topdp
from topdp import topology
from topdp.errors import DataError, InputError
from topdp.runs.statistics.aggregate import aggregate_vectors
from topdp.runs.statistics.linear_regression import noise_eigenvalue

RING = topology.ring(5)


def shards_of(counts=(200, 900, 400, 100, 600), targets=1):
    generator = np.random.default_rng(0)
    parts = []
    for count in counts:
        x = generator.uniform(-0.7, 0.7, (count, 2, 2)).astype(np.float32)
        y = x.reshape(count, 4) @ np.linspace(-0.4, 0.4, 4 * targets).reshape(4, targets) + 0.1
        y = y + generator.normal(0, 0.1, y.shape)
        parts.append((x, (y[:, 0] if targets == 1 else y).astype(np.float32)))
    return topdp.Shards.from_arrays(parts)


def least_squares(shards):
    parts = [shards.records(agent) for agent in range(shards.agents)]
    x = np.concatenate([part.reshape(len(part), -1) for part, _ in parts]).astype(float)
    y = np.concatenate([part.reshape(len(part), -1) for _, part in parts]).astype(float)
    return np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]


@pytest.mark.parametrize("targets", [1, 3])
def test_without_noise_the_fit_is_least_squares(targets):
    shards = shards_of(targets=targets)
    fit = topdp.linear_regression(shards, RING, epsilon=1e9, square_bound=9.0, target_bound=3.0, ridge=0.0)
    found = np.vstack([fit.weights, fit.intercept])
    np.testing.assert_allclose(found, least_squares(shards), atol=1e-4)
    x, y = shards.records(1)
    np.testing.assert_allclose(fit.predict(x), y, atol=0.6)
    assert fit.predict(x).shape == y.shape and fit.r2(x, y) > 0.3


def test_at_a_small_budget_the_ridge_keeps_the_fit_useful():
    """With few records, noise makes eigenvalues of the Gram matrix small, and only the ridge helps."""
    shards = shards_of((20, 40, 30, 15, 25))
    parts = [shards.records(agent) for agent in range(5)]
    x, y = (np.concatenate(each) for each in zip(*parts, strict=True))
    scores = {}
    for ridge in ("auto", 0.0):
        fits = [
            topdp.linear_regression(shards, RING, epsilon=1.0, noise_seed=seed, ridge=ridge)
            for seed in range(5)
        ]
        scores[ridge] = [fit.r2(x, y) for fit in fits]
        if ridge == "auto":
            assert fits[0].ridge == pytest.approx(0.5 * noise_eigenvalue(fits[0].aggregate.deviation, 5))
    assert min(scores["auto"]) > 0 and np.mean(scores["auto"]) > 0.4
    assert min(scores[0.0]) < -1


def test_the_largest_eigenvalue_of_the_noise_is_as_stated():
    """The noise of the release itself, from records that are all 0."""
    width = 60
    upper = np.triu_indices(width)
    zeros = [torch.zeros(50, len(upper[0]), dtype=torch.float64)] * 3
    largest = []
    for _ in range(3):
        found = aggregate_vectors(zeros, topology.complete(3), bound=1.0, epsilon=1.0)
        noise = np.zeros((width, width))
        noise[upper] = found.mean / np.where(upper[0] == upper[1], 1, np.sqrt(2))
        noise = noise + np.triu(noise, 1).T
        largest.append(np.linalg.eigvalsh(noise)[-1])
    assert np.mean(largest) == pytest.approx(noise_eigenvalue(found.deviation, width), rel=0.1)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"ridge": -1.0}, InputError, "ridge to be"),
        ({"ridge": "none"}, InputError, "ridge to be"),
        ({"square_bound": 0.0}, InputError, "square_bound > 0"),
        ({"target_bound": float("inf")}, InputError, "target_bound > 0"),
        ({"method": "top"}, InputError, "agents would not average"),
    ],
)
def test_wrong_use_is_refused(changes, error, says):
    with pytest.raises(error, match=says):
        topdp.linear_regression(shards_of((20, 20, 20, 20, 20)), RING, **changes)


def test_records_that_are_not_numbers_are_refused():
    shards = topdp.Shards.from_arrays([(np.zeros((5, 3), int), np.zeros(5))], dtype=torch.int64)
    with pytest.raises(DataError, match="inputs that are numbers"):
        topdp.linear_regression(shards)
    fit = topdp.linear_regression(shards_of((50, 60, 70, 80, 90)), RING)
    with pytest.raises(InputError, match="records of 4 numbers, got 3"):
        fit.predict(np.zeros((2, 3)))
