"""Records of one or several sites, whatever their format: CSV, Parquet, `.npz`, folders of images, frames.

The arrays of `.npz` files are read without pickle, and used unchanged. They are in a folder with `train.npz`
and `test.npz`, each with `inputs` and `labels`, or in one file with `train_inputs`, `train_labels`,
`test_inputs` and `test_labels`. The test part is optional. Labels are integers, one per record. The array
`classes` (one number) states the number of classes; without it, the number is the largest training label + 1.
Targets of any other kind are named `targets` instead of `labels`.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from topdp.base.array_types import AnyArray
from topdp.base.files import UNREADABLE_FILE_ERRORS, read_arrays
from topdp.data.readers._encoding import encode_inputs, encode_table
from topdp.data.readers.raw_tables import TABLE_SUFFIXES, Table, as_text, is_missing, read_frame, read_table
from topdp.data.readers.table_schema import EMPTY_SCHEMA, Schema, SchemaError
from topdp.data.record_checks import (
    Records,
    check_identifiers,
    check_labels,
    check_records,
    check_same_shape,
    count_classes,
)
from topdp.errors import DataError


@dataclass(frozen=True, kw_only=True)
class SiteRecords:
    """The inputs and targets of each agent, those of the test records, and facts about all of them."""

    agents: list[tuple[AnyArray, AnyArray]]
    test: tuple[AnyArray, AnyArray] | None
    classes: int | None
    class_names: tuple[str, ...] | None
    bytes_divided: bool
    """Whether the inputs were bytes, which were divided by 255."""
    persons: list[AnyArray] | None
    """The person identifiers of each agent's records; None: the unit of protection is the record."""


