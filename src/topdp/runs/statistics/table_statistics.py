"""`topdp.describe`: counts, means, deviations, histograms, quantiles and correlations, in one release.

Each record becomes one vector of norm at most 1, and `aggregate` releases the mean of the vectors. Everything
else follows from this mean, so it costs nothing more. The vector has a block of numbers for each statistic:

- a column with a range, scaled to t in [-1, 1]: the moments t and 2t² - 1, and a 1 in the bin of t; for a
  missing value instead a 1 in the place for missing values
- a column of categories: a 1 in the place of the value, of other values, or of missing values
- all pairs of columns with ranges: the products of their t

**Which share of the budget a block gets.** The norm of a block of k numbers is at most R. A block that gets
the share s of μ² is multiplied by √s/R, which multiplies the standard deviation of its k numbers by R/√s. The
sum of the variances of all numbers is smallest if shares are in proportion to √k·R. These are the shares
here. They follow from the schema alone.

**Guarantees.** Those of `aggregate`. Ranges and lists of values come from the schema, never from records.
Predicted deviations count the noise only, not that the records are a sample of something.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch

from topdp.base.array_types import Floats
from topdp.base.progress import Progress, silent
from topdp.data.readers.column_values import category_positions, scaled_numbers
from topdp.data.readers.raw_tables import Table, read_frame, read_table
from topdp.data.readers.table_schema import (
    OTHER_CATEGORY,
    Schema,
    SchemaError,
    read_schema_keys,
    schema_template,
)
from topdp.errors import DataError, InputError
from topdp.plan.random_streams import stream
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.named_records import site_tables
from topdp.runs.run_outline import RunOutline
from topdp.runs.statistics.aggregate import AGGREGATING, Aggregate, aggregate_vectors
from topdp.topology import Topology

DEFAULT_BINS = 16
QUANTILES = (0.25, 0.5, 0.75)
SIMULATED_NOISES = 1000  # draws of noise from which the deviations of derived statistics are estimated
MISSING_VALUE = "missing"
NO_TARGET = "(no target)"


@dataclass(frozen=True)
class ColumnStatistics:
    """The statistics of one column: estimates and, under the same keys, the deviations of their noise.

    A column with a range has `mean`, `deviation`, `missing`, `counts` (of the bins between `edges`) and
    `quantiles`. A column of categories has `counts` by value. A count may be negative, because it has noise.
    """

    name: str
    estimates: dict[str, Any]
    noise: dict[str, Any]
    edges: tuple[float, ...] = ()
    """The limits of the bins; empty for categories."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """The private statistics of tables. `noise` of a column has the predicted deviation of each estimate.

    >>> import topdp
    >>> sites = [{"age": [20, 30, 50, 60] * 200, "ill": ["no", "yes"] * 400} for _ in range(3)]
    >>> schema = {"ranges": {"age": [0, 100]}, "categories": {"ill": ["no", "yes"]}}
    >>> found = topdp.describe(sites, schema, topdp.topology.complete(3), epsilon=5.0)
    >>> age = found.columns["age"]
    >>> round(age.estimates["mean"]), round(age.noise["mean"], 2)
    (40, 0.07)
    """

    columns: dict[str, ColumnStatistics]
    correlations: dict[tuple[str, str], tuple[float, float]]
    """For each pair of columns with ranges: the correlation, and the deviation of its noise."""
    shares: dict[str, float]
    """The share of μ² that each block of statistics got."""
    aggregate: Aggregate = field(repr=False)

    def summary(self) -> dict[str, Any]:
        """Return everything for JSON."""
        columns = {
            name: {"estimates": column.estimates, "deviations": column.noise, "edges": list(column.edges)}
            for name, column in self.columns.items()
        }
        pairs = [
            {"columns": list(pair), "correlation": value, "deviation": noise}
            for pair, (value, noise) in self.correlations.items()
        ]
        facts = {"columns": columns, "correlations": pairs, "shares": self.shares}
        return {key: _finite(value) for key, value in (facts | self.aggregate.summary()).items()}


def describe(
    sites: Sequence[Any],
    schema: Schema | Mapping[str, Any] | str | os.PathLike[str],
    topology: Topology | nx.Graph | str | Path | None = None,
    *,
    bins: int = DEFAULT_BINS,
    quantiles: Sequence[float] = QUANTILES,
    correlations: bool = True,
    **release: Any,
) -> Description:
    """Return private statistics of the tables of all sites, from one release.

    `sites`: for each agent a file, a frame or a dictionary of columns. `schema` states the public range or
    the public values of every column; `ignore` lists the others. `topology` and all other arguments
    (`epsilon`, `delta`, `colluders` and so on) are those of `topdp.aggregate`.

    >>> import topdp
    >>> topdp.describe([{"age": [20, 70], "job": ["cook", "nurse"]}], {"ranges": {"age": [0, 100]}})
    Traceback (most recent call last):
        ...
    topdp.data.readers.table_schema.SchemaError: site 0: expected a public range or a list of public values \
