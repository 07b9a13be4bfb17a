"""The tables and texts of the catalogue, read from package files; damaged files are named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from topdp.data import _dataset_decoding as dataset_decoding
from topdp.data import load
from topdp.data._dataset_decoding import ARRAY_NAMES, Arrays
from topdp.data._dataset_downloads import fetch
from topdp.data._download_sources import _client_command
from topdp.data.catalogue import CATALOGUE, Package
from topdp.errors import DataError


def message(folder: Path, number: int, group: str, text: str) -> None:
    content = json.dumps({"id": f"{number:05}", "group": group, "text": text})
    (folder / f"{number:05}.{'f' * 32}.json").write_text(content)


def test_every_fifth_record_of_a_table_is_a_test_record(tmp_path: Path) -> None:
    rows = [",".join(map(str, [number, *range(29), number % 2])) for number in range(10)]
    (tmp_path / "breast_cancer.csv").write_text("\n".join(["10,30,malignant,benign", *rows]))
    arrays = dataset_decoding.breast_cancer(tmp_path)
    assert arrays is not None and tuple(arrays) == ARRAY_NAMES
    assert arrays["train_inputs"][:, 0].tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert arrays["test_inputs"][:, 0].tolist() == [4, 9] and arrays["test_labels"].tolist() == [0, 1]
    assert arrays["train_inputs"].dtype == np.float32 and arrays["train_labels"].dtype == np.uint8


def test_real_targets_are_in_a_separate_file(tmp_path: Path) -> None:
    (tmp_path / "diabetes_data_raw.csv.gz").write_bytes(gzip.compress(b"1 2 3 4 5 6 7 8 9 10\n" * 5))
    assert dataset_decoding.diabetes(tmp_path) is None
    (tmp_path / "diabetes_target.csv.gz").write_bytes(gzip.compress(b"1.51e+02\n75\n0\n350\n9\n"))
    arrays = dataset_decoding.diabetes(tmp_path)
    assert arrays is not None and arrays["train_labels"].tolist() == [151, 75, 0, 350]


def test_only_subject_and_body_of_a_message_are_read(tmp_path: Path) -> None:
    head = "From: a@b\nDelivered-To: trap\nSubject: Cheap\n\n"
    for number in range(1, 6):
        message(
            tmp_path, number, "spam-1" if number == 1 else "easy-ham-1", f"{head}<b>pills</b> n° {number}"
        )
    arrays = dataset_decoding.spam_assassin(tmp_path)
    assert arrays is not None
    # Sorted by group: the spam comes last, and the fifth is tested on.
    assert arrays["train_labels"].tolist() == [0, 0, 0, 0] and arrays["test_labels"].tolist() == [1]
    assert ((arrays["train_inputs"] > 0).sum(axis=1) == 4).all()  # cheap, pills, n, the number
    assert (arrays["train_inputs"][:, :3] == arrays["test_inputs"][:, :3]).all()


def test_damage_is_named(tmp_path: Path) -> None:
    assert dataset_decoding.breast_cancer(tmp_path) is dataset_decoding.spam_assassin(tmp_path) is None
    (tmp_path / "breast_cancer.csv").write_text("1,30,a,b\n1,2,3\n")
    with pytest.raises(DataError, match=r"breast_cancer.csv is unreadable.*lines of 31 numbers"):
        dataset_decoding.breast_cancer(tmp_path)
    (tmp_path / f"00001.{'0' * 32}.json").write_text('{"group": "spam-1"}')
    with pytest.raises(DataError, match=r"00001.*json is unreadable"):
        dataset_decoding.spam_assassin(tmp_path)


def small(name: str) -> Arrays:
    entry, generator = CATALOGUE[name], np.random.default_rng(0)
    return {
        key: generator.integers(0, 2, (10, *shape[1:])).astype(entry.types[key])
        for key, shape in entry.shapes.items()
    }


@pytest.mark.parametrize("name", ["breast-cancer", "diabetes", "spam-assassin"])
def test_loaded_records_are_ready_for_a_model(name: str, tmp_path: Path, stand_in: object) -> None:
    arrays = stand_in(name, small(name))  # type: ignore[operator]
    np.savez(tmp_path / f"{name}.npz", **arrays)
    dataset = load(name, data_dir=tmp_path)
    inputs, targets = dataset.train()
    if name == "spam-assassin":
        assert inputs.dtype == np.int64 and dataset.tokens and dataset.classes == 2
    else:
        entry = CATALOGUE[name]
        expected = (arrays["train_inputs"] - np.array(entry.mean)) / np.array(entry.deviation)
        np.testing.assert_allclose(inputs, expected, rtol=1e-4, atol=1e-5)
    if name == "diabetes":
        # From the range [0, 350] to [-1, 1].
        np.testing.assert_allclose(targets, arrays["train_labels"] / 175 - 1, rtol=1e-6)
        assert dataset.classes is None


def test_arrays_of_another_type_than_the_entry_are_refused(tmp_path: Path, stand_in: object) -> None:
    arrays = stand_in("diabetes", small("diabetes"))  # type: ignore[operator]
    wide = {key: array.astype(np.float64) for key, array in arrays.items()}
    np.savez(tmp_path / "diabetes.npz", **wide)
    with pytest.raises(DataError, match=r"expected train_inputs of diabetes to be float32 .*got float64"):
        load("diabetes", data_dir=tmp_path)


def test_files_of_an_installed_python_package_are_used(
    tmp_path: Path, stand_in: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [",".join(map(str, [number, *range(29), number % 2])) for number in range(10)]
    place = tmp_path / "some_package" / "data"
    place.mkdir(parents=True)
    (place.parent / "__init__.py").write_text("raise RuntimeError('never imported')")
    (place / "breast_cancer.csv").write_text("\n".join(["10,30,malignant,benign", *rows]))
    arrays = dataset_decoding.breast_cancer(place)
    stand_in("breast-cancer", arrays, installed=("python:some_package/data",))  # type: ignore[operator]
    monkeypatch.syspath_prepend(tmp_path)
    assert fetch("breast-cancer").source == str(place)


def test_a_wheel_is_requested_for_the_platform_it_was_built_for() -> None:
    command = _client_command(Package("pip", "scikit-learn", "1.7.2", ("3.11", "manylinux2014_x86_64")))
    assert "--python-version 3.11 --platform manylinux2014_x86_64" in " ".join(command)


@pytest.mark.network
@pytest.mark.parametrize("name", ["breast-cancer", "diabetes", "spam-assassin"])
def test_the_real_files_match_the_catalogue(name: str) -> None:
    try:
        arrays = fetch(name).arrays
    except DataError as error:
        pytest.skip(f"cannot be reached: {error}")
    entry = CATALOGUE[name]
    if not entry.tokens:
        low = np.array(entry.mean) - np.array(entry.deviation)
        high = np.array(entry.mean) + np.array(entry.deviation)
        assert (arrays["train_inputs"] >= low - 1e-6).all() and (arrays["train_inputs"] <= high + 1e-6).all()
