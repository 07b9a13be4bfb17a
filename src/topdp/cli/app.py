"""The command line: commands by their names in `commands.toml`, exit codes and error output.

Exit codes are those of `topdp.errors`. Tables and `--json` go to stdout; progress and errors go to stderr.
The module of a command is imported only when the command is called or listed in the help. For example,
`topdp agent start` imports no module of another command.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

# Spinning OpenMP threads slow everything down on a busy machine. Torch reads this setting on import.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import typer
from typer.core import TyperGroup

from topdp import __version__
from topdp.errors import ExitCode, TopdpError, translate_memory_errors
from topdp.views.terminal.console import err, show

# The error that typer raises for wrong arguments: a class of click, which newer versions of typer bundle.
USAGE_ERROR: Any = typer.BadParameter.__mro__[2]

# The commands of a group by name, and the text `help`. A command is `module:function` in this package; a
# group in a group is another mapping.
Commands = Mapping[str, Any]

COMMANDS: Commands = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))


class LazyCommands(UserDict[str, Any]):
    """The commands of a group by name. The module of a command is imported when the command is first read."""

    def __getitem__(self, name: str) -> Any:
        target = self.data[name]
        if isinstance(target, str | Mapping):
            self.data[name] = _load(name, target)
        return self.data[name]


def _load(name: str, target: str | Commands) -> Any:
    """Return the command or group `target` as typer needs it; import the module of a command."""
    if not isinstance(target, str):
        return typer.main.get_group(_group(name, target))
    module, _, function = target.partition(":")
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name)(getattr(import_module(f"topdp.cli.{module}"), function))
    return typer.main.get_command(single)


def _group(name: str, group: Commands) -> typer.Typer:
    class LazyGroup(TyperGroup):
        def __init__(self, *, commands: object = None, **settings: Any) -> None:
            targets = {name: target for name, target in group.items() if name not in ("help", "sections")}
            super().__init__(commands=LazyCommands(targets), **settings)  # type: ignore[arg-type]

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            """List the commands of a group under its headings, with summaries that fit the line."""
            width = max(map(len, self.commands))
            for heading, names in group.get("sections", {"Commands": list(self.commands)}).items():
                with formatter.section(heading):
                    commands = {name: self.commands[name] for name in names}
                    formatter.write_dl([
                        (name.ljust(width), command.get_short_help_str(formatter.width - 6 - width))
                        for name, command in commands.items()
                    ])  # fmt: skip

    return typer.Typer(
        name=name,
        help=group["help"],
        cls=LazyGroup,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


app = _group("topdp", COMMANDS)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def topdp(
    wanted: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Private learning without a server: agents on a graph train one model together."""


def version() -> None:
    """Print the version."""
    show(f"topdp {__version__}")


def main() -> None:
    """Run the command of the command line, and exit.

    For a TopdpError, print its message and exit with its code. Other errors print a traceback.
    """
    try:
        with translate_memory_errors():
            code = app(standalone_mode=False)
    except TopdpError as error:
        stop(error, error.code)
    except USAGE_ERROR as error:
        if option := getattr(error, "option_name", None):  # an option that the command does not have
            from topdp.runs.other_words import key_of_option

            error.message += f".{key_of_option(option)}"
        error.show()
        sys.exit(error.exit_code)
    if code == ExitCode.INTERRUPTED:  # Ctrl-C before the command could state how to continue
        stop("Interrupted.", ExitCode.INTERRUPTED)
    sys.exit(code if isinstance(code, int) else ExitCode.DONE)


def stop(message: object, code: int) -> None:
    """Print an error message and exit with `code`."""
    err.print(f"topdp: {message}", style="bold red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)
