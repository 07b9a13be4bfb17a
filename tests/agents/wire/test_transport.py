"""Tests of the contract of all transports, and then of links over gRPC."""

import asyncio
import hashlib
import logging
import random
import re
import subprocess
from pathlib import Path

import pytest
from chaos import Proxy
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_transport import MemoryNetwork
from sites import Echo, Federation, free_address, run, until_answered

from topdp.agents.agreement.identity import generate
from topdp.agents.wire import wire_pb2
from topdp.agents.wire.grpc_transport import GrpcTransport
from topdp.agents.wire.link_bodies import PIECE_BYTES, IncomingBody, pieces
from topdp.agents.wire.link_limits import CHECKS_PER_TIMEOUT, Backoff, StallDetector
from topdp.agents.wire.link_refusals import LinkEnded, RefusalLog
from topdp.agents.wire.relay_server import RelayServer
from topdp.agents.wire.transport import Message, MessageKind, Reply, ReplyCode, Unreachable
from topdp.errors import InputError, TrustError, UnavailableError

ROOT = Path(__file__).parents[3]
MEGABYTES = random.Random(0).randbytes(3_000_000)
ROW = Message.of(MessageKind.ROW, 3, b"numbers")


class TwoAgents:
    """Two agents, ant and bee, linked in one of the ways that a transport offers."""

    def __init__(self, kind, **rules):
        self.made, self.relay = [], None
        if kind == "memory":
            wire = MemoryNetwork()
            self._make = wire.transport
        else:
            closed = ["bee"] if "bee dials" in kind else []
            if "relay" in kind:
                closed, rules["relay"], self.relay = ["ant", "bee"], free_address(), RelayServer()
            federation = Federation(closed=closed, **rules)
            self._rules = federation.manifest.rules
            self._make = lambda name: federation.transport(name, plain="plain" in kind)

    def transport(self, name):
        self.made.append(self._make(name))
        return self.made[-1]

    async def start(self, ant=None, bee=None):
        ends = self.transport("ant"), self.transport("bee")
        await ends[0].start(ant or Echo("ant"))
        await ends[1].start(bee or Echo("bee"))
        return ends

    async def __aenter__(self):
        if self.relay:
            await self.relay.listen(self._rules.relay)
        return self

    async def __aexit__(self, *_):
        await asyncio.gather(*(transport.close() for transport in self.made))
        if self.relay:
            await self.relay.close()


KINDS = [
    "memory",
    "plain, ant dials",
    "plain, bee dials",
    "mTLS, ant dials",
    "mTLS, bee dials",
    "relay",
]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def contract(body):
    """Runs an async test with a network of each kind."""

    def test(kind, caplog):
        async def whole():
            async with TwoAgents(kind) as network:
                await (body(network, caplog) if "caplog" in body.__annotations__ else body(network))

        run(whole())

    test.__name__, test.__doc__ = body.__name__, body.__doc__
    return test


@contract
async def test_both_ends_send_requests_and_reply(network):
    ant, bee = await network.start()
    digest = hashlib.sha256(ROW.body).digest()
    assert await ant.request("bee", ROW) == Reply(ReplyCode.OK, "bee heard ant", digest)
    assert await bee.request("ant", ROW) == Reply(ReplyCode.OK, "ant heard bee", digest)


@contract
async def test_a_message_arrives_as_it_was_sent(network):
    came = []

    async def keep(peer, message):
        came.append((peer, message))
        return Reply(ReplyCode.BUSY, "no: ünïcode", b"\x00" * 5)

    ant, _ = await network.start(bee=keep)
    for message in (
        Message.of(MessageKind.ROW, 2**40, b""),
        Message.of(MessageKind.COMMIT, -1, b"\x00"),
        Message.of(MessageKind.HELLO, 0, b"x" * PIECE_BYTES),
    ):
        assert await ant.request("bee", message) == Reply(ReplyCode.BUSY, "no: ünïcode", b"\x00" * 5)
        assert came.pop() == ("ant", message)


@contract
async def test_large_bodies_both_ways_at_once(network):
    async def back(peer, message):
        return Reply(ReplyCode.OK, "", message.body[::-1])

    ant, bee = await network.start(back, back)
    message = Message.of(MessageKind.ROW, 0, MEGABYTES)
    replies = await asyncio.gather(ant.request("bee", message), bee.request("ant", message))
    assert all(reply.body == MEGABYTES[::-1] for reply in replies)


