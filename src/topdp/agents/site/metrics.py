"""An agent's numbers for Prometheus, on loopback only. Read-only, and nothing in them comes from data.

The server has threads of its own; books are for one thread, so numbers are read in the agent's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from math import inf

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from topdp.agents.books.database import LedgerError
from topdp.agents.life.agent import Agent
from topdp.errors import UnavailableError

LOOPBACK = "127.0.0.1"  # whoever wants the numbers elsewhere puts a proxy before it
PATIENCE = 5.0  # seconds until a request is given up


def gauges(agent: Agent) -> Iterator[GaugeMetricFamily]:
    """The numbers as they are now."""

    def gauge(name: str, about: str, values: Mapping[str, float], label: str = "") -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, about, labels=["agent", *([label] if label else [])])
        for key, value in values.items():
            family.add_metric([agent.name, *([key] if label else [])], value)
        return family

    ledger, peers = agent.ledger, agent.peers
    spent = "Epsilon charged, under the guarantee that the agent charges by."
    owed = {peer: len(peers.owes(peer)) for peer in peers.neighbours}
    distrusted = {peer: float(ledger.quarantined(peer) is not None) for peer in peers.neighbours}
    yield gauge("topdp_rounds", "Rounds on the books, round 0 included.", {"": ledger.round + 1})
    yield gauge("topdp_epsilon_spent", spent, {"": inf if ledger.spent is None else ledger.spent})
    yield gauge("topdp_epsilon_budget", "Epsilon that the agent may spend.", {"": agent.equipment.epsilon})
    without = "1 once the budget is spent: rows carry noise and no data."
    yield gauge("topdp_without_data", without, {"": float(agent.life.out_of_budget)})
    yield gauge("topdp_seconds", "Seconds by part.", agent.life.timing.seconds, "part")
    yield gauge("topdp_owed", "Rows that a neighbour has not acknowledged.", owed, "peer")
    yield gauge("topdp_quarantined", "1 where nothing more is believed of a neighbour.", distrusted, "peer")


class AgentNumbers(Collector):
    """Asks the agent for its numbers, from a thread of the server."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self._loop = agent, asyncio.get_running_loop()

    def collect(self) -> list[GaugeMetricFamily]:
        return asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(PATIENCE)

    async def _read(self) -> list[GaugeMetricFamily]:
        try:
            return list(gauges(self.agent))
        except LedgerError:
            return []  # the agent has just ended, and its books are closed


@asynccontextmanager
async def served(agent: Agent, port: int) -> AsyncIterator[int]:
    """Serves the numbers while inside, and gives the port: a free one where `port` is 0."""
    registry = CollectorRegistry()
    registry.register(AgentNumbers(agent))
    try:
        server, thread = start_http_server(port, addr=LOOPBACK, registry=registry)
    except OSError as error:
        raise UnavailableError(
            f"--metrics: could not listen on {LOOPBACK}:{port}: {error.strerror}. Name another port."
        ) from error
    try:
        yield server.server_port
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()
