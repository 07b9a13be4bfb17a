"""Tests of the metrics for Prometheus: where they are served, current, bounded, and while the agent runs."""

import asyncio
import contextlib
import os
import socket
import urllib.error
import urllib.request

import pytest
from history import Wire, federation
from prometheus_client.parser import text_string_to_metric_families

from topdp.agents.node import prometheus_metrics
from topdp.agents.wire.transport import ReplyCode
from topdp.errors import InputError, UnavailableError

pytestmark = pytest.mark.usefixtures("quick")


def read(port):
    return urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()


def served(tmp_path, scene):
    """The result of `scene` for the agent ada in a federation of three."""
    made = federation(tmp_path, agents=3, rounds=2)

    async def whole():
        agent = made.agent(0, Wire().transport("ada"))
        try:
            return await scene(agent)
        finally:
            agent.ledger.close()

    return asyncio.run(whole())


def test_every_metric_has_its_name_and_labels(tmp_path):
    async def scene(agent):
        agent.ledger.quarantine("bob", ReplyCode.NOT_A_ROW, "garbage")
        agent.ledger.note_suspect("cleo", "far away")
        async with prometheus_metrics.serve_metrics(agent, "0") as port:
            return await asyncio.to_thread(read, port), agent.context.epsilon

    text, epsilon = served(tmp_path, scene)
    found = {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found.pop(("topdp_ledger_bytes", ("ada",))) > 1000
    for peer in ("bob", "cleo"):
        assert 0 <= found.pop(("topdp_silent_seconds", ("ada", peer))) < 60
    for name in ("process_open_fds", "process_resident_memory_bytes"):
        assert found[name, ()] > 0
    found = {key: value for key, value in found.items() if not key[0].startswith("process_")}
    by_peer = ("waits_seconds", "waited_seconds_total", "sent_bytes_total", "received_bytes_total")
    assert found == {
        ("topdp_rounds_planned", ("ada",)): 3,
        ("topdp_paused", ("ada",)): 0,
        **{(f"topdp_{name}", ("ada", peer)): 0 for name in by_peer for peer in ("bob", "cleo")},
        ("topdp_rounds", ("ada",)): 0,
        ("topdp_epsilon_spent", ("ada",)): 0,
        ("topdp_epsilon_budget", ("ada",)): epsilon,
        ("topdp_without_data", ("ada",)): 0,
        **{("topdp_seconds", ("ada", part)): 0 for part in ("compute", "ledger", "network")},
        ("topdp_owed", ("ada", "bob")): 0,
        ("topdp_owed", ("ada", "cleo")): 0,
        ("topdp_quarantined", ("ada", "bob")): 1,
        ("topdp_quarantined", ("ada", "cleo")): 0,
        ("topdp_suspected", ("ada", "bob")): 0,
        ("topdp_suspected", ("ada", "cleo")): 1,
    }
    assert 'topdp_owed{agent="ada",peer="bob"} 0.0' in text


def test_the_server_listens_on_loopback_only_and_ends_with_its_context(tmp_path):
    async def scene(agent):
        async with prometheus_metrics.serve_metrics(agent, "0") as port:
            with socket.socket() as other, pytest.raises(OSError):
                other.bind(("127.0.0.1", port))
            with socket.socket() as elsewhere:
                elsewhere.bind(("127.0.0.2", port))  # free: the server does not listen on all addresses
        with pytest.raises(urllib.error.URLError):
            await asyncio.to_thread(read, port)

    served(tmp_path, scene)


def test_a_closed_ledger_has_no_metrics(tmp_path):
    async def scene(agent):
        async with prometheus_metrics.serve_metrics(agent, "0") as port:
            agent.ledger.close()
            return await asyncio.to_thread(read, port)

    assert "topdp_" not in served(tmp_path, scene)


def test_refusals_pauses_and_waits_are_counted(tmp_path):
    async def scene(agent):
        agent.loop.paused = lambda: True
        agent.loop.waits.set_peers(["bob"])
        for kind in ("stranger", "stranger", "linked"):
            agent.peers.refusals.report("bob", kind, "words")
        async with prometheus_metrics.serve_metrics(agent, "0") as port:
            return await asyncio.to_thread(read, port)

    text = served(tmp_path, scene)
    assert 'topdp_refused_total{agent="ada",peer="bob",reason="stranger"} 2.0' in text
    assert "linked" not in text and 'topdp_paused{agent="ada"} 1.0' in text
    waits = next(
        line for line in text.splitlines() if line.startswith('topdp_waits_seconds{agent="ada",peer="bob"')
    )
    assert float(waits.split()[-1]) > 0


def test_a_port_that_is_in_use_is_named(tmp_path):
    async def scene(agent):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            with pytest.raises(UnavailableError, match="--metrics: could not listen"):
                async with prometheus_metrics.serve_metrics(agent, str(other.getsockname()[1])):
                    pass

    served(tmp_path, scene)


def test_connections_that_send_nothing_use_up_no_descriptors(tmp_path):
    async def scene(agent):
        async with prometheus_metrics.serve_metrics(agent, "0") as port:
            before = len(os.listdir("/proc/self/fd"))
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
            await asyncio.sleep(0.1)
            most = prometheus_metrics.MAX_SCRAPES
            assert len(os.listdir("/proc/self/fd")) - before <= 50 + most
            text = await asyncio.to_thread(read, port)
            for _, writer in idle:
                writer.transport.abort()
            return text

    assert "topdp_rounds" in served(tmp_path, scene)


def test_a_request_without_end_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(prometheus_metrics, "SCRAPE_TIMEOUT_SECONDS", 0.05)

    async def scene(agent):
        async with prometheus_metrics.serve_metrics(agent, "0") as port:
            found = []
            for request in (b"GET /metrics HTTP/1.1\r\n", b"x" * 200_000):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request)
                with contextlib.suppress(ConnectionError):
                    found.append(await reader.read())
                writer.transport.abort()
            return found

    assert not any(served(tmp_path, scene))


@pytest.mark.parametrize("address", ["70000", "here:", "here", "-1", "::1:²"])
def test_an_address_without_a_port_is_refused(tmp_path, address):
    with pytest.raises(InputError, match="--metrics: expected PORT or HOST:PORT"):
        prometheus_metrics.metrics_host_and_port(address)


def test_the_server_listens_where_it_is_told_to(tmp_path):
    async def scene(agent):
        async with prometheus_metrics.serve_metrics(agent, "127.0.0.3:0") as port:
            place = f"http://127.0.0.3:{port}/metrics"
            return await asyncio.to_thread(lambda: urllib.request.urlopen(place, timeout=5).read().decode())

    assert "topdp_rounds" in served(tmp_path, scene)
