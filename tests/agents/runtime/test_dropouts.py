"""Tests of agents with pair noise, one of which is gone for good: the others finish with correct ledgers.

Each row shows its components (`symbolic`), so the test compares what all agents could learn with the ledgers.
"""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from history import Wire, faults, live, on_virtual_time, sharing
from symbolic import symbolic
from test_exhausted import read_ledger, truth

from builders import cyclic_pairs
from topdp import topology
from topdp.agents.agreement.run_marks import RUN_KEY_FILE, RunSecret
from topdp.agents.agreement.signatures import Notice, encode_notices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.node.site_reservation import close_run
from topdp.agents.runtime import budget_meter
from topdp.agents.wire.transport import Message, MessageKind, ReplyCode
from topdp.errors import TrustError

pytestmark = pytest.mark.usefixtures("quick")

GONE = 3  # dan


def small(folder, *changes, graph=None, rounds=9, gossip=1, epsilon=2.0, **how):
    """Six agents with pair noise, noise calibrated to a budget, and the rule `go-on`."""
    made = sharing(
        folder,
        f"privacy.epsilon={epsilon}",
        *changes,
        graph=graph,
        rounds=rounds,
        gossip=gossip,
        tolerates_silence=True,
        **how,
    )
    return symbolic(made)


@pytest.mark.parametrize("departures", [0, 1])
def test_data_enter_to_the_last_round_after_one_departure_in_the_reserve(tmp_path, departures):
    """One of five is gone for good early on; without a reserve, data stop in the middle of the run."""
    made = sharing(
        tmp_path, "privacy.epsilon=2.0", graph=topology.complete(5), rounds=40, tolerates_silence=True,
        idle_timeout=2.0, departures=departures,
    )  # fmt: skip
    run = on_virtual_time(
        live(made, wire=Wire(delay=0.05), failpoints={GONE: "after_ledger:8"}, for_good=[GONE])
    )
    stops = {run.outcomes[i].result["stopped_at"] for i in left(made)}
    assert stops == {None} if departures else max(stops) < 35
    for i in left(made):
        assert run.outcomes[i].result["spent"]["epsilon"] <= made.setup.budget(i) * (1 + 1e-9)


def test_an_agent_that_returns_after_the_end_says_what_to_do_and_leaves_no_key(tmp_path, caplog):
    """Nobody tells it that the others have gone on: they have ended."""
    made = sharing(
        tmp_path, graph=topology.complete(3), rounds=4, tolerates_silence=True, idle_timeout=2.0
    )  # fmt: skip
    key = RunSecret(made.private(0).folder, made.setup.manifest.hash).folder / RUN_KEY_FILE

    async def scene():
        wire = Wire(delay=0.05)
        await live(made, wire=wire, failpoints={0: "after_ledger:2"}, for_good=[0])
        agent = made.agent(0, wire.transport("ada"))
        task = asyncio.create_task(agent.run())
        await asyncio.sleep(60)
        agent.stop()
        await task

    on_virtual_time(scene())
    assert "bob, cleo: not heard since the start" in caplog.text and key.exists()
    close_run(tmp_path / "site", made.state(0), made.private(0).folder)
    assert not key.exists()
    with pytest.raises(TrustError, match="gone on without this agent"):
        made.agent(0, Wire().transport("ada"))


def left(made, gone=(GONE,)):
    return [i for i in range(len(made.names)) if i not in gone]


def expect_ledgers_to_hold(made, agents=None):
    """No agent has learned more than the ledgers state, and none has spent more than its budget."""
    for agent in range(len(made.names)) if agents is None else agents:
        entries, _ = read_ledger(made, agent)
        assert truth(made, agent, True) <= entries[-1].total * (1 + 1e-9), made.names[agent]
        assert entries[-1].total <= made.setup.budget(agent) * (1 + 1e-9)


def shared_with(made, agent, other):
    """The number of the draw that two agents share."""
    return next(
        k
        for k, knows in enumerate(made.setup.plan.known_by.tolist())
        if sorted(knows) == sorted((agent, other))
    )


