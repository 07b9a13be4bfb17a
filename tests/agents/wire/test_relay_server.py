"""Tests of the relay for agents that can only dial out, and of what a malicious relay can do."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from sites import Federation, free_address, run, until_answered

from topdp.agents.agreement.card_succession import CardDirectory, sign_successor
from topdp.agents.agreement.identity import generate
from topdp.agents.wire.byte_pipes import connect, join
from topdp.agents.wire.grpc_transport import GrpcTransport
from topdp.agents.wire.relay_server import RelayLimits, RelayServer
from topdp.agents.wire.relay_tunnels import CALL, JOINED, WAIT, greeting, meeting_place, waiting_token
from topdp.agents.wire.transport import Message, MessageKind, Unreachable
from topdp.errors import InputError, UnavailableError

ROW = Message.of(MessageKind.ROW, 3, b"numbers")
BODY = Message.of(MessageKind.ROW, 4, bytes(range(256)) * 4000)
PLACE = "ab" * 32


@contextlib.asynccontextmanager
async def serving(relay, address):
    await relay.listen(address)
    try:
        yield relay
    finally:
        await relay.close()


def firewalled(names=("ant", "bee"), **rules):
    address = free_address()
    return Federation(names, closed=names, relay=address, **rules), address


class Malicious(RelayServer):
    """A relay that does `harm` to the first `times` connections that it joins, and then behaves correctly."""

    def __init__(self, times, harm):
        super().__init__()
        self.times, self.harm, self.recorded = times, harm, b""

    async def _carry(self, caller, listener):
        if self.joined > self.times:
            return await super()._carry(caller, listener)
        pumps = [
            asyncio.create_task(self._pump(caller, listener, "to the listener")),
            asyncio.create_task(self._pump(listener, caller, "to the caller")),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        caller.cut()
        listener.cut()

    async def _pump(self, one, other, way):
        seen = 0
        with contextlib.suppress(OSError):
            while data := await one.reader.read(4096):
                seen += len(data)
                if way == "to the listener":
                    self.recorded += data
                data = await self.harm(way, seen, data)
                if data is None:
                    return
                other.writer.write(data)
                await other.writer.drain()


def swap_byte(after):
    async def harm(way, seen, data):
        return data if seen < after else data[:-1] + bytes([data[-1] ^ 1])

    return harm


def cut_stream(after):
    async def harm(way, seen, data):
        return data if seen < after else None

    return harm


async def delay_data(way, seen, data):
    await asyncio.sleep(0.02)
    return data


async def flood_data(way, seen, data):
    return data + bytes(500_000)


HARMS = {
    "swaps a byte of the first message": (3, swap_byte(1)),
    "swaps a byte of the certificates": (3, swap_byte(1500)),
    "swaps a byte of a row": (2, swap_byte(30_000)),
    "cuts the handshake": (3, cut_stream(500)),
    "cuts a row": (2, cut_stream(30_000)),
    "delays everything": (1, delay_data),
    "adds bytes of its own": (3, flood_data),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HARMS)
def test_a_malicious_relay_can_keep_agents_waiting_and_nothing_else(case):
    """The data that arrive are those that were sent, by the right sender, once the relay passes them on."""
    times, harm = HARMS[case]

    async def body():
        federation, address = firewalled()
        async with serving(Malicious(times, harm), address), federation.started() as (ant, bee):
            assert (await until_answered(ant, "bee", BODY)).ok
            assert (await until_answered(bee, "ant", ROW)).ok
            assert set(bee.echo.seen) == {("ant", MessageKind.ROW, 4)}
            assert set(ant.echo.seen) == {("bee", MessageKind.ROW, 3)}

    run(body())


def meeting_place_of(federation, listener, dialer):
    """As the two agents compute it; no other agent can."""
    held, shown = federation.identities[listener], federation.identities[dialer].card
    secret = held.shared_secret(shown, "meeting place")
    return meeting_place(secret, federation.manifest.hash, listener, dialer)


def test_only_the_two_agents_know_their_meeting_place_even_after_a_renewal():
    """Otherwise anyone with the manifest, or another member, could wait there in their place."""
    federation = firewalled()[0]
    one, other = federation.identities["ant"], federation.identities["bee"]
    manifest = federation.manifest
    directory = CardDirectory(manifest)
    new = generate("ant")
    directory.accept(sign_successor(1, one, new))
    place = federation.transport("ant")._route("bee", "bee", "ant").place
    renewed = GrpcTransport(new, manifest, directory=directory, listed=one)
    assert place == federation.transport("bee")._route("ant", "bee", "ant").place
    assert place == renewed._route("bee", "bee", "ant").place
    known = [other.card.certificate.encode(), manifest.hash.encode(), b""]
    known += [generate("cat").shared_secret(each.card, "meeting place") for each in (one, other)]
    assert place not in {meeting_place(secret, manifest.hash, "bee", "ant") for secret in known}
    assert place != federation.transport("ant")._route("bee", "ant", "bee").place


def test_a_relay_that_joins_the_wrong_agents_creates_no_link(caplog):
    whose = {}  # meeting place -> the agent that waits there

    class Wrong(RelayServer):
        honest = False

        def _take_waiter(self, place):
            wrong = [other for other in self.waiting if whose[other] != whose[place]]
            places = [place] if self.honest else wrong
            return next((self.waiting[one].pop(0) for one in places if self.waiting.get(one)), None)

    async def body():
        links = [("ant", "bee"), ("bee", "cat"), ("ant", "cat")]
        address = free_address()
        names = ("ant", "bee", "cat")
        federation = Federation(names, closed=names, links=links, relay=address, idle_timeout=1.0)
        for dialer, listener in [("cat", "bee"), ("cat", "ant"), ("bee", "ant")]:
            assert federation.manifest.dialer(dialer, listener) == dialer
            whose[meeting_place_of(federation, listener, dialer)] = listener
        async with serving(Wrong(), address) as relay, federation.started() as agents:
            while relay.joined < 4:
                await asyncio.sleep(0.01)
            assert not any(agent.reaches(other) for agent in agents for other in names if other != agent.name)
            relay.honest = True
            assert (await until_answered(agents[0], "cat", ROW)).reason == "cat heard ant"
            assert (await until_answered(agents[2], "bee", ROW)).reason == "bee heard cat"

    run(body())


def test_a_replayed_stream_has_no_effect():
    async def body():
        federation, address = firewalled(idle_timeout=1.0)
        listener = "bee" if federation.manifest.dialer("ant", "bee") == "ant" else "ant"
        dialer = "ant" if listener == "bee" else "bee"
        place = meeting_place_of(federation, listener, dialer)

        async def nothing(way, seen, data):
            return data

        async with serving(Malicious(99, nothing), address) as relay, federation.started() as agents:
            ends = {agent.name: agent for agent in agents}
            assert (await until_answered(ends[dialer], listener, ROW)).ok
            before = list(ends[listener].echo.seen)
            old = relay.recorded
            for _ in range(3):
                while place not in relay.waiting:
                    await asyncio.sleep(0.01)
                end = await connect(address)
                end.writer.write(greeting(CALL, place) + old)
                with contextlib.suppress(ConnectionError):
                    while await end.reader.read(4096):
                        pass
                end.cut()
            assert ends[listener].echo.seen == before
            assert (await until_answered(ends[dialer], listener, ROW)).ok

    run(body())


@pytest.mark.slow
def test_a_relay_may_start_late_and_restart():
    async def body():
        federation, address = firewalled()
        async with federation.started() as (ant, bee):
            for _ in range(3):
                async with serving(RelayServer(), address):
                    assert (await until_answered(ant, "bee", ROW)).ok
                    assert (await until_answered(bee, "ant", ROW)).ok

    run(body())


def test_an_agent_without_a_port_has_no_socket_that_other_users_can_reach():
    async def body():
        federation, address = firewalled()
        async with serving(RelayServer(), address), federation.started() as (ant, bee):
            await until_answered(ant, "bee", ROW)
            folders = [ant._folder.path, bee._folder.path]
            assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)
            front = next(agent._guard for agent in (ant, bee) if agent._guard is not None)
            assert front.server.servers == []
        assert not any(folder.exists() for folder in folders)

    run(body())


def test_a_link_without_addresses_needs_a_relay():
    with pytest.raises(InputError, match="name a relay"):
        Federation(closed=("ant", "bee"))
    with pytest.raises(ValueError, match="host:port"):
        Federation(closed=("ant", "bee"), relay="nowhere")


async def send_words(address, words):
    end = await connect(address)
    end.writer.write(words)
    try:
        return await end.reader.read()
    except ConnectionError:
        return b""
    finally:
        end.cut()


CASES = {
    "a visitor with another protocol": (
        RelayLimits(),
        b"GET / HTTP/1.1\r\n" + b"x" * 200,
        b"-expected a greeting",
    ),
    "a silent visitor": (RelayLimits(greeting=0.05), b"", b""),
    "a call for which nobody waits": (RelayLimits(), greeting(CALL, PLACE), b"-nobody waits there"),
    "a wait that is too long": (RelayLimits(waiting=0.05), greeting(WAIT, PLACE), b""),
    "data during a wait": (RelayLimits(), greeting(WAIT, PLACE) + b"x", b""),
}


@pytest.mark.parametrize("case", CASES)
def test_the_relay_ends_connections_that_break_its_rules(case):
    limits, words, answer = CASES[case]

    async def body():
        address = free_address()
        async with serving(RelayServer(limits), address) as relay:
            said = await send_words(address, words)
            assert said.startswith(answer) and (answer or not said)
            assert not relay.waiting

    run(body())


def test_the_relay_limits_connections_in_total_per_address_and_per_place():
    async def body():
        address = free_address()
        limits = RelayLimits(connections=8, per_address=4, per_place=2)
        async with serving(RelayServer(limits), address) as relay:
            ends = []
            for _ in range(3):
                ends.append(await connect(address))
                ends[-1].writer.write(greeting(WAIT, PLACE))
                await asyncio.sleep(0.02)
            assert await ends[0].reader.read() == b""  # the third connection replaced it
            assert len(relay.waiting[PLACE]) == 2
            ends += [await connect(address) for _ in range(2)]
            assert b"too many" in await send_words(address, b"")
            for end in ends:
                end.cut()

    run(body())


@contextlib.asynccontextmanager
async def members_only(**limits):
    """A relay for the members ant and bee: (relay, its address, ant, bee)."""
    federation, address = firewalled()
    cards = {card.fingerprint: card for card in federation.manifest.cards}
    async with serving(RelayServer(RelayLimits(**limits), cards), address) as relay:
        yield relay, address, federation.identities["ant"], federation.identities["bee"]


async def is_joined(address, member):
    """Whether a member that waits is joined with a caller."""
    waiting, calling = await connect(address), None
    try:
        waiting.writer.write(greeting(WAIT, PLACE, waiting_token(member, PLACE)))
        await asyncio.sleep(0.1)
        calling = await connect(address)
        calling.writer.write(greeting(CALL, PLACE))
        async with asyncio.timeout(5):
            return [await end.reader.read(1) for end in (waiting, calling)] == [JOINED] * 2
    finally:
        for end in filter(None, (waiting, calling)):
            end.cut()


def test_strangers_cannot_close_a_relay():
    async def body():
        async with members_only(connections=16) as (relay, address, ant, _):
            strangers = [
                await connect(address) for _ in range(30)
            ]  # silent; some have waited without a token
            for end in strangers[::2]:
                with contextlib.suppress(ConnectionError):
                    end.writer.write(greeting(WAIT, PLACE))
            await asyncio.sleep(0.1)
            assert relay.connections.total() <= 4 and not relay.waiting
            assert await is_joined(address, ant)
            for end in strangers:
                end.cut()

    run(body())


@pytest.mark.parametrize(
    "case", ["nothing", "a stranger's card", "another place", "another's card", "garbage"]
)
def test_only_members_may_wait_at_a_relay(case):
    async def body():
        async with members_only() as (relay, address, ant, bee):
            stranger = generate("eve")
            token = {
                "nothing": "",
                "a stranger's card": waiting_token(stranger, PLACE),
                "another place": waiting_token(ant, "cd" * 32),
                "another's card": f"{bee.card.fingerprint} {waiting_token(ant, PLACE).split()[1]}",
                "garbage": f"{ant.card.fingerprint} 00",
            }[case]
            assert b"only members" in await send_words(address, greeting(WAIT, PLACE, token))
            assert not relay.waiting and not relay._strangers
            assert await is_joined(address, ant)

    run(body())


def test_one_member_holds_a_limited_number_of_connections():
    async def body():
        async with members_only(per_card=3) as (relay, address, ant, bee):
            other = await connect(address)
            other.writer.write(greeting(WAIT, PLACE, waiting_token(bee, PLACE)))
            ends = []
            for k in range(9):
                place = f"{k:064x}"
                ends.append(await connect(address))
                ends[-1].writer.write(greeting(WAIT, place, waiting_token(ant, place)))
                await asyncio.sleep(0.02)
            assert len(relay.waiting) == 4 and PLACE in relay.waiting
            for end in [*ends, other]:
                end.cut()

    run(body())


def test_a_sender_waits_while_the_receiver_does_not_read(monkeypatch):
    """The relay does not store unread bytes: only its buffers and those of the system fill."""

    async def body():
        address = free_address()
        async with serving(RelayServer(), address):
            listener = await connect(address)
            listener.writer.write(greeting(WAIT, PLACE))
            await asyncio.sleep(0.05)
            caller = await connect(address)
            caller.writer.write(greeting(CALL, PLACE))
            assert await caller.reader.readexactly(1) == JOINED
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < 100_000_000:
                    async with asyncio.timeout(0.5):
                        caller.writer.write(bytes(100_000))
                        await caller.writer.drain()
                    sent += 100_000
            assert sent < 50_000_000
            caller.cut()
            listener.cut()

    run(body())


def test_a_silent_pair_of_connections_is_closed():
    async def body():
        ends = []
        address = free_address()
        server = await asyncio.start_server(lambda *both: ends.append(both), *address.split(":"))
        async with server:
            one, other = await connect(address), await connect(address)
            async with asyncio.timeout(10):
                await join(one, other, idle=0.05)
            for _, writer in ends:
                writer.transport.abort()

    run(body())


def test_a_relay_needs_neither_torch_nor_grpc():
    modules = "topdp.cli.app, topdp.agents.wire.relay_server, topdp.agents.agreement.manifest"
    code = f"import sys, {modules}; print({{'torch', 'grpc'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_command_serves_until_it_is_terminated(topdp, tmp_path):
    federation, address = firewalled()
    federation.manifest.write(tmp_path / "manifest.toml")
    known = ["--manifest", str(tmp_path / "manifest.toml")]
    command = [sys.executable, "-m", "topdp", "relay", "--listen", address, *known]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert address in process.stderr.readline()
        taken = topdp("relay", "--listen", address, *known)
        assert taken.code == 6 and "Could not listen" in taken.err
        process.terminate()
        assert process.wait(30) == 0
    assert topdp("relay", "--listen", "nowhere", *known).code == 2
    assert topdp("relay", "--listen", address).code == 2  # no manifest


def test_a_port_in_use_is_named():
    async def body():
        address = free_address()
        async with serving(RelayServer(), address):
            with pytest.raises(UnavailableError, match=address):
                await RelayServer().listen(address)

    run(body())


def test_without_a_relay_no_agent_is_reachable(caplog):
    caplog.set_level("INFO")

    async def body():
        federation, _ = firewalled(idle_timeout=0.3)
        async with federation.started() as (ant, _):
            with pytest.raises(Unreachable):
                await ant.request("bee", ROW)

    run(body())
    assert "not reached through 127.0.0.1" in caplog.text


# With separate networks behind routers that translate addresses.

NETWORKS = """
set -e
ip netns add {n}wan; ip -n {n}wan link set lo up; ip -n {n}wan link add name hub type bridge
ip -n {n}wan addr add 198.51.100.1/24 dev hub; ip -n {n}wan link set hub up
for k in 1 2; do
  ip netns add {n}nat$k; ip netns add {n}site$k
  ip link add name {n}w$k netns {n}wan type veth peer name wan netns {n}nat$k
  ip -n {n}wan link set {n}w$k master hub up
  ip -n {n}nat$k addr add 198.51.100.1$k/24 dev wan; ip -n {n}nat$k link set wan up
  ip link add name lan netns {n}nat$k type veth peer name eth netns {n}site$k
  ip -n {n}nat$k addr add 192.168.1.1/24 dev lan; ip -n {n}nat$k link set lan up
  ip -n {n}site$k addr add 192.168.1.2/24 dev eth; ip -n {n}site$k link set eth up
  ip -n {n}site$k link set lo up; ip -n {n}site$k route add default via 192.168.1.1
  ip netns exec {n}nat$k sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
  ip netns exec {n}nat$k nft -f - <<END
