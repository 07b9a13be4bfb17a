"""Tests of changes of members and cards with commands, real processes, gRPC and mutual TLS."""

import json

import pytest

from builders import blobs_file
from topdp.agents.agreement import card_succession, manifest
from topdp.agents.agreement.manifest import Rules
from topdp.agents.development import federation_demo
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.runtime.card_updates import SHOWN_KEY
from topdp.runs import config


def small(folder, *changes):
    data = blobs_file(folder / "blobs.npz", 240)
    basis = [f'data.name="{data}"', "topology.agents=3", "topology.kind=ring", "rounds=8", "privacy.clip=1.0"]
    return config.read(changes=[*basis, "privacy.guarantee=worst-case", "privacy.epsilon=20.0", *changes])


def test_after_a_renewal_a_restarted_agent_shows_its_new_certificate(tmp_path, killed_at):
    folder = tmp_path / "run" / "agents"
    terms = federation_demo.prepare(small(tmp_path), folder, Rules(idle_timeout=60.0))[1]
    renewed = card_succession.renew(folder / "agent0" / "identity")
    assert renewed.card.fingerprint != terms.card("agent0").fingerprint
    kills = killed_at(agent0="after_ledger:5")
    codes = federation_demo.run_processes(folder, terms.names, seeded=True)
    assert codes == [0, 0, 0] and len(kills) == 1
    for name in ("agent1", "agent2"):
        ledger = Ledger(folder / name / "state", writable=False)
        assert ledger.meta[SHOWN_KEY + "agent0"] == "1" and ledger.round == 8
        ledger.close()


@pytest.fixture
def federation(tmp_path, topdp):
    for name in ("ada", "bob", "cleo"):
        place = tmp_path / name
        done = topdp("agent", "init", "--name", name, "--identity", place, "--address", f"{name}.org:7400")
        assert done.code == 0
    cards = [tmp_path / name / "card.toml" for name in ("ada", "bob", "cleo")]
    settings = ["--set", "rounds=20", "--set", "privacy.epsilon=2"]
    made = tmp_path / "manifest.toml"
    done = topdp(
        "federation", "create", *cards, "--links", "ada-bob,bob-cleo,ada-cleo", "--records", "300", *settings,
        "--robust", "none", "--out", made,
    )  # fmt: skip
    assert done.code == 0
    return tmp_path


def test_an_amendment_signed_by_the_others_removes_a_member(federation, topdp):
    first, second = federation / "manifest.toml", federation / "manifest-2.toml"
    way = ["federation", "amend", first, "--remove", "cleo", "--from-round", "8", "--out", second]
    done = topdp(*way, "--json")
    told = json.loads(done.out)
    assert done.code == 0 and told["amends"]["round"] == 7 and set(told["budgets"]) == {"ada", "bob"}
    for name in ("ada", "bob"):
        assert told["amends"]["spent"][name] + told["budgets"][name] == pytest.approx(2.0)
    assert told["delta"] == 2 * manifest.read_manifest(first).config.privacy.delta
    assert topdp(*way).code == 2  # an existing file is not overwritten
    state = ["--state", federation / "state", "--data", "nowhere.npz", "--identity", federation / "ada"]
    early = topdp("agent", "start", "--manifest", second, *state)
    assert early.code == 4 and "signed by all" in early.err
    assert topdp("agent", "sign", second, "--identity", federation / "cleo").code == 2
    for name, missing in (("ada", ["bob"]), ("bob", [])):
        done = topdp("agent", "sign", second, "--identity", federation / name, "--json")
        said = json.loads(done.out)
        assert done.code == 0 and said["missing"] == missing and said["amends"]["round"] == 7
        assert said["granted"] == 2.0 and said["spent"] + said["budget"] == pytest.approx(2.0)
    again = topdp("agent", "sign", second, "--identity", federation / "bob")
    assert "ends with round 7; then ada, bob." in again.out and "of 2 before + " in again.out
    late = topdp("agent", "start", "--manifest", second, *state)
    assert late.code == 2 and "--after" in late.err


def test_code_that_a_manifest_names_is_reported_before_it_is_imported(federation, topdp):
    cards = [federation / name / "card.toml" for name in ("ada", "bob")]
    made = federation / "code.toml"
    settings = ["--links", "ada-bob", "--records", "30", "--set", "rounds=2", "--set", "model.name=this:s"]
    assert topdp("federation", "create", *cards, *settings, "--robust", "none", "--out", made).code == 0
    state = ["--state", federation / "state", "--data", "nowhere.npz", "--identity", federation / "ada"]
    done = topdp("agent", "start", "--manifest", made, *state)
    assert done.code == 5 and "imported and called: model.name = 'this:s'" in done.err


def test_renewals_are_numbered_and_reported(federation, topdp):
    done = topdp("agent", "renew", "--identity", federation / "ada", "--json")
    assert done.code == 0 and json.loads(done.out)["number"] == 1
    moved = topdp("agent", "renew", "--identity", federation / "ada", "--address", "b.org:1", "--keep-key")
    assert moved.code == 0 and "card 2" in moved.out
    assert topdp("agent", "renew", "--identity", federation / "ada", "--address", "nonsense").code == 2
