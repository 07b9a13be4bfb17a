"""Records of one or several sites, whatever their format: CSV, Parquet, `.npz`, folders of images, frames."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from topdp.base.array_types import AnyArray
from topdp.data import _npz_files as npz_files
from topdp.data.readers._encoding import encode_table
from topdp.data.readers.raw_tables import TABLE_SUFFIXES, Table, read_frame, read_table
from topdp.data.readers.table_schema import EMPTY_SCHEMA, Schema
from topdp.data.record_checks import Records, check_records, check_same_shape
from topdp.errors import DataError


class SiteRecords(NamedTuple):
    """The inputs and targets of each agent and of the test records, ready for `Shards.from_arrays`."""

    agents: list[tuple[AnyArray, AnyArray]]
    test: tuple[AnyArray, AnyArray] | None
    classes: int | None
    tokens: bool
    """Whether inputs are token ids, which stay integers."""


def read_records(path: str | os.PathLike[str], schema: Schema = EMPTY_SCHEMA) -> Records:
    """Return the records at `path`: a table, an `.npz` file, or a folder of images, prepared by `schema`.

    An `.npz` file has the arrays `inputs` and `targets` (or `labels`), or `train_inputs` and so on. It takes
    no schema, because its numbers are used unchanged.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        from topdp.data.readers._image_folders import read_images  # imports Pillow

        return read_images(place, schema)
    if place.suffix == ".npz":
        _expect_no_schema(place, schema)
        return npz_files.read_npz_records(place)
    return _encode_records(read_table(place, schema.delimiter), schema)


def train_and_test(
    path: str | os.PathLike[str], schema: Schema, test: str | os.PathLike[str] | None = None
) -> tuple[Records, Records | None]:
    """Return the training records at `path`, and the test records, or None if there are none.

    `path` and `test` name files or folders as for `read_records`. If `test` is None, `path` may contain both:
    a folder with `train.csv` and `test.csv` (or `.tsv`, `.parquet`, `.pq`, `.npz`), a folder with the folders
    `train` and `test`, each with one folder per class, or one `.npz` file.
    """
    place = Path(path).expanduser()
    if test is None and _holds_arrays(place):
        _expect_no_schema(place, schema)
        return npz_files.read_npz_dataset(place)
    for suffix in ("", ".csv", ".tsv", ".parquet", ".pq"):
        if place.is_dir() and (place / f"train{suffix}").exists():
            beside = place / f"test{suffix}"
            place, test = place / f"train{suffix}", test or (beside if beside.exists() else None)
            break
    train = _check(read_records(place, schema), str(path))
    if test is None:
        return train, None
    held_out = _check(read_records(test, schema), f"the test records of {path}")
    _expect_same_classes(held_out, str(test), train, str(place))
    check_same_shape(held_out.inputs, train.inputs.shape[1:], str(test), "the training records")
    return train, held_out


def _holds_arrays(place: Path) -> bool:
    """Return whether to read `.npz` arrays at `place`: also if nothing is there, so that the error asks for
    them.
    """
    if not place.is_dir():
        return place.suffix not in TABLE_SUFFIXES
    others = any(entry.is_dir() or entry.suffix in TABLE_SUFFIXES for entry in place.iterdir())
    return (place / "train.npz").exists() or not others


def _expect_no_schema(place: Path, schema: Schema) -> None:
    if schema != EMPTY_SCHEMA:
        raise DataError(
            f"{place}: expected no schema for .npz arrays, which are used unchanged. Remove the schema."
        )


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


def records_of_frame(frame: Any, schema: Schema, origin: str) -> Records:
    """Return the records in a frame, prepared by `schema`. `origin` names the frame in messages.

    If the schema lists no classes, a Hugging Face dataset may declare them for the target. Declared names
    come from the description of the dataset, not from its records.
    """
    table, features = read_frame(frame, origin), getattr(frame, "features", None)
    if schema.classes is not None or len(schema.targets) != 1 or not isinstance(features, Mapping):
        return _encode_records(table, schema)
    declared = getattr(features.get(schema.targets[0]), "names", None)
    if declared is None:
        return _encode_records(table, schema)
    # The values are numbers of the declared classes.
    numbered = Schema.of({**schema.tree(), "classes": [str(number) for number in range(len(declared))]})
    return _encode_records(table, numbered)._replace(class_names=tuple(map(str, declared)))


def _encode_records(table: Table, schema: Schema) -> Records:
    inputs, targets = encode_table(table, schema)
    return Records(inputs, targets, None if schema.classes is None else len(schema.classes), schema.classes)


def expand_paths(patterns: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the files or folders that paths and patterns (`hospitals/*.csv`) name: one for each site.

    The files that match a pattern are in sorted order. Agent k has the k-th path of the result.
    """
    paths: list[Path] = []
    for pattern in patterns:
        text = os.path.expanduser(os.fspath(pattern))
        names = sorted(glob.glob(text)) if glob.has_magic(text) else [text]
        if not names:
            raise DataError(f"Expected files that match {text}, found none. Check the pattern.")
        paths += map(Path, names)
    if not paths:
        raise DataError("Expected at least one file, one for each site, got none.")
    places = [path.resolve() for path in paths]  # resolves links and ..
    repeated = [path for path, place in zip(paths, places, strict=True) if places.count(place) > 1]
    if repeated:
        raise DataError(
            f"Expected every site once, got {repeated[0]} twice. A record may be at one agent only: "
            "remove the repetition."
        )
    return paths


def read_site_files(
    agents: Sequence[str | os.PathLike[str]], test: str | os.PathLike[str] | None, schema: Schema
) -> SiteRecords:
    """Return the records in `agents`, one file or folder per agent, and in `test`, prepared by `schema`."""
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
    """Return the records in `agents`, one frame per agent, and in the frame `test`, prepared by `schema`."""
    names = [f"agent {agent}" for agent in range(len(agents))]
    site_records = [records_of_frame(frame, schema, name) for frame, name in zip(agents, names, strict=True)]
    held_out = None if test is None else records_of_frame(test, schema, "test records")
    return _combine_sites(site_records, names, held_out, schema)


def _scale_images(inputs: AnyArray) -> AnyArray:
    """Return bytes of images scaled to [0, 1], and other inputs unchanged."""
    return inputs.astype(np.float32) / np.float32(255) if inputs.dtype == np.uint8 else inputs


def _combine_sites(
    site_records: list[Records], names: list[str], test: Records | None, schema: Schema
) -> SiteRecords:
    for name, records in zip(names, site_records, strict=True):
        _expect_same_classes(records, name, site_records[0], names[0])
    if test is not None:
        _expect_same_classes(test, "test records", site_records[0], names[0])
    return SiteRecords(
        [(_scale_images(records.inputs), records.targets) for records in site_records],
        None if test is None else (_scale_images(test.inputs), test.targets),
        site_records[0].classes,
        schema.text is not None,
    )