@contract
async def test_each_of_many_concurrent_requests_gets_its_own_reply(network):
    ant, bee = await network.start()
    bodies = [bytes([k]) * (k * 3001) for k in range(40)]
    asked = [
        end.request(peer, Message.of(MessageKind.ROW, k, body))
        for k, body in enumerate(bodies)
        for end, peer in ((ant, "bee"), (bee, "ant"))
    ]
    replies = await asyncio.gather(*asked)
    assert [reply.body for reply in replies[::2]] == [hashlib.sha256(body).digest() for body in bodies]
    assert [reply.reason for reply in replies] == ["bee heard ant", "ant heard bee"] * 40


@contract
async def test_a_later_request_may_be_answered_first(network):
    second = asyncio.Event()

    async def handle(peer, message):
        if message.round == 1:
            await second.wait()
        else:
            second.set()
        return Reply(ReplyCode.OK, str(message.round))

    ant, _ = await network.start(bee=handle)
    first, later = await asyncio.gather(
        ant.request("bee", Message.of(MessageKind.ROW, 1)), ant.request("bee", Message.of(MessageKind.ROW, 2))
    )
    assert (first.reason, later.reason) == ("1", "2")


@contract
async def test_a_handler_may_send_a_request_back(network):
    async def ask_back(peer, message):
        return await bee.request(peer, Message.of(MessageKind.BYE, message.round))

    ant, bee = await network.start(bee=ask_back)
    assert (await ant.request("bee", ROW)).reason == "ant heard bee"


@contract
async def test_a_body_that_does_not_match_its_digest_never_reaches_the_handler(network):
    echo = Echo("bee")
    ant, _ = await network.start(bee=echo)
    reply = await ant.request("bee", Message(kind=MessageKind.ROW, round=0, digest="00" * 32, body=b"x"))
    assert reply.code is ReplyCode.DAMAGED and not echo.seen
    assert (await ant.request("bee", ROW)).ok


@contract
async def test_a_failing_handler_makes_one_request_unreachable_and_is_logged(network, caplog: object):
    faults = [RuntimeError("disk full")]

    async def handle(peer, message):
        if faults:
            raise faults.pop()
        return Reply(ReplyCode.OK)

    ant, _ = await network.start(bee=handle)
    with pytest.raises(Unreachable, match="could not answer"):
        await ant.request("bee", ROW)
    assert (await ant.request("bee", ROW)).ok
    (record,) = [record for record in caplog.records if record.exc_info]
    assert "disk full" in str(record.exc_info[1]) and "ant" in record.getMessage()
    assert record.levelno == logging.ERROR


def close_test(who):
    async def body(network):
        here = asyncio.Event()

        async def stuck(peer, message):
            here.set()
            await asyncio.Event().wait()

        ant, bee = await network.start(stuck, stuck)
        for asker, other in ((ant, "bee"), (bee, "ant")):
            here.clear()
            task = asyncio.create_task(asker.request(other, ROW))
            await here.wait()
            if asker is ant:
                first = task
        await (ant if who == "ant" else bee).close()
        for waiting in (first, task):
            with pytest.raises(Unreachable):
                await waiting
        closed, other = (ant, "bee") if who == "ant" else (bee, "ant")
        with pytest.raises(Unreachable):
            await closed.request(other, ROW)
        await closed.close()

    return contract(body)


test_when_ant_closes_requests_both_ways_are_unreachable = close_test("ant")
test_when_bee_closes_requests_both_ways_are_unreachable = close_test("bee")


def last_reply_test(who):
    async def body(network):
        heard = asyncio.Event()

        async def parting(peer, message):
            heard.set()
            return Reply(ReplyCode.OK, "farewell")

        ant, bee = await network.start(parting, parting)
        leaves, asks = (ant, bee) if who == "ant" else (bee, ant)
        await asks.request(who, ROW)
        heard.clear()
        asked = asyncio.create_task(asks.request(who, ROW))
        await heard.wait()
        await leaves.close()
        assert (await asked).reason == "farewell"

    return contract(body)


# An agent that leaves has just answered the last request of a neighbour, which waits for that reply.
test_a_reply_of_ant_arrives_although_ant_closes_at_once = last_reply_test("ant")
test_a_reply_of_bee_arrives_although_bee_closes_at_once = last_reply_test("bee")


@contract
async def test_a_running_handler_completes_even_if_the_sender_leaves(network):
    here, go, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(peer, message):
        here.set()
        await go.wait()
        ended.set()
        return Reply(ReplyCode.OK)

    ant, _ = await network.start(bee=slow)
    task = asyncio.create_task(ant.request("bee", ROW))
    await here.wait()
    await ant.close()
    with pytest.raises(Unreachable):
        await task
    go.set()
    await ended.wait()


