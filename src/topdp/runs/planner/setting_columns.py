"""Settings beside each other: a column for each value, or combination of values, of the keys tried."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.sweep_grid import Axis, Read
from topdp.runs.sweep_summary import label_of

MAX_COLUMNS = 8  # columns that fit beside each other


class Column(NamedTuple):
    """One setting: what it is called, and the changes that make it."""

    label: str
    changes: list[str]
    config: RunConfig

    def command(self, given: Sequence[str] = ()) -> str:
        """What runs it; `given`: arguments that the question was asked with."""
        changes = (part for change in self.changes for part in ("--set", change))
        return shlex.join(["topdp", "run", *given, *changes])


def columns(read: Read, beside: Sequence[str]) -> list[Column]:
    """
    >>> from topdp.runs import config
    >>> found = columns(lambda changes: config.read(changes=changes), ["method.name=plain,correlated"])
    >>> [(one.label, one.config.method.name) for one in found]
    [('plain', 'plain'), ('correlated', 'correlated')]
    """
    axes = [Axis.of(text, "--beside") for text in beside]
    keys = [axis.key for axis in axes]
    if twice := {key for key in keys if keys.count(key) > 1}:
        raise ConfigError(f"--beside: expected each key once, got {', '.join(sorted(twice))} twice.")
    combinations = list(itertools.product(*(axis.values for axis in axes)))
    if len(combinations) > MAX_COLUMNS:
        raise ConfigError(
            f"--beside: expected at most {MAX_COLUMNS} settings beside each other, got "
            f"{len(combinations)}. Use fewer values at once."
        )
    setting_columns = []
    for values in combinations:
        chosen = dict(zip(keys, values, strict=True))
        changes = [f"{key}={value}" for key, value in chosen.items()]
        setting_columns.append(Column(label_of(chosen), changes, read(changes)))
    return setting_columns
