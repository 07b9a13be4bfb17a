"""Command lines that stand in documents and deployments, parsed by the real command line and not run."""

from __future__ import annotations

import typer

from topdp.cli import app


def parsed(arguments: list[str]) -> dict[str, object]:
    """The parameters of `topdp ARGUMENTS`; raises what the command line would say about them."""
    left, command = list(arguments), typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[left.pop(0)]
    return command.make_context(command.name, left).params
