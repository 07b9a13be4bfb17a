"""Tests of the agent commands with real processes, gRPC, mutual TLS and kill -9."""

import json
import os
import stat

import numpy as np
import pytest

from builders import blobs_file
from topdp.agents.agreement import manifest
from topdp.agents.agreement.run_setup import RunSetup
from topdp.agents.development import federation_demo
from topdp.errors import InputError
from topdp.runs import config, run
from topdp.runs.run_folder import RunFolder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return blobs_file(tmp_path_factory.mktemp("data") / "blobs.npz", 240)


def small(data, *changes):
    basis = [f'data.name="{data}"', "topology.agents=3", "topology.kind=ring", "rounds=8", "privacy.clip=1.0"]
    return config.read(changes=[*basis, "privacy.guarantee=worst-case", "privacy.epsilon=20.0", *changes])


def as_seeded(wanted):
    """The configuration whose simulation has the noise of seeded agents."""
    return wanted.model_copy(update={"noise_seed": wanted.seed})


@pytest.mark.slow
def test_a_demonstration_that_was_killed_and_resumed_agrees_with_the_simulator(
    data, tmp_path, topdp, killed_at
):
    """Two of three processes are killed by SIGKILL at different points, and started again."""
    wanted = small(data)
    kills = killed_at(agent0="after_ledger:3", agent1="after_receive:4")
    found = federation_demo.run(wanted, tmp_path / "demo", seeded=True)
    simulated = run.run(as_seeded(wanted), tmp_path / "simulator", "cpu")
    folder = RunFolder.open(tmp_path / "demo")
    np.testing.assert_allclose(folder.estimates, simulated.estimates.numpy(), rtol=1e-5, atol=1e-6)
    assert len(kills) == 2
    assert folder.state == "done" and folder.plan.agents == 3
    assert found["seeded"] and [each["code"] for each in found["agents"]] == [0, 0, 0]
    assert set(found["milliseconds_per_round"]) == {"compute", "ledger", "network"}
    assert {"run", "rounds", "accuracy", "privacy", "seconds"} <= set(found)
    for i in range(3):
        state = tmp_path / "demo" / "agents" / f"agent{i}" / "state"
        checked = topdp("agent", "ledger", "verify", "--state", state, "--json")
        assert checked.code == 0 and json.loads(checked.out)["charges"] == 9
        assert json.loads((state / "result.json").read_text())["releases"] == 9
        assert stat.S_IMODE(os.stat(state / "ledger.sqlite").st_mode) == 0o600


def test_agents_without_ports_use_a_relay_and_agree_with_the_simulator(data, tmp_path):
    wanted = small(data, "topology.agents=2", "topology.kind=complete", "rounds=4")
    found = federation_demo.run(wanted, tmp_path / "demo", seeded=True, relay=True)
    simulated = run.run(as_seeded(wanted), tmp_path / "simulator", "cpu")
    estimates = RunFolder.open(tmp_path / "demo").estimates
    np.testing.assert_allclose(estimates, simulated.estimates.numpy(), rtol=1e-5, atol=1e-6)
    assert [each["code"] for each in found["agents"]] == [0, 0]
    manifest = (tmp_path / "demo" / "agents" / "manifest.toml").read_text()
    assert manifest.count('address = ""') == 2 and 'relay = "127.0.0.1:' in manifest


def test_agents_compute_the_same_features_as_the_simulator(tmp_path, topdp, monkeypatch):
    monkeypatch.setenv("TOPDP_CACHE", str(tmp_path / "cache"))
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(160, 1, 8, 8)).astype(np.float32), np.arange(160) % 3
    place = tmp_path / "images.npz"
    np.savez(place, train_inputs=x[:150], train_labels=y[:150], test_inputs=x[150:], test_labels=y[150:])
    wanted = small(place, "data.features=scattering", "model.name=linear", "rounds=3")
    federation_demo.run(wanted, tmp_path / "demo", seeded=True)
    simulated = run.run(as_seeded(wanted), tmp_path / "simulator", "cpu")
    found = RunFolder.open(tmp_path / "demo")
    assert found.estimates.shape == (3, 3 * 81 * 4)
    np.testing.assert_allclose(found.estimates, simulated.estimates.numpy(), rtol=1e-4, atol=1e-5)
    records = np.load(tmp_path / "demo" / "agents" / "agent0" / "records.npz")["train_inputs"]
    assert records.shape == (50, 1, 8, 8)
    log = (tmp_path / "demo" / "agents" / "agent0" / "log.jsonl").read_text()
    assert "computing features of agent0" in log
    manifest_file = tmp_path / "demo" / "agents" / "manifest.toml"
    canaries = ("--manifest", manifest_file, "--data", tmp_path / "demo/agents/agent1/records.npz")
    made = topdp("federation", "canaries", *canaries, "--out", tmp_path / "c.npz", "--json")
    assert made.code == 0, made.err


