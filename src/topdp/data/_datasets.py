"""Data sets by name or by path, as arrays that are ready for training.

`partitions` decides which agent holds which record.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from topdp.base.array_types import AnyArray, Ints
from topdp.base.progress import Progress, silent
from topdp.data.person_records import number_persons
from topdp.data.readers.raw_tables import TABLE_SUFFIXES
from topdp.data.readers.record_paths import train_and_test
from topdp.data.readers.table_schema import EMPTY_SCHEMA, Schema
from topdp.errors import DataError, InputError

if TYPE_CHECKING:
    from topdp.data.catalogue import CatalogueEntry


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Dataset:
    """Training records and test records.

    `train_inputs` and `test_inputs` are [records, ...]; for data sets of the catalogue, uint8 [N, C, H, W].
    Targets are [records, ...] in int64, float32 or float64. If `classes` is not None, targets are labels in
    0..classes-1. Without test records, nothing is evaluated.

    Guarantees: `mean` and `deviation` are public constants fixed in the catalogue (none for a user's own
    data). Nothing here is computed from the records, so preparing them costs no privacy.

    >>> import numpy as np
    >>> x, y = np.zeros((4, 3)), np.zeros(4, int)
    >>> records = {"train_inputs": x, "train_targets": y, "test_inputs": None, "test_targets": None}
    >>> dataset = Dataset(name="own", classes=2, **records)
    >>> dataset.train()[0].shape, dataset.train()[0].dtype.name
    ((4, 3), 'float32')
    """

    name: str
    train_inputs: AnyArray
    train_targets: AnyArray
    test_inputs: AnyArray | None
    test_targets: AnyArray | None
    classes: int | None
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    tokens: bool = False
    """Whether inputs are token ids."""
    class_names: tuple[str, ...] | None = None
    """The name of each label, from the schema or from the folders of the classes."""
    input_length: float | None = None
    """The length of a usual input, as is publicly known; None: unknown."""
    schema: Schema = EMPTY_SCHEMA
    """What is publicly known of a user's own records."""
    target_range: tuple[float, float] | None = None
    """For a data set of the catalogue, the range of the target that became [-1, 1]."""
    identifiers: AnyArray | None = None
    """The identifier of each training record's person, as text; None if the unit is the record."""

    @cached_property
    def persons(self) -> Ints | None:
        """The number of each training record's person; None if the unit of protection is the record."""
        return None if self.identifiers is None else number_persons([self.identifiers])[0]

    def __repr__(self) -> str:
        """Return shapes and counts, and no record."""
        kind, tests = self.train_inputs.dtype, 0 if self.test_inputs is None else len(self.test_inputs)
        return (
            f"Dataset({self.name!r}, {len(self.train_inputs)} records, inputs {self.train_inputs.shape[1:]} "
            f"{kind}, {tests} test records)"
        )

    def scale(self, inputs: AnyArray) -> AnyArray:
        """Return `inputs` as a model receives them: (x - mean) / deviation for each channel, in float32.

        Bytes are first divided by 255. Without a mean, nothing is subtracted. Token ids become int64 instead.
        """
        return inputs.astype(np.int64) if self.tokens else scale_inputs(inputs, self.mean, self.deviation)

    def train(self) -> tuple[AnyArray, AnyArray]:
        """Return all training inputs, scaled, and their targets."""
        return self.scale(self.train_inputs), self.train_targets

    def test(self) -> tuple[AnyArray, AnyArray] | None:
        """Return all test inputs, scaled, and their targets; None if there are none."""
        if self.test_inputs is None or self.test_targets is None:
            return None
        return self.scale(self.test_inputs), self.test_targets


def scale_inputs(inputs: AnyArray, mean: tuple[float, ...], deviation: tuple[float, ...]) -> AnyArray:
    """Return (x - mean) / deviation for each channel, in float32. Bytes are first divided by 255."""
    channels = (-1,) + (1,) * (inputs.ndim - 2)
    means = np.array(mean or 0, np.float32).reshape(channels)
    deviations = np.array(deviation or 1, np.float32).reshape(channels)
    factor = np.float32(1 / 255 if inputs.dtype == np.uint8 else 1)
    scaled: AnyArray = np.multiply(inputs, factor / deviations, dtype=np.float32)
    scaled -= means / deviations
    return scaled


class DatasetStatus(NamedTuple):
    """One line of `topdp data list`."""

    name: str
    cached: bool
    bytes: int
    description: str