@contract
async def test_a_cancelled_request_does_not_harm_the_link(network):
    ant, _ = await network.start()
    await ant.request("bee", ROW)
    task = asyncio.create_task(ant.request("bee", Message.of(MessageKind.ROW, 1, MEGABYTES)))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await ant.request("bee", ROW)).ok


@contract
async def test_a_request_that_is_cancelled_while_the_link_ends_is_cancelled(network):
    """Otherwise a cancellation would become `Unreachable`, and a caller that retries could not be stopped."""
    here = asyncio.Event()

    async def stuck(peer, message):
        here.set()
        await asyncio.Event().wait()

    for steps in range(12):  # of the loop between the end of the link and the caller's
        ant, bee = await network.start(stuck, stuck)
        caller = asyncio.create_task(ant.request("bee", ROW))
        await here.wait()
        closing = asyncio.create_task(ant.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        if caller.cancel():
            with pytest.raises(asyncio.CancelledError):
                await caller
        else:
            assert isinstance(caller.exception(), Unreachable)
        await closing
        await bee.close()
        here.clear()


@contract
async def test_either_side_may_be_restarted(network):
    ends = dict(zip(("ant", "bee"), await network.start(), strict=True))
    for name, other in (("bee", "ant"), ("ant", "bee")):
        await ends[other].request(name, ROW)
        await ends[name].close()
        ends[name] = network.transport(name)
        await ends[name].start(Echo(f"new {name}"))
        assert (await until_answered(ends[other], name, ROW)).reason == f"new {name} heard {other}"
        assert (await until_answered(ends[name], other, ROW)).ok


def test_an_absent_peer_is_unreachable(kind):
    async def body():
        async with TwoAgents(kind, idle_timeout=0.2) as network:
            ant = network.transport("ant")
            with pytest.raises(Unreachable):
                await ant.request("bee", ROW)
            await ant.start(Echo("ant"))
            with pytest.raises(Unreachable, match="bee"):
                await ant.request("bee", ROW)

    run(body())


# Links over gRPC.


def test_the_generated_code_agrees_with_the_proto(tmp_path):
    subprocess.run([ROOT / "scripts" / "generate-wire", tmp_path], check=True, timeout=60)

    def body(path):
        """The text without the version of the compiler."""
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"# Protobuf Python Version: .*\n", "", text)
        return re.sub(r"ValidateProtobufRuntimeVersion\([^)]*\)", "", text)

    for name in ("wire_pb2.py", "wire_pb2.pyi"):
        assert body(tmp_path / name) == body(ROOT / "src" / "topdp" / "agents" / "wire" / name), (
            "run scripts/generate-wire"
        )


def test_codes_are_those_of_the_proto_and_each_reply_has_words():
    for codes, proto in ((MessageKind, wire_pb2.Request.Kind), (ReplyCode, wire_pb2.Response.Code)):
        assert {code.name: code.value for code in codes} | {"NONE": 0} == dict(proto.items())
    words = {code.words for code in ReplyCode}
    assert len(words) == len(ReplyCode) and "" not in words
    accepted = {code for code in ReplyCode if Reply(code).ok}
    assert accepted == {ReplyCode.OK, ReplyCode.AGAIN, ReplyCode.ABORTED, ReplyCode.COMMITTED}


def test_backoff_grows_from_a_fifth_of_a_second_to_three_and_varies():
    waits = [Backoff(random.Random(seed)) for seed in range(200)]
    drawn = [[backoff.next() for _ in range(12)] for backoff in waits]
    flat = [wait for row in drawn for wait in row]
    assert min(flat) >= 0.2 and max(flat) == 3.0
    assert max(row[0] for row in drawn) <= 0.6 < sum(row[-1] for row in drawn) / 200
    assert len({row[0] for row in drawn}) == 200
    waits[0].reset()
    assert waits[0].next() <= 0.6


def test_dialling_follows_the_backoff_and_never_gives_up(monkeypatch):
    """No time passes: the test provides the pause."""

    async def body():
        waits, enough = [], asyncio.Event()

        async def pause(backoff):
            waits.append(backoff.next())
            if len(waits) == 6:
                enough.set()
                await asyncio.Event().wait()

        monkeypatch.setattr(Backoff, "pause", pause)
        monkeypatch.setattr(random, "SystemRandom", lambda: random.Random(5))
        transport = Federation().transport("ant")
        await transport.start(Echo("ant"))
        await enough.wait()
        await transport.close()
        expected = Backoff(random.Random(5))
        assert waits == [expected.next() for _ in range(6)]

    run(body())