def in_the_sum(made, agents, round, draw):
    """The share of a draw that remains in the sum of these agents' last estimates."""
    last = sum(made.estimates_made[i, made.setup.plan.releases - 1] for i in agents)
    entered = np.abs(made.setup.plan[round].std[made.setup.plan[round].draw == draw]).max()
    return abs(last[made.coordinates.draw(round, draw)]) / entered


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "graph"),
    [
        *cyclic_pairs(["after_ledger:1", "after_send:20", "after_mark:6"], ["ring", "complete"], 1),
        *cyclic_pairs(["after_ledger:7", "before_ledger:9"], ["ring", "complete"], 2),
    ],
)
def test_after_one_agent_is_gone_the_others_finish_with_correct_ledgers(tmp_path, graph, place):
    made = small(tmp_path, graph={"ring": topology.ring(6), "complete": topology.complete(6)}[graph])
    run = made.lived(failpoints={GONE: place}, for_good=[GONE])
    assert faults(run) == []
    assert set(run.outcomes) == set(left(made)) and all(one.finished for one in run.outcomes.values())
    expect_ledgers_to_hold(made)
    last = read_ledger(made, GONE)[0][-1].round
    for agent in left(made):
        result = run.outcomes[agent].result
        assert result["gone"] == {"dan": result["gone"]["dan"]} and result["releases"] == 20
        assert result["spent"]["charged_by"] == "adaptive"
        draw = shared_with(made, agent, GONE)
        ledger = Ledger(made.state(agent), writable=False)
        first = int(ledger.meta["left out dan"])
        ledger.close()
        assert last < first <= last + 7, "all agents know it within a few rounds"
        scale = made.setup.plan.scale
        missed = [r for r in range(0, first, 2) if r >= result["gone"]["dan"]]
        for r in range(first, 20, 2):
            assert made.estimates_made[agent, r][made.coordinates.draw(r, draw)] == 0, "left out"
        for r in missed[-2:]:  # taken back as far as the noise of the row that does so allows
            left_over = 1 - min(1.0, scale[first] / scale[r])
            assert in_the_sum(made, left(made), r, draw) == pytest.approx(left_over, abs=1e-9)
        assert all(in_the_sum(made, left(made), r, draw) > 0.9 for r in missed[:-2]), "not taken back"