table ip nat {{ chain post {{ type nat hook postrouting priority 100; oifname "wan" masquerade; }}; }}
table ip guard {{ chain in {{ type filter hook forward priority 0; policy drop;
  iifname "lan" accept; ct state established,related accept; }}; }}
END
done
"""


def networks(name):
    """Creates two sites with the same private address, each behind a router, or skips the test."""
    for tool in ("ip", "nft"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    made = subprocess.run(["sh", "-c", NETWORKS.format(n=name)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no networks can be made here: {made.stderr.strip()[-200:]}")


SITE = """
import asyncio, sys
from sites import Echo, MADE, at, run, until_answered
from topdp.agents.agreement.identity import load
from topdp.agents.agreement.manifest import read
from topdp.agents.wire.transport import MessageKind
from topdp.agents.wire.grpc_transport import GrpcTransport
from topdp.agents.wire.transport import Message
from pathlib import Path

async def body():
    folder, me, other = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    transport = GrpcTransport(load(folder / me), read(folder / "manifest.toml"))
    await transport.start(Echo(me))
    for k in range(5):
        assert (await until_answered(transport, other, Message.of(MessageKind.ROW, k, bytes(300_000)))).ok
    print("done", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await transport.close()

run(body())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="separate networks need root")
def test_two_sites_behind_routers_connect_through_a_relay(tmp_path):
    from topdp.agents.agreement import identity
    from topdp.agents.agreement.manifest import Rules, new_manifest
    from topdp.runs.config import RunConfig

    name = f"t{os.getpid() % 10000}"
    cards = [identity.create_identity(tmp_path / who, who).card for who in ("ant", "bee")]
    rules = Rules(relay="198.51.100.1:7500", idle_timeout=10.0)
    new_manifest(cards, [("ant", "bee")], RunConfig(), rules).write(tmp_path / "manifest.toml")
    where, processes = Path(__file__).parents[1], []

    def start(network, *command):
        pipes = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
        }
        whole = ["ip", "netns", "exec", name + network, sys.executable, *map(str, command)]
        processes.append(subprocess.Popen(whole, cwd=where, **pipes))
        return processes[-1]

    try:
        networks(name)
        known = ("--manifest", tmp_path / "manifest.toml")
        relay = start("wan", "-m", "topdp", "relay", "--listen", "198.51.100.1:7500", *known)
        assert "listens" in relay.stdout.readline()
        direct = "import socket; socket.create_connection(('198.51.100.12', 7400), 0.5)"
        assert start("site1", "-c", direct).wait(30) != 0  # nobody can be dialled directly
        code = textwrap.dedent(SITE)
        sites = [
            start("site1", "-c", code, tmp_path, "ant", "bee"),
            start("site2", "-c", code, tmp_path, "bee", "ant"),
        ]
        assert [site.stdout.readline() for site in sites] == ["done\n", "done\n"]
        for site in sites:
            site.communicate("\n", timeout=30)
            assert site.returncode == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        for network in ("wan", "nat1", "nat2", "site1", "site2"):
            subprocess.run(["ip", "netns", "del", name + network], capture_output=True)