def read_records(
    path: str | os.PathLike[str],
    schema: Schema = EMPTY_SCHEMA,
    person: str | None = None,
    *,
    test: bool = False,
) -> Records:
    """Return the records at `path`: a table, an `.npz` file, or a folder of images, prepared by `schema`.

    An `.npz` file has the arrays `inputs` and `targets` (or `labels`), or `train_inputs` and so on. It takes
    no schema, because its numbers are used unchanged. `person`: the column or array with the identifier of
    each record's person; None if the unit of protection is the record. `test`: these are test records,
    which are not protected and need no persons.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        _expect_no_person(place, None if test else person)
        from topdp.data.readers._image_folders import read_images  # imports Pillow

        return read_images(place, schema)
    if place.suffix == ".npz":
        _expect_no_schema(place, schema)
        arrays = _npz_arrays(place)
        # `classes` is None unless stated, because the labels of one site need not contain the largest.
        part = "train_" if "train_inputs" in arrays else ""
        records = _npz_part(arrays, part, place, "records")[0]
        return records if test else _with_persons(records, arrays, part, place, person)
    return _encode_records(read_table(place, schema.delimiter), schema, person, test)


def train_and_test(
    path: str | os.PathLike[str],
    schema: Schema,
    test: str | os.PathLike[str] | None = None,
    person: str | None = None,
) -> tuple[Records, Records | None]:
    """Return the training records at `path`, and the test records, or None if there are none.

    `path` and `test` name files or folders as for `read_records`. If `test` is None, `path` may contain both:
    a folder with `train.csv` and `test.csv` (or `.tsv`, `.parquet`, `.pq`, `.npz`), a folder with the folders
    `train` and `test`, each with one folder per class, or one `.npz` file. `person`: as for `read_records`.
    """
    place = Path(path).expanduser()
    if test is None and _holds_arrays(place):
        _expect_no_schema(place, schema)
        return _read_npz_dataset(place, person)
    for suffix in ("", ".csv", ".tsv", ".parquet", ".pq"):
        if place.is_dir() and (place / f"train{suffix}").exists():
            beside = place / f"test{suffix}"
            place, test = place / f"train{suffix}", test or (beside if beside.exists() else None)
            break
    train = read_records(place, schema, person)
    if test is None:
        return train, None
    held_out = read_records(test, schema, person, test=True)
    _expect_same_classes(held_out, str(test), train, str(place))
    check_same_shape(held_out.inputs, train.inputs.shape[1:], str(test), "the training records")
    return train, held_out


def _holds_arrays(place: Path) -> bool:
    """Return whether to read `place` as `.npz` arrays.

    This is also true if nothing exists there. The error then asks for arrays.
    """
    if not place.is_dir():
        return place.suffix not in TABLE_SUFFIXES
    others = any(entry.is_dir() or entry.suffix in TABLE_SUFFIXES for entry in place.iterdir())
    return (place / "train.npz").exists() or not others


def _expect_no_person(place: Path, person: str | None) -> None:
    if person is not None:
        raise DataError(
            f'{place}: expected a table or .npz arrays with privacy.unit = "person", got a folder of images, '
            "which states no persons. Save the images as an .npz file with an array of persons."
        )


def _with_persons(
    records: Records, arrays: dict[str, AnyArray], part: str, file: Path, person: str | None
) -> Records:
    """Return `records` with the identifiers in the array `person`, whose name may begin with `part`."""
    if person is None:
        return records
    names = [name for name in (part + person, person) if name in arrays]
    if not names:
        raise DataError(
            f"{file}: expected an array {part + person!r} with the identifier of each record's person "
            f'(privacy.unit = "person"), got only {", ".join(sorted(arrays))}. Add the array, or name '
            "another one in data.person."
        )
    identifiers = check_identifiers(arrays[names[0]], len(records.targets), f"{file}, array {names[0]!r}")
    return replace(records, persons=identifiers)


def _expect_no_schema(place: Path, schema: Schema) -> None:
    if schema != EMPTY_SCHEMA:
        raise DataError(
            f"{place}: expected no schema for .npz arrays, which are used unchanged. Remove the schema."
        )


def _read_npz_dataset(path: Path, person: str | None) -> tuple[Records, Records | None]:
    """Return the checked training records and test records at `path`; None if there are no test records.

    Raise DataError that names the file, the array and the record if an array is missing or a check fails.
    """
    if path.is_dir():
        train_file, test_file, train_part, test_part = path / "train.npz", path / "test.npz", "", ""
        train = _npz_arrays(train_file)
        test = _npz_arrays(test_file) if test_file.exists() else {}
    else:
        train_file, test_file, train_part, test_part = path, path, "train_", "test_"
        train = test = _npz_arrays(path)
    records, target_name = _npz_part(train, train_part, train_file, "training records")
    records = _with_persons(records, train, train_part, train_file, person)
    if target_name == "labels" and records.classes is None:
        records = replace(records, classes=count_classes([records.targets], str(train_file)))
    if not any(name.startswith(test_part) and name != "classes" for name in test):
        return records, None
    what = f"{test_file}, test records"
    held_out, test_target_name = _npz_part(test, test_part, test_file, "test records", records.classes)
    if test_target_name != target_name:
        raise DataError(
            f"{what}: expected {target_name!r} as in the training records, got {test_target_name!r}."
        )
    if target_name == "targets":
        check_same_shape(held_out.targets, records.targets.shape[1:], what, "the training records", "targets")
        common = np.result_type(records.targets, held_out.targets)
        records, held_out = (
            replace(part, targets=part.targets.astype(common)) for part in (records, held_out)
        )
    check_same_shape(held_out.inputs, records.inputs.shape[1:], what, "the training records")
    return records, held_out


def _npz_part(
    arrays: dict[str, AnyArray], part: str, file: Path, what: str, classes: int | None = None
) -> tuple[Records, str]:
    """Return the records in the arrays whose names begin with `part`, and the rest of their targets' name.

    That name is `labels` or `targets`. `what` describes the part in messages. `classes`: the number of
    classes; None if the array `classes` may state it.
    """
    target_names = [name for name in ("labels", "targets") if part + name in arrays]
    names = ", ".join(sorted(arrays)) or "none"
    if part + "inputs" not in arrays:
        raise DataError(f"{file}: expected an array '{part}inputs', got {names}.")
    if len(target_names) != 1:
        raise DataError(f"{file}: expected an array '{part}labels' or '{part}targets', got {names}.")
    name, what = target_names[0], f"{file}, {what}"
    inputs, targets = check_records(arrays[part + "inputs"], arrays[part + name], what)
    if name == "targets":
        return Records(inputs, targets), name
    classes = classes or _stated_classes(arrays, str(file))
    return Records(inputs, check_labels(targets, what, classes), classes), name


def _npz_arrays(path: Path) -> dict[str, AnyArray]:
    if not path.is_file():
        raise DataError(
            f"Expected the file {path}, which does not exist. Give a folder with train.npz and, if there are "
            "test records, test.npz, each with the arrays inputs and labels. Or give one .npz file with "
            "train_inputs, train_labels and, if there are test records, test_inputs and test_labels."
        )
    try:
        return read_arrays(path)
    except UNREADABLE_FILE_ERRORS as error:
        raise DataError(
            f"{path}: cannot be read as .npz ({error}). Write it with numpy.savez; arrays of Python objects "
            "are not accepted."
        ) from error


def _stated_classes(arrays: dict[str, AnyArray], what: str) -> int | None:
    if "classes" not in arrays:
        return None
    stated = arrays["classes"]
    if stated.size != 1 or stated.dtype.kind not in "ui" or int(stated.reshape(())) < 1:
        raise DataError(f"{what}: expected 'classes' to be one whole number of at least 1, got {stated!r}.")
    return int(stated.reshape(()))


def _expect_same_classes(records: Records, name: str, like: Records, like_name: str) -> None:
    if records.class_names != like.class_names:
        expected, got = (", ".join(part.class_names or ("none",)) for part in (like, records))
        raise DataError(
            f"{name}: expected the classes of {like_name}, {expected}; got {got}. State all classes in a "
            "schema."
        )


def records_of_frame(
    frame: Any,
    schema: Schema,
    origin: str,
    person: str | None = None,
    *,
    test: bool = False,
    declared: Any = None,
) -> Records:
    """Return the records in a frame, prepared by `schema`. `origin` names the frame in messages.

    If the schema lists no classes, a Hugging Face dataset may declare them for the target. Declared names
    come from the description of the dataset, not from its records. `declared`: the `features` of the dataset
    from which `frame` was taken, if it has none.
    """
    table = frame if isinstance(frame, Table) else read_frame(frame, origin)
    features = getattr(frame, "features", declared)
    if schema.classes is not None or len(schema.targets) != 1 or not isinstance(features, Mapping):
        return _encode_records(table, schema, person, test)
    names = getattr(features.get(schema.targets[0]), "names", None)
    if names is None:
        return _encode_records(table, schema, person, test)
    # The values are numbers of the declared classes.
    numbered = Schema.of({**schema.tree(), "classes": [str(number) for number in range(len(names))]})
    records = _encode_records(table, numbered, person, test)
    return replace(records, class_names=tuple(map(str, names)))


def _encode_records(table: Table, schema: Schema, person: str | None, test: bool) -> Records:
    identifiers = None if person is None or test else _identifiers(table, schema, person)
    inputs, targets = check_records(*encode_table(table.without(person), schema), table.origin)
    classes = None if schema.classes is None else len(schema.classes)
    return Records(inputs, targets, classes, class_names=schema.classes, persons=identifiers)


def _identifiers(table: Table, schema: Schema, person: str) -> AnyArray:
    """Return the identifiers in the column `person`, which the schema must not use otherwise."""
    if person in {*schema.targets, *schema.inputs}:
        raise SchemaError(
            f"{table.origin}: expected the column {person!r} of persons only in data.person, got it in the "
            "schema too. Remove it there: a model must not see who a record is about."
        )
    if person not in table.columns:
        raise DataError(
            f"{table.origin}: expected a column {person!r} with the identifier of each record's person "
            f'(privacy.unit = "person"), got only the columns {", ".join(table.columns)}. Add the column, or '
            "name another one in data.person."
        )
    values = table.columns[person]
    gaps = is_missing(values)
    if gaps.any():
        raise DataError(
            f"{table.where(int(gaps.argmax()))}: expected a person identifier in {person!r}, got a missing "
            f"value ({int(gaps.sum())} of {table.rows} records lack it). Add the identifiers, or remove "
            "these records."
        )
    return check_identifiers(values, table.rows, table.origin)


def read_inputs(given: Any, schema: Schema, origin: str) -> AnyArray:
    """Return the inputs of records without their targets, prepared by the schema of a table.

    `given`: a frame, or the path of a table. It needs the input columns of the schema, and may have others.
    `origin` names a frame in messages.
    """
    if isinstance(given, str | os.PathLike):
        path = Path(given).expanduser()
        if path.suffix not in TABLE_SUFFIXES:
            raise DataError(f"{path}: expected a table ({', '.join(TABLE_SUFFIXES)}), got {path.suffix!r}.")
        return encode_inputs(read_table(path, schema.delimiter), schema)
    if isinstance(given, Mapping) or hasattr(given, "columns") or hasattr(given, "column_names"):
        return encode_inputs(read_frame(given, origin), schema)
    raise DataError(
        f"{origin}: expected a frame, a dictionary of columns or the path of a table, because a schema "
        f"prepares the records, got {type(given).__name__}. Its columns are {', '.join(schema.inputs)}."
    )


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


def site_paths(agents: Sequence[str | os.PathLike[str]] | str | os.PathLike[str]) -> list[Path]:
    """Return the path of each site, as `expand_paths`; `agents` may also be a single pattern."""
    return expand_paths([agents] if isinstance(agents, str | os.PathLike) else agents)


def read_site_files(
    agents: Sequence[str | os.PathLike[str]],
    test: str | os.PathLike[str] | None,
    schema: Schema,
    person: str | None = None,
) -> SiteRecords:
    """Return the records in `agents`, one file or folder per agent, and in `test`, prepared by `schema`.

    They are ready for `Shards.from_arrays`.
    """
    paths = site_paths(agents)
    if test is not None and Path(test).expanduser().resolve() in [path.resolve() for path in paths]:
        raise DataError(
            f"Expected test records that no agent holds, got {test}. Metrics on them, and the choice of "
            "the best round, would disclose private records without noise. Give other records, or none."
        )
    sites = {str(path): read_records(path, schema, person) for path in paths}
    return _combine_sites(sites, None if test is None else read_records(test, schema, person, test=True))


def read_site_frames(
    agents: Sequence[Any],
    test: Any,
    schema: Schema,
    person: str | None = None,
    *,
    labels: Sequence[str] | None = None,
    declared: Any = None,
) -> SiteRecords:
    """Return the records in `agents`, one frame per agent, and in the frame `test`, prepared by `schema`.

    `labels`: names of the frames in messages; None: the numbers of the agents. `declared`: the features of
    the Hugging Face dataset from which the frames were taken, if these lack them.
    """
    names = [f"agent {agent}" for agent in range(len(agents))] if labels is None else list(labels)
    sites = {
        name: records_of_frame(frame, schema, name, person, declared=declared)
        for name, frame in zip(names, agents, strict=True)
    }
    held_out = None
    if test is not None:
        held_out = records_of_frame(test, schema, "test records", person, test=True, declared=declared)
    return _combine_sites(sites, held_out)


def _scale_images(inputs: AnyArray) -> AnyArray:
    """Return bytes of images scaled to [0, 1], and other inputs unchanged."""
    return inputs.astype(np.float32) / np.float32(255) if inputs.dtype == np.uint8 else inputs


def _combine_sites(sites: dict[str, Records], test: Records | None) -> SiteRecords:
    """Return the records of `sites`, by name, and of `test`. Raise DataError if their classes differ."""
    first_name, first = next(iter(sites.items()))
    for name, records in [*sites.items(), *([] if test is None else [("test records", test)])]:
        _expect_same_classes(records, name, first, first_name)
    agents = [(_scale_images(records.inputs), records.targets) for records in sites.values()]
    persons = [records.persons for records in sites.values() if records.persons is not None]
    held_out = None if test is None else (_scale_images(test.inputs), test.targets)
    bytes_divided = first.inputs.dtype == np.uint8
    return SiteRecords(
        agents=agents,
        test=held_out,
        classes=first.classes,
        class_names=first.class_names,
        bytes_divided=bytes_divided,
        persons=persons or None,
    )


def split_by_site(frame: Any, site: str) -> dict[str, Table]:
    """Return the table of each site, without the column `site`, in the sorted order of their names.

    Names that are all whole numbers are sorted as numbers. Raise DataError if the frame lacks the column, or
    if a record has no site.
    """
    table = read_frame(frame)
    if site not in table.columns:
        raise DataError(
            f"{table.origin}: expected a column {site!r} that states the site of each record, got only the "
            f"columns {', '.join(table.columns)}."
        )
    column = table.columns[site]
    gaps = is_missing(column)
    if gaps.any():
        raise DataError(
            f"{table.where(int(gaps.argmax()))}: expected the name of a site in {site!r}, got a missing "
            f"value ({int(gaps.sum())} of {table.rows} records lack it). Remove these records."
        )
    names = np.array([as_text(value) for value in column])
    others = {name: values for name, values in table.columns.items() if name != site}
    return {
        str(name): Table(f"{site} {name}", {key: values[names == name] for key, values in others.items()})
        for name in sorted_sites(set(names.tolist()))
    }


def sorted_sites(names: Iterable[str]) -> list[str]:
    """Return names of sites in sorted order: as numbers if all are whole numbers.

    >>> sorted_sites(["10", "9"]), sorted_sites(["b", "a"])
    (['9', '10'], ['a', 'b'])
    """
    plain = list(names)
    return sorted(plain, key=int) if all(name.isdecimal() for name in plain) else sorted(plain)
