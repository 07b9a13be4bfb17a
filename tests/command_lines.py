"""Command lines that stand in documents and deployments, parsed by the real command line and not run."""

from __future__ import annotations

import typer

from topdp.cli.app import app


def command(arguments: list[str]) -> tuple[typer.core.TyperCommand, list[str]]:
    """The command that `topdp ARGUMENTS` calls, and what is left of them; a KeyError where there is none."""
    left, found = list(arguments), typer.main.get_command(app)
    while hasattr(found, "commands"):
        found = found.commands[left.pop(0)]
    return found, left


def parsed(arguments: list[str]) -> dict[str, object]:
    """The parameters of `topdp ARGUMENTS`; raises what the command line would say about them."""
    found, left = command(arguments)
    return found.make_context(found.name, left).params
