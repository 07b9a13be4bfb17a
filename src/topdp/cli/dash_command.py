"""`topdp dash`: the live page."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from topdp.errors import ExitCode, InputError
from topdp.views.terminal.console import Json, print_result, remark

DASH_PACKAGES = ("starlette", "uvicorn")
TOKEN_VARIABLE = "TOPDP_DASH_TOKEN"
DEFAULT_RUNS_FOLDER = Path("runs")  # where `topdp run` writes by default


def dash(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH",
            help="Folders of one or more runs (new runs appear automatically), or agents' state folders. "
            "Default: runs/.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Beyond loopback, clients need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses a free one.")] = 8765,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"The file with the token, created if missing. Without it: the variable {TOKEN_VARIABLE}.",
        ),
    ] = None,
    publish_file: Annotated[
        Path | None,
        typer.Option(
            "--publish-token-file",
            metavar="FILE",
            help="A second token, which gives access only to what the agents here publish.",
        ),
    ] = None,
    federation: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A TOML file with the addresses where other agents publish, and tokens; see docs/dash.md.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate for https, as PEM; with --key.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key of the certificate, as PEM.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve a live page over runs and agents. It follows the files and changes nothing. Ctrl-C stops it.

    On loopback everybody on this machine can see the page, unless there is a token. It shows neither
    parameters nor data.
    """
    if any(importlib.util.find_spec(package) is None for package in DASH_PACKAGES):
        raise InputError(
            "Expected the packages starlette and uvicorn for the live page, could not find both. Install "
            "them with pip install -c constraints.txt '.[dash]'."
        )
    import asyncio
    from contextlib import suppress

    from topdp.views.live.live_sources import expect_folders
    from topdp.views.live.page_access import Access, is_loopback, new_token, token_from

    if (certificate is None) != (key is None):
        raise InputError("Expected --certificate and --key together, got one of them. Add the other one.")
    default = [DEFAULT_RUNS_FOLDER] if DEFAULT_RUNS_FOLDER.is_dir() and federation is None else []
    folders = expect_folders(paths or default)
    if not folders and federation is None:
        raise InputError(
            "Expected a folder of runs or an agent's state folder, got none, and there is no runs/ here. "
            "Name a folder."
        )
    token = token_from(token_file, TOKEN_VARIABLE)
    needs_token = not is_loopback(host) or publish_file is not None
    created = new_token() if token is None and needs_token else None

    from topdp.views.live.federation_page import FederationFeed, read_places
    from topdp.views.live.live_app import Dash, application
    from topdp.views.live.live_server import bound_socket, serve

    feed = FederationFeed(read_places(federation)) if federation is not None else None
    publish = None if publish_file is None else token_from(publish_file, "")
    with bound_socket(host, port) as sock:
        port = sock.getsockname()[1]
        access = Access(token or created, publish, f"topdp-dash-{port}")
        live = Dash(folders, feed)
        app = application(live, access, secure=certificate is not None)
        address = f"{'https' if certificate else 'http'}://{_url_host(host)}:{port}/"
        url = f"{address}?token={created}" if created else address
        print_result(as_json, {"url": url}, f"The live page is {url}")
        if not as_json:
            if token is not None:
                remark(
                    f"It needs a token: open {address}?token= followed by the token in "
                    f"{token_file or TOKEN_VARIABLE}."
                )
            remark("Ctrl-C stops only this page.")
        if not is_loopback(host) and certificate is None:
            remark(
                "Without https others can read the page and the token in transit. Use --certificate and "
                "--key, or remove --host and forward the port with ssh -L."
            )
        with suppress(KeyboardInterrupt):
            asyncio.run(serve(app, live, sock, certificate, key, exit_process=_exit))


def _exit() -> None:
    """Exit immediately. This program only reads files, so that there is no work to finish."""
    import os
    import sys

    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ExitCode.DONE)


def _url_host(host: str) -> str:
    """Return the host as in a URL; the name of the machine if the page listens on all addresses."""
    import socket

    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
