"""Twins of `topdp.aggregate`: agents that execute one release get what the simulator gets."""

from dataclasses import replace

import pytest
import torch
from history import IDENTITIES, faults, federation, live, on_virtual_time
from test_twin import codes, over_grpc

import topdp
from topdp import topology

pytestmark = pytest.mark.usefixtures("quick")

GRAPH = topology.ring(6)
RELEASE = (
    'model.name="linear"',
    "train.loss=linear",
    "train.learning_rate=1.0",
    "train.fading=none",
    "method.name=correlated",
    "method.gossip=3",
    "privacy.weights=equal",
    "method.offline=0.1",
)


def released(folder, **how):
    """A federation for the mean of target · image, and the aggregate of the simulator with the same noise."""
    made = federation(folder, *RELEASE, graph=GRAPH, rounds=0, guarantee="adaptive", **how)
    made.shards = replace(made.shards, targets=made.shards.targets.float(), classes=None)
    found = topdp.aggregate(
        lambda inputs, target: target * inputs.flatten(),
        made.shards,
        GRAPH,
        bound=1.0,
        epsilon=50.0,
        method="correlated",
        gossip=3,
        noise_seed=made.setup.manifest.config.seed,
    )
    assert found.plan.digest() == made.setup.plan.digest()
    return made, found


def expect_equal(made, found):
    torch.testing.assert_close(
        made.estimates(), found.result.estimates, rtol=1e-5, atol=1e-6, check_dtype=False
    )
    truth = sum((x * y[:, None, None, None]).flatten(1).clamp(-9, 9).sum(0) for x, y in _records(made))
    assert torch.corrcoef(torch.stack([torch.from_numpy(found.total).float(), truth]))[0, 1] > 0.9


def _records(made):
    return [(made.shards.inputs[i, :c], made.shards.targets[i, :c]) for i, c in enumerate(made.shards.counts)]


def test_agents_in_memory_release_what_the_simulator_releases(tmp_path):
    made, found = released(tmp_path)
    run = on_virtual_time(live(made))
    assert faults(run) == []
    expect_equal(made, found)
    charged = [result["spent"]["epsilon"] for result in made.results()]
    assert charged == pytest.approx(found.privacy.adaptive.epsilon.tolist(), rel=1e-6)


def test_agents_over_mutual_tls_release_what_the_simulator_releases(tmp_path):
    identities = over_grpc()
    made, found = released(tmp_path, cards=[one.card for one in identities.values()])
    made.identities = identities
    assert codes(made) == [0] * len(IDENTITIES)
    expect_equal(made, found)
