"""What the commands of agents and federations share: options, and words for numbers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from topdp.agents.node.status_file import epsilon_in_words as epsilon_in_words
from topdp.errors import InputError

PARTS = ("cryptography", "google.protobuf", "grpc", "prometheus_client")

State = Annotated[Path, typer.Option("--state", metavar="DIR", help="The agent's state folder.")]
IdentityFolder = Annotated[Path, typer.Option("--identity", metavar="DIR", help="Where key and card are.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the configuration.")
]


def need_parts() -> None:
    """What agents need beyond the rest of topdp, and an installation may lack."""
    try:
        missing = [name for name in PARTS if importlib.util.find_spec(name) is None]
    except ModuleNotFoundError as error:  # the package around one of them
        missing = [str(error.name)]
    if missing:
        raise InputError("Real agents need more parts: pip install -c constraints.txt '.[agents]'")
