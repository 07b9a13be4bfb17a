"""`topdp.aggregate`: its sum, noise and account against their definitions, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

import topdp
from topdp import topology
from topdp.errors import InputError
from topdp.runs.statistics.aggregate import aggregate_vectors, record_vectors

RING = topology.ring(6)


def shards_of(counts=(40, 90, 20, 70, 55, 25), width=3):
    """Unequal shards of records in [-1, 1]; the target is the first number."""
    generator = torch.Generator().manual_seed(0)
    parts = [2 * torch.rand(count, width, generator=generator) - 1 for count in counts]
    return topdp.Shards.from_arrays([(part, part[:, 0]) for part in parts])


def records_of(shards):
    return np.concatenate([shards.records(agent)[0] for agent in range(shards.agents)]).astype(float)


def epsilon_by_definition(mu, delta):
    """ε of μ-GDP: the root of δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)."""
    low, high = 0.0, 100.0
    for _ in range(200):
        e = (low + high) / 2
        spent = norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu)
        low, high = (e, high) if spent > delta else (low, e)
    return high


@pytest.mark.parametrize("method", ["correlated", "muffliato", "central"])
def test_the_mean_is_that_of_all_records_whatever_the_sizes_of_shards(method):
    shards = shards_of()
    found = topdp.aggregate(lambda x, y: x, shards, RING, bound=2.0, epsilon=1e9, method=method)
    np.testing.assert_allclose(found.mean, records_of(shards).mean(0), atol=1e-4)
    np.testing.assert_allclose(found.total, records_of(shards).sum(0), atol=0.1)
    assert found.records == 300 and found.plan.rounds == 0


def test_the_noise_of_each_number_has_the_predicted_deviation():
    zeros = [torch.zeros(count, 4000, dtype=torch.float64) for count in (5, 20, 8, 3, 2, 10)]
    for method in ("correlated", "muffliato", "central"):
        found = aggregate_vectors(zeros, RING, bound=1.0, epsilon=1.0, method=method)
        assert found.mean.std() / found.deviation == pytest.approx(
            1, abs=0.05
        )  # 4 deviations of this estimate
        assert abs(found.mean.mean()) < 5 * found.deviation / math.sqrt(4000)


def test_pair_noise_leaves_little_more_than_the_noise_of_pooled_records():
    parts = [torch.zeros(30, 2, dtype=torch.float64)] * 12
    graph = topology.random(12, 0.4, 1)
    deviation = {
        method: aggregate_vectors(parts, graph, bound=1.0, epsilon=1.0, method=method).deviation
        for method in ("correlated", "muffliato", "central")
    }
    assert deviation["correlated"] < 1.15 * deviation["central"]
    assert deviation["muffliato"] == pytest.approx(math.sqrt(12) * deviation["central"], rel=1e-6)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_the_account_is_that_of_the_definition(adjacency):
    """The only release is y = v + Dz, with the matrix D of the noise. Observers read y and know some z."""
    shards, bound, delta = shards_of(), 2.0, 1e-5
    found = topdp.aggregate(lambda x, y: x, shards, RING, bound=bound, epsilon=1.0, adjacency=adjacency)
    release, n = found.plan[0], 6
    D = np.zeros((n, found.plan.draws))
    for row, draws in enumerate(release.draw):
        D[row, draws[draws >= 0]] = release.std[row, draws >= 0]
    move = bound / (300 / 6) * (2 if adjacency == "replace-one" else 1)  # by one record, in its owner's row
    worst = np.zeros(n)
    for observer in range(n):
        unknown = ~(found.plan.known_by == observer).any(1)
        others = [row for row in range(n) if row != observer]
        covariance = D[np.ix_(others, unknown)] @ D[np.ix_(others, unknown)].T
        for position, owner in enumerate(others):
            mu = move * math.sqrt(np.linalg.inv(covariance)[position, position])
            worst[owner] = max(worst[owner], epsilon_by_definition(mu, delta))
    np.testing.assert_allclose(found.privacy.adaptive.epsilon, worst, rtol=1e-6)
    assert worst.max() == pytest.approx(1.0, rel=1e-6) and worst.max() <= 1 + 1e-9
    own = np.array([release.std[row, 0] for row in range(n)])  # all other agents together know all pair noise
    alone = [epsilon_by_definition(move / each, delta) for each in own]
    np.testing.assert_allclose(found.privacy.worst_case.epsilon, alone, rtol=1e-6)


def test_a_vector_longer_than_the_bound_is_shortened_to_it():
    parts = [torch.zeros(10, 2, dtype=torch.float64) for _ in range(6)]
    before = aggregate_vectors(parts, RING, bound=1.0, epsilon=1e9, noise_seed=1)
    parts[3] = parts[3].clone()
    parts[3][4] = torch.tensor([3000.0, -4000.0])
    after = aggregate_vectors(parts, RING, bound=1.0, epsilon=1e9, noise_seed=1)
    np.testing.assert_allclose(after.total - before.total, [0.6, -0.8], atol=1e-6)


def test_a_function_sees_one_record_with_its_types():

    def keep(inputs, target):
        assert inputs.shape == (2, 3) and inputs.dtype == torch.float32
        assert target.shape == () and target.dtype == torch.int64
        return (inputs * target).flatten()

    shards = topdp.Shards.from_arrays([(torch.ones(7, 2, 3), torch.arange(7) % 2)])
    (vectors,) = record_vectors(keep, shards)
    assert vectors.shape == (7, 6) and vectors.sum(1).tolist() == [0, 6, 0, 6, 0, 6, 0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method": "dsgd"}, "agents would not average what they release"),
        ({"method": "corelated"}, "Did you mean 'correlated'"),
        ({"bound": 0}, "the largest norm of the vector of a record"),
        ({"function": lambda x, y: x[None]}, "returns a vector as a tensor"),
        ({"function": lambda x, y: 3.0}, "returns a vector as a tensor"),
        ({"epsilon": 1.0, "sigma": 1.0}, "epsilon"),
    ],
)
def test_wrong_use_is_refused(changes, says):
    given = {"function": lambda x, y: x, "bound": 1.0, **changes}
    with pytest.raises(InputError, match=says):
        topdp.aggregate(given.pop("function"), shards_of(), RING, **given)


def test_two_agents_use_no_pair_noise_and_one_shard_needs_no_graph():
    two = topdp.aggregate(lambda x, y: x, shards_of((30, 40)), topology.complete(2), bound=2.0, epsilon=1.0)
    assert two.result.config.method.name == "muffliato"
    one = topdp.aggregate(lambda x, y: x, shards_of((30,)), bound=2.0, epsilon=1.0)
    assert one.result.config.method.name == "central" and "one party that all trust" in one.observer()


def test_a_release_has_a_run_folder_like_other_runs(tmp_path):
    found = topdp.aggregate(lambda x, y: x, shards_of(), RING, bound=2.0, epsilon=1.0, out=tmp_path / "run")
    assert {"plan.npz", "privacy.json", "run.json"} <= {file.name for file in (tmp_path / "run").iterdir()}
    assert found.summary()["privacy"]["guarantee"] == "adaptive"
