"""Tests of the privacy statement of an agent from its own ledger, and of ledgers that give none."""

import json
import shutil
import sqlite3
from contextlib import closing
from statistics import NormalDist

import pytest
import torch
from history import federation, live, on_virtual_time
from typer.testing import CliRunner

import registry_schema
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_database import LEDGER_FILE
from topdp.agents.ledger.ledger_entries import ReleaseCost, TamperedError
from topdp.agents.node.amending import MembershipChange, amend
from topdp.base.number_text import rounded_up
from topdp.cli.app import app
from topdp.data import Shards
from topdp.errors import InputError
from topdp.privacy.basics.gaussian import epsilon_of
from topdp.privacy.basics.privacy_loss import GaussianLoss
from topdp.views.statement.agent_record import agent_record
from topdp.views.statement.agent_statement import agent_statement
from topdp.views.statement.run_statement import statement_html, statement_yaml

OWN_NOISE = {number: {"seeded": False} for number in range(4)}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Four agents after their last round, with unseeded noise, and the manifest beside them."""
    made = federation(
        tmp_path_factory.mktemp("own"),
        "privacy.epsilon=2.0",
        agents=4,
        rounds=4,
        guarantee="adaptive",
        departures=1,
    )
    on_virtual_time(live(made, options=OWN_NOISE))
    made.setup.manifest.write(made.folder / "manifest.toml")
    return made


def statement_of(made, agent=0):
    return agent_statement(agent_record(made.state(agent), made.folder / "manifest.toml"))


def test_numbers_are_those_of_the_ledger(ran):
    said, result = statement_of(ran), ran.results()[0]
    answers = said["guarantee"]["answers"]
    assert answers["adaptive"]["epsilon"] == result["spent"]["epsilon"] > 0
    assert answers["worst_case"]["epsilon"] == result["spent"]["worst_case"]
    assert said["guarantee"]["delta"] == result["spent"]["delta"]
    for one in answers.values():
        assert one["is_a_guarantee"]
        implied = epsilon_of(one["mu"], said["guarantee"]["delta"])
        assert one["epsilon"] <= implied <= one["epsilon"] * (1 + 1e-6)
        # As in the account of a run: the power of the best test at this μ, not a bound from ε and δ.
        assert one["recognised_at_1_percent_false_alarms"] == GaussianLoss(one["mu"]).power(0.01)
    assert said["details"]["accounting"]["budget"] == result["budget"]
    assert registry_schema.faults(said["registry"]) == []
    assert said["simulated"] is False and "over for it" in " ".join(said["summary"])


def test_the_statement_lists_what_it_does_not_cover(ran):
    words = " ".join(statement_of(ran)["not_protected"])
    parts = [
        "More than 2 other agents",
        "1 of them as a reserve",
        "Other runs on the same records",
        "owns or breaks into",
        "old copy",
        "Poisoning",
        "distant departure from the plan",
        "floating point",
    ]
    for part in parts:
        assert part in words


def test_the_command_writes_a_page_and_yaml_and_does_not_change_the_ledger(ran, tmp_path):
    before = {file.name: file.read_bytes() for file in ran.state(1).iterdir()}
    place = [
        "statement",
        str(ran.state(1)),
        "--manifest",
        str(ran.folder / "manifest.toml"),
        "--out",
        str(tmp_path),
    ]
    found = CliRunner().invoke(app, [*place, "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout.splitlines()[-1])["statement"]["scope"] == "One record of bob"
    page = (tmp_path / "privacy-statement.html").read_text()
    assert "One record of bob" in page
    assert "the largest over agents" not in page and "simulated run" not in page
    after = {
        file.name: file.read_bytes() for file in ran.state(1).iterdir() if not file.name.endswith("-shm")
    }
    assert {name: before.get(name, b"") for name in after} == after


def test_the_statement_of_an_unfinished_run_says_that_it_continues(tmp_path, ran):
    manifest = ran.setup.manifest
    ledger = Ledger(tmp_path / "ada", manifest.hash, "ada", guarantee="adaptive", reserve=1)
    assert "Nothing has been released" in " ".join(agent_statement(_record(tmp_path, ran))["summary"])
    ledger.release(0, ReleaseCost(0.5, 0.7, 0.1), {"bob": b"row"}, b"state")
    assert "The run continues: release 0 of 4" in " ".join(agent_statement(_record(tmp_path, ran))["summary"])
    ledger.note_departure("bob refuses", "bob")
    assert "each counted as one more colluder: bob" in " ".join(
        agent_statement(_record(tmp_path, ran))["summary"]
    )
    ledger.note_departure("dan is quarantined", "dan")  # exceeds the reserve
    said = agent_statement(_record(tmp_path, ran))
    ledger.close()
    assert "The run departed from the plan (dan is quarantined)" in " ".join(said["summary"])
    assert list(said["guarantee"]["answers"]) == ["worst_case"]
    assert said["guarantee"]["answers"]["worst_case"]["epsilon"] == 0.7


def _record(place, ran):
    return agent_record(place / "ada", ran.folder / "manifest.toml")


@pytest.mark.parametrize("guarantee", ["view", "claimed"])
def test_an_answer_that_is_no_guarantee_is_not_stated_as_one(tmp_path, guarantee):
    made = federation(tmp_path, "privacy.epsilon=9.0", agents=4, rounds=4, guarantee=guarantee)
    made.setup.manifest.write(tmp_path / "manifest.toml")
    ledger = Ledger(made.state(0), made.setup.manifest.hash, "ada", guarantee=guarantee)
    ledger.release(0, ReleaseCost(0.5, 0.7, 0.1), {"bob": b"row"}, b"state")
    ledger.close()
    said = statement_of(made)
    assert "ε = 0.7 at" in said["summary"][0] and "guarantees nothing" in said["summary"][1]
    assert (
        said["guarantee"]["answers"][guarantee] | {"epsilon": 0.5, "is_a_guarantee": False}
        == (said["guarantee"]["answers"][guarantee])
    )
    assert said["details"]["privacy_loss"]["privacy_parameters"]["epsilon"] == 0.7


def test_the_statement_of_a_seeded_run_says_that_it_protects_nobody(tmp_path):
    made = federation(tmp_path, agents=4, rounds=1)
    on_virtual_time(live(made))  # seeded
    made.setup.manifest.write(tmp_path / "manifest.toml")
    said = statement_of(made)
    assert said["summary"][0].startswith("This run protects nobody: its noise came from a seed")
    assert not any(one["is_a_guarantee"] or one["epsilon"] for one in said["guarantee"]["answers"].values())
    assert said["details"]["privacy_relation"]["bound_on_output_distance"]["epsilon"] is None
    for text in (statement_html(said), statement_yaml(said)):
        assert "A cipher keyed by the operating system" not in text


def test_a_ledger_that_was_tampered_with_is_refused(tmp_path, ran):
    ledger = Ledger(tmp_path / "ada", ran.setup.manifest.hash, "ada", guarantee="adaptive")
    for round in range(2):
        ledger.release(round, ReleaseCost(0.5, 0.7, 0.1), {"bob": b"row"}, b"state")
    ledger.close()
    database = sqlite3.connect(tmp_path / "ada" / "ledger.sqlite")
    database.execute(
        """UPDATE charges SET entry = replace(entry, '"charge": 0.5', '"charge": 0.1') WHERE number = 0"""
    )
    database.commit()
    database.close()
    with pytest.raises(TamperedError):
        _record(tmp_path, ran)


def test_a_wrong_or_missing_manifest_is_refused(tmp_path, ran):
    other = federation(tmp_path, agents=4, rounds=2)
    other.setup.manifest.write(tmp_path / "other.toml")
    with pytest.raises(InputError, match="Expected the manifest of the ledger"):
        agent_record(ran.state(0), tmp_path / "other.toml")
    found = CliRunner().invoke(app, ["statement", str(ran.state(0))])
    assert isinstance(found.exception, InputError) or found.exit_code == 2
    found = CliRunner().invoke(app, ["statement", str(tmp_path), "--manifest", str(tmp_path / "other.toml")])
    assert isinstance(found.exception, InputError) or found.exit_code == 2


def test_releases_with_epsilon_0_at_their_delta_have_a_positive_mu(tmp_path, ran):
    """A (0, δ)-private release reveals something: μ = 0 would promise that it reveals nothing."""
    with closing(Ledger(tmp_path / "ada", ran.setup.manifest.hash, "ada", guarantee="adaptive")) as ledger:
        assert agent_statement(_record(tmp_path, ran))["guarantee"]["answers"]["adaptive"]["mu"] == 0
        delta = ran.setup.manifest.config.privacy.delta
        mu = 0.9 * 2 * NormalDist().inv_cdf((1 + delta) / 2)
        assert epsilon_of(mu, delta) == 0
        ledger.release(0, ReleaseCost(0.0, 0.0, mu**2), {"bob": b"row"}, b"state")
    for one in agent_statement(_record(tmp_path, ran))["guarantee"]["answers"].values():
        assert one["epsilon"] == 0 and mu < one["mu"] < 2 * mu


def test_the_claimed_answer_has_no_mu(tmp_path):
    made = federation(tmp_path, "privacy.epsilon=9.0", agents=4, rounds=4, guarantee="claimed")
    made.setup.manifest.write(tmp_path / "manifest.toml")
    with closing(Ledger(made.state(0), made.setup.manifest.hash, "ada", guarantee="claimed")) as ledger:
        ledger.release(0, ReleaseCost(0.5, 0.7, 0.1), {"bob": b"row"}, b"state")
    answers = statement_of(made)["guarantee"]["answers"]
    assert answers["claimed"]["mu"] is None and answers["worst_case"]["mu"] > 0


def test_with_rounded_hidden_rows_only_the_worst_case_answer_is_a_guarantee(tmp_path):
    """Agents no longer start with such a manifest, but ledgers of older versions exist."""
    made = federation(tmp_path, "method.name=top", agents=5, rounds=4, guarantee="adaptive", dtype="float32")
    made.setup.manifest.write(tmp_path / "manifest.toml")
    with closing(Ledger(made.state(0), made.setup.manifest.hash, "ada", guarantee="adaptive")) as ledger:
        ledger.release(0, ReleaseCost(0.5, 0.7, 0.1), {"bob": b"row"}, b"state")
    said = statement_of(made)
    answers = said["guarantee"]["answers"]
    assert answers["worst_case"]["is_a_guarantee"] and not answers["adaptive"]["is_a_guarantee"]
    assert "ε = 0.7 at" in said["summary"][0] and "rounded to float32" in said["summary"][1]
    assert "not on a grid" in said["details"]["implementation"]["floating_point"]


def test_the_statement_after_an_amendment_includes_the_cost_of_the_earlier_run(tmp_path, ran):
    """Both runs use the same records, so the ε of the new run alone is not the whole cost."""
    amended = amend(ran.setup.manifest, MembershipChange(round=2, remove=("dan",), links=(("ada", "cleo"),)))[
        0
    ]
    amended.write(tmp_path / "manifest.toml")
    with closing(Ledger(tmp_path / "ada", amended.hash, "ada", guarantee="adaptive")) as ledger:
        ledger.release(0, ReleaseCost(0.5, 0.7, 0.1), {"bob": b"row"}, b"state")
    words = " ".join(agent_statement(agent_record(tmp_path / "ada", tmp_path / "manifest.toml"))["summary"])
    spent = amended.amends.spent["ada"]
    assert spent > 0 and f"by the plan at most ε = {rounded_up(spent)} at" in words
    assert "It replaces" not in " ".join(statement_of(ran)["summary"])


@pytest.mark.parametrize(("table", "column"), [("outbox", "round"), ("inbox", "round"), ("notes", "charges")])
def test_text_in_a_column_of_numbers_is_reported_as_tampering(tmp_path, ran, table, column):
    shutil.copytree(ran.state(0), tmp_path / "ada")
    with closing(sqlite3.connect(tmp_path / "ada" / LEDGER_FILE)) as db:
        newest = f"SELECT max(rowid) FROM {table}"
        db.execute(f"UPDATE {table} SET {column} = 'x' WHERE rowid = ({newest})")
        db.commit()
    with pytest.raises(TamperedError):
        _record(tmp_path, ran)


def test_an_agent_that_protects_persons_says_so(tmp_path):
    x, y = torch.randn(24, 1, 4, 4), torch.arange(24) % 3
    persons = [[f"{agent}-{record // 3}" for record in range(24)] for agent in range(3)]
    shards = Shards.from_arrays([(x, y)] * 3, classes=3, persons=persons)
    settings = "privacy.epsilon=2.0", "privacy.unit=person", "method.name=plain"
    made = federation(tmp_path, *settings, agents=3, rounds=2, shards=shards)
    on_virtual_time(live(made, options=OWN_NOISE))
    made.setup.manifest.write(made.folder / "manifest.toml")
    said = statement_of(made)
    assert said["scope"] == "One person of ada"
    assert "took part with 8 persons" in said["summary"][0]
    assert "whether the records of any one of its persons were used" in said["summary"][0]
    assert registry_schema.faults(said["registry"]) == []
    assert made.results()[0]["spent"]["unit"] == "person"
