"""One path to the records of one site, whatever it holds: CSV, Parquet, `.npz`, or folders of images."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from topdp.data import npz_files
from topdp.data.readers.csv_files import read_csv
from topdp.data.readers.encoding import encode
from topdp.data.readers.frames import declared_classes, read_frame
from topdp.data.readers.image_folders import class_folders, read_images
from topdp.data.readers.parquet_files import read_parquet
from topdp.data.readers.raw_table import Table
from topdp.data.readers.table_schema import Schema
from topdp.data.record_checks import Array
from topdp.errors import DataError

TABLE_SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".pq")


class Records(NamedTuple):
    """Inputs as read: bytes of images, scaled numbers, token ids, or the arrays of an `.npz`."""

    inputs: Array
    targets: Array
    classes: int | None
    """How many classes are stated; None: targets are numbers, or whole numbers whose largest says it."""
    class_names: tuple[str, ...] | None = None


def read_records(path: str | os.PathLike[str], schema: Schema | None = None) -> Records:
    """The records at `path`, prepared as `schema` says.

    A `.npz` holds arrays `inputs` and `targets` (or `labels`), also under the names `train_inputs` and so on,
    and takes no schema: its numbers are what its owner made of the records.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        inputs, numbers = read_images(place, schema)
        names = (schema.classes if schema is not None else None) or class_folders(place)
        return Records(inputs, numbers, len(names), names)
    if place.suffix == ".npz":
        return _read_npz(place, schema)
    return records_of_table(read_table(place, schema), schema)


def train_and_test(
    path: str | os.PathLike[str], schema: Schema | None, test: str | os.PathLike[str] | None = None
) -> tuple[Records, Records | None]:
    """The records at `path`, and those to test on: at `test`, or beside `train` in a folder of both.

    A folder may hold `train.csv` and `test.csv` (or `.tsv`, `.parquet`), or folders `train` and `test` with
    one folder for each class.
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
    """The table in a file, by the ending of its name."""
    if not place.is_file():
        raise DataError(f"Expected a file or folder with records at {place}, which is not there.")
    if place.suffix in (".parquet", ".pq"):
        return read_parquet(place)
    if place.suffix not in TABLE_SUFFIXES:
        raise DataError(
            f"{place}: expected a name that ends in {', '.join(TABLE_SUFFIXES)} or .npz, or a folder of "
            f"images, got {place.suffix!r}."
        )
    return read_csv(place, None if schema is None else schema.delimiter)


def records_of_frame(frame: Any, schema: Schema, origin: str) -> Records:
    """The records in a frame, prepared as `schema` says."""
    table = read_frame(frame, origin)
    declared = declared_classes(frame, schema)
    if declared is None:
        return records_of_table(table, schema)
    # The values are numbers of the declared classes.
    numbered = Schema.of({**schema.tree(), "classes": [str(at) for at in range(len(declared))]})
    return records_of_table(table, numbered)._replace(class_names=declared)


def records_of_table(table: Table, schema: Schema | None) -> Records:
    stated = Schema() if schema is None else schema
    inputs, targets = encode(table, stated)
    return Records(inputs, targets, None if stated.classes is None else len(stated.classes), stated.classes)


def expand_paths(patterns: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files or folders that paths and patterns (`hospitals/*.csv`) name, one site each.

    Patterns are filled in sorted order, so agent k is the k-th name.
    """
    found: list[Path] = []
    for pattern in patterns:
        text = os.path.expanduser(os.fspath(pattern))
        names = sorted(glob.glob(text)) if glob.has_magic(text) else [text]
        if not names:
            raise DataError(f"Expected files that fit {text}, found none.")
        found += map(Path, names)
    if not found:
        raise DataError("Expected at least one file, one for each site, got none.")
    places = [path.resolve() for path in found]  # links and .. too
    twice = [path for path, place in zip(found, places, strict=True) if places.count(place) > 1]
    if twice:
        raise DataError(f"Expected every site once, got {twice[0]} twice: a record is at one agent only.")
    return found


def _read_npz(place: Path, schema: Schema | None) -> Records:
    if schema is not None and schema != Schema():
        raise DataError(
            f"{place}: expected no schema for .npz, whose arrays are taken as they are; leave it away."
        )
    return Records(*npz_files.read_npz_records(place))
