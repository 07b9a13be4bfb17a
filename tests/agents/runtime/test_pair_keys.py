"""Tests of shared draws: derived from keys of one run, equal at both ends, never used for two rows."""

import asyncio
import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from history import IDENTITIES, Wire, abandon, faults, live, on_virtual_time, sharing

from topdp import topology
from topdp.agents.agreement.run_marks import RunSecret
from topdp.agents.agreement.signatures import Notice, encode_notices
from topdp.agents.development import development_hooks
from topdp.agents.development.development_hooks import Failpoints
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.runtime import agent_draws
from topdp.agents.runtime.agent_draws import SystemDraws
from topdp.agents.runtime.pair_keys import RUN_KEY, RunKey, derive_run, draw_key
from topdp.agents.wire.transport import Message, MessageKind, ReplyCode
from topdp.errors import TrustError
from topdp.simulator import fused_rows

pytestmark = pytest.mark.usefixtures("quick")

GRAPHS = {"ring": topology.ring(6), "complete": topology.complete(4), "star": topology.star(5)}
REAL = {i: {"seeded": False} for i in range(6)}


def close(made):
    torch.testing.assert_close(made.estimates(), made.simulated(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("gossip", [0, 3])
@pytest.mark.parametrize("graph", GRAPHS)
def test_agents_that_share_draws_end_with_the_simulators_estimates(tmp_path, graph, gossip):
    made = sharing(tmp_path, graph=GRAPHS[graph], gossip=gossip)
    run = on_virtual_time(live(made))
    close(made)
    assert faults(run) == []


class OwnSeeded(SystemDraws):
    """Own draws of the simulator and shared draws as derived; records the seeds."""

    seeds: dict

    def __init__(self, seeded, shared, seeds):
        super().__init__(shared)
        self.simulated, self.known = seeded, seeds

    def set_pair_seeds(self, seeds):
        super().set_pair_seeds(seeds)
        for draw, seed in seeds.items():
            assert self.known.setdefault(draw, seed) == seed, "the two ends have different seeds"

    def add(self, row, std, round, draw):
        (super() if draw in self.shared else self.simulated).add(row, std, round, draw)


def test_derived_draws_are_the_same_at_both_ends_and_in_the_simulator(tmp_path, monkeypatch):
    """A ring, in which most partners have no edge."""
    made = sharing(tmp_path, rounds=3, gossip=1)
    known = {}
    original = made.context

    def context(agent, **options):
        mine = original(agent, **options)
        return replace(mine, draws=OwnSeeded(mine.draws, frozenset(mine.part.partner), known))

    made.context = context
    run = on_virtual_time(live(made))
    assert faults(run) == [] and set(known) == set(range(6, 21)) and len(set(known.values())) == 15
    make = fused_rows.make

    def derived(before, gradient, out, places, source, weight, whose, step, keys, names, std, rounded):
        """The simulator's rows, with shared draws made from what both agents know."""
        shared = np.isin(names[..., 2], list(known)) & (std != 0)
        mine = np.where(shared, 0, std).astype(std.dtype)
        make(before, gradient, out, places, source, weight, whose, step, keys, names, mine, rounded)
        for at in map(tuple, np.argwhere(shared)):
            _, round, draw = names[at].tolist()
            key = partial(draw_key, known[draw], round, draw)
            pieces = agent_draws.normals(out.shape[1], key)
            out[places[at[0]]] += std[at] * torch.cat(list(pieces)).numpy()

    monkeypatch.setattr(fused_rows, "make", derived)
    close(made)


@pytest.mark.slow
@pytest.mark.parametrize("place", development_hooks.ROUND_POINTS + development_hooks.SHARING_POINTS)
def test_after_a_crash_at_any_point_the_run_continues_with_the_same_draws(tmp_path, place):
    made = sharing(tmp_path, rounds=3, gossip=1)
    each = 1 if place == "after_key" else 2
    run = on_virtual_time(live(made, failpoints={i: f"{place}:{each + i % each}" for i in range(6)}))
    assert len(run.wire.crashed) == 6 and faults(run) == []
    close(made)


@pytest.mark.parametrize("place", ["before_ledger", "in_ledger", "after_ledger", "after_mark", "after_send"])
def test_with_unseeded_noise_no_second_row_is_sent_under_a_shared_draw(tmp_path, place):
    """An agent computes an uncharged row again; the first attempt was never sent."""
    made = sharing(tmp_path, rounds=3)
    run = on_virtual_time(live(made, failpoints=dict.fromkeys(range(6), f"{place}:2"), options=REAL))
    assert len(run.wire.crashed) == 6 and faults(run) == []


def test_at_the_end_the_run_key_is_deleted_and_the_mark_stays(tmp_path):
    made = sharing(tmp_path, rounds=2)
    on_virtual_time(live(made, options=REAL))
    for number in range(6):
        private = made.private(number).folder
        assert sorted(path.name for path in private.rglob("*") if path.is_file()) == ["books", "mark"]
        assert json.loads(next(private.rglob("mark")).read_text())["round"] == 2
    again = on_virtual_time(live(made, options=REAL))  # a finished run finishes again, without a key
    assert faults(again) == [] and all(outcome.finished for outcome in again.outcomes.values())


def test_only_the_owner_can_read_the_run_key_and_it_is_overwritten_before_deletion(tmp_path):
    secret = RunSecret(tmp_path, "f" * 64)
    first = secret.begin()
    key = next(tmp_path.rglob("key"))
    assert key.stat().st_mode & 0o777 == 0o600 and key.parent.stat().st_mode & 0o777 == 0o700
    with key.open("rb") as held:
        assert held.read() != bytes(64)
        assert secret.begin() != first, "every run has its own key"
        held.seek(0)
        assert held.read() == bytes(64) and next(tmp_path.rglob("key")).read_bytes() != bytes(64)


# Seeds


def keys_of(count, plan="plan"):
    """(private keys, run keys as stated)"""
    private = [X25519PrivateKey.generate() for _ in range(count)]
    stated = [RunKey.fresh(plan, key.public_key().public_bytes_raw().hex()) for key in private]
    return private, stated


def seed(private, stated, me, other, federation="federation"):
    return derive_run(federation, stated, me, [other], private[me])[1][other]


def test_two_agents_derive_one_seed_that_depends_on_all_bound_facts():
    import hashlib
    import hmac

    private, stated = keys_of(3)
    shared = seed(private, stated, 0, 2)
    assert shared == seed(private, stated, 2, 0) and len(shared) == 32
    # An independent HKDF-SHA256 (RFC 5869) over what the guarantee lists.
    run, _ = derive_run("federation", stated, 0, [], private[0])
    secret = private[0].exchange(private[2].public_key())
    bound = ["topdp pair draws 1", "federation", "plan", run, 0, 2, stated[0].public, stated[2].public]
    extracted = hmac.digest(bytes.fromhex(run), secret, hashlib.sha256)
    assert shared == hmac.digest(extracted, json.dumps(bound).encode() + b"\x01", hashlib.sha256)
    piece = hmac.digest(shared, json.dumps(["draw", 3, 17, 1]).encode() + b"\x01", hashlib.sha256)
    assert draw_key(shared, 3, 17, 1) == piece

    found = {shared, seed(private, stated, 0, 1), seed(private, stated, 1, 2)}
    found.add(seed(private, stated, 0, 2, federation="another"))
    found.add(seed(private, [replace(key, plan="another") for key in stated], 0, 2))
    fresh = [replace(stated[0]), replace(stated[1], nonce="00" * 32), stated[2]]
    found.add(seed(private, fresh, 0, 2))  # another nonce of a third agent makes another run
    assert len(found) == 6
    swapped = [stated[2], stated[1], stated[0]]
    assert seed([private[2], private[1], private[0]], swapped, 0, 2) not in found
    assert len({draw_key(shared, *name) for name in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]}) == 4


LOW_ORDER = [
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]
"""Points that give zeros whatever the private key is (cr.yp.to/ecdh.html, "small-order points")."""


@pytest.mark.parametrize("point", LOW_ORDER)
def test_a_point_of_low_order_is_no_key(point):
    with pytest.raises(ValueError, match="everybody the same secret"):
        RunKey.read(json.dumps(["plan", point, "00" * 32]))
    private, stated = keys_of(2)
    with pytest.raises(TrustError, match="from agent 1"):
        derive_run("federation", [stated[0], replace(stated[1], public=point)], 0, [1], private[0])


@pytest.mark.parametrize("text", ["", "[]", '["plan", "00", "00"]', '["plan", 3, "00"]', "[" * 5000, "{}"])
def test_invalid_run_keys_are_refused(text):
    with pytest.raises(ValueError):
        RunKey.read(text)


def test_a_shared_draw_without_a_seed_raises():
    with pytest.raises(KeyError):
        SystemDraws(frozenset([7])).add(torch.zeros(3), 1.0, 0, 7)


# Dishonest agents


def key_statement(made, name, public=None, signer=None, **changes):
    """A signed run key of `name`, as its neighbours would forward it."""
    public = public or X25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    text = RunKey.fresh(made.setup.plan.digest(), public).text()
    said = Notice.signed(signer or IDENTITIES[name], made.setup.manifest, "", RUN_KEY, text)
    return replace(said, **changes)


async def alone(made, number, wire):
    agent = made.agent(number, wire.transport(made.names[number]))
    task = asyncio.create_task(agent.run())
    for _ in range(20):
        await asyncio.sleep(0)
    return agent, task


def forwarded_by_bob(made, *bodies):
    """ada's replies when bob forwards these notices, her quarantine of bob, and how she ends."""

    async def scene():
        agent, task = await alone(made, 0, Wire())
        replies = [
            await agent.requests.handle("bob", Message.of(MessageKind.NOTICES, 1, body)) for body in bodies
        ]
        standing = agent.ledger.quarantined("bob")
        agent.stop()
        ended = (await asyncio.gather(task, return_exceptions=True))[0]
        return [reply.code for reply in replies], standing, ended

    return on_virtual_time(scene())


def test_a_relay_can_withhold_and_nothing_else(tmp_path):
    made = sharing(tmp_path, rounds=2)
    honest = key_statement(made, "cleo")
    other = key_statement(made, "cleo")
    another_manifest = replace(
        made, setup=replace(made.setup, manifest=sharing(tmp_path, rounds=3).setup.manifest)
    )
    forged = {
        "another key under her signature": replace(honest, text=other.text),
        "her key under another name": replace(honest, author="dan"),
        "signed by himself": key_statement(made, "cleo", signer=IDENTITIES["bob"], author="cleo"),
        "of an unknown agent": replace(honest, author="mallory"),
        "for another manifest": key_statement(another_manifest, "cleo"),
        "for another plan": Notice.signed(
            IDENTITIES["cleo"],
            made.setup.manifest,
            "",
            RUN_KEY,
            RunKey.fresh("p", json.loads(honest.text)[1]).text(),
        ),
        "about an unknown subject": Notice.signed(
            IDENTITIES["cleo"], made.setup.manifest, "", "weather", "rain"
        ),
        "a point of low order": key_statement(made, "cleo", public="00" * 32),
    }
    for what, statement in forged.items():
        made.folder = tmp_path / what
        codes, standing, _ = forwarded_by_bob(made, encode_notices([honest]), encode_notices([statement]))
        assert codes == [ReplyCode.OK, ReplyCode.NOT_A_STATEMENT], what
        assert standing.code is ReplyCode.NOT_A_STATEMENT and "cannot have said" in standing.words, what
    for body in (
        b"",
        b"garbage",
        b"[" * 5000,
        b"[[1, 2]]",
        encode_notices([replace(honest, about="x" * 600)]),
    ):
        made.folder = tmp_path / f"bytes {len(body)}"
        assert forwarded_by_bob(made, body)[0] == [ReplyCode.NOT_A_STATEMENT]


def test_two_run_keys_of_one_agent_end_agents_that_have_not_begun(tmp_path):
    made = sharing(tmp_path, rounds=2)
    first, second = key_statement(made, "cleo"), key_statement(made, "cleo")
    codes, standing, ended = forwarded_by_bob(
        made, encode_notices([first]), encode_notices([first]), encode_notices([second])
    )
    assert codes == [ReplyCode.OK, ReplyCode.OK, ReplyCode.OTHER_TERMS] and standing is None
    assert isinstance(ended, TrustError) and "one key of cleo" in str(ended)


def test_an_agent_that_gives_its_neighbours_different_keys_is_named_and_nothing_is_sent(tmp_path):
    """In a ring of six, eve gives dan one key and fay another; all agents compare keys."""
    made = sharing(tmp_path, rounds=2)
    wire = Wire()
    stories = {"dan": key_statement(made, "eve"), "fay": key_statement(made, "eve")}

    async def scene():
        agents = [made.agent(i, wire.transport(made.names[i])) for i in (0, 1, 2, 3, 5)]
        tasks = [asyncio.create_task(agent.run()) for agent in agents]
        await asyncio.sleep(0.1)
        for agent in agents:
            if agent.name in stories:
                news = Message.of(MessageKind.NOTICES, 1, encode_notices([stories[agent.name]]))
                await agent.requests.handle("eve", news)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for agent in agents:
            agent.stop()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = on_virtual_time(scene())
    named = [error for error in found if isinstance(error, TrustError)]
    assert named and all("one key of eve" in str(error) for error in named)
    assert not [event for event in wire.events if event.kind == "row"]


def keys_on(made, number):
    ledger = Ledger(made.state(number), writable=False)
    rows = ledger.database.rows(
        "SELECT author, run, about, text, signature FROM statements WHERE about = 'run key'"
    )
    ledger.close()
    return [Notice.of_parts(row) for row in rows]


def test_a_second_run_of_one_manifest_has_other_keys_and_an_old_one_is_found_out(tmp_path):
    made = sharing(tmp_path / "first", rounds=2)
    on_virtual_time(live(made))
    old = {said.author: said for said in keys_on(made, 0)}
    assert set(old) == set(made.names)
    private = made.folder / "private"
    made.folder = tmp_path / "second"
    shutil.copytree(private, made.folder / "private")  # the same sites with their folders
    on_virtual_time(live(made))
    new = {said.author: said for said in keys_on(made, 0)}
    publics = [json.loads(said.text)[1] for said in (*old.values(), *new.values())]
    assert len(set(publics)) == 12

    made.folder = tmp_path / "third"
    codes, _, ended = forwarded_by_bob(
        made, encode_notices([key_statement(made, "cleo")]), encode_notices([old["cleo"]])
    )
    assert codes[1] is ReplyCode.OTHER_TERMS and "somebody replayed a key of an earlier run" in str(ended)


def test_old_keys_of_all_others_give_no_old_seed(tmp_path):
    """Even if all others replay old keys, this agent's part of the run is fresh."""
    private, stated = keys_of(4)
    run_before, seeds_before = derive_run("federation", stated, 0, [1, 2, 3], private[0])
    mine = X25519PrivateKey.generate()
    again = [RunKey.fresh("plan", mine.public_key().public_bytes_raw().hex()), *stated[1:]]
    run_after, seeds_after = derive_run("federation", again, 0, [1, 2, 3], mine)
    assert run_after != run_before and not set(seeds_after.values()) & set(seeds_before.values())


# Rollbacks


def two_rows(own, pair, secrets, n, owner=0, knows=1):
    """(μ² of two different rows under the same shared draws, μ² of two releases), against one colluder.

    Rows of all others occur once; those of the owner twice, with fresh own noise. μ² = max uᵀMu over signs u.
    """
    seen = [k for k in range(n) if k != knows]
    B = np.zeros((len(seen), n + len(secrets)))
    for row, k in enumerate(seen):
        B[row, k] = own
    for number, (i, j) in enumerate(secrets):
        if knows not in (i, j):
            B[seen.index(i), n + number], B[seen.index(j), n + number] = pair, -pair
    again = np.concatenate([B[[owner]], np.zeros((1, 1))], axis=1)
    again[0, owner], again[0, -1] = 0.0, own
    twice = np.concatenate([np.concatenate([B, np.zeros((len(B), 1))], axis=1), again])
    step = np.zeros((len(twice), 2))
    step[owner, 0] = step[-1, 1] = 1.0
    once = np.linalg.inv(B @ B.T)[owner, owner]
    M = step.T @ np.linalg.inv(twice @ twice.T) @ step
    return max(np.array(u) @ M @ np.array(u) for u in ((1, 1), (1, -1))), 2 * once


@pytest.mark.parametrize(("degree", "least"), [(8, 20.0), (29, 23.0)])
def test_a_second_row_under_the_same_shared_draws_would_cost_over_20_times_its_charge(degree, least):
    """30 agents, whose pair variance is 10 times their own in total: this is why no row is computed again."""
    graph = topology.regular(30, degree, 0) if degree < 29 else topology.complete(30)
    secrets = [tuple(edge) for edge in graph.edges.tolist()]
    # Own noise of variance 1/29 of a lone row's, and pair draws of variance 10/degree of it.
    seen, charged = two_rows(np.sqrt(1 / 29), np.sqrt(10 / degree), secrets, 30)
    assert least < seen / charged < 27


async def rolled_back(made, tmp_path, folders):
    """ada's row of round 2 reaches bob; then `folders` are put back to the moment before she made it.

    The copy contains all that she needs for round 2, so only her checks keep her from making another row of
    round 2 and sending it to fay.
    """
    wire = Wire(delay=0.1)
    wire.lose = lambda *facts: "request" if facts[:2] == ("ada", "fay") and facts[2].round == 2 else None
    agents = [made.agent(i, wire.transport(made.names[i]), **REAL[i]) for i in range(1, 6)]
    tasks = [asyncio.create_task(agent.run()) for agent in agents]

    def copy(_):
        ada.ledger.database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for k, folder in enumerate(folders):
            shutil.copytree(folder, tmp_path / f"copy {k}")

    ada = made.agent(0, wire.transport("ada"), Failpoints("before_compute:3", copy), **REAL[0])
    life = asyncio.create_task(ada.run())
    while 2 not in rows_of_ada(wire):
        await asyncio.sleep(0.01)
    wire.lose = None
    abandon(ada)
    life.cancel()
    await asyncio.gather(life, return_exceptions=True)
    wire.handlers.pop("ada", None)
    for k, folder in enumerate(folders):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / f"copy {k}", folder)
    try:
        async with asyncio.timeout(20):
            agents.append(made.agent(0, wire.transport("ada"), **REAL[0]))
            return wire, await agents[-1].run()
    except (TrustError, TimeoutError) as error:
        return wire, error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for agent in agents:
            abandon(agent)


