"""`topdp relay`: a server that joins agents that can only dial out."""

from __future__ import annotations

from typing import Annotated

import typer

from topdp.cli.agent_options import expect_unix
from topdp.views.terminal.console import remark


def relay(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The address to bind; 0.0.0.0:7500 binds all.")
    ],
    connections: Annotated[int, typer.Option(min=2, help="Most connections in total.")] = 1024,
    per_address: Annotated[int, typer.Option(min=2, help="Most connections per address.")] = 64,
) -> None:
    """Join agents that open no port. The relay sees only encrypted bytes and need not be trusted."""
    import asyncio
    import signal

    from topdp.agents.wire.relay_server import RelayLimits, RelayServer

    expect_unix()

    async def serve() -> None:
        limits = RelayLimits(connections=connections, per_address=per_address)
        server, stopping = RelayServer(limits), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        await server.listen(listen)
        remark(f"relay: listens on {listen}; SIGTERM or Ctrl-C ends it, and agents dial again.")
        await stopping.wait()
        await server.close()
        remark(f"relay: ended; {server.joined} connections were joined.")

    asyncio.run(serve())