def test_records_that_are_no_images_are_refused_before_a_ledger_exists(data, tmp_path, monkeypatch):
    monkeypatch.setenv("TOPDP_CACHE", str(tmp_path / "cache"))
    wanted = small(data, "data.features=scattering", "model.name=linear")
    with pytest.raises(InputError, match=r"at least 8x8|Expected images"):
        federation_demo.run(wanted, tmp_path / "demo")
    assert not (tmp_path / "demo").exists()


def test_an_agent_with_a_small_budget_ends_with_code_3_and_the_other_with_0(data, tmp_path):
    wanted = small(data, "topology.kind=complete", "topology.agents=2")
    found = federation_demo.run(wanted, tmp_path / "demo", budgets={1: 10.0})
    assert [each["code"] for each in found["agents"]] == [0, 3]
    assert 0 < found["agents"][1]["stopped_at"] < 9
    assert not found["seeded"] and "warning" not in found["agents"][0]


def test_commands_create_identities_and_a_manifest(tmp_path, topdp):
    cards = []
    for port, name in enumerate(("ada", "bob", "cleo"), start=7401):
        here = ("--name", name, "--identity", tmp_path / name, "--address", f"localhost:{port}")
        made = topdp("agent", "init", *here)
        assert made.code == 0 and "BEGIN CERTIFICATE" in made.out and "PRIVATE" not in made.out
        cards.append(tmp_path / name / "card.toml")

    place = tmp_path / "manifest.toml"
    common = ("federation", "create", *cards, "--links", "ada-bob,bob-cleo", "--robust", "none", "--json")
    common += ("--set", "rounds=5", "--set", "topology.kind=ring")
    made = topdp(*common, "--records", "100,80,60", "--out", place)
    assert made.code == 0, made.err
    terms = manifest.read_manifest(place)
    assert terms.hash == json.loads(made.out)["hash"] and terms.links == ((0, 1), (1, 2))
    assert terms.config.data.sizes == [100, 80, 60] and len(terms.config.privacy.sigma) == 3
    assert RunSetup.of(terms).counts == (100, 80, 60)

    agreed = place.read_bytes()
    over = topdp(*common, "--records", "100", "--out", place)
    assert over.code == 2 and "exists" in over.err and place.read_bytes() == agreed

    warned = topdp(*common, "--records", "100", "--dead-neighbour", "go-on", "--out", tmp_path / "other.toml")
    assert warned.code == 0 and "charge by worst case" in " ".join(warned.err.split())


@pytest.mark.slow
def test_agents_with_pair_noise_finish_after_one_of_six_is_killed_for_good(data, tmp_path, topdp, killed_at):
    """Real processes and mutual TLS: training ends, ledgers verify, and nobody exceeds its budget."""
    wanted = small(
        data,
        "topology.agents=6",
        "method.name=correlated",
        "method.gossip=2",
        "privacy.guarantee=adaptive",
        "rounds=10",
    )
    rules = manifest.Rules(dead_neighbour="go-on", idle_timeout=8.0)
    parts, terms, _ = federation_demo.prepare(wanted, tmp_path / "agents", rules)
    kills = killed_at(for_good=True, agent3="after_mark:4")
    codes = federation_demo.run_processes(tmp_path / "agents", terms.names)
    assert len(kills) == 1 and all(code in (0, 3) for code in codes)
    for i, name in enumerate(terms.names):
        state = tmp_path / "agents" / name / "state"
        checked = topdp("agent", "ledger", "verify", "--state", state, "--json")
        assert checked.code == 0 and json.loads(checked.out)["epsilon"] <= 20.0 * (1 + 1e-9)
        if i != 3:
            result = json.loads((state / "result.json").read_text())
            assert result["releases"] == 33 and set(result["gone"]) == {"agent3"} and not result["seeded"]
            assert result["spent"]["charged_by"] == "adaptive"
            status = topdp("agent", "status", "--state", state, "--json")
            assert json.loads(status.out)["gone"] == result["gone"]
    assert parts.run.graph.agents == 6