def rows_of_ada(wire):
    """{round: the number of different rows that ada sent}; all her neighbours get the same row."""
    seen = {}
    for event in wire.events:
        if event.what == "sent" and event.kind == "row" and event.sender == "ada":
            seen.setdefault(event.round, set()).add(event.digest)
    return {round: len(digests) for round, digests in seen.items()}


@pytest.mark.parametrize("what", ["state", "state and keys"])
def test_an_old_copy_makes_no_second_row_under_shared_draws(tmp_path, what):
    """The mark shows it; if that is an old copy too, neighbours show it before the agent makes a row."""
    made = sharing(tmp_path / "run", rounds=40)
    folders = [made.state(0)] + ([made.private(0).folder] if "keys" in what else [])
    wire, ended = on_virtual_time(rolled_back(made, tmp_path, folders))
    assert isinstance(ended, TrustError) and "old copy" in str(ended)
    assert ("sent would be made again" in str(ended)) == (what == "state")
    assert set(rows_of_ada(wire).values()) == {1}
    ledger = Ledger(made.state(0), writable=False)
    assert ledger.round == 1, "nothing was computed or charged again"
    ledger.close()


def test_without_the_checks_a_second_row_would_be_sent(tmp_path, monkeypatch):
    from topdp.agents.agreement.run_marks import RollbackMark
    from topdp.agents.runtime.peer_judgement import PeerBeliefs
    from topdp.agents.runtime.planned_loop import PlannedLoop

    resume = RunSecret.resume
    monkeypatch.setattr(RunSecret, "resume", lambda self, public, booked: resume(self, public, 10**6))
    monkeypatch.setattr(RollbackMark, "_read", lambda self: self._last)
    monkeypatch.setattr(PeerBeliefs, "judge", lambda *_: True)
    monkeypatch.setattr(PlannedLoop, "_all_answered", lambda self, shared_draws: True)
    made = sharing(tmp_path / "run", rounds=40)
    wire, _ = on_virtual_time(rolled_back(made, tmp_path, [made.state(0)]))
    assert max(rows_of_ada(wire).values()) == 2


def test_after_a_lost_state_folder_a_new_run_key_makes_the_old_run_unusable(tmp_path):
    made = sharing(tmp_path, rounds=2)
    secret = RunSecret(made.private(0).folder, made.setup.manifest.hash)
    first = secret.begin()
    secret.note(1)
    second = RunSecret(made.private(0).folder, made.setup.manifest.hash).begin()
    assert first != second
    with pytest.raises(TrustError, match="that of another run"):
        RunSecret(made.private(0).folder, made.setup.manifest.hash).resume(first, 1)
    with pytest.raises(TrustError, match="End one of them"):
        secret.note(2)
    with pytest.raises(TrustError, match="found none"):
        RunSecret(tmp_path / "elsewhere", made.setup.manifest.hash).resume(first, 1)