def load(
    name: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    progress: Progress = silent,
    schema: Schema | None = None,
    test: str | os.PathLike[str] | None = None,
    person: str | None = None,
) -> Dataset:
    """Return the data set `name` of `CATALOGUE`, fetched and verified, or the user's own records at a path.

    If a path has the same spelling as a name of the catalogue, the name takes precedence; write `./mnist` for
    a folder. A path leads to `.npz` arrays, tables or folders of images (`readers.record_paths`). `schema`
    states what is publicly known about these records, and `test` is the path of test records. `person`: the
    column or array with the identifier of each record's person; None if the unit is the record.

    `data_dir`, `download` and `progress`: as for `fetch`. Unlike `fetch`, this function does not copy a data
    set from `data_dir` to the cache.

    >>> import numpy as np
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     x, y = np.zeros((6, 2)), np.arange(6) % 3
    ...     np.savez(f"{folder}/own.npz", train_inputs=x, train_labels=y, test_inputs=x, test_labels=y)
    ...     load(f"{folder}/own.npz").classes
    3
    """
    entry, text = _catalogue_entry(name), os.fspath(name)
    if entry is None:
        train, held_out = train_and_test(text, schema or EMPTY_SCHEMA, test, person)
        return Dataset(
            name=text,
            train_inputs=train.inputs,
            train_targets=train.targets,
            test_inputs=None if held_out is None else held_out.inputs,
            test_targets=None if held_out is None else held_out.targets,
            classes=train.classes,
            tokens=schema is not None and schema.text is not None,
            class_names=train.class_names,
            schema=schema or EMPTY_SCHEMA,
            identifiers=train.persons,
            input_length=None if schema is None else schema.input_length,
        )
    if person is not None:
        raise InputError(
            f'privacy.unit: expected "record" for {name}, whose records have no identifiers of persons, got '
            '"person". Use data of your own that states the person of each record.'
        )
    if schema is not None or test is not None:
        raise DataError(
            f"{name}: expected no schema and no other test records for a data set of the catalogue, got "
            f"{'a schema' if schema is not None else 'test records'}. Remove them."
        )
    from topdp.data._dataset_downloads import fetch, from_folder

    stored = from_folder(entry, data_dir, [])
    if stored is None:
        stored = fetch(text, data_dir=data_dir, download=download, progress=progress).arrays
    return Dataset(
        name=text,
        train_inputs=stored["train_inputs"],
        train_targets=_targets(entry, stored["train_labels"]),
        test_inputs=stored["test_inputs"],
        test_targets=_targets(entry, stored["test_labels"]),
        classes=entry.classes,
        mean=entry.mean,
        deviation=entry.deviation,
        tokens=entry.tokens > 0,
        input_length=entry.input_length,
        target_range=entry.target_range,
    )


def _catalogue_entry(name: str | os.PathLike[str]) -> CatalogueEntry | None:
    """Return the entry of the catalogue with this name, or None if `name` is a path.

    Raise DataError if it is neither. The catalogue is not imported for a path with a separator or suffix.
    """
    text = os.fspath(name)
    if os.sep in text or text.endswith((".npz", *TABLE_SUFFIXES)):
        return None
    from topdp.data._dataset_downloads import catalogue_entry
    from topdp.data.catalogue import CATALOGUE

    if isinstance(name, str) and name in CATALOGUE:
        return CATALOGUE[name]
    if not os.path.exists(text):
        catalogue_entry(text)  # raises the error that names the data sets
    return None


def _targets(entry: CatalogueEntry, stored: AnyArray) -> AnyArray:
    """Return labels as int64, or real-valued targets scaled from the public range of `entry` to [-1, 1]."""
    if entry.target_range is None:
        return stored.astype(np.int64)
    low, high = entry.target_range
    return (2 * (stored - low) / (high - low) - 1).astype(np.float32)


def available() -> list[DatasetStatus]:
    """Return, for each data set of the catalogue, whether the cache contains it, and its size in the cache.

    >>> [(row.name, row.bytes) for row in available() if row.name == "mnist"]
    [('mnist', 54950000)]
    """
    from topdp.data._dataset_downloads import cache_file
    from topdp.data.catalogue import CATALOGUE

    return [
        DatasetStatus(entry.name, cache_file(entry.name).exists(), entry.bytes, entry.description)
        for entry in CATALOGUE.values()
    ]
