"""The points of a sweep: every combination of the values to try, for each of several seeds.

Before the first point runs, all points are checked: their keys and values, and whether each configuration
can be planned. Only the names of models need torch. `sweep.py` runs the points; `topdp plan` shows
combinations side by side.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from topdp.errors import InputError
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.named_model import named_factory
from topdp.runs.named_records import record_counts
from topdp.runs.resolve import resolve_outline
from topdp.runs.resolved_run import ResolvedRun
from topdp.runs.run_outline import RunOutline
from topdp.runs.sweep_summary import label_of

MAX_SWEEP_RUNS = 10_000
TRIAL_RELEASES = 3  # gradient releases of the plan that checks a point
MAX_COLUMNS_SIDE_BY_SIDE = 8  # so many columns fit

# A function that reads a configuration with further changes, each `key=value`.
Read = Callable[[list[str]], RunConfig]


class Axis(NamedTuple):
    """One key and the values to try, as the user wrote them."""

    key: str
    values: tuple[str, ...]

    @classmethod
    def of(cls, text: str, option: str = "--over") -> Axis:
        """Return the axis that `text` states. Raise ConfigError that names `option` if `text` is wrong.

        >>> Axis.of("privacy.epsilon=0.5,1,2")
        Axis(key='privacy.epsilon', values=('0.5', '1', '2'))
        >>> Axis.of('data.batch="full",{ cycle = 20 }').values
        ('"full"', '{ cycle = 20 }')
        """
        key, equals, values = text.partition("=")
        parts = tuple(part.strip() for part in _split(values))
        if not equals or not key.strip() or not all(parts):
            raise ConfigError(
                f"Expected {option} key=value,value,..., for example privacy.epsilon=0.5,1,2, got {text!r}."
            )
        if len(set(parts)) < len(parts):
            raise ConfigError(f"{option} {key.strip()}: expected different values, got {values}.")
        return cls(key.strip(), parts)


@dataclass(frozen=True)
class GridPoint:
    """One run of a sweep: the name of its folder, its settings and its configuration."""

    folder: str
    chosen: dict[str, str]
    seed: int
    config: RunConfig

    @property
    def label(self) -> str:
        """The chosen values as text, without the seed."""
        return label_of(self.chosen)


@dataclass(frozen=True, kw_only=True)
class SweepPoint(GridPoint):
    """One run of a sweep with its resolved run, whose configuration has a number for every `auto`."""

    run: ResolvedRun


def combinations(axes: Sequence[Axis], option: str) -> list[dict[str, str]]:
    """Return every combination of the values of `axes`, as key -> value.

    Raise ConfigError for a repeated key.
    """
    keys = [axis.key for axis in axes]
    if repeated := {key for key in keys if keys.count(key) > 1}:
        raise ConfigError(f"{option}: expected each key once, got {', '.join(sorted(repeated))} twice.")
    values = itertools.product(*(axis.values for axis in axes))
    return [dict(zip(keys, chosen, strict=True)) for chosen in values]


def changes_to(chosen: Mapping[str, str]) -> list[str]:
    """Return the changes `key=value` that set the keys in `chosen` to their values.

    >>> changes_to({"rounds": "5", "method.name": "top"})
    ['rounds=5', 'method.name=top']
    """
    return [f"{key}={value}" for key, value in chosen.items()]


def points(read: Read, axes: Sequence[Axis], seeds: int) -> list[GridPoint]:
    """Return a point for each combination of values and each seed, with all seeds of a combination together.

    The seeds begin with that of the configuration.
    """
    settings = combinations(axes, "--over")
    if seeds > 1 and any("seed" in chosen for chosen in settings):
        raise ConfigError("Expected either --seeds or --over seed=..., got both. Remove one.")
    count = len(settings) * seeds
    if count > MAX_SWEEP_RUNS:
        raise ConfigError(
            f"Expected at most {MAX_SWEEP_RUNS} runs in a sweep, got {count}. Use fewer values or seeds."
        )
    grid_points: list[GridPoint] = []
    for chosen in settings:
        first = read(changes_to(chosen))
        for seed in range(first.seed, first.seed + seeds):
            config = with_seed(first, seed)
            folder = f"{len(grid_points) + 1:0{len(str(count))}d}"
            grid_points.append(GridPoint(folder, chosen, seed, config))
    return grid_points


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    """Return `config` with another seed. A noise seed moves with it, so that runs differ by their noise."""
    moved = None if config.noise_seed is None else config.noise_seed + seed - config.seed
    return config.model_copy(update={"seed": seed, "noise_seed": moved})


def resolved_points(grid_points: Sequence[GridPoint]) -> list[SweepPoint]:
    """Return the points with their resolved runs. Raise ConfigError if one of them cannot be run."""
    counts: dict[str, tuple[int, ...]] = {}
    return [_resolved(point, counts) for point in grid_points]


def _resolved(point: GridPoint, counts: dict[str, tuple[int, ...]]) -> SweepPoint:
    config = point.config
    try:
        named_factory(config)
        outline = RunOutline.of(config)
        privacy = config.privacy
        unit = privacy.unit, privacy.sites_per_person
        key = str((config.data, unit, config.seed, config.topology, outline.method.pools))
        if key not in counts:
            counts[key] = record_counts(outline)
        run = resolve_outline(outline, counts[key])
        # Protocols and optimisers check settings when they write plans.
        run.write_plan(np.ones(run.graph.agents), TRIAL_RELEASES)
    except InputError as error:
        raise ConfigError(f"{point.label or 'The run'}, seed {point.seed}: {error}") from error
    return SweepPoint(**vars(replace(point, config=run.config)), run=run)


def _split(text: str) -> list[str]:
    """Split `text` at commas outside brackets, braces and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        if letter == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


class Column(NamedTuple):
    """One setting in a comparison: its label, its changes to the configuration, and the configuration."""

    label: str
    changes: list[str]
    config: RunConfig

    def command(self, given: Sequence[str] = ()) -> str:
        """Return the command that runs this setting. `given`: further arguments of the command line."""
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
    if len(settings) > MAX_COLUMNS_SIDE_BY_SIDE:
        raise ConfigError(
            f"--beside: expected at most {MAX_COLUMNS_SIDE_BY_SIDE} settings side by side, got "
            f"{len(settings)}. Use fewer values."
        )
    return [Column(label_of(chosen), changes_to(chosen), read(changes_to(chosen))) for chosen in settings]
