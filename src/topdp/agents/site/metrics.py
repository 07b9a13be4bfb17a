"""An agent's numbers as Prometheus text, on loopback only. Read-only, and nothing in them comes from data."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topdp.agents.life.agent import Agent

HELP = {
    "topdp_rounds": "Rounds on the books.",
    "topdp_epsilon_spent": "Epsilon charged, under the guarantee that the agent charges by.",
    "topdp_epsilon_budget": "Epsilon that the agent may spend.",
    "topdp_seconds": "Seconds by part.",
    "topdp_owed": "Rows that a neighbour has not acknowledged.",
    "topdp_quarantined": "1 where nothing more is believed of a neighbour.",
}


def text(agent: Agent) -> str:
    """The numbers as they are now."""
    name = f'agent="{agent.name}"'
    values: list[tuple[str, str, float]] = [
        ("topdp_rounds", name, agent.ledger.round + 1),
        ("topdp_epsilon_spent", name, agent.ledger.total),
        ("topdp_epsilon_budget", name, agent.work.epsilon),
    ]
    for part, seconds in agent.rounds.timing.seconds.items():
        values.append(("topdp_seconds", f'{name},part="{part}"', seconds))
    for peer in agent.peers.neighbours:
        both = f'{name},peer="{peer}"'
        values.append(("topdp_owed", both, len(agent.peers.owes(peer))))
        values.append(("topdp_quarantined", both, float(agent.ledger.quarantined(peer) is not None)))
    lines: list[str] = []
    for metric, about in HELP.items():
        lines += [f"# HELP {metric} {about}", f"# TYPE {metric} gauge"]
        lines += [f"{metric}{{{labels}}} {value:.17g}" for known, labels, value in values if known == metric]
    return "\n".join(lines) + "\n"


async def serve(agent: Agent, port: int) -> asyncio.Server:
    """Answers every request with `text`; whoever wants it elsewhere puts a proxy before it."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5):
                await reader.readuntil(b"\r\n\r\n")
                body = text(agent).encode()
                head = ["HTTP/1.1 200 OK", "Content-Type: text/plain; version=0.0.4", "Connection: close"]
                head += [f"Content-Length: {len(body)}", "", ""]
                writer.write("\r\n".join(head).encode() + body)
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", port)
