"""A user's own data as `.npz` arrays: read without pickle, checked record by record. Writes nothing.

Either a folder with `train.npz` and `test.npz`, each with the arrays `inputs` and `labels`; or one `.npz`
with `train_inputs`, `train_labels`, `test_inputs` and `test_labels`. The number of classes is the array
`classes` (one number) where there is one, else the largest training label + 1.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from topdp.data.checks import Array, check_labels, check_records, check_same_shape
from topdp.data.decode import DAMAGE, read_npz
from topdp.errors import DataError
from topdp.plan.arrays import Ints

Records = tuple[Array, Ints]


class Own(NamedTuple):
    train: Records
    test: Records
    classes: int


def read(path: str | os.PathLike[str]) -> Own:
    """The arrays at `path`, checked; or a `DataError` that names the file, the array and the record."""
    place = Path(path).expanduser()
    if place.is_dir():
        train_file, test_file = place / "train.npz", place / "test.npz"
        train, test = _arrays(train_file), _arrays(test_file)
        keys = ("inputs", "labels", "inputs", "labels")
    else:
        train_file = test_file = place
        train = test = _arrays(place)
        keys = ("train_inputs", "train_labels", "test_inputs", "test_labels")
    for file, arrays, key in zip(
        (train_file, train_file, test_file, test_file), (train, train, test, test), keys, strict=True
    ):
        if key not in arrays:
            raise DataError(f"{file}: expected an array {key!r}, got {', '.join(sorted(arrays)) or 'none'}.")
    train_what = f"{train_file}, training records"
    test_what = f"{test_file}, test records"
    inputs, labels = check_records(train[keys[0]], train[keys[1]], train_what)
    classes = _classes(train, labels, str(train_file))
    check_labels(labels, train_what, classes)
    test_inputs, test_labels = check_records(test[keys[2]], test[keys[3]], test_what)
    check_labels(test_labels, test_what, classes)
    check_same_shape(test_inputs, inputs.shape[1:], test_what, "the training records")
    return Own((inputs, labels), (test_inputs, test_labels), classes)


def _arrays(path: Path) -> dict[str, Array]:
    if not path.is_file():
        raise DataError(
            f"Expected the file {path}, which is not there. A folder holds train.npz and test.npz, each with "
            "the arrays inputs and labels; a single .npz holds train_inputs, train_labels, test_inputs and "
            "test_labels."
        )
    try:
        return read_npz(path)
    except DAMAGE as error:
        raise DataError(
            f"{path}: cannot be read as .npz ({error}). Arrays of Python objects are not accepted."
        ) from error


def _classes(arrays: dict[str, Array], labels: Ints, what: str) -> int:
    if "classes" not in arrays:
        return int(labels.max()) + 1
    given = arrays["classes"]
    if given.size != 1 or given.dtype.kind not in "ui" or int(given.reshape(())) < 1:
        raise DataError(f"{what}: expected 'classes' to be one whole number of at least 1, got {given!r}.")
    return int(given.reshape(()))
