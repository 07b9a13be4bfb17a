"""Records of one or several sites, whatever their format: CSV, Parquet, `.npz`, folders of images, frames."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from topdp.data import _npz_files as npz_files
from topdp.data.readers.table_schema import Schema
from topdp.data.record_checks import Array, Records, check_records, check_same_shape
from topdp.errors import DataError

if TYPE_CHECKING:
    from topdp.data.readers._raw_table import Table

TABLE_SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".pq")


class SiteRecords(NamedTuple):
    """(inputs, targets) of each agent and of the test set, ready for `Shards.from_arrays`."""

    agents: list[tuple[Array, Array]]
    test: tuple[Array, Array] | None
    classes: int | None
    tokens: bool
    """Whether inputs are token ids, which stay integers."""


def read_records(path: str | os.PathLike[str], schema: Schema | None = None) -> Records:
    """Return the records at `path`, prepared by `schema`.

    An `.npz` holds arrays `inputs` and `targets` (or `labels`), also under the names `train_inputs` and so
    on. It takes no schema: its numbers are used unchanged.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        from topdp.data.readers._image_folders import class_folders, read_images

        inputs, numbers = read_images(place, schema)
        names = (schema.classes if schema is not None else None) or class_folders(place)
        return Records(inputs, numbers, len(names), names)
    if place.suffix == ".npz":
        if schema is not None and schema != Schema():
            raise DataError(
                f"{place}: expected no schema for .npz, whose arrays are used unchanged. Remove it."
            )
        return npz_files.read_npz_records(place)
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
    train = _check(read_records(place, schema), str(path))
    if test is None:
        return train, None
    held_out = _check(read_records(test, schema), f"the test records of {path}")
    _expect_same_classes(held_out, str(test), train, str(place))
    check_same_shape(held_out.inputs, train.inputs.shape[1:], str(test), "the training records")
    return train, held_out


def _check(records: Records, what: str) -> Records:
    inputs, targets = check_records(records.inputs, records.targets, what)
    return records._replace(inputs=inputs, targets=targets)


def _expect_same_classes(records: Records, name: str, like: Records, like_name: str) -> None:
    if records.class_names != like.class_names:
        expected, got = (", ".join(part.class_names or ("none",)) for part in (like, records))
        raise DataError(
            f"{name}: expected the classes of {like_name}, {expected}; got {got}. State all classes in a "
            "schema."
        )


def read_table(place: Path, schema: Schema | None = None) -> Table:
    """Return the table in a file, read by the ending of its name."""
    from topdp.data.readers._table_files import read_csv, read_parquet

    if not place.is_file():
        raise DataError(f"Expected a file or folder with records at {place}, which does not exist.")
    if place.suffix in (".parquet", ".pq"):
        return read_parquet(place)
    if place.suffix not in TABLE_SUFFIXES:
        raise DataError(
            f"{place}: expected a name that ends with {', '.join(TABLE_SUFFIXES)} or .npz, or a folder of "
            f"images, got {place.suffix!r}."
        )
    return read_csv(place, None if schema is None else schema.delimiter)


def records_of_frame(frame: Any, schema: Schema, origin: str) -> Records:
    """Return the records in a frame, prepared by `schema`."""
    from topdp.data.readers._frames import declared_classes, read_frame

    table = read_frame(frame, origin)
    declared = declared_classes(frame, schema)
    if declared is None:
        return records_of_table(table, schema)
    # The values are numbers of the declared classes.
    numbered = Schema.of({**schema.tree(), "classes": [str(at) for at in range(len(declared))]})
    return records_of_table(table, numbered)._replace(class_names=declared)


def records_of_table(table: Table, schema: Schema | None) -> Records:
    stated = Schema() if schema is None else schema
    from topdp.data.readers._encoding import encode_table

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


def read_site_files(
    agents: Sequence[str | os.PathLike[str]], test: str | os.PathLike[str] | None, schema: Schema | None
) -> SiteRecords:
    """Read one file or folder per agent."""
    if isinstance(agents, str | os.PathLike):
        agents = [agents]
    paths = expand_paths(agents)
    if test is not None and Path(test).expanduser().resolve() in [path.resolve() for path in paths]:
        raise DataError(
            f"Expected test records that no agent holds, got {test}. Metrics on them, and the choice of "
            "the best round, would disclose private records without noise. Give other records, or none."
        )
    names = [str(path) for path in paths]
    site_records = [read_records(path, schema) for path in paths]
    return _combine_sites(site_records, names, None if test is None else read_records(test, schema), schema)


def read_site_frames(agents: Sequence[Any], test: Any, schema: Schema) -> SiteRecords:
    """Read one frame per agent."""
    if not isinstance(agents, list | tuple):
        raise DataError(f"Expected a list with one frame per agent, got a {type(agents).__name__}.")
    names = [f"agent {agent}" for agent in range(len(agents))]
    site_records = [records_of_frame(frame, schema, name) for frame, name in zip(agents, names, strict=True)]
    held_out = None if test is None else records_of_frame(test, schema, "test records")
    return _combine_sites(site_records, names, held_out, schema)


def _scale_images(inputs: Array) -> Array:
    """Scale bytes of images to [0, 1]; all else is unchanged."""
    return inputs.astype(np.float32) / np.float32(255) if inputs.dtype == np.uint8 else inputs


def _combine_sites(
    site_records: list[Records], names: list[str], test: Records | None, schema: Schema | None
) -> SiteRecords:
    if not site_records:
        raise DataError("Expected the records of at least one agent, got none.")
    for name, records in zip(names, site_records, strict=True):
        _expect_same_classes(records, name, site_records[0], names[0])
    if test is not None:
        _expect_same_classes(test, "test records", site_records[0], names[0])
    return SiteRecords(
        [(_scale_images(records.inputs), records.targets) for records in site_records],
        None if test is None else (_scale_images(test.inputs), test.targets),
        site_records[0].classes,
        schema is not None and schema.text is not None,
    )
