"""Tests of amendments: their cost, the signatures that they need, and how a run ends for them."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from history import CARDS, IDENTITIES, Wire, abandon, faults, federation, live, on_virtual_time, sharing

from topdp.agents.agreement import amendments, identity, manifest
from topdp.agents.agreement.amendments import (
    expect_all_signed,
    final_round,
    sign_amendment,
)
from topdp.agents.agreement.run_marks import RollbackMark
from topdp.agents.agreement.run_setup import RunSetup
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_entries import ReleaseCost
from topdp.agents.ledger.ledger_facts import FINAL_ROUND_KEY
from topdp.agents.node import agent_process, amending
from topdp.agents.node.amending import MembershipChange, amend, granted_budgets
from topdp.agents.node.carried_budget import remaining_budget
from topdp.agents.wire.transport import Message, MessageKind, ReplyCode
from topdp.errors import BudgetError, InputError, TrustError

pytestmark = pytest.mark.usefixtures("quick")
LAST = 3
NEW = identity.generate("zoe", "z.org:1")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return federation(tmp_path_factory.mktemp("ring"), guarantee=None)


@pytest.fixture(scope="module")
def amended(made):
    """An amendment that removes the last agent and closes the ring by a new edge."""
    names = made.names
    change = MembershipChange(round=LAST, remove=(names[-1],), links=((names[0], names[-2]),))
    return amend(made.setup.manifest, change)[0]


def signed_by(amended, path, *names):
    amended.write(path)
    for name in names:
        sign_amendment(path, manifest.read_manifest(path), [IDENTITIES[name]])
    return manifest.read_manifest(path)


def test_remaining_and_spent_budget_add_up_to_the_granted_budget(made, amended):
    before, told, left = granted_budgets(made.setup.manifest), amended.amends, granted_budgets(amended)
    assert told.manifest == made.setup.manifest.hash and told.granted == before
    assert (
        amended.names == made.names[:-1] and amended.config.rounds == made.setup.manifest.config.rounds - LAST
    )
    for name in amended.names:
        assert 0 < told.spent[name] < before[name]
        assert told.spent[name] + left[name] == pytest.approx(before[name])


@pytest.mark.parametrize("kind", [federation, sharing])
def test_all_agents_end_after_the_named_round_and_spend_what_the_amendment_states(tmp_path, kind):
    made = kind(tmp_path)
    stated = amending.spent_by(made.setup, LAST)

    async def lived():
        wire = Wire()
        for number in range(len(made.names)):
            agent = made.agent(number, wire.transport(made.names[number]))
            agent.ledger.end_with(LAST)
            abandon(agent)
        return await live(made, wire)

    assert not faults(on_virtual_time(lived()))
    for number, result in enumerate(made.results()):
        assert result["finished"] and result["releases"] == LAST + 1
        assert result["spent"]["epsilon"] == pytest.approx(stated[made.names[number]], rel=1e-9)
    found = on_virtual_time(live(made))  # a restart continues no agent
    assert not faults(found) and {result["releases"] for result in made.results()} == {LAST + 1}


def test_agents_that_learn_of_an_amendment_late_end_within_two_more_rounds(tmp_path):
    """Half of the agents know of it; the others continue as far as rows allow, and end when they are told."""
    made = federation(tmp_path)

    async def lived():
        wire = Wire()
        agents = [made.agent(number, wire.transport(name)) for number, name in enumerate(made.names)]
        for agent in agents[:3]:
            agent.ledger.end_with(LAST)
        tasks = [asyncio.create_task(agent.run()) for agent in agents]
        await asyncio.sleep(30)
        assert all(LAST <= agent.ledger.round <= LAST + 2 for agent in agents)  # as far as rows allow
        assert [agent.ledger.round for agent in agents[:3]] == [LAST] * 3
        for agent in agents:
            agent.stop()
        await asyncio.gather(*tasks)
        for number in range(3, 6):
            ledger = Ledger(made.state(number), **facts(made, number))
            ledger.end_with(LAST)
            ledger.close()
        return await live(made, wire)

    on_virtual_time(lived())
    assert all(result["finished"] for result in made.results())
    assert max(result["releases"] for result in made.results()) <= LAST + 3


@pytest.mark.parametrize("leaves", [(), ("fay",)])
def test_agents_wait_for_an_absent_member_unless_the_amendment_removes_it(tmp_path, leaves):
    """Under the rule `wait`, agents wait for ever for a member that may return, but not for one that left."""
    made = federation(tmp_path)
    for number, name in enumerate(made.names):
        agent = made.agent(number, Wire().transport(name))
        agent.ledger.end_with(LAST, leaves)
        abandon(agent)
    lived = live(made, failpoints={5: f"after_ledger:{LAST + 1}"}, for_good=[5])
    if leaves:
        assert not faults(run := on_virtual_time(lived, 60.0))
        assert [run.outcomes[number].result["releases"] for number in range(5)] == [LAST + 1] * 5
    else:
        with pytest.raises(TimeoutError):
            on_virtual_time(lived, 60.0)


@pytest.mark.parametrize("kind", [federation, sharing])
@pytest.mark.parametrize("acknowledges", [True, False])
def test_agents_do_not_wait_for_a_removed_member_that_stays_online(tmp_path, kind, acknowledges):
    """It knows nothing of the amendment, and waits for rows of rounds that nobody makes."""
    made = kind(tmp_path, rounds=20)

    async def lived():
        wire = Wire()
        deaf = lambda sender, to, sent: to == "fay" and sent.kind is MessageKind.ROW and sent.round >= LAST  # noqa: E731
        wire.lose = None if acknowledges else lambda *sent: "reply" if deaf(*sent) else None
        agents = [made.agent(number, wire.transport(name)) for number, name in enumerate(made.names)]
        for agent in agents[:-1]:
            agent.ledger.end_with(LAST, ["fay"])
        tasks = [asyncio.create_task(agent.run()) for agent in agents]
        await asyncio.wait(tasks[:-1], timeout=60)
        assert not tasks[-1].done()
        agents[-1].stop()
        done = [task.done() for task in tasks[:-1]]
        for agent in agents:
            agent.stop()
        await asyncio.gather(*tasks)
        return done

    assert on_virtual_time(lived()) == [True] * 5
    for number in range(5):
        assert json.loads((made.state(number) / "result.json").read_text())["releases"] == LAST + 1


def facts(made, number):
    return {"federation": made.setup.manifest.hash, "agent": made.names[number], "guarantee": "worst-case"}


def test_an_amendment_needs_the_signatures_of_all_members(made, amended, tmp_path):
    path = tmp_path / "manifest-2.toml"
    names = amended.names
    with pytest.raises(TrustError, match=names[0]):
        expect_all_signed(signed_by(amended, path))
    with pytest.raises(TrustError, match=f"and {names[-1]} did not"):
        final_round(made.setup.manifest, signed_by(amended, path, *names[:-1]))
    whole = signed_by(amended, path, *names)
    assert final_round(made.setup.manifest, whole) == LAST and whole.hash == amended.hash
    with pytest.raises(TrustError, match="an amendment of the manifest"):
        final_round(whole, whole)


def test_signatures_by_another_agent_or_of_another_document_are_refused(made, amended, tmp_path):
    whole = signed_by(amended, tmp_path / "one.toml", *amended.names)
    first, second = amended.names[:2]
    swapped = replace(whole, signatures={**whole.signatures, first: whole.signatures[second]})
    with pytest.raises(TrustError, match=f"a signature of {first}"):
        expect_all_signed(swapped)
    other = amend(made.setup.manifest, MembershipChange(round=LAST + 1, remove=(made.names[-1],)))[0]
    with pytest.raises(TrustError, match="a signature of"):
        expect_all_signed(replace(other, signatures=whole.signatures))
    text = whole.to_toml().replace(f"round = {LAST}", f"round = {LAST + 1}")
    with pytest.raises(TrustError, match="expected the hash"):
        manifest.parse_manifest(text)
    with pytest.raises(InputError, match="amends none"):
        sign_amendment(tmp_path / "x", made.setup.manifest, [IDENTITIES[first]])
    with pytest.raises(TrustError, match="another one"):
        sign_amendment(tmp_path / "x", amended, [identity.generate(first, "a.org:1")])


def test_an_amendment_adds_a_member(made):
    change = MembershipChange(
        round=LAST, add=(NEW.card,), links=(("zoe", made.names[0]),), records=(40,), rounds=9
    )
    found = amend(made.setup.manifest, change)[0]
    assert found.names == (*made.names, "zoe") and found.config.rounds == 9
    assert found.neighbours("zoe") == (made.names[0],)
    assert "zoe" not in found.amends.granted


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (MembershipChange(round=LAST), "to add or to remove"),
        (MembershipChange(round=-1, remove=("bob",)), "from-round"),
        (MembershipChange(round=99, remove=("bob",)), "from-round"),
        (MembershipChange(round=LAST, remove=("nobody",)), "nobody"),
        (MembershipChange(round=LAST, add=(CARDS[0],), records=(3,)), "not in the manifest"),
        (MembershipChange(round=LAST, add=(NEW.card,)), "records"),
        (MembershipChange(round=LAST, add=(NEW.card,), records=(3,)), "connected"),
    ],
)
def test_invalid_changes_of_members_are_refused(made, change, words):
    with pytest.raises(InputError, match=words):
        amend(made.setup.manifest, change)


def test_an_amendment_cannot_be_amended(amended):
    with pytest.raises(InputError, match="amends none"):
        amend(amended, MembershipChange(round=1, remove=(amended.names[0],)))


@pytest.mark.parametrize("broken", [{}, {"manifest": "00"}, {"round": -1}, {"spent": {}}, {"delta": "1"}])
def test_invalid_statements_about_the_amended_manifest_are_refused(amended, broken):
    tree = {**amended.tree["amends"], **broken} if broken else {}
    with pytest.raises(InputError, match="amends"):
        manifest.as_amendment(amended, tree)


def test_the_remaining_budget_follows_from_the_ledger_of_the_earlier_run(amended):
    told, name = amended.amends, amended.names[0]
    granted, spent = told.granted[name], told.spent[name]

    def remaining(spent=spent / 2, final_round=told.round, **facts):
        meta = {"federation": told.manifest, "agent": name, **facts}
        ledger = SimpleNamespace(meta=meta, final_round=final_round, round=told.round, spent=spent)
        return remaining_budget(told, name, ledger)

    assert remaining() == granted - spent
    assert remaining(spent=spent * 1.2) == granted - spent * 1.2
    own = remaining(budget=repr((granted + spent) / 2))  # an own budget stays, as at a restart
    assert own == pytest.approx((granted - spent) / 2)
    for other in ({"federation": "ab" * 32}, {"agent": amended.names[1]}):
        with pytest.raises(TrustError, match=f"expected the ledger of {name} for the run"):
            remaining(**other)
    with pytest.raises(TrustError, match=f"expected a ledger that ended with round {told.round}"):
        remaining(final_round=None)
    for other in ({"spent": granted}, {"spent": None}, {"budget": repr(spent)}):
        with pytest.raises(BudgetError):
            remaining(**other)


def test_an_earlier_member_starts_with_its_earlier_ledger(amended, tmp_path):
    name, told = amended.names[0], amended.amends
    whole = signed_by(amended, tmp_path / "m.toml", *amended.names)
    state = tmp_path / "state"
    options = agent_process.AgentOptions(
        manifest=tmp_path / "m.toml", identity=tmp_path, data="", state=tmp_path / "new"
    )
    with pytest.raises(InputError, match="--after"):
        agent_process._own_budget(options, whole, name)
    with pytest.raises(TrustError, match="signed by all"):
        agent_process._own_budget(options, amended, name)
    ledger = Ledger(state, told.manifest, name)
    for round in range(LAST + 1):
        ledger.release(round, ReleaseCost(told.granted[name] / 5, 1.0, 1.0), {}, b"", ())
    ledger.close()
    options = replace(options, after=state)
    with pytest.raises(TrustError, match="has not ended"):
        agent_process._own_budget(options, whole, name)
    ledger = Ledger(state, told.manifest, name)
    ledger.end_with(LAST)
    ledger.end_with(LAST + 2)
    assert ledger.meta[FINAL_ROUND_KEY] == str(LAST)
    ledger.close()
    assert agent_process._own_budget(options, whole, name) == pytest.approx(told.granted[name] / 5)
    assert agent_process._own_budget(replace(options, epsilon=1e-3), whole, name) == 1e-3
    mark, ledger_id = RollbackMark(options.identity, told.manifest), ledger.meta.get("books", "")
    mark.note(ledger_id, LAST + 1, "of an entry that this ledger does not have")
    with pytest.raises(TrustError, match="old copy"):
        agent_process._own_budget(options, whole, name)
    mark.note("another state folder", 1, "one of its entries")
    with pytest.raises(TrustError, match="expected the newest ledger"):
        agent_process._own_budget(options, whole, name)


def write_ended_ledger(folder, told, name):
    ledger = Ledger(folder, told.manifest, name)
    for round in range(LAST + 1):
        ledger.release(round, ReleaseCost(told.granted[name] / 5, 1.0, 1.0), {}, b"", ())
    ledger.end_with(LAST)
    ledger.close()


def test_the_remaining_budget_can_be_used_in_one_amendment_only(made, amended, tmp_path):
    name, told = amended.names[0], amended.amends
    other = amend(made.setup.manifest, MembershipChange(round=LAST, remove=(made.names[2],)))[0]
    first, second = (
        signed_by(one, tmp_path / f"{number}.toml", *one.names) for number, one in enumerate([amended, other])
    )
    write_ended_ledger(tmp_path / "state", told, name)
    options = agent_process.AgentOptions(
        manifest=tmp_path / "0.toml",
        identity=tmp_path,
        data="",
        state=tmp_path / "new",
        after=tmp_path / "state",
    )
    left = agent_process._own_budget(options, first, name)
    with pytest.raises(TrustError, match="cannot be spent twice"):
        agent_process._own_budget(options, second, name)
    assert agent_process._own_budget(options, first, name) == left  # at a restart


@pytest.mark.parametrize("knows", ["--after", "its mark"])
def test_an_earlier_member_whose_budget_the_amendment_omits_cannot_start(amended, tmp_path, knows):
    name, told = amended.names[0], amended.amends
    tree = {**amended.tree["amends"]}
    for key in ("granted", "spent"):
        tree[key] = {other: value for other, value in tree[key].items() if other != name}
    forgetful = signed_by(manifest.as_amendment(amended, tree), tmp_path / "m.toml", *amended.names)
    options = agent_process.AgentOptions(
        manifest=tmp_path / "m.toml", identity=tmp_path, data="", state=tmp_path / "new"
    )
    assert agent_process._own_budget(options, forgetful, name) is None  # this site knows of no earlier run
    write_ended_ledger(tmp_path / "state", told, name)
    if knows == "--after":
        options = replace(options, after=tmp_path / "state")
    else:
        RollbackMark(tmp_path, told.manifest).note("its books", LAST, "an entry")
    with pytest.raises(TrustError, match="does not list it"):
        agent_process._own_budget(options, forgetful, name)


def test_after_is_refused_if_the_manifest_amends_nothing(made, tmp_path):
    options = agent_process.AgentOptions(
        manifest=tmp_path / "m.toml",
        identity=tmp_path,
        data="",
        state=tmp_path / "new",
        after=tmp_path / "state",
    )
    with pytest.raises(InputError, match="amends none"):
        agent_process._own_budget(options, made.setup.manifest, made.names[0])


def test_a_removed_member_is_refused_as_a_stranger(made, amended, tmp_path):
    """It is no neighbour, and it has another manifest."""
    new = replace(made, setup=RunSetup.of(amended), folder=tmp_path)

    async def told():
        wire = Wire()
        agent = new.agent(0, wire.transport(new.names[0]))
        try:
            row = Message.of(MessageKind.ROW, 0, b"numbers")
            assert (await agent.requests.handle(made.names[-1], row)).code is ReplyCode.STRANGER
        finally:
            abandon(agent)

    on_virtual_time(told())


def test_signatures_are_in_the_file_but_not_in_the_signed_content(amended, tmp_path):
    whole = signed_by(amended, tmp_path / "m.toml", amended.names[0])
    assert manifest.parse_manifest(whole.to_toml()).signatures == whole.signatures != {}
    assert json.dumps(whole.tree).count(whole.signatures[amended.names[0]]) == 0
    assert amendments.missing_signatures(whole) == list(amended.names[1:])
