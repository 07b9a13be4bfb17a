"""Data sets and files of one's own: fetch, list, look."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from topdp.views.terminal.console import Json, err, print_json, print_text, remark, show
from topdp.views.terminal.progress_display import signs_of_life

if TYPE_CHECKING:
    pass


def data_fetch(
    name: Annotated[str, typer.Argument(help="A name that `topdp data list` shows.")],
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="A folder that may already hold the files.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Puts a data set into the cache, verified against its checksums."""
    with signs_of_life(err, "data") as progress:
        from topdp.data import fetch

        found = fetch(name, data_dir=data_dir, progress=progress)
    if as_json:
        print_json({"name": name, "path": str(found.path), "source": found.source})
    else:
        show(f"{name}: verified, from {found.source}, in {found.path}")


def data_list(as_json: Json = False) -> None:
    """The data sets topdp knows, and whether they are in the cache."""
    from topdp.data import available

    rows = available()
    if as_json:
        print_json({row.name: {"cached": row.cached, "bytes": row.bytes} for row in rows})
        return
    table = Table("data set", "in the cache", "size", "what it is")
    for row in rows:
        table.add_row(row.name, "yes" if row.cached else "no", f"{row.bytes / 1e6:.0f} MB", row.description)
    show(table)
    if os.environ.get("TOPDP_DATA"):
        show("TOPDP_DATA names a folder, which is looked into first.")


def data_look(
    file: Annotated[Path, typer.Argument(help="A CSV or Parquet file of your own.")],
    delimiter: Annotated[str | None, typer.Option("--delimiter", help="Of a CSV file; a comma.")] = None,
    as_json: Json = False,
) -> None:
    """What the columns of your own file hold, for your eyes only; and a schema to fill in."""
    with signs_of_life(err, "data"):
        from topdp.data.readers.file_preview import preview_columns
        from topdp.data.readers.table_schema import schema_template

        seen = preview_columns(file, delimiter)
    if as_json:
        print_json({sight.column: sight._asdict() for sight in seen})
        return
    table = Table("column", "kind", "missing", "least", "largest", "values, where they are few")
    for sight in seen:
        ends = ["" if end is None else f"{end:g}" for end in (sight.least, sight.largest)]
        table.add_row(sight.column, sight.kind, str(sight.missing), *ends, ", ".join(sight.values))
    show(table)
    remark(
        "These are facts about your records: whatever of them goes into a schema is told to all who see it, "
        "and counted in no epsilon. State what is known without the records."
    )
    print_text(schema_template(sight.column for sight in seen) + "\n")
