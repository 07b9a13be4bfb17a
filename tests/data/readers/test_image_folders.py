"""Folders of images: one folder per class, one size for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from topdp.data.readers._image_folders import read_images
from topdp.data.readers.record_paths import read_records
from topdp.data.readers.table_schema import Schema
from topdp.errors import DataError, InputError


def put(folder: Path, name: str, shape: tuple[int, ...] = (4, 6, 3), value: int = 9) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(shape, value, np.uint8)).save(folder / name)


def test_folders_are_classes_in_sorted_order_and_images_are_bytes(tmp_path: Path) -> None:
    put(tmp_path, "dog/b.png", value=2)
    put(tmp_path, "cat/a.png", value=1)
    put(tmp_path, "dog/a.png", value=3)
    records = read_images(tmp_path)
    images, numbers = records.inputs, records.targets
    assert images.shape == (3, 3, 4, 6) and images.dtype == np.uint8
    assert images[:, 0, 0, 0].tolist() == [1, 3, 2] and numbers.tolist() == [0, 1, 1]


def test_a_site_without_a_class_counts_all_stated_classes(tmp_path: Path) -> None:
    put(tmp_path, "dog/a.png")
    records = read_records(tmp_path, Schema.of({"classes": ["cat", "dog", "eel"]}))
    assert records.targets.tolist() == [1] and records.classes == 3


def test_images_are_converted_to_a_stated_size_and_to_grey(tmp_path: Path) -> None:
    put(tmp_path, "a/1.png", (4, 6, 3))
    put(tmp_path, "b/1.png", (8, 8))
    images = read_images(tmp_path, Schema.of({"size": [5, 7], "channels": 1})).inputs
    assert images.shape == (2, 1, 5, 7)


@pytest.mark.parametrize(
    ("files", "schema", "message"),
    [
        (
            {"a/1.png": (4, 4), "b/1.png": (5, 4)},
            {},
            "1.png: expected 4 x 4 pixels in grey as 1.png, got 5 x 4",
        ),
        ({"a/1.png": (4, 4), "b/1.png": (4, 4, 3)}, {}, "got 4 x 4 pixels in colour. State a size"),
        ({"a/1.png": (4, 4)}, {"classes": ["b", "c"]}, "expected folders named b, c, got 'a'"),
        ({}, {"classes": ["b", "c"]}, "expected images .* in one folder per class, got none"),
    ],
)
def test_unsuitable_folders_are_refused(
    tmp_path: Path, files: dict[str, tuple[int, ...]], schema: dict[str, Any], message: str
) -> None:
    for name, shape in files.items():
        put(tmp_path, name, shape)
    with pytest.raises(DataError, match=message):
        read_images(tmp_path, Schema.of(schema))


def test_other_files_and_damage_are_named(tmp_path: Path) -> None:
    put(tmp_path, "a/1.png")
    (tmp_path / "a" / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"notes.txt: expected an image"):
        read_images(tmp_path)
    (tmp_path / "a" / "notes.txt").rename(tmp_path / "a" / "2.png")
    with pytest.raises(DataError, match=r"2.png: cannot be read as an image"):
        read_images(tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        read_images(tmp_path / "absent")
    with pytest.raises(InputError, match="got columns of a table"):
        read_images(tmp_path, Schema.of({"target": "ill"}))
