"""Metrics of an agent for Prometheus, on loopback unless the owner names a host. No metric is from data.

**Guarantees.** Whoever reaches the port reads these numbers and does nothing else: connections are few and
short, so they cannot use up the descriptors that the ledger needs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from topdp.agents.ledger.ledger_database import LEDGER_FILE
from topdp.agents.ledger.ledger_entries import LedgerError, infinite_if_none
from topdp.agents.runtime.agent import Agent
from topdp.errors import InputError, UnavailableError

LOOPBACK_ADDRESS = "127.0.0.1"
SCRAPE_TIMEOUT_SECONDS = 5.0
MAX_SCRAPES = 8  # connections at a time; one more ends the oldest
LINK_EVENTS = ("linked", "lost", "replaced")  # events that are no refusals

MetricFamily = GaugeMetricFamily | CounterMetricFamily


def metric_families(agent: Agent) -> Iterator[MetricFamily]:
    """Yield all metrics with their current values."""

    def metric(
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        about: str,
        values: Mapping[str, float],
        label: str = "",
    ) -> MetricFamily:
        family = kind(name, about, labels=["agent", *([label] if label else [])])
        for key, value in values.items():
            family.add_metric([agent.name, *([key] if label else [])], value)
        return family

    gauge, counter = partial(metric, GaugeMetricFamily), partial(metric, CounterMetricFamily)
    ledger, peers = agent.ledger, agent.peers
    spent = "Epsilon charged, under the guarantee that the agent charges by."
    owed = {peer: len(agent.sender.rounds_owed(peer)) for peer in peers.neighbours}
    distrusted = {peer: float(ledger.quarantined(peer) is not None) for peer in peers.neighbours}
    yield gauge("topdp_rounds", "Rounds in the ledger, round 0 included.", {"": ledger.round + 1})
    yield gauge("topdp_epsilon_spent", spent, {"": infinite_if_none(ledger.spent)})
    yield gauge("topdp_epsilon_budget", "Epsilon that the agent may spend.", {"": agent.context.epsilon})
    without = "1 once the budget is spent: rows carry noise and no data."
    yield gauge("topdp_without_data", without, {"": float(agent.loop.out_of_budget)})
    yield gauge("topdp_seconds", "Seconds by part.", agent.loop.timing.seconds, "part")
    suspected = {peer: float(peer in ledger.suspects) for peer in peers.neighbours}
    yield gauge("topdp_suspected", "1 if rows of a neighbour were unlike those of others.", suspected, "peer")
    yield gauge("topdp_owed", "Rows that a neighbour has not acknowledged.", owed, "peer")
    yield gauge("topdp_quarantined", "1 if a neighbour is quarantined.", distrusted, "peer")
    releases = agent.context.part.plan.releases
    yield gauge("topdp_rounds_planned", "Rounds of the plan, round 0 included.", {"": releases})
    yield gauge("topdp_paused", "1 while a person has paused releases.", {"": float(agent.loop.paused())})
    ledger_bytes = sum(file.stat().st_size for file in agent.folder.glob(f"{LEDGER_FILE}*"))
    yield gauge("topdp_ledger_bytes", "Size of the ledger on disk.", {"": ledger_bytes})
    now = time.time()
    silent = {peer: max(0.0, now - heard) for peer, heard in peers.heard_at.items()}
    yield gauge("topdp_silent_seconds", "Seconds since the last message of a neighbour.", silent, "peer")
    waits = {peer: max(0.0, now - since) for peer, since in agent.loop.waits.started.items()}
    waits = dict.fromkeys(peers.neighbours, 0.0) | waits
    yield gauge("topdp_waits_seconds", "Seconds of the current wait for a neighbour.", waits, "peer")
    waited = {peer: agent.loop.waits.seconds(peer) for peer in peers.neighbours}
    yield counter("topdp_waited_seconds", "Seconds waited for a neighbour.", waited, "peer")
    sent, received = ({p: counts[p] for p in peers.neighbours} for counts in (peers.sent, peers.received))
    yield counter("topdp_sent_bytes", "Bytes of messages to a neighbour.", sent, "peer")
    yield counter("topdp_received_bytes", "Bytes of messages from a neighbour.", received, "peer")
    refused = CounterMetricFamily(
        "topdp_refused", "Handshakes and messages that were refused.", labels=["agent", "peer", "reason"]
    )
    events = Counter(peers.refusals.counts) + Counter(peers.transport.refused)
    for (peer, reason), count in sorted(events.items()):
        if reason not in LINK_EVENTS:
            refused.add_metric([agent.name, peer, reason], count)
    yield refused


class AgentCollector(Collector):
    """Reads the agent's metrics; only the thread of the agent may call it."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def collect(self) -> list[MetricFamily]:
        try:
            return list(metric_families(self.agent))
        except LedgerError:
            return []  # the agent has just ended, and its ledger is closed


class MetricsServer:
    """Answers every request with the metrics, and keeps at most `MAX_SCRAPES` connections open."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._open: list[asyncio.StreamWriter] = []  # oldest first

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.append(writer)
        if len(self._open) > MAX_SCRAPES:
            self._open.pop(0).transport.abort()
        try:
            async with asyncio.timeout(SCRAPE_TIMEOUT_SECONDS):
                await reader.readuntil(b"\r\n\r\n")
                body = generate_latest(self.registry)
                head = (
                    f"HTTP/1.0 200 OK\r\nContent-Type: {CONTENT_TYPE_LATEST}\r\nContent-Length: {len(body)}"
                )
                writer.write(f"{head}\r\n\r\n".encode("ascii") + body)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # the other end has left, or sent no request
        finally:
            writer.transport.abort()
            if writer in self._open:
                self._open.remove(writer)

    def close(self) -> None:
        for writer in self._open:
            writer.transport.abort()


def metrics_host_and_port(address: str) -> tuple[str, int]:
    """Return the host and port of `--metrics`; a port alone is on loopback.

    >>> metrics_host_and_port("9464"), metrics_host_and_port("0.0.0.0:9464")
    (('127.0.0.1', 9464), ('0.0.0.0', 9464))
    """
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise InputError(
            f"--metrics: expected PORT or HOST:PORT with a port up to 65535, got {address!r:.80}."
        )
    return host.strip("[]") or LOOPBACK_ADDRESS, int(port)


@asynccontextmanager
async def serve_metrics(agent: Agent, address: str) -> AsyncIterator[int]:
    """Serve the metrics at `address` within the block. Yield the port: a free one if it is 0."""
    host, port = metrics_host_and_port(address)
    registry = CollectorRegistry()
    registry.register(AgentCollector(agent))
    ProcessCollector(registry=registry)  # open descriptors, memory, processor time; where there is /proc
    metrics = MetricsServer(registry)
    try:
        server = await asyncio.start_server(metrics.answer, host, port)
    except OSError as error:
        raise UnavailableError(
            f"--metrics: could not listen on {host}:{port}: {error.strerror}. Name another port."
        ) from error
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        metrics.close()