def test_without_departures_the_budget_includes_the_reserve_and_all_data_enter(tmp_path):
    made = small(tmp_path)
    run = made.lived()
    assert faults(run) == [] and {one.code for one in run.outcomes.values()} == {0}
    expect_ledgers_to_hold(made)
    assert made.results()[0]["spent"]["epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert made.taken[0] == list(range(0, 20, 2)) and made.results()[0]["gone"] == {}


def test_departed_agents_must_be_counted_as_colluders(tmp_path, monkeypatch):
    """If draws were left out without counting this, the ledgers would charge too little."""
    made = small(tmp_path, graph=topology.complete(6), epsilon=6.0)
    original = budget_meter.most_learned_since
    monkeypatch.setattr(
        budget_meter, "most_learned_since", lambda plan, owner, gone, *more: original(plan, owner, {}, *more)
    )
    monkeypatch.setattr(budget_meter, "RESERVED_RELEASES", 0)
    made.lived(failpoints={GONE: "after_ledger:1"}, for_good=[GONE])
    entries, _ = read_ledger(made, 0)
    assert truth(made, 0, True) > entries[-1].total * 1.02


@pytest.mark.slow
@pytest.mark.parametrize("gossip", [0, 1])
def test_the_ledger_of_a_departed_agent_reserves_for_rows_that_may_have_been_seen(
    tmp_path, monkeypatch, gossip
):
    """dan charges a row and is killed; all others state that it never came, and take back their shared draws.

    The account treats every row as seen, because an agent may lie. Without the reserve it charges too little.
    """
    for reserve in (True, False):
        made = small(tmp_path / str(reserve), graph=topology.complete(6), gossip=gossip)
        if not reserve:
            monkeypatch.setattr(budget_meter, "RESERVED_RELEASES", 0)
        made.lived(failpoints={GONE: "after_ledger:7"}, for_good=[GONE])
        entries, _ = read_ledger(made, GONE)
        assert entries[-1].round == 6 and entries[-1].kind == "release"
        assert (truth(made, GONE, True) <= entries[-1].total * (1 + 1e-9)) == reserve


def gone_as_known(made, agent):
    ledger = Ledger(made.state(agent), writable=False)
    rows = ledger.database.rows("SELECT about, text FROM statements WHERE author = ?", made.names[agent])
    ledger.close()
    return {about: text for about, text in rows if about.startswith(("silent", "without"))}


def test_two_neighbours_that_leave_at_once_are_both_left_out(tmp_path):
    made = small(tmp_path, graph=topology.random(6, 0.6, 1), epsilon=4.0)
    adjacent = made.setup.manifest.topology.adjacency
    two = next((i, j) for i in range(6) for j in range(6) if i < j and adjacent[i, j])
    run = made.lived(failpoints=dict.fromkeys(two, "after_ledger:5"), for_good=two)
    assert faults(run) == [] and set(run.outcomes) == set(left(made, two))
    expect_ledgers_to_hold(made)
    for agent in left(made, two):
        assert set(run.outcomes[agent].result["gone"]) == {made.names[i] for i in two}
        last = made.estimates_made[agent, 18]
        assert all(last[made.coordinates.draw(18, shared_with(made, agent, i))] == 0 for i in two)


def test_two_agents_that_leave_one_after_the_other_are_left_out(tmp_path):
    made = small(tmp_path, graph=topology.complete(6), rounds=14, epsilon=4.0)
    run = made.lived(failpoints={3: "after_ledger:5", 1: "after_ledger:15"}, for_good=[1, 3])
    assert faults(run) == [] and set(run.outcomes) == {0, 2, 4, 5}
    expect_ledgers_to_hold(made)
    assert all(set(one.result["gone"]) == {"bob", "dan"} for one in run.outcomes.values())


PLACES = ["in_ledger", "after_ledger", "after_mark", "after_send", "before_receive"]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "count"), [*cyclic_pairs(PLACES, [7, 5, 9], 1), ("in_ledger", 5)])
def test_crashes_of_the_remaining_agents_change_nothing(tmp_path, place, count):
    """A restart takes less than the idle timeout, so no other agent is given up."""
    made = small(tmp_path, graph=topology.complete(6))
    often = 5 if "send" in place or "receive" in place else 1
    killed = dict.fromkeys(left(made), f"{place}:{count * often}")
    run = made.lived(failpoints={**killed, GONE: "after_ledger:5"}, for_good=[GONE], restart_after=0.5)
    assert faults(run) == [] and set(run.outcomes) == set(left(made))
    expect_ledgers_to_hold(made)
    assert all(set(one.result["gone"]) == {"dan"} for one in run.outcomes.values())


@pytest.mark.slow
def test_with_poisson_batches_shared_draws_are_left_out_but_not_taken_back(tmp_path):
    changes = ("data.batch={poisson=10}", "privacy.epsilon=2.0")
    made = sharing(tmp_path, *changes, graph=topology.complete(6), rounds=5, gossip=1, tolerates_silence=True)
    run = on_virtual_time(live(made, failpoints={GONE: "after_ledger:3"}, for_good=[GONE]))
    assert faults(run) == [] and set(run.outcomes) == set(left(made))
    for agent in left(made):
        entries, _ = read_ledger(made, agent)
        said = gone_as_known(made, agent)
        assert int(said["without dan"]) > int(said["silent dan"]) + 1, "nothing is charged late"
        assert not any(entry.kind == "late" for entry in entries) and entries[-1].total <= 2.0 * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("along", ["constant", "power"])
def test_an_agent_whose_budget_allows_no_late_charge_leaves_draws_out_later(tmp_path, along):
    """ada's budget allows no late charge: dan's draws are left out only from her next round on."""
    made = small(tmp_path, f"method.noise_schedule.kind={along}", graph=topology.complete(6))
    unbroken = symbolic(replace(made, folder=tmp_path / "unbroken"))
    unbroken.lived()
    own = read_ledger(unbroken, 0)[0][6].total * (1 + 1e-6)  # ends with round 6
    run = made.lived(failpoints={GONE: "after_ledger:7"}, for_good=[GONE], options={0: {"epsilon": own}})
    assert faults(run) == []
    expect_ledgers_to_hold(made)
    entries, stopped = read_ledger(made, 0)
    assert entries[-1].total <= own * (1 + 1e-9) and stopped is not None
    covered = int(gone_as_known(made, 0)["without dan"])
    assert covered > int(gone_as_known(made, 1)["without dan"])
    for agent in left(made):
        for r in range(6, covered, 2):
            name = made.coordinates.draw(r, shared_with(made, agent, GONE))
            assert made.estimates_made[agent, r][name] != 0, "no draw of a round before is left out"
            assert in_the_sum(made, left(made), r, shared_with(made, agent, GONE)) > 0.9, "nor taken back"


