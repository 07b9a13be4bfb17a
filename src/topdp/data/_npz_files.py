"""A user's own data as `.npz` arrays: read without pickle, checked record by record.

Either a folder with `train.npz` and `test.npz`, each with arrays `inputs` and `labels`; or one `.npz` with
`train_inputs`, `train_labels`, `test_inputs` and `test_labels`. The test part is optional. Labels are
integers, one per record. The number of classes is the array `classes` (one number) if it exists, else the
largest training label + 1. Targets of any other kind are named `targets` instead of `labels`.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from topdp.base.files import UNREADABLE_FILE_ERRORS
from topdp.data.record_checks import (
    Array,
    Records,
    check_labels,
    check_records,
    check_same_shape,
    count_classes,
)
from topdp.errors import DataError


def read_npz_dataset(path: str | os.PathLike[str]) -> tuple[Records, Records | None]:
    """Return the checked training and test records at `path`; a `DataError` names the file, the array and the
    record.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        train_file, test_file = place / "train.npz", place / "test.npz"
        train = _arrays(train_file)
        test = _arrays(test_file) if test_file.exists() else {}
    else:
        train_file = test_file = place
        both = _arrays(place)
        train, test = ({n: v for n, v in both.items() if not n.startswith(p)} for p in ("test_", "train_"))
    part = "" if place.is_dir() else "train_"
    inputs, targets, called = _part(train, part, train_file, "training records")
    classes = None
    if called == "labels":
        targets = check_labels(targets, f"{train_file}, training records")
        classes = _classes(train, targets, str(train_file))
        check_labels(targets, f"{train_file}, training records", classes)
    part = "" if place.is_dir() else "test_"
    if not any(name.startswith(part) and name != "classes" for name in test):
        return Records(inputs, targets, classes), None
    what = f"{test_file}, test records"
    test_inputs, test_targets, test_called = _part(test, part, test_file, "test records")
    if test_called != called:
        raise DataError(f"{what}: expected {called!r} as in the training records, got {test_called!r}.")
    if classes is not None:
        test_targets = check_labels(test_targets, what, classes)
    else:
        check_same_shape(test_targets, targets.shape[1:], what, "the training records", "targets")
        common = np.result_type(targets, test_targets)
        targets, test_targets = targets.astype(common), test_targets.astype(common)
    check_same_shape(test_inputs, inputs.shape[1:], what, "the training records")
    return Records(inputs, targets, classes), Records(test_inputs, test_targets, classes)


def read_npz_records(path: Path) -> Records:
    """Return the records of one site: no test part, names as above."""
    arrays = _arrays(path)
    part = "train_" if "train_inputs" in arrays else ""
    inputs, targets, called = _part(arrays, part, path, "records")
    if called == "targets":
        return Records(inputs, targets)
    labels = check_labels(targets, f"{path}, records")
    return Records(inputs, labels, _classes(arrays, labels, str(path)) if "classes" in arrays else None)


def _part(arrays: dict[str, Array], part: str, file: Path, what: str) -> tuple[Array, Array, str]:
    """Return the inputs and targets of one part, and whether the targets are named labels or targets."""
    target_names = [name for name in ("labels", "targets") if part + name in arrays]
    names = ", ".join(sorted(arrays)) or "none"
    if part + "inputs" not in arrays:
        raise DataError(f"{file}: expected an array '{part}inputs', got {names}.")
    if len(target_names) != 1:
        raise DataError(f"{file}: expected an array '{part}labels' or '{part}targets', got {names}.")
    return *check_records(
        arrays[part + "inputs"], arrays[part + target_names[0]], f"{file}, {what}"
    ), target_names[0]


def _arrays(path: Path) -> dict[str, Array]:
    if not path.is_file():
        raise DataError(
            f"Expected the file {path}, which does not exist. A folder holds train.npz and, if there are "
            "test records, test.npz, each with the arrays inputs and labels; a single .npz holds "
            "train_inputs, train_labels, and if there are test records test_inputs and test_labels."
        )
    try:
        return read_arrays(path)
    except UNREADABLE_FILE_ERRORS as error:
        raise DataError(
            f"{path}: cannot be read as .npz ({error}). Arrays of Python objects are not accepted."
        ) from error


def _classes(arrays: dict[str, Array], labels: Array, what: str) -> int:
    if "classes" not in arrays:
        return count_classes([labels], what)
    stated = arrays["classes"]
    if stated.size != 1 or stated.dtype.kind not in "ui" or int(stated.reshape(())) < 1:
        raise DataError(f"{what}: expected 'classes' to be one whole number of at least 1, got {stated!r}.")
    return int(stated.reshape(()))


def read_arrays(path: Path) -> dict[str, Array]:
    """Return all arrays of an `.npz` without unpickling, or raise one of `UNREADABLE_FILE_ERRORS`."""
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("expected an archive of named arrays, got another kind of file")
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
