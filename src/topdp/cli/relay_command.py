"""`topdp relay`: a server that joins agents that can only dial out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topdp.cli.agent_options import expect_agents_installed
from topdp.views.terminal.console import remark


def relay(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The address to bind; 0.0.0.0:7500 binds all.")
    ],
    manifest: Annotated[
        list[Path], typer.Option(help="A manifest whose members may wait at this relay. Repeatable.")
    ],
    connections: Annotated[int, typer.Option(min=2, help="Most connections in total.")] = 1024,
    per_address: Annotated[int, typer.Option(min=2, help="Most connections per address.")] = 64,
) -> None:
    """Join agents that open no port. The relay sees only encrypted bytes and need not be trusted."""
    import asyncio
    import signal

    from topdp.agents.agreement.manifest import read_manifest
    from topdp.agents.wire.relay_server import RelayLimits, RelayServer

    expect_agents_installed()
    cards = {card.fingerprint: card for file in manifest for card in read_manifest(file).cards}

    async def serve() -> None:
        limits = RelayLimits(connections=connections, per_address=per_address)
        server, stopping = RelayServer(limits, cards), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        await server.listen(listen)
        remark(f"relay: listens on {listen}; SIGTERM or Ctrl-C ends it, and agents dial again.")
        await stopping.wait()
        await server.close()
        remark(f"relay: ended; {server.joined} connections were joined.")

    asyncio.run(serve())
