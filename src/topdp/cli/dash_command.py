"""`topdp dash`: the live page."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from topdp.errors import ExitCode, InputError
from topdp.views.terminal.console import Json, print_json, remark, show

PARTS = ("starlette", "uvicorn")
TOKEN = "TOPDP_DASH_TOKEN"
USUAL = Path("runs")  # where `topdp run` puts what nobody named a place for


def dash(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Folders of runs, or of folders of runs (new ones appear), or agents' state folders; runs/.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Where to listen; beyond loopback a token is needed, and made.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: a free one.")] = 8765,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help=f"The token is in this file, made where it is missing; else in {TOKEN}.",
        ),
    ] = None,
    publish_file: Annotated[
        Path | None,
        typer.Option(
            "--publish-token-file",
            metavar="FILE",
            help="Whoever has this other token sees what the agents here publish, and nothing else.",
        ),
    ] = None,
    federation: Annotated[
        Path | None,
        typer.Option(
            "--federation",
            metavar="FILE",
            help="Where other agents publish, with their tokens, as TOML: docs/dash.md.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="For https, as PEM; with --key.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="The certificate's key, as PEM.")
    ] = None,
    as_json: Json = False,
) -> None:
    """A live page over runs and agents: follows what is on disk and changes nothing. Ctrl-C ends it.

    On loopback everybody on this machine can see it, unless a token is named. It shows neither parameters
    nor data.
    """
    if any(importlib.util.find_spec(part) is None for part in PARTS):
        raise InputError(
            "The live page needs starlette and uvicorn, which are not installed: pip install 'topdp[dash]'."
        )
    import asyncio
    from contextlib import suppress

    from topdp.views.live.live_sources import expect_folders
    from topdp.views.live.page_access import Access, is_loopback, new_token, token_from

    if (certificate is None) != (key is None):
        raise InputError("Expected --certificate and --key together, got one of them.")
    named = paths or ([USUAL] if USUAL.is_dir() and federation is None else [])
    if not named and federation is None:
        raise InputError(
            "Expected a folder of runs or an agent's state folder, got none, and there is no runs/ here."
        )
    folders = expect_folders(named)
    given = token_from(token_file, TOKEN)
    made = new_token() if given is None and (not is_loopback(host) or publish_file is not None) else None

    from topdp.views.live.federation_page import Federation, read_places
    from topdp.views.live.live_app import Dash, application
    from topdp.views.live.live_server import bound, serve

    asked = Federation(read_places(federation)) if federation is not None else None
    publish = None if publish_file is None else token_from(publish_file, "")
    with bound(host, port) as sock:
        at = sock.getsockname()[1]
        access = Access(given or made, publish, f"topdp-dash-{at}")
        live = Dash(folders, asked)
        app = application(live, access, secure=certificate is not None)
        address = f"{'https' if certificate else 'http'}://{_shown(host)}:{at}/"
        url = f"{address}?token={made}" if made else address
        if as_json:
            print_json({"url": url})
        else:
            show(f"The live page is {url}")
            if given is not None:
                remark(f"It asks for a token: open {address}?token= with what is in {token_file or TOKEN}.")
            remark("Ctrl-C ends it, and nothing else.")
        if not is_loopback(host) and certificate is None:
            remark(
                "What is shown can be read on the way, and so can the token: use --certificate and --key, or "
                "leave --host away and bring the port over with ssh -L."
            )
        with suppress(KeyboardInterrupt):
            asyncio.run(serve(app, live, sock, certificate, key, leave=_leave))


def _leave() -> None:
    """At once: this program only reads, so there is nothing to bring to an end."""
    import os
    import sys

    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ExitCode.DONE)


def _shown(host: str) -> str:
    """A host as it stands in an address; all addresses of a machine are written as its name."""
    import socket

    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
