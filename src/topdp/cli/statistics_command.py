"""`topdp stats`: private statistics of tables, before any training."""

from __future__ import annotations

import json
from math import floor, isfinite, log10
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from topdp.base.number_text import rounded_up
from topdp.cli import shared_options as options
from topdp.runs import config
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.progress_display import show_progress
from topdp.views.terminal.console import Json, err, print_result

if TYPE_CHECKING:
    from topdp.runs.statistics.table_statistics import Description

WIDEST_BAR = 24


def stats(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="A CSV or Parquet file for each site.")
    ] = None,
    configuration: Annotated[
        Path | None, typer.Option("--config", metavar="CONFIG", help="A TOML file that names the tables.")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Public ranges and values of the columns, in TOML.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The budget; 1 by default.")] = None,
    bins: Annotated[int, typer.Option(help="Bins of a histogram; quantiles are read from it.")] = 16,
    quantiles: Annotated[str, typer.Option(help="Comma-separated.")] = "0.25,0.5,0.75",
    no_correlations: Annotated[
        bool, typer.Option("--no-correlations", help="Spend the whole budget on single columns.")
    ] = False,
    changes: options.Changes = None,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Also write a run folder with the account.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print private statistics of tables.

    Counts, means, deviations, histograms, quantiles, correlations and missing values, each beside the
    standard deviation of its noise. The sites are agents of a complete graph; a single site is one party that
    all trust.

    \b
    For example:
      topdp data look north.csv > schema.toml     # then state public ranges in it
      topdp stats north.csv south.csv east.csv --schema schema.toml --epsilon 1
    """
    wanted = _configuration(files or [], configuration, schema, epsilon, changes or [])
    levels = _levels(quantiles)
    with show_progress(err, "stats", "loading torch") as progress:
        from topdp.runs.statistics.table_statistics import describe_configured

        description = describe_configured(
            wanted,
            bins=bins,
            quantiles=levels,
            correlations=not no_correlations,
            progress=progress,
            out=folder,
        )
    print_result(as_json, description.summary(), *_tables(description), *_sentences(description))


def _configuration(
    files: list[str], file: Path | None, schema: Path | None, epsilon: float | None, changes: list[str]
) -> RunConfig:
    if bool(files) == (file is not None):
        raise ConfigError(
            "Expected either the files of the sites or --config, got "
            f"{'both' if files else 'neither'}. For example: topdp stats a.csv b.csv --schema schema.toml"
        )
    named = []
    if files:
        from topdp.data.readers.record_paths import expand_paths

        paths = [str(path) for path in expand_paths(files)]
        single = len(paths) == 1
        named = ["data.name=" + json.dumps(paths[0])] if single else ["data.sites=" + json.dumps(paths)]
        named += ["method.name=central"] if single else ["topology.kind=complete"]
        named += [] if single else [f"topology.agents={len(paths)}"]
    if schema is not None:
        named.append("data.schema=" + json.dumps(str(schema)))
    if epsilon is not None:
        named.append(f"privacy.epsilon={epsilon}")
    return config.read(file, None, [*named, *changes])


def _levels(quantiles: str) -> list[float]:
    try:
        return [float(part) for part in quantiles.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(
            f"--quantiles: expected numbers between 0 and 1, such as 0.1,0.5,0.9, got {quantiles!r}."
        ) from None


def _tables(description: Description) -> list[Table]:
    tables = []
    numbers = [column for column in description.columns.values() if column.edges]
    if numbers:
        levels = list(numbers[0].estimates["quantiles"])
        table = Table("column", "mean", "deviation", *(f"{level} quantile" for level in levels), "missing")
        for column in numbers:
            pairs = [(column.estimates[key], column.noise[key]) for key in ("mean", "deviation")]
            pairs += [(column.estimates["quantiles"][q], column.noise["quantiles"][q]) for q in levels]
            pairs.append((column.estimates["missing"], column.noise["missing"]))
            table.add_row(column.name, *(_beside(*pair) for pair in pairs))
        tables.append(table)
    table = Table("column", "values", "records", "")
    for column in description.columns.values():
        counts, noise = column.estimates["counts"], column.noise["counts"]
        if column.edges:
            names = [
                f"{low:g} to {high:g}" for low, high in zip(column.edges, column.edges[1:], strict=False)
            ]
            rows = list(zip(names, counts, noise, strict=True))
        else:
            rows = [(name, count, noise[name]) for name, count in counts.items()]
        largest = max(1.0, *(count for _, count, _ in rows))
        for place, (name, count, deviation) in enumerate(rows):
            bar = "█" * round(WIDEST_BAR * max(0.0, count) / largest)
            table.add_row(
                column.name if place == 0 else "",
                name,
                _beside(count, deviation),
                bar,
                end_section=place == len(rows) - 1,
            )
    tables.append(table)
    if description.correlations:
        table = Table("columns", "correlation")
        for (first, second), pair in description.correlations.items():
            table.add_row(f"{first}, {second}", _beside(*pair))
        tables.append(table)
    return tables


def _beside(estimate: float, deviation: float) -> str:
    """Return an estimate with the digits that its noise leaves, and the deviation of the noise.

    >>> _beside(1234.5678, 3.21), _beside(0.123456, 0.00234), _beside(float("nan"), 1.0)
    ('1234.6 ± 3.2', '0.1235 ± 0.0023', 'unknown')
    """
    if not (isfinite(estimate) and isfinite(deviation)):
        return "unknown"
    places = 0 if deviation <= 0 else max(0, 1 - floor(log10(deviation)))
    return f"{estimate:.{places}f} ± {deviation:.{places}f}"


def _sentences(description: Description) -> list[str]:
    from topdp.runs.epsilon_text import delta_text

    released = description.aggregate
    account = released.privacy
    bound = "The noise was given, and no budget."
    if account.guarantee is not None:
        epsilon = account.answer(account.guarantee).largest
        assert epsilon is not None
        bound = (
            f"ε = {rounded_up(epsilon)} at δ = {delta_text(account.delta)}, for everything above together, "
            f"against {released.observer()}."
        )
    redrawable = released.result.redrawable_noise
    return [
        f"{released.records} records, {released.result.config.method.name}, one release. {bound}",
        "± is the standard deviation of the noise alone. Counts have noise and may be negative. Ranges, "
        "values and the number of records are public.",
        *([redrawable] if redrawable else []),
    ]
