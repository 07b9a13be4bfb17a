"""The commands `topdp data fetch`, `list` and `look`."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from topdp.runs.progress_display import show_progress
from topdp.views.terminal.console import Json, err, print_json, print_result, print_text, remark, show


def data_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that `topdp data list` shows.")],
    data_dir: Annotated[
        Path | None, typer.Option(help="A folder that may already contain the files.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fetch a data set into the cache and verify its checksums."""
    with show_progress(err, "data") as progress:
        from topdp.data import fetch

        cached = fetch(name, data_dir=data_dir, progress=progress)
    print_result(
        as_json,
        {"name": name, "path": str(cached.path), "source": cached.source},
        f"{name}: verified, from {cached.source}, in {cached.path}",
    )


def data_list(as_json: Json = False) -> None:
    """List the data sets, and whether they are in the cache."""
    from topdp.data import available

    rows = available()
    table = Table("data set", "in the cache", "size", "what it is")
    for row in rows:
        table.add_row(row.name, "yes" if row.cached else "no", f"{row.bytes / 1e6:.0f} MB", row.description)
    searched = ["The folder TOPDP_DATA is searched first."] if os.environ.get("TOPDP_DATA") else []
    facts = {row.name: {"cached": row.cached, "bytes": row.bytes} for row in rows}
    print_result(as_json, facts, table, *searched)


def data_look(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A CSV or Parquet file of your own.")],
    delimiter: Annotated[
        str | None, typer.Option(help="Separator of a CSV file; a comma by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the columns of your own file, and a schema.

    The columns are for you alone; the schema is to be filled in.
    """
    with show_progress(err, "data"):
        from topdp.data.readers.raw_tables import preview_columns
        from topdp.data.readers.table_schema import schema_template

        columns = preview_columns(file, delimiter)
    if as_json:
        print_json({column.column: asdict(column) for column in columns})
        return
    table = Table("column", "kind", "missing", "smallest", "largest", "values, if few")
    for column in columns:
        limits = ["" if limit is None else f"{limit:g}" for limit in (column.least, column.largest)]
        table.add_row(column.column, column.kind, str(column.missing), *limits, ", ".join(column.values))
    show(table)
    remark(
        "These are facts about your records. Whatever you copy into a schema becomes known to everyone who "
        "sees it, and no epsilon accounts for it. State only what is known without the records."
    )
    print_text(schema_template(column.column for column in columns) + "\n")
