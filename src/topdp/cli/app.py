"""The command line: the commands of `commands/` under their names, and how a command ends.

Exit codes are those of `topdp.errors`. Tables and `--json` go to stdout; progress and errors go to stderr.
Nothing slow is imported before a command is called, and inside it only once a first sign of life is given.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

# Spinning OpenMP threads make everything slower on a busy machine; has to be said before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import typer

from topdp import __version__
from topdp.cli import (
    data_commands,
    figure_commands,
    page_commands,
    plan_command,
    privacy_commands,
    training_commands,
)
from topdp.cli.agent_groups import agent_app, federation_app
from topdp.cli.bench_command import bench
from topdp.cli.dash_command import dash
from topdp.cli.relay_command import relay
from topdp.errors import ExitCode, TopdpError, enough_memory
from topdp.views.terminal.console import err, show

app = typer.Typer(
    name="topdp",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# What typer raises about the arguments themselves: click's own, which newer versions carry inside.
USAGE_ERROR: Any = typer.BadParameter.__mro__[2]

data_app = typer.Typer(
    help="Data sets: fetch (and verify), list; look at a file of your own.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data")
app.add_typer(agent_app, name="agent")
app.add_typer(federation_app, name="federation")

for command in (
    training_commands.run,
    training_commands.compare,
    training_commands.sweep,
    training_commands.export,
    page_commands.report,
    page_commands.statement,
    figure_commands.graph,
    plan_command.plan,
    privacy_commands.account,
    privacy_commands.recommend,
    privacy_commands.audit,
    privacy_commands.calibrate,
    figure_commands.reproduce,
    bench,
    dash,
    relay,
):
    app.command()(command)
data_app.command("fetch")(data_commands.data_fetch)
data_app.command("list")(data_commands.data_list)
data_app.command("look")(data_commands.data_look)


def _say_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def topdp(
    asked: Annotated[
        bool, typer.Option("--version", help="The version of topdp.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Private learning without a server: agents on a graph train one model together."""


@app.command()
def version() -> None:
    """The version of topdp."""
    show(f"topdp {__version__}")


def main() -> None:
    """Runs the command. An error of ours is one line and its exit code; any other has its traceback."""
    try:
        with enough_memory():
            code = app(standalone_mode=False)
    except TopdpError as error:
        stop(error, error.code)
    except USAGE_ERROR as error:
        error.show()
        sys.exit(error.exit_code)
    if code == ExitCode.INTERRUPTED:  # Ctrl-C before there was anything to resume
        stop("Interrupted.", ExitCode.INTERRUPTED)
    sys.exit(code if isinstance(code, int) else ExitCode.DONE)


def stop(message: object, code: int) -> None:
    err.print(f"topdp: {message}", style="bold red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)
