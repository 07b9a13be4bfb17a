"""Options of the commands of agents and federations, and a check of the installation."""

from __future__ import annotations

import importlib.util
import os
import platform
from pathlib import Path
from typing import Annotated

import typer

from topdp.agents.node.agent_status import epsilon_in_words as epsilon_in_words
from topdp.errors import InputError

REQUIRED_PACKAGES = ("cryptography", "google.protobuf", "grpc", "prometheus_client")

State = Annotated[Path, typer.Option("--state", metavar="DIR", help="The agent's state folder.")]
IdentityFolder = Annotated[
    Path, typer.Option("--identity", metavar="DIR", help="The folder of the agent's key and card.")
]
ManifestFile = Annotated[Path, typer.Option("--manifest", help="The manifest of the federation.")]
Site = Annotated[
    Path | None,
    typer.Option(
        "--site",
        metavar="DIR",
        envvar="TOPDP_SITE",
        help="The folder of the site budget; by default one per identity in ~/.local/state/topdp.",
    ),
]


def expect_unix() -> None:
    """Raise InputError unless the operating system is one on which real agents and relays can run."""
    if not hasattr(os, "geteuid"):
        raise InputError(
            f"Expected Linux or macOS, got {platform.system()}: agents need Unix sockets, file owners and "
            "signals. Simulations, accounts and reports run on every system."
        )


def expect_agents_installed() -> None:
    """Raise InputError if the system or an optional package that real agents need is missing."""
    expect_unix()
    try:
        missing = [name for name in REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]
    except ModuleNotFoundError as error:  # the parent package of a required package is missing
        missing = [str(error.name)]
    if missing:
        names = ", ".join(missing)
        raise InputError(f"Real agents need {names}. Run: pip install -c constraints.txt '.[agents]'")
