"""Output of commands: tables and JSON to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from topdp.base.files import FileError

out = Console()
err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
"""The type of the option `--json`, for every command that prints a result."""


def show(*parts: Any) -> None:
    """Print tables and sentences for people on stdout."""
    with _whole_output():
        for part in parts:
            # Sentences are not wrapped, so that paths and commands in them can be copied.
            out.print(part, highlight=False, soft_wrap=isinstance(part, str))
        out.file.flush()


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object as the last line on stdout."""
    print_text(json.dumps(value) + "\n")


def print_result(as_json: bool, value: dict[str, Any], *parts: Any) -> None:
    """Print `value` as JSON, or `parts` for people."""
    if as_json:
        print_json(value)
    else:
        show(*parts)


def print_text(text: str) -> None:
    with _whole_output():
        sys.stdout.write(text)
        sys.stdout.flush()


def remark(text: str) -> None:
    """Print a sentence on stderr, because it is not part of the command's output."""
    err.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _whole_output() -> Iterator[None]:
    """Raise FileError if the body of the `with` statement cannot write all of its output."""
    try:
        yield
    except OSError as error:
        # The target of stdout is full or closed. Python would flush again at exit, so redirect stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise FileError(f"Could not write the output: {error.strerror}.") from error
