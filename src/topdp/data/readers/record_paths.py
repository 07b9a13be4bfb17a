"""One path to the records of one site, whatever its format: CSV, Parquet, `.npz`, or folders of images."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from topdp.data import npz_files
from topdp.data.readers.table_schema import Schema
from topdp.data.record_checks import Array
from topdp.errors import DataError

if TYPE_CHECKING:
    from topdp.data.readers.raw_table import Table

TABLE_SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".pq")


class Records(NamedTuple):
    """Inputs as read: bytes of images, scaled numbers, token ids, or the arrays of an `.npz`."""

    inputs: Array
    targets: Array
    classes: int | None
    """The stated number of classes; None if targets are numbers, or labels whose largest determines it."""
    class_names: tuple[str, ...] | None = None


def read_records(path: str | os.PathLike[str], schema: Schema | None = None) -> Records:
    """Return the records at `path`, prepared by `schema`.

    An `.npz` holds arrays `inputs` and `targets` (or `labels`), also under the names `train_inputs` and so
    on. It takes no schema: its numbers are used unchanged.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        from topdp.data.readers.image_folders import class_folders, read_images

        inputs, numbers = read_images(place, schema)
        names = (schema.classes if schema is not None else None) or class_folders(place)
        return Records(inputs, numbers, len(names), names)
    if place.suffix == ".npz":
        return _read_npz_records(place, schema)
    return records_of_table(read_table(place, schema), schema)


def train_and_test(
    path: str | os.PathLike[str], schema: Schema | None, test: str | os.PathLike[str] | None = None
) -> tuple[Records, Records | None]:
    """Return the records at `path` and the test records: at `test`, or beside `train` in a folder of both.

    A folder may hold `train.csv` and `test.csv` (or `.tsv`, `.parquet`), or folders `train` and `test` with
    one folder per class.
    """
    place = Path(path).expanduser()
    for end in ("", ".csv", ".tsv", ".parquet", ".pq"):
        if place.is_dir() and (place / f"train{end}").exists():
            beside = place / f"test{end}"
            place, test = place / f"train{end}", test or (beside if beside.exists() else None)
            break
    train = read_records(place, schema)
    held_out = None if test is None else read_records(test, schema)
    if held_out is not None and held_out.class_names != train.class_names:
        raise DataError(
            f"{test}: expected the classes of {place}, {', '.join(train.class_names or ())}; got "
            f"{', '.join(held_out.class_names or ())}. State all classes in a schema."
        )
    return train, held_out


def read_table(place: Path, schema: Schema | None = None) -> Table:
    """Return the table in a file, read by the ending of its name."""
    if not place.is_file():
        raise DataError(f"Expected a file or folder with records at {place}, which does not exist.")
    if place.suffix in (".parquet", ".pq"):
        from topdp.data.readers.parquet_files import read_parquet

        return read_parquet(place)
    if place.suffix not in TABLE_SUFFIXES:
        raise DataError(
            f"{place}: expected a name that ends with {', '.join(TABLE_SUFFIXES)} or .npz, or a folder of "
            f"images, got {place.suffix!r}."
        )
    from topdp.data.readers.csv_files import read_csv

    return read_csv(place, None if schema is None else schema.delimiter)


def records_of_frame(frame: Any, schema: Schema, origin: str) -> Records:
    """Return the records in a frame, prepared by `schema`."""
    from topdp.data.readers.frames import declared_classes, read_frame

    table = read_frame(frame, origin)
    declared = declared_classes(frame, schema)
    if declared is None:
        return records_of_table(table, schema)
    # The values are numbers of the declared classes.
    numbered = Schema.of({**schema.tree(), "classes": [str(at) for at in range(len(declared))]})
    return records_of_table(table, numbered)._replace(class_names=declared)


def records_of_table(table: Table, schema: Schema | None) -> Records:
    stated = Schema() if schema is None else schema
    from topdp.data.readers.encoding import encode_table

    inputs, targets = encode_table(table, stated)
    return Records(inputs, targets, None if stated.classes is None else len(stated.classes), stated.classes)


def expand_paths(patterns: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the files or folders named by paths and patterns (`hospitals/*.csv`), one site each.

    Patterns expand in sorted order, so agent k is the k-th name.
    """
    paths: list[Path] = []
    for pattern in patterns:
        text = os.path.expanduser(os.fspath(pattern))
        names = sorted(glob.glob(text)) if glob.has_magic(text) else [text]
        if not names:
            raise DataError(f"Expected files that match {text}, found none.")
        paths += map(Path, names)
    if not paths:
        raise DataError("Expected at least one file, one for each site, got none.")
    places = [path.resolve() for path in paths]  # resolves links and ..
    repeated = [path for path, place in zip(paths, places, strict=True) if places.count(place) > 1]
    if repeated:
        raise DataError(f"Expected every site once, got {repeated[0]} twice: a record is at one agent only.")
    return paths


def _read_npz_records(place: Path, schema: Schema | None) -> Records:
    if schema is not None and schema != Schema():
        raise DataError(f"{place}: expected no schema for .npz, whose arrays are used unchanged. Remove it.")
    return Records(*npz_files.read_npz_records(place))
