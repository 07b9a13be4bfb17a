"""Settings beside each other: a column for each value, or combination of values, of the keys tried."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.sweep_grid import Axis, Read, changes_to, combinations
from topdp.runs.sweep_summary import label_of

MAX_COLUMNS = 8  # columns that fit beside each other


class Column(NamedTuple):
    """One setting: its label, and the changes to the configuration that make it."""

    label: str
    changes: list[str]
    config: RunConfig

    def command(self, given: Sequence[str] = ()) -> str:
        """The command that runs it; `given`: further arguments of the command line."""
        changes = (part for change in self.changes for part in ("--set", change))
        return shlex.join(["topdp", "run", *given, *changes])


def columns(read: Read, beside: Sequence[str]) -> list[Column]:
    """Return one column for each combination of the values in `beside`.

    >>> from topdp.runs import config
    >>> compared = columns(lambda changes: config.read(changes=changes), ["method.name=plain,correlated"])
    >>> [(column.label, column.config.method.name) for column in compared]
    [('plain', 'plain'), ('correlated', 'correlated')]
    """
    settings = combinations([Axis.of(text, "--beside") for text in beside], "--beside")
    if len(settings) > MAX_COLUMNS:
        raise ConfigError(
            f"--beside: expected at most {MAX_COLUMNS} settings beside each other, got {len(settings)}. Use "
            "fewer values at once."
        )
    return [Column(label_of(chosen), changes_to(chosen), read(changes_to(chosen))) for chosen in settings]
