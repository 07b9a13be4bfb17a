"""The command line: the names of all commands, exit codes and error output.

Exit codes are those of `topdp.errors`. Tables and `--json` go to stdout; progress and errors go to stderr.
The module of a command is imported when the command is called or listed: `topdp agent start` loads no other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

# Spinning OpenMP threads slow everything down on a busy machine. Torch reads this when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import typer
from typer.core import TyperGroup

from topdp import __version__
from topdp.errors import ExitCode, TopdpError, translate_memory_errors
from topdp.views.terminal.console import err, show

# The error that typer raises for wrong arguments; newer versions bundle click.
USAGE_ERROR: Any = typer.BadParameter.__mro__[2]


@dataclass(frozen=True)
class CommandGroup:
    """A group of commands. Each command is `module:function` in this package, or another group."""

    help: str
    commands: Mapping[str, str | CommandGroup]


COMMANDS: Mapping[str, str | CommandGroup] = {
    "run": "training_commands:run",
    "compare": "training_commands:compare",
    "sweep": "training_commands:sweep",
    "export": "training_commands:export",
    "report": "page_commands:report",
    "statement": "page_commands:statement",
    "graph": "figure_commands:graph",
    "plan": "plan_command:plan",
    "account": "privacy_commands:account",
    "recommend": "privacy_commands:recommend",
    "audit": "privacy_commands:audit",
    "calibrate": "privacy_commands:calibrate",
    "reproduce": "figure_commands:reproduce",
    "bench": "bench_command:bench",
    "dash": "dash_command:dash",
    "relay": "relay_command:relay",
    "version": "app:version",
    "data": CommandGroup(
        "Fetch and list data sets; preview a file of your own.",
        {
            "fetch": "data_commands:data_fetch",
            "list": "data_commands:data_list",
            "look": "data_commands:data_look",
        },
    ),
    "agent": CommandGroup(
        "Run one agent on its own machine.",
        {
            "init": "agent_commands:init",
            "start": "agent_commands:start",
            "rehearse": "development_commands:rehearse",
            "status": "operator_commands:status",
            "pause": "operator_commands:pause",
            "resume": "operator_commands:resume",
            "stop": "operator_commands:stop",
            "renew": "member_commands:renew",
            "sign": "member_commands:sign",
            "ledger": CommandGroup(
                "Show and verify the ledger of an agent.",
                {"show": "ledger_commands:show_charges", "verify": "ledger_commands:verify_ledger"},
            ),
            "budget": CommandGroup(
                "Show and set the budget of all runs on the same records.",
                {
                    "show": "budget_commands:show_site",
                    "set": "budget_commands:set_limit",
                    "close": "budget_commands:close_run",
                },
            ),
            "model": CommandGroup("Export an agent's model.", {"export": "operator_commands:export_model"}),
            "quarantine": CommandGroup(
                "List and lift quarantines of neighbours.",
                {"list": "operator_commands:list_quarantined", "lift": "operator_commands:lift_quarantine"},
            ),
        },
    ),
    "federation": CommandGroup(
        "Create and amend manifests; run a demonstration.",
        {
            "create": "federation_commands:create",
            "amend": "member_commands:amend",
            "canaries": "federation_commands:canaries",
            "demo": "federation_commands:demo",
        },
    ),
}


class LazyCommands(Mapping[str, Any]):
    """Commands by name; each is imported when it is first looked up."""

    def __init__(self, targets: Mapping[str, str | CommandGroup]) -> None:
        self._targets = targets
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._targets[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)


def _load(name: str, target: str | CommandGroup) -> Any:
    if isinstance(target, CommandGroup):
        return typer.main.get_group(_group(name, target))
    module, _, function = target.partition(":")
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name)(getattr(import_module(f"topdp.cli.{module}"), function))
    return typer.main.get_command(single)


def _group(name: str, group: CommandGroup) -> typer.Typer:
    class LazyGroup(TyperGroup):
        def __init__(self, *, commands: object = None, **settings: Any) -> None:
            super().__init__(commands=LazyCommands(group.commands), **settings)  # type: ignore[arg-type]

    return typer.Typer(
        name=name,
        help=group.help,
        cls=LazyGroup,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


app = _group(
    "topdp",
    CommandGroup("Private learning without a server: agents on a graph train one model together.", COMMANDS),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def topdp(
    wanted: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Private learning without a server: agents on a graph train one model together."""


def version() -> None:
    """Print the version."""
    show(f"topdp {__version__}")


def main() -> None:
    """Run the command. A TopdpError prints its message and sets the exit code; other errors a traceback."""
    try:
        with translate_memory_errors():
            code = app(standalone_mode=False)
    except TopdpError as error:
        stop(error, error.code)
    except USAGE_ERROR as error:
        error.show()
        sys.exit(error.exit_code)
    if code == ExitCode.INTERRUPTED:  # Ctrl-C before a command could name a way to continue
        stop("Interrupted.", ExitCode.INTERRUPTED)
    sys.exit(code if isinstance(code, int) else ExitCode.DONE)


def stop(message: object, code: int) -> None:
    err.print(f"topdp: {message}", style="bold red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)