for the column 'job', got none. Ranges and values are not taken from the records. Put it under ranges, \
categories or ignore.
    """
    if isinstance(sites, str | os.PathLike | Mapping):
        raise InputError(
            f"Expected a list with the table of each site, got {type(sites).__name__}. For one site give "
            "[table]."
        )
    stated = schema_without_target(schema)
    tables = [
        read_table(Path(site).expanduser(), stated.delimiter)
        if isinstance(site, str | os.PathLike)
        else site
        if isinstance(site, Table)
        else read_frame(site, f"site {number}")
        for number, site in enumerate(sites)
    ]
    return describe_tables(
        tables, stated, topology, bins=bins, quantiles=quantiles, correlations=correlations, **release
    )


def describe_tables(
    tables: Sequence[Table],
    schema: Schema,
    topology: Topology | nx.Graph | str | Path | None = None,
    *,
    bins: int = DEFAULT_BINS,
    quantiles: Sequence[float] = QUANTILES,
    correlations: bool = True,
    **release: Any,
) -> Description:
    """Return private statistics of tables that are already read. The arguments are those of `describe`."""
    if not isinstance(bins, int) or bins < 2:
        raise InputError(f"Expected at least 2 bins, got {bins!r}.")
    if bad := [q for q in quantiles if not 0 < q < 1]:
        raise InputError(f"Expected quantiles between 0 and 1, got {bad[0]!r}.")
    if not tables:
        raise DataError("Expected the table of at least one site, got none.")
    for table in tables:
        _expect_stated(table, schema)
    layout = _Layout(schema, bins, correlations)
    vectors = [torch.from_numpy(layout.vectors(table)) for table in tables]
    released = aggregate_vectors(vectors, topology, bound=1.0, **release)
    means, noise = released.mean / layout.scale, released.deviation / layout.scale
    derive = _Derived(layout, released.records, tuple(quantiles))
    estimates = derive(means)
    draws = stream(0, "statistics").normal(size=(SIMULATED_NOISES, len(means)))
    noises = np.array([derive(means + noise * draw) for draw in draws])
    with np.errstate(invalid="ignore"):
        deviations = noises.std(axis=0)  # nan if noise can make a statistic undefined
    columns, pairs = derive.named(estimates), derive.named(deviations)
    return Description(
        columns={
            name: ColumnStatistics(name, columns[name], pairs[name], layout.edges(name))
            for name in (*layout.numbers, *layout.categories)
        },
        correlations={
            pair: (float(estimates[place]), float(deviations[place])) for pair, place in derive.pairs.items()
        },
        shares=layout.shares,
        aggregate=released,
    )


def describe_configured(
    config: RunConfig,
    *,
    bins: int = DEFAULT_BINS,
    quantiles: Sequence[float] = QUANTILES,
    correlations: bool = True,
    device: str = "auto",
    progress: Progress = silent,
    out: str | Path | None = None,
) -> Description:
    """Return private statistics of the tables that a configuration names, under its graph and its budget.

    Its method is used if agents average what they release, and otherwise that of `topdp.aggregate`.
    """
    if config.data.schema is None:
        raise ConfigError(
            "data.schema: expected the public range or values of every column, got none. Give --schema FILE; "
            "`topdp data look FILE` prints a schema to fill in."
        )
    if config.privacy.unit != "record":
        raise ConfigError(
            f'privacy.unit: expected "record", the unit of private statistics, got {config.privacy.unit!r}.'
        )
    if config.data.batch != "full":
        raise ConfigError(
            f'data.batch: expected "full", because one release uses every record, got {config.data.batch!r}. '
            "Remove the key."
        )
    privacy, averages = config.privacy, config.method.name in AGGREGATING
    outline = RunOutline.of(config)
    return describe_tables(
        site_tables(outline),
        schema_without_target(config.data.schema),
        None if outline.method.pools else outline.graph,
        bins=bins,
        quantiles=quantiles,
        correlations=correlations,
        epsilon=None if privacy.sigma is not None else privacy.epsilon,
        delta=privacy.delta,
        sigma=privacy.sigma,
        method=config.method.name if averages else "auto",
        guarantee=privacy.guarantee,
        colluders=privacy.colluders,
        adjacency=privacy.adjacency,
        gossip=config.method.gossip if averages else "auto",
        seed=config.seed,
        noise_seed=config.noise_seed,
        device=device,
        progress=progress,
        out=out,
    )


def schema_without_target(schema: Schema | Mapping[str, Any] | str | os.PathLike[str]) -> Schema:
    """Return the schema, which need not name a target, because statistics predict nothing."""
    if isinstance(schema, Schema):
        return schema
    keys = schema if isinstance(schema, Mapping) else read_schema_keys(schema)
    return Schema.of({"target": NO_TARGET, **keys}, "schema" if keys is schema else str(schema))


def _expect_stated(table: Table, schema: Schema) -> None:
    """Raise an error unless the schema states a range or values for each column, or ignores it."""
    target = schema.targets if schema.classes is not None else ()
    stated = {*schema.ranges, *schema.categories, *target}
    for name in table.columns:
        if name not in stated and name not in schema.ignore:
            raise SchemaError(
                f"{table.origin}: expected a public range or a list of public values for the column "
                f"{name!r}, got none. Ranges and values are not taken from the records. Put it under ranges, "
                "categories or ignore."
            )
    for name in stated:
        if name not in table.columns:
            raise DataError(
                f"{table.origin}: expected the column {name!r} of the schema, got only "
                f"{', '.join(table.columns)}. Add the column, or correct the schema."
            )
    if not stated:
        raise SchemaError(
            f"{table.origin}: expected a schema with at least one range or list of values, got none. Fill in "
            f"this text:\n\n{schema_template(table.columns)}\n"
        )


class _Layout:
    """Where each statistic lies in the vector of a record, and by which factor it is multiplied."""

    def __init__(self, schema: Schema, bins: int, correlations: bool) -> None:
        self.ranges = {name: schema.ranges[name] for name in sorted(schema.ranges)}
        listed = dict(schema.categories)
        if schema.classes is not None:
            listed[schema.targets[0]] = schema.classes
        self.listed = {name: tuple(listed[name]) for name in sorted(listed)}
        self.numbers, self.categories, self.bins = tuple(self.ranges), tuple(self.listed), bins
        self.pairs = list(itertools.combinations(self.numbers, 2)) if correlations else []
        self.places: dict[tuple[str, str], slice] = {}
        wanted: dict[tuple[str, str], float] = {}  # √k·R of each block
        width = 0
        for block, count, norm in self._blocks():
            self.places[block], width = slice(width, width + count), width + count
            wanted[block] = math.sqrt(count) * norm
        norms = {block: norm for block, _, norm in self._blocks()}
        total = sum(wanted.values())
        self.scale = np.ones(width)
        self.shares: dict[str, float] = {}
        for block, place in self.places.items():
            share = wanted[block] / total
            self.shares[" of ".join(part for part in block if part)] = share
            self.scale[place] = math.sqrt(share) / norms[block]
        for name in self.numbers:  # a missing value has no moments and no bin, so its 1 may have their norm
            place = slice(self.places["histogram", name].stop - 1, self.places["histogram", name].stop)
            both = wanted["moments", name] + wanted["histogram", name]
            self.scale[place] = math.sqrt(both / total)

    def _blocks(self) -> list[tuple[tuple[str, str], int, float]]:
        """Return (kind and column, count of numbers, largest norm) of each block."""
        blocks = []
        for name in self.numbers:
            # t² + (2t² - 1)² is at most 2. The last number of a histogram is that of missing values.
            blocks += [(("moments", name), 2, math.sqrt(2)), (("histogram", name), self.bins + 1, 1.0)]
        blocks += [(("counts", name), len(values) + 2, 1.0) for name, values in self.listed.items()]
        if self.pairs:
            blocks.append((("correlations", ""), len(self.pairs), math.sqrt(len(self.pairs))))
        return blocks

    def vectors(self, table: Table) -> Floats:
        """Return the vectors [records, numbers] of the records in `table`."""
        vectors = np.zeros((table.rows, len(self.scale)))
        rows, scaled = np.arange(table.rows), {}
        for name, limits in self.ranges.items():
            t, gaps = scaled_numbers(table, name, limits)
            scaled[name] = t
            first = self.places["moments", name].start
            vectors[:, first], vectors[:, first + 1] = t, np.where(gaps, 0.0, 2 * t**2 - 1)
            position = np.minimum(((t + 1) / 2 * self.bins).astype(int), self.bins - 1)
            vectors[rows, self.places["histogram", name].start + np.where(gaps, self.bins, position)] = 1
        for name, values in self.listed.items():
            positions, gaps = category_positions(table, name, values)
            vectors[rows, self.places["counts", name].start + np.where(gaps, len(values) + 1, positions)] = 1
        for place, (first, second) in enumerate(self.pairs):
            vectors[:, self.places["correlations", ""].start + place] = scaled[first] * scaled[second]
        return vectors * self.scale

    def edges(self, name: str) -> tuple[float, ...]:
        """Return the limits of the bins of a column in its own unit."""
        if name not in self.ranges:
            return ()
        return tuple(np.linspace(*self.ranges[name], self.bins + 1).tolist())


class _Derived:
    """The statistics that follow from the means of all vectors, as one array: a function of the means only.

    Simulated noise on the means then gives the deviation of every statistic.
    """

    def __init__(self, layout: _Layout, records: int, quantiles: tuple[float, ...]) -> None:
        self.layout, self.records, self.quantiles = layout, records, quantiles
        self._names: dict[str, list[str]] = {}
        width = 0
        for name in layout.numbers:
            bins = [f"bin {k}" for k in range(layout.bins)]
            self._names[name] = ["mean", "deviation", "missing", *bins, *(f"{q:g}" for q in quantiles)]
            width += len(self._names[name])
        for name, values in layout.listed.items():
            self._names[name] = [*values, OTHER_CATEGORY, MISSING_VALUE]
            width += len(self._names[name])
        self.pairs = {pair: width + place for place, pair in enumerate(layout.pairs)}

    def __call__(self, means: Floats) -> Floats:
        layout, parts = self.layout, list[Floats]()
        present, centre, spread = {}, {}, {}
        for name, (low, high) in layout.ranges.items():
            histogram = means[layout.places["histogram", name]]
            first, second = means[layout.places["moments", name]]
            share = max(1 - float(histogram[-1]), 1 / self.records)  # of the records with a value
            t = np.clip(first / share, -1, 1)
            variance = np.clip((second / share + 1) / 2 - t**2, 0, 1)
            present[name], centre[name], spread[name] = share, t, math.sqrt(variance)
            half = (high - low) / 2
            moments = [low + half * (1 + t), half * spread[name], self.records * histogram[-1]]
            parts.append(np.array([*moments, *(self.records * histogram[:-1])]))
            parts.append(low + 2 * half * self._quantiles(histogram[:-1] / share))
        parts += [self.records * means[layout.places["counts", name]] for name in layout.listed]
        products = means[layout.places["correlations", ""]] if layout.pairs else np.zeros(0)
        correlations = [
            (product / (present[left] * present[right]) - centre[left] * centre[right]) / scale
            if (scale := spread[left] * spread[right]) > 0
            else math.nan
            for product, (left, right) in zip(products, layout.pairs, strict=True)
        ]
        return np.concatenate([*parts, np.clip(np.array(correlations), -1, 1)])

    def _quantiles(self, fractions: Floats) -> Floats:
        """Return the quantiles as fractions of the range, from noisy `fractions` [bins] of the records."""
        below = np.cumsum(fractions)
        # All fractions sum to 1: what noise adds to the sum is taken from all bins equally.
        below += (1 - below[-1]) * np.arange(1, len(below) + 1) / len(below)
        rising = np.concatenate([[0.0], np.maximum.accumulate(np.clip(below, 0, 1))])
        falling = np.concatenate([[0.0], np.minimum.accumulate(np.clip(below, 0, 1)[::-1])[::-1]])
        return np.interp(self.quantiles, (rising + falling) / 2, np.linspace(0, 1, len(rising)))

    def named(self, values: Floats) -> dict[str, dict[str, Any]]:
        """Return the numbers of each column by name."""
        by_column: dict[str, dict[str, Any]] = {}
        start = 0
        for name, keys in self._names.items():
            numbers = dict(zip(keys, values[start : start + len(keys)].tolist(), strict=True))
            start += len(keys)
            if name in self.layout.listed:
                by_column[name] = {"counts": numbers}
                continue
            by_column[name] = {
                **{key: numbers[key] for key in ("mean", "deviation", "missing")},
                "counts": [numbers[f"bin {k}"] for k in range(self.layout.bins)],
                "quantiles": {f"{q:g}": numbers[f"{q:g}"] for q in self.quantiles},
            }
        return by_column


def _finite(value: Any) -> Any:
    """Return `value` for JSON, with None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
