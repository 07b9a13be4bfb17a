"""Read a user's own data from `.npz` arrays: without pickle, and checked record by record.

The data are either a folder with `train.npz` and `test.npz`, each with the arrays `inputs` and `labels`, or
one `.npz` file with `train_inputs`, `train_labels`, `test_inputs` and `test_labels`. The test part is
optional. Labels are integers, one per record. The array `classes` (one number) states the number of classes;
without it, the number is the largest training label + 1. Targets of any other kind are named `targets`
instead of `labels`.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from topdp.base.array_types import AnyArray
from topdp.base.files import UNREADABLE_FILE_ERRORS
from topdp.data.record_checks import Records, check_labels, check_records, check_same_shape, count_classes
from topdp.errors import DataError


def read_npz_dataset(path: Path) -> tuple[Records, Records | None]:
    """Return the checked training records and test records at `path`; None if there are no test records.

    Raise DataError that names the file, the array and the record if an array is missing or a check fails.
    """
    if path.is_dir():
        train_file, test_file, train_part, test_part = path / "train.npz", path / "test.npz", "", ""
        train = _arrays(train_file)
        test = _arrays(test_file) if test_file.exists() else {}
    else:
        train_file, test_file, train_part, test_part = path, path, "train_", "test_"
        train = test = _arrays(path)
    inputs, targets, target_name = _part(train, train_part, train_file, "training records")
    classes = None
    if target_name == "labels":
        classes = _stated_classes(train, str(train_file))
        targets = check_labels(targets, f"{train_file}, training records", classes)
        classes = classes or count_classes([targets], str(train_file))
    if not any(name.startswith(test_part) and name != "classes" for name in test):
        return Records(inputs, targets, classes), None
    what = f"{test_file}, test records"
    test_inputs, test_targets, test_target_name = _part(test, test_part, test_file, "test records")
    if test_target_name != target_name:
        raise DataError(
            f"{what}: expected {target_name!r} as in the training records, got {test_target_name!r}."
        )
    if classes is not None:
        test_targets = check_labels(test_targets, what, classes)
    else:
        check_same_shape(test_targets, targets.shape[1:], what, "the training records", "targets")
        common = np.result_type(targets, test_targets)
        targets, test_targets = targets.astype(common), test_targets.astype(common)
    check_same_shape(test_inputs, inputs.shape[1:], what, "the training records")
    return Records(inputs, targets, classes), Records(test_inputs, test_targets, classes)


def read_npz_records(path: Path) -> Records:
    """Return the records of one site. The names of its arrays may begin with `train_`; there is no test part.

    The number of classes is None unless the array `classes` states it, because the labels of one site need
    not contain the largest.
    """
    arrays = _arrays(path)
    part = "train_" if "train_inputs" in arrays else ""
    inputs, targets, target_name = _part(arrays, part, path, "records")
    if target_name == "targets":
        return Records(inputs, targets)
    classes = _stated_classes(arrays, str(path))
    return Records(inputs, check_labels(targets, f"{path}, records", classes), classes)


def _part(arrays: dict[str, AnyArray], part: str, file: Path, what: str) -> tuple[AnyArray, AnyArray, str]:
    """Return the inputs and the targets whose names begin with `part`, and the rest of the targets' name.

    That name is `labels` or `targets`. `what` describes the part in messages.
    """
    target_names = [name for name in ("labels", "targets") if part + name in arrays]
    names = ", ".join(sorted(arrays)) or "none"
    if part + "inputs" not in arrays:
        raise DataError(f"{file}: expected an array '{part}inputs', got {names}.")
    if len(target_names) != 1:
        raise DataError(f"{file}: expected an array '{part}labels' or '{part}targets', got {names}.")
    inputs, targets = arrays[part + "inputs"], arrays[part + target_names[0]]
    return *check_records(inputs, targets, f"{file}, {what}"), target_names[0]


def _arrays(path: Path) -> dict[str, AnyArray]:
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


def read_arrays(path: Path) -> dict[str, AnyArray]:
    """Return all arrays of an `.npz` file by name; nothing is unpickled.

    Raise one of `UNREADABLE_FILE_ERRORS` if the file cannot be read.
    """
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("expected an archive of named arrays, got another kind of file")
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
