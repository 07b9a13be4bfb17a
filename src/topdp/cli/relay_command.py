"""`topdp relay`: joins agents that can only dial out."""

from __future__ import annotations

from typing import Annotated

import typer

from topdp.views.terminal.console import remark


def relay(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where agents dial it: 0.0.0.0:7500 for all.")
    ],
    connections: Annotated[int, typer.Option("--connections", min=2, help="At most, in all.")] = 1024,
    per_address: Annotated[int, typer.Option("--per-address", min=2, help="At most, from one.")] = 64,
) -> None:
    """Joins agents that open no port: sees encrypted bytes only, and need not be trusted. Ends by SIGTERM."""
    import asyncio
    import signal

    from topdp.agents.wire.byte_pipes import checked_address
    from topdp.agents.wire.relay_server import RelayLimits, RelayServer

    checked_address(listen)

    async def serve() -> None:
        serving, asked = (
            RelayServer(RelayLimits(connections=connections, per_address=per_address)),
            asyncio.Event(),
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, asked.set)
        await serving.listen(listen)
        remark(f"relay: listens on {listen}; SIGTERM or Ctrl-C ends it, and agents come again.")
        await asked.wait()
        await serving.close()
        remark(f"relay: ended; {serving.joined} connections were joined.")

    asyncio.run(serve())
