"""Tests of the guard of an agent's port: floods of strangers, old TLS, and reserved descriptors."""

import asyncio
import contextlib
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sites import Federation, run, until_answered
from test_malicious import ant_in, ended, logged

from topdp.agents.wire import byte_pipes
from topdp.agents.wire import port_guard as fronts
from topdp.agents.wire import wire_pb2 as wire
from topdp.agents.wire.byte_pipes import Connection
from topdp.agents.wire.link_refusals import LinkEnded, RefusalLog
from topdp.agents.wire.links import MAX_PINGS
from topdp.agents.wire.port_guard import PortGuard, client_hello
from topdp.agents.wire.transport import Message, MessageKind

ROW = Message.of(MessageKind.ROW, 3, b"numbers")


def context(identity, folder, newest):
    """A TLS context of the standard library with this identity's certificate, up to a version."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode, made.maximum_version = False, ssl.CERT_NONE, newest
    (folder / "both.pem").write_bytes(identity.key_pem() + identity.card.certificate.encode())
    made.load_cert_chain(folder / "both.pem")
    return made


def address_of(federation, name="bee"):
    host, port = federation.manifest.card(name).address.split(":")
    return host, int(port)


def test_tls_1_2_is_refused_and_1_3_is_not(tmp_path, caplog):
    caplog.set_level("INFO")

    async def body():
        federation = Federation()
        async with federation.started("bee"):
            ant = federation.identities["ant"]
            old = context(ant, tmp_path, ssl.TLSVersion.TLSv1_2)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(*address_of(federation), ssl=old)
            new = context(ant, tmp_path, ssl.TLSVersion.TLSv1_3)
            _, writer = await asyncio.open_connection(*address_of(federation), ssl=new)
            assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
            writer.transport.abort()

    run(body())
    assert "expected TLS 1.3" in caplog.text


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_1_2_is_refused_by_the_dialer(tmp_path, newest):
    """The listener offers no other version, even though its certificate is right."""
    versions = []

    async def body():
        federation = Federation()
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        bee = federation.identities["bee"]
        (tmp_path / "both.pem").write_bytes(bee.key_pem() + bee.card.certificate.encode())
        server.load_cert_chain(tmp_path / "both.pem")
        server.maximum_version = newest
        came = asyncio.Event()

        async def accept(reader, writer):
            versions.append(writer.get_extra_info("ssl_object").version())
            came.set()
            writer.close()

        listening = await asyncio.start_server(accept, *address_of(federation), ssl=server)
        async with listening, federation.started("ant"):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0 if newest == ssl.TLSVersion.TLSv1_2 else 60):
                    await came.wait()

    run(body())
    assert versions[:1] == ([] if newest == ssl.TLSVersion.TLSv1_2 else ["TLSv1.3"])


@pytest.mark.parametrize("addresses", [1, 40])
def test_neighbours_are_served_while_strangers_hold_connections(addresses, caplog):
    caplog.set_level("INFO")

    async def body():
        federation, connections = Federation(), []
        async with federation.started("bee") as (bee,):
            for k in range(200):
                here = (f"127.0.1.{1 + k % addresses}", 0)
                connections.append(await asyncio.open_connection(*address_of(federation), local_addr=here))
            async with federation.started("ant") as (ant,):
                assert (await until_answered(ant, "bee", ROW)).ok
                most = bee._guard.max_strangers_per_address if addresses == 1 else bee._guard.max_strangers
                strangers = [visitor for visitor in bee._guard.visitors if not visitor.name]
                assert 0 < len(strangers) <= most
                for _ in range(100):  # more strangers arrive, and the neighbour's link stays
                    connections.append(await asyncio.open_connection(*address_of(federation)))
                assert (await ant.request("bee", ROW)).ok
            for _, writer in connections:
                writer.transport.abort()

    run(body())
    assert caplog.text.count("prove no identity") == 1


def test_a_visitor_that_proves_no_identity_is_dropped(caplog):
    caplog.set_level("INFO")

    async def body():
        federation = Federation(idle_timeout=0.2)
        async with federation.started("bee"):
            reader, writer = await asyncio.open_connection(*address_of(federation))
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    run(body())
    assert "it sent nothing in 0.2 s" in caplog.text


def test_visitors_do_not_get_the_last_descriptors(monkeypatch, tmp_path, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(
        fronts, "raise_descriptor_limit", lambda: fronts.RESERVED_DESCRIPTORS + 3
    )  # 0, 1 and 2 are always taken

    async def body():
        federation = Federation()
        async with federation.started("bee"):
            reader, writer = await asyncio.open_connection(*address_of(federation))
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    run(body())
    assert "no descriptors are left for visitors" in caplog.text


def test_an_agent_with_few_descriptors_writes_its_result_in_a_flood(tmp_path):
    """Runs in its own process, limited to 256 descriptors; 400 strangers want one each."""
    code = """
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from pathlib import Path
from sites import Federation, run, until_answered
from topdp.agents.wire.transport import MessageKind
from topdp.agents.wire.transport import Message

