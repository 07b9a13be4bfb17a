"""Real agents whose manifest gives each its own δ: charges, ledgers, site budgets, amendments, statements."""

import json
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from history import faults, federation, live, on_virtual_time, sharing

from topdp import topology
from topdp.agents.agreement import manifest as manifests
from topdp.agents.agreement.federation_manifest import build_manifest
from topdp.agents.agreement.identity import generate
from topdp.agents.agreement.manifest import ManifestError, Rules
from topdp.agents.agreement.run_setup import RunSetup, granted_deltas
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.site_budget import SiteBudget
from topdp.agents.node.agent_status import charged_facts
from topdp.agents.node.amending import MembershipChange, amend
from topdp.agents.node.site_reservation import reserve_site_budget
from topdp.agents.runtime.budget_meter import build_meter
from topdp.errors import TrustError
from topdp.privacy.accounting import account
from topdp.privacy.query import Query
from topdp.runs import config as configurations
from topdp.runs.config import ConfigError
from topdp.views.statement.agent_record import agent_record
from topdp.views.statement.agent_statement import agent_statement

pytestmark = pytest.mark.usefixtures("quick")
DELTAS = [1e-5, 1e-7, 1e-3, 1e-5]
OWN = (f"privacy.delta={DELTAS}", "privacy.epsilon=[2.0, 3.0, 2.0, 1.0]")
RING = {"agents": 4, "rounds": 4}
KINDS = {
    "adaptive": lambda folder: federation(folder, *OWN, guarantee="adaptive", **RING),
    "worst case": lambda folder: federation(folder, *OWN, **RING),
    "claimed": lambda folder: federation(
        folder, *OWN, "method.name=plain", "method.calibration=moments", guarantee="claimed", **RING
    ),
    "samples": lambda folder: federation(
        folder, *OWN, "method.name=plain", "data.batch={ poisson = 5 }", guarantee="adaptive", **RING
    ),
    "shared draws": lambda folder: sharing(folder, *OWN, graph=topology.complete(4), rounds=4),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The agents of an adaptive federation after their last round, with noise of their own."""
    made = KINDS["adaptive"](tmp_path_factory.mktemp("own"))
    run = on_virtual_time(live(made, options={number: {"seeded": False} for number in range(4)}))
    assert not faults(run)
    made.setup.manifest.write(made.folder / "manifest.toml")
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_each_agent_charges_what_the_simulators_account_states_at_its_delta(tmp_path, kind):
    made = KINDS[kind](tmp_path)
    assert not faults(on_virtual_time(live(made)))
    setup, privacy = made.setup, made.setup.manifest.config.privacy
    query = Query(colluders=privacy.colluders)
    found = account(setup.plan, setup.run.analysis, DELTAS, guarantee=privacy.guarantee, query=query)
    for i, result in enumerate(made.results()):
        alone = account(setup.plan, setup.run.analysis, DELTAS[i], guarantee=privacy.guarantee, query=query)
        spent = result["spent"]
        assert spent["delta"] == DELTAS[i] and result["without_data"] == 0
        assert spent["epsilon"] == pytest.approx(alone.answer(privacy.guarantee).epsilon[i], rel=1e-9)
        assert spent["epsilon"] == pytest.approx(found.answer(privacy.guarantee).epsilon[i], rel=1e-9)
        assert spent["worst_case"] == pytest.approx(alone.worst_case.epsilon[i], rel=1e-9)
        assert spent["epsilon"] <= setup.budget(i) * (1 + 1e-9)


def test_ledger_and_status_name_the_agents_own_delta(ran):
    for i, delta in enumerate(DELTAS):
        with closing(Ledger(ran.state(i), writable=False)) as ledger:
            assert charged_facts(ledger)["delta"] == delta


def test_the_statement_of_an_agent_is_about_its_own_delta(ran):
    for i, words in enumerate(["1e-5", "1e-7", "0.001", "1e-5"]):
        record = agent_record(ran.state(i), ran.folder / "manifest.toml")
        said = agent_statement(record)
        assert record.delta == said["guarantee"]["delta"] == DELTAS[i]
        assert f"at δ = {words}," in " ".join(map(str, said["summary"]))


def test_a_ledger_with_the_delta_of_another_agent_is_refused(ran, monkeypatch):
    """The δ of the wrong agent is no δ of this ledger, although the manifest lists it."""
    from topdp.views.statement import agent_record as module

    def another(ledger):
        return {**charged_facts(ledger), "delta": DELTAS[1]}

    monkeypatch.setattr(module, "charged_facts", another)
    assert agent_record(ran.state(1), ran.folder / "manifest.toml").delta == DELTAS[1]
    with pytest.raises(TrustError, match="the delta of"):
        agent_record(ran.state(0), ran.folder / "manifest.toml")


def test_the_site_budget_adds_up_the_agents_own_delta(tmp_path):
    made = KINDS["adaptive"](tmp_path)
    for i, delta in enumerate(DELTAS):
        agent = SimpleNamespace(
            name=made.names[i], context=made.context(i), ledger=Ledger(made.state(i), "run", made.names[i])
        )
        with closing(agent.ledger):
            records = (np.full((3, 2), float(i)), np.zeros(3))
            site = tmp_path / f"site{i}"
            reservation = reserve_site_budget(agent, site, tmp_path, records, "records")
            agent.ledger.before_charge(0.1)  # the first charge reserves
            reservation.budget.close()
        with closing(SiteBudget(site)) as budget:
            assert [run["delta"] for run in budget.runs()] == [delta]


def test_an_amendment_keeps_the_delta_of_each_member(tmp_path):
    made = KINDS["adaptive"](tmp_path)
    before, new = made.setup.manifest, generate("zoe", "z.org:1").card
    names = before.names
    change = MembershipChange(
        round=1,
        add=(new,),
        remove=(names[1],),
        links=((names[0], names[2]), (names[3], "zoe")),
        records=(30,),
    )
    amended, found, _ = amend(before, change)
    amended.write(tmp_path / "amended.toml")
    amended = manifests.read_manifest(tmp_path / "amended.toml")
    left = dict(zip(names, DELTAS, strict=True))
    assert granted_deltas(amended) == {names[0]: 1e-5, names[2]: 1e-3, names[3]: 1e-5, "zoe": 1e-7}
    assert found.delta == [1e-5, 1e-3, 1e-5, 1e-7]
    assert {name: amended.amends.spent_delta(name) for name in (*names, "zoe")} == {**left, "zoe": 0.0}
    setup = RunSetup.of(amended)
    for i, name in enumerate(amended.names):
        assert build_meter(setup, i).spending.delta == granted_deltas(amended)[name]


def test_an_amendment_with_a_delta_for_other_members_is_refused(tmp_path):
    made = KINDS["adaptive"](tmp_path)
    change = MembershipChange(round=1, remove=(made.names[1],), links=((made.names[0], made.names[2]),))
    told = amend(made.setup.manifest, change)[0].amends.model_dump()
    for wrong in ({}, {"ada": 1e-5}, {**told["delta"], "eve": 1e-5}, [1e-5] * 4, {**told["delta"], "x": "1"}):
        with pytest.raises(ManifestError, match="amends"):
            manifests.as_amendment(made.setup.manifest, {**told, "delta": wrong})


def made_with(delta, counts=(100, 200)):
    changes = [f"privacy.delta={delta}", "topology.agents=2", "rounds=2", "model.name=linear"]
    cards = [generate(name, f"a.org:{port}").card for port, name in enumerate(("ada", "bob"), 1)]
    read = configurations.read(changes=changes)
    return build_manifest(cards, topology.from_edges([(0, 1)], 2), counts, read, Rules())


def test_a_manifest_states_and_checks_the_delta_of_every_agent():
    manifest, found, remarks = made_with([1e-3, 1e-6])
    assert manifest.config.privacy.delta == found.delta == [1e-3, 1e-6]
    assert not any("delta" in words for words in remarks)
    assert any("1/200" in words for words in made_with([1e-3, 5e-3])[2])
    for wrong, words in (
        ([1e-5] * 3, "got a list of 3"),
        ([0.01, 5e-3], "expected less than 1/100, .* 0.005 to 0.01"),
    ):
        with pytest.raises(ConfigError, match=rf"privacy\.delta: .*{words}"):
            made_with(wrong)
    tree = {**manifest.tree, "run": {**manifest.tree["run"]}}  # as if written by hand
    tree["run"]["privacy"] = {**tree["run"]["privacy"], "delta": [1e-5] * 3}
    with pytest.raises(ConfigError, match=r"privacy\.delta.*got a list of 3"):
        RunSetup.of(manifests._from_tree(tree, "by hand"))


def test_commands_tell_each_member_its_delta(tmp_path, topdp):
    for name in ("ada", "bob", "cleo"):
        init = ("--name", name, "--identity", tmp_path / name, "--address", f"{name}.org:7400")
        assert topdp("agent", "init", *init).code == 0
    first, second = tmp_path / "manifest.toml", tmp_path / "manifest-2.toml"
    created = topdp(
        "federation", "create", *(tmp_path / name / "card.toml" for name in ("ada", "bob", "cleo")),
        "--links", "ada-bob,bob-cleo,ada-cleo", "--records", "300", "--robust", "none", "--set", "rounds=20",
        "--set", "privacy.epsilon=2", "--set", "privacy.delta=[1e-5, 1e-6, 1e-7]", "--out", first,
    )  # fmt: skip
    assert created.code == 0, created.err
    way = ["federation", "amend", first, "--remove", "ada", "--from-round", "8", "--out", second]
    told = json.loads(topdp(*way, "--json").out)
    assert told["amends"]["delta"] == {"ada": 1e-5, "bob": 1e-6, "cleo": 1e-7}
    assert told["delta"] == 1e-5 and told["privacy"]["delta"] == [1e-6, 1e-7]  # ada's of one run
    second.unlink()
    said = topdp(*way).out
    assert "= 2 at most, delta 2e-06" in said and "delta 2e-07" in said and "delta 1e-05" in said
    signed = topdp("agent", "sign", second, "--identity", tmp_path / "cleo", "--json")
    assert json.loads(signed.out)["delta"] == 1e-7
