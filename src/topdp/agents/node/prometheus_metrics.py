"""Metrics of an agent for Prometheus, on loopback only. No metric is computed from data.

The server has its own threads. Only the agent's thread may use the ledger, so that thread reads the metrics.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from topdp.agents.ledger.ledger_database import LEDGER_FILE
from topdp.agents.ledger.ledger_entries import LedgerError, infinite_if_none
from topdp.agents.runtime.agent import Agent
from topdp.errors import UnavailableError

LOOPBACK_ADDRESS = "127.0.0.1"  # a proxy can serve the metrics on other addresses
SCRAPE_TIMEOUT_SECONDS = 5.0
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
    """Reads the agent's metrics from a thread of the server."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self._loop = agent, asyncio.get_running_loop()

    def collect(self) -> list[MetricFamily]:
        return asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(SCRAPE_TIMEOUT_SECONDS)

    async def _read(self) -> list[MetricFamily]:
        try:
            return list(metric_families(self.agent))
        except LedgerError:
            return []  # the agent has just ended, and its ledger is closed


@asynccontextmanager
async def serve_metrics(agent: Agent, port: int) -> AsyncIterator[int]:
    """Serve the metrics within the block. Yield the port: a free one if `port` is 0."""
    registry = CollectorRegistry()
    registry.register(AgentCollector(agent))
    ProcessCollector(registry=registry)  # open descriptors, memory, processor time; where there is /proc
    try:
        server, thread = start_http_server(port, addr=LOOPBACK_ADDRESS, registry=registry)
    except OSError as error:
        raise UnavailableError(
            f"--metrics: could not listen on {LOOPBACK_ADDRESS}:{port}: {error.strerror}. Name another port."
        ) from error
    try:
        yield server.server_port
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()