def test_an_agent_behind_a_broken_link_is_not_counted_as_gone(tmp_path):
    """The link between cleo and dan breaks; all other neighbours still hear both."""
    made = small(tmp_path, graph=topology.complete(6))
    wire = Wire()
    wire.cut = {frozenset(("cleo", "dan"))}
    run = on_virtual_time(live(made, wire=wire))
    # All keys arrive on other ways, but an agent that never met its neighbour waits for it and then gives up.
    assert {one.code for one in run.outcomes.values()} == {0}
    assert all(one.result["gone"] == {} for one in run.outcomes.values())
    assert "silent dan" in gone_as_known(made, 2) and "silent cleo" in gone_as_known(made, 3)


def test_in_a_partitioned_network_no_agent_counts_as_gone(tmp_path):
    made = small(tmp_path, graph=topology.ring(6))
    wire = Wire()

    async def scene():
        running = asyncio.create_task(live(made, wire=wire))
        while not any(event.kind == "row" and event.round == 4 for event in wire.events):
            await asyncio.sleep(0.01)
        wire.cut = {frozenset(("ada", "bob")), frozenset(("dan", "eve"))}
        return await running

    wire.delay = 0.01
    run = on_virtual_time(scene())
    assert all(one.result["gone"] == {} for one in run.outcomes.values()) and len(run.outcomes) == 6
    assert faults(run) == []


def test_an_agent_that_returns_after_it_was_given_up_is_refused(tmp_path):
    made = small(tmp_path, graph=topology.complete(6), rounds=20)
    wire = Wire(delay=0.2)
    with pytest.raises(BaseExceptionGroup) as raised:
        on_virtual_time(live(made, wire=wire, failpoints={GONE: "after_ledger:5"}, restart_after=6.0))
    (error,) = raised.value.exceptions
    assert isinstance(error, TrustError) and "gone on without this agent" in str(error)
    ledger = Ledger(made.state(GONE), writable=False)
    assert ledger.round == 4, "no row was made after it came back"
    ledger.close()
    assert not list(made.private(GONE).folder.rglob("key"))


def statement(made, author, about, text, run):
    return Notice.signed(made.identities[author], made.setup.manifest, run, about, text)


def test_one_neighbour_cannot_count_an_agent_out_nor_speak_for_others(tmp_path):
    made = small(tmp_path, graph=topology.ring(6))
    wire = Wire(delay=0.05)

    async def scene():
        agents = [made.agent(i, wire.transport(made.names[i])) for i in range(6)]
        tasks = [asyncio.create_task(agent.run()) for agent in agents]
        while agents[0].ledger.round < 2:
            await asyncio.sleep(0.01)
        ada = agents[0]
        run = ada.shared_draws.notices.run
        said = [
            statement(made, "cleo", "silent dan", "2", run),  # a neighbour's word: believed, and not enough
            statement(made, "fay", "silent dan", "2", run),  # no neighbour of dan's
            statement(made, "cleo", "silent dan", "1e3", run),
            statement(made, "cleo", "silent dan", "-7", run),
            statement(made, "cleo", "silent mallory", "2", run),
            statement(made, "dan", "without dan", "2", run),
            statement(made, "cleo", "without dan", "2", "another run"),
            statement(made, "cleo", "silence", "2", run),
        ]
        codes = []
        for one in said:
            ada.ledger.database.connection.execute("UPDATE peers SET quarantined = NULL")
            message = Message.of(MessageKind.NOTICES, 1, encode_notices([one]))
            codes.append((await ada.requests.handle("bob", message)).code)
        ada.ledger.database.connection.execute("UPDATE peers SET quarantined = NULL")
        gone = ada.shared_draws.departures.departed_agents()
        for agent in agents:
            agent.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        return codes, gone

    codes, gone = on_virtual_time(scene())
    assert codes == [ReplyCode.OK] + [ReplyCode.NOT_A_STATEMENT] * 7 and gone == {}
