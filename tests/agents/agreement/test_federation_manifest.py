"""Tests of settings that the simulator accepts and a federation refuses."""

import pytest

from topdp import topology
from topdp.agents.agreement import federation_manifest
from topdp.agents.agreement import manifest as manifests
from topdp.agents.agreement.identity import generate
from topdp.agents.agreement.manifest import Rules
from topdp.agents.agreement.run_setup import RunSetup
from topdp.runs import config
from topdp.runs.config import ConfigError


def test_too_large_a_delta_is_refused_and_one_too_large_for_some_agents_is_reported():
    def made(delta, counts=(100, 200)):
        changes = [f"privacy.delta={delta}", "topology.agents=2", "rounds=2", "model.name=linear"]
        cards = [generate(name, f"a.org:{port}").card for port, name in enumerate(("ada", "bob"), 1)]
        graph = topology.from_edges([(0, 1)], 2)
        return federation_manifest.build_manifest(cards, graph, counts, config.read(changes=changes), Rules())

    for delta in (0.9, 0.01):
        with pytest.raises(ConfigError, match=r"privacy\.delta: expected less than 1/100"):
            made(delta)
    assert any("1/200" in words for words in made(0.005)[2])
    manifest, _, remarks = made(1e-5)
    assert not any("delta" in words for words in remarks)
    tree = {**manifest.tree, "run": {**manifest.tree["run"]}}  # as if written by hand
    tree["run"]["privacy"] = {**tree["run"]["privacy"], "delta": 0.5}
    with pytest.raises(ConfigError, match=r"privacy\.delta"):
        RunSetup.of(manifests._from_tree(tree, "by hand"))


def test_sinks_are_refused_before_anything_is_calibrated():
    wanted = config.read(changes=['report.sinks=["wandb"]'])
    with pytest.raises(ConfigError, match=r"report\.sinks.*simulator.*--metrics"):
        federation_manifest.build_manifest([], topology.ring(3), (10, 10, 10), wanted, Rules())