def test_after_a_link_the_backoff_starts_again(monkeypatch):
    class Longest(random.Random):
        def uniform(self, a, b):
            return b

    async def body():
        waits, waiting, go = [], asyncio.Event(), asyncio.Event()

        async def pause(backoff):
            waits.append(backoff.next())
            waiting.set()
            await go.wait()
            go.clear()

        monkeypatch.setattr(Backoff, "pause", pause)
        monkeypatch.setattr(random, "SystemRandom", Longest)
        federation = Federation()
        ant, bee = federation.transport("ant"), federation.transport("bee")
        try:
            await ant.start(Echo("ant"))
            for _ in range(3):
                await waiting.wait()
                waiting.clear()
                if len(waits) == 3:
                    await bee.start(Echo("bee"))
                go.set()
            await until_answered(ant, "bee", ROW)
            await bee.close()
            await waiting.wait()
        finally:
            await asyncio.gather(ant.close(), bee.close())
        assert waits == pytest.approx([0.6, 1.8, 3.0, 0.6])

    run(body())


class FakeClock:
    now = 100.0

    def __call__(self):
        return self.now


def watched(limit=8.0):
    clock = FakeClock()
    return clock, StallDetector(limit, clock), limit / CHECKS_PER_TIMEOUT


def test_the_stall_detector_reports_what_stalls_and_never_what_progresses():
    clock, stalls, step = watched()
    stalls.note_progress("link")
    stalls.note_progress("body")
    for k in range(200):
        clock.now += step
        stalls.note_progress("link")
        if k < 150:
            stalls.note_progress("body")
        assert stalls.stalled_item() == (None if k <= 149 + CHECKS_PER_TIMEOUT else "body")
    stalls.remove("body")
    assert stalls.stalled_item() is None


def test_time_during_which_the_own_process_was_stopped_is_no_stall_of_the_peer():
    clock, stalls, step = watched()
    stalls.note_progress("link")
    clock.now += 1000
    assert stalls.stalled_item() is None
    for _ in range(CHECKS_PER_TIMEOUT - 2):
        clock.now += step
        assert stalls.stalled_item() is None
    clock.now += 2 * step
    assert stalls.stalled_item() == "link"


@settings(deadline=None)
@given(st.integers(0, 3 * PIECE_BYTES + 5), st.integers(1, 255))
def test_the_pieces_of_a_body_form_the_body(size, seed):
    body = bytes([seed]) * size
    incoming = IncomingBody(size, hashlib.sha256(body).digest(), size)
    ends = [incoming.add(piece) for piece in pieces(body)]
    assert ends == [False] * (len(ends) - 1) + [True]
    assert incoming.intact and incoming.body == body


@given(st.integers(0, 2 * PIECE_BYTES), st.integers(0, PIECE_BYTES + 10))
def test_a_piece_of_another_length_is_refused(size, length):
    incoming = IncomingBody(size, bytes(32), size)
    if length == min(size, PIECE_BYTES):
        incoming.add(bytes(length))
        assert not incoming.intact
    else:
        with pytest.raises(LinkEnded, match="chunk"):
            incoming.add(bytes(length))


def test_a_body_above_the_limit_is_refused_before_it_arrives():
    with pytest.raises(LinkEnded, match="oversized"):
        IncomingBody(1001, bytes(32), 1000)
    with pytest.raises(LinkEnded, match="digest"):
        IncomingBody(10, bytes(31), 1000)


