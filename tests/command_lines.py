"""Parse the command lines of documents and deployments with the real parser, without running them."""

from __future__ import annotations

import typer

from topdp.cli.app import app


def command(arguments: list[str]) -> tuple[typer.core.TyperCommand, list[str]]:
    """The command that `topdp ARGUMENTS` calls and the remaining arguments; KeyError if there is none."""
    left, found = list(arguments), typer.main.get_command(app)
    while hasattr(found, "commands"):
        found = found.commands[left.pop(0)]
    return found, left


def parsed(arguments: list[str]) -> dict[str, object]:
    """The parameters of `topdp ARGUMENTS`; raises the error of the command line."""
    found, left = command(arguments)
    return found.make_context(found.name, left).params
