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
from topdp.agents.site.commands import agent_app, federation_app
from topdp.agents.site.commands.relay import relay
from topdp.commands import data, figures, pages, planning, privacy, training
from topdp.commands.bench import bench
from topdp.commands.dash import dash
from topdp.errors import ExitCode, TopdpError, enough_memory
from topdp.report.terminal import err, show

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
    training.run,
    training.compare,
    training.sweep,
    training.export,
    pages.report,
    pages.statement,
    figures.graph,
    planning.plan,
    privacy.account,
    privacy.recommend,
    privacy.audit,
    privacy.calibrate,
    figures.reproduce,
    bench,
    dash,
    relay,
):
    app.command()(command)
data_app.command("fetch")(data.data_fetch)
data_app.command("list")(data.data_list)
data_app.command("look")(data.data_look)


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