def test_refusals_are_logged_once_per_peer_and_kind(caplog):
    refusals = RefusalLog("bee")
    for _ in range(100):
        refusals.report("ant", "chunk", "x")
        refusals.report("ant", "digest", "x")
        refusals.report("cat", "chunk", "x")
    warned = [(record.peer, record.event) for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned == [("ant", "chunk"), ("ant", "digest"), ("cat", "chunk")]


def test_an_identity_that_the_manifest_does_not_list_is_refused():
    federation = Federation()
    with pytest.raises(TrustError, match="that the manifest lists for ant"):
        GrpcTransport(generate("ant"), federation.manifest)


def test_a_port_in_use_is_named():
    async def body():
        federation = Federation()
        async with federation.started("bee"):
            other = federation.transport("bee")
            with pytest.raises(UnavailableError, match=federation.identities["bee"].card.address):
                await other.start(Echo("bee"))
            await other.close()

    run(body())


def test_an_agent_that_nobody_dials_opens_no_port():
    async def body():
        async with Federation(closed=["ant"]).started() as (ant, bee):
            await ant.request("bee", ROW)
            assert ant.reaches("bee") and bee.reaches("ant")
            assert ant._server is None and bee._server is not None and bee.dials == []

    run(body())


def test_requests_to_agents_that_are_no_neighbours_are_refused():
    async def body():
        async with Federation(("ant", "bee", "cat")).started() as (ant, _, cat):
            with pytest.raises(ValueError, match="neighbour"):
                await ant.request("cat", ROW)
            assert (await cat.request("bee", ROW)).ok

    run(body())


def test_the_sender_refuses_a_body_that_is_too_large():
    async def body():
        async with Federation(largest_body=5000).started() as (ant, _):
            assert (await ant.request("bee", Message.of(MessageKind.ROW, 0, bytes(5000)))).ok
            with pytest.raises(InputError, match="at most"):
                await ant.request("bee", Message.of(MessageKind.ROW, 0, bytes(5001)))

    run(body())


def test_no_more_requests_than_agreed_are_in_flight():
    async def body():
        working, most, go = 0, 0, asyncio.Event()

        async def handle(peer, message):
            nonlocal working, most
            working += 1
            most = max(most, working)
            if most == 3:
                go.set()
            await go.wait()
            working -= 1
            return Reply(ReplyCode.OK)

        federation = Federation(in_flight=3)
        ant, bee = federation.transport("ant"), federation.transport("bee")
        try:
            await bee.start(handle)
            await ant.start(Echo("ant"))
            await asyncio.gather(*(ant.request("bee", Message.of(MessageKind.ROW, k)) for k in range(20)))
            assert most == 3
        finally:
            await asyncio.gather(ant.close(), bee.close())

    run(body())


def test_agents_with_another_manifest_are_refused_and_both_say_so(caplog):
    caplog.set_level(logging.INFO, "topdp.agents")

    async def body():
        addresses = {"ant": free_address(), "bee": free_address()}
        ours, theirs = (Federation(addresses=addresses, in_flight=k, idle_timeout=2.0) for k in (4, 5))
        # The dialling agent starts last, so that the error states the peer's reason.
        async with theirs.started("bee") as (bee,), ours.started("ant") as (ant,):
            bee.on_other_manifest = ant.on_other_manifest = informed.append
            with pytest.raises(Unreachable, match="manifest"):
                await ant.request("bee", ROW)

    informed = []
    run(body())
    assert {"ant", "bee"} <= set(informed), "the agents at both ends learn it"
    events = {
        (record.agent, record.peer, record.event) for record in caplog.records if hasattr(record, "peer")
    }
    assert {("bee", "ant", "manifest"), ("ant", "bee", "manifest")} <= events
    assert not any(event == "linked" for _, _, event in events)


def test_three_agents_in_a_ring_over_mtls():
    async def body():
        ring = [("ant", "bee"), ("bee", "cat"), ("cat", "ant")]
        async with Federation(("ant", "bee", "cat"), links=ring).started() as transports:
            asked = [one.request(other, ROW) for one in transports for other in one.neighbours]
            assert all(reply.ok for reply in await asyncio.gather(*asked)) and len(asked) == 6

    run(body())


# Unreliable networks.


def through(proxy_to="bee", **rules):
    """A federation in which bee is dialled through a proxy."""
    outside, inside = free_address(), free_address()
    return Federation(addresses={proxy_to: outside}, **rules), Proxy(inside, outside), inside


def test_requests_that_are_sent_again_survive_resets():
    async def body():
        federation, proxy, inside = through()
        ant, bee, echo = federation.transport("ant"), federation.transport("bee", listen=inside), Echo("bee")
        try:
            async with proxy:
                await bee.start(echo)
                await ant.start(Echo("ant"))
                for k in range(3):
                    message = Message.of(MessageKind.ROW, k, MEGABYTES)
                    task = asyncio.create_task(until_answered(ant, "bee", message))
                    back = asyncio.create_task(until_answered(bee, "ant", message))
                    await ant._peers["bee"].has_link.wait()
                    await asyncio.sleep(0.002)
                    proxy.reset()
                    assert (await task).ok and (await back).ok
                assert proxy.connections >= 2
        finally:
            await asyncio.gather(ant.close(), bee.close())
        assert {round for _, _, round in echo.seen} == {0, 1, 2}

    run(body())


@pytest.mark.parametrize("name", ["ant", "bee"])
def test_a_reset_during_a_request_makes_the_peer_unreachable(name):
    async def body():
        federation, proxy, inside = through()
        here = asyncio.Event()

        async def stuck(peer, message):
            here.set()
            await asyncio.Event().wait()

        ant, bee = federation.transport("ant"), federation.transport("bee", listen=inside)
        try:
            async with proxy:
                await bee.start(stuck)
                await ant.start(stuck)
                asker, other = {"ant": (ant, "bee"), "bee": (bee, "ant")}[name]
                task = asyncio.create_task(asker.request(other, ROW))
                await here.wait()
                proxy.reset()
                with pytest.raises(Unreachable):
                    await task
        finally:
            await asyncio.gather(ant.close(), bee.close())

    run(body())


def test_a_black_hole_makes_peers_unreachable_after_the_idle_timeout_and_recovers():
    async def body():
        federation, proxy, inside = through(idle_timeout=0.3)
        clock = asyncio.get_running_loop().time
        ant, bee = federation.transport("ant"), federation.transport("bee", listen=inside)
        try:
            async with proxy:
                await bee.start(Echo("bee"))
                await ant.start(Echo("ant"))
                await until_answered(ant, "bee", ROW)
                proxy.hole = True
                before = clock()
                for one, other in ((ant, "bee"), (bee, "ant")):
                    with pytest.raises(Unreachable):
                        await one.request(other, Message.of(MessageKind.ROW, 1, MEGABYTES))
                assert 0.2 < clock() - before < 5
                proxy.hole = False
                assert (await until_answered(ant, "bee", ROW)).ok
                assert (await until_answered(bee, "ant", ROW)).ok
        finally:
            await asyncio.gather(ant.close(), bee.close())

    run(body())


def test_a_slow_link_that_progresses_is_never_given_up():
    """1.5 MB at 900 kB per second take several idle timeouts, and arrive at the first attempt."""

    async def body():
        federation, proxy, inside = through(idle_timeout=0.7)
        clock, echo = asyncio.get_running_loop().time, Echo("bee")
        ant, bee = federation.transport("ant"), federation.transport("bee", listen=inside)
        try:
            async with proxy:
                proxy.delay = 0.002
                await bee.start(echo)
                await ant.start(Echo("ant"))
                await until_answered(ant, "bee", ROW)
                proxy.bandwidth = 900_000
                before = clock()
                assert (await ant.request("bee", Message.of(MessageKind.ROW, 1, MEGABYTES[:1_500_000]))).ok
                assert clock() - before > 2 * 0.7
                assert len(echo.seen) == 2 and proxy.connections == 1
        finally:
            await asyncio.gather(ant.close(), bee.close())

    run(body())


def test_dialling_is_repeated_while_the_network_refuses_connections(monkeypatch):
    async def body():
        federation, proxy, inside = through(idle_timeout=0.3)
        attempts, open_now = 0, asyncio.Event()

        async def pause(backoff):
            nonlocal attempts
            attempts += 1
            if attempts == 3:
                proxy.refuse = False
                open_now.set()

        monkeypatch.setattr(Backoff, "pause", pause)
        ant, bee = federation.transport("ant"), federation.transport("bee", listen=inside)
        try:
            async with proxy:
                proxy.refuse = True
                await bee.start(Echo("bee"))
                await ant.start(Echo("ant"))
                await open_now.wait()
                assert (await until_answered(bee, "ant", ROW)).ok
        finally:
            await asyncio.gather(ant.close(), bee.close())

    run(body())


def test_a_handler_that_never_answers_is_given_up_and_other_requests_are_served():
    async def body():
        async def stuck(peer, message):
            if message.round == 13:
                await asyncio.Event().wait()
            return Reply(ReplyCode.OK)

        federation = Federation(idle_timeout=0.3)
        ant, bee = federation.transport("ant"), federation.transport("bee")
        try:
            await bee.start(stuck)
            await ant.start(Echo("ant"))
            await until_answered(ant, "bee", ROW)
            with pytest.raises(Unreachable, match="nothing moved"):
                await ant.request("bee", Message.of(MessageKind.ROW, 13))
            assert (await until_answered(ant, "bee", ROW)).ok
        finally:
            await asyncio.gather(ant.close(), bee.close())

    run(body())