async def body():
    federation = Federation()
    async with federation.started("bee", "ant") as (bee, ant):
        print(federation.manifest.card("bee").address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        for k in range(20):
            assert (await until_answered(ant, "bee", Message.of(MessageKind.ROW, k, b"x" * 100000))).ok
        files = [open(Path(sys.argv[1]) / f"result{k}", "w") for k in range(32)]
        for file in files:
            file.close()

run(body())
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    where = Path(__file__).parents[1]
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=where, **pipes)
    host, port = process.stdout.readline().strip().split(":")

    async def flood():
        connections = []
        for k in range(400):
            with contextlib.suppress(OSError):
                here = (f"127.0.2.{1 + k % 100}", 0)
                connections.append(await asyncio.open_connection(host, int(port), local_addr=here))
        out = await asyncio.to_thread(process.communicate, "go\n", 60)
        for _, writer in connections:
            writer.transport.abort()
        return out

    _, err = run(flood())
    assert process.returncode == 0, err
    assert len(list(tmp_path.glob("result*"))) == 32


def test_a_neighbour_has_at_most_two_connections(tmp_path):
    class LinkWriter:
        transport = None

        def __init__(self):
            self.transport, self.aborted = self, False

        def abort(self):
            self.aborted = True

    front = PortGuard(tmp_path, 1.0, 1, RefusalLog("bee"))
    writers = [LinkWriter() for _ in range(4)]
    run(_visit(front, writers))
    assert [writer.aborted for writer in writers] == [True, True, False, False]


async def _visit(front, writers):
    for k, writer in enumerate(writers):
        visitor = fronts.Visitor("127.0.0.1", Connection(None, writer))
        front.visitors.append(visitor)
        front._by_grpc_name[f"unix:{k}"] = visitor
        front.mark_proved(f"unix:{k}", "ant")
    front.mark_proved("unix:nobody", "ant")


def test_a_flood_of_pings_ends_the_link(caplog):
    async def body():
        federation = Federation(idle_timeout=30.0)
        async with federation.started("bee"), ant_in(federation) as call:
            for _ in range(MAX_PINGS + 1):
                await call.write(wire.Frame(ping=wire.Ping()).SerializeToString())
            assert "pings" in str(await ended(call))

    run(body())
    assert logged(caplog) == [("ant", "flood")]


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_refused_with_a_reason_or_passed_on_unchanged(data, framed):
    if framed:
        data = b"\x16\x03\x01" + len(data).to_bytes(2) + data

    async def body():
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        try:
            assert await client_hello(reader) == data
        except LinkEnded as refused:
            assert refused.reason

    asyncio.run(body())


def test_socket_folders_of_killed_agents_are_removed_and_those_of_live_agents_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(byte_pipes, "NEW_FOLDER_SECONDS", -1.0)
    killed, living = byte_pipes.SocketFolder(), byte_pipes.SocketFolder()
    killed._lock.close()  # as the system does when a process ends
    another = byte_pipes.SocketFolder()
    assert not killed.path.exists() and living.path.exists() and another.path.stat().st_mode & 0o777 == 0o700
    living.remove()
    another.remove()
    assert list(tmp_path.iterdir()) == []
