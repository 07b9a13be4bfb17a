"""Read folders of images as arrays: one folder per class, all images of one size. Colours are not changed.

**Guarantees.** Each image is read separately: nothing is fitted. The classes are the list in the schema if it
has one. Otherwise they are the names of the folders, which are assumed to be public.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from PIL import Image

from topdp.base.array_types import AnyArray
from topdp.data._dataset_decoding import DECODING_ERRORS
from topdp.data.readers.table_schema import EMPTY_SCHEMA, Schema, SchemaError
from topdp.data.record_checks import Records
from topdp.errors import DataError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
_PILLOW_MODES = {1: "L", 3: "RGB"}


def read_images(path: str | os.PathLike[str], schema: Schema = EMPTY_SCHEMA) -> Records:
    """Return the images in a folder with one folder per class: bytes [N, C, H, W] and class numbers [N].

    `schema.classes` lists the classes in order; by default they are the sorted names of the folders. If
    `schema.size` is [height, width], all images are resized to it; otherwise they must have one size. If
    `schema.channels` is 1 or 3, all images are converted to grey or to colour.
    """
    if schema.targets != ("",) or schema.inputs:
        raise SchemaError(
            f"{path}: expected classes, size and channels for images, got columns of a table. "
            "Remove the columns from the schema."
        )
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise DataError(f"Expected a folder of images, got {folder}, which is not a folder.")
    inside = (entry for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != ".")
    folders = tuple(sorted(entry.name for entry in inside))
    classes = schema.classes or folders
    unknown = [name for name in folders if name not in classes]
    if unknown:
        raise DataError(
            f"{folder}: expected folders named {', '.join(classes)}, got {unknown[0]!r}. "
            "Rename the folder, or add the class to the schema."
        )
    images: list[AnyArray] = []
    numbers: list[int] = []
    first: tuple[Path, AnyArray] | None = None
    for number, name in enumerate(classes):
        for file in _image_files(folder / name):
            image = _read(file, schema)
            first = first or (file, image)
            if image.shape != first[1].shape:
                raise DataError(
                    f"{file}: expected {_describe_image(first[1])} as {first[0].name}, got "
                    f"{_describe_image(image)}. State a size (and channels, 1 or 3) to which all images "
                    "are converted."
                )
            images.append(image)
            numbers.append(number)
    if not images:
        raise DataError(
            f"{folder}: expected images ({' '.join(IMAGE_SUFFIXES)}) in one folder per class, got none."
        )
    return Records(np.stack(images), np.array(numbers, np.int64), len(classes), class_names=classes)


def _image_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    files = sorted(entry for entry in folder.iterdir() if entry.is_file() and entry.name[0] != ".")
    for file in files:
        if file.suffix.lower() not in IMAGE_SUFFIXES:
            raise DataError(f"{file}: expected an image ({' '.join(IMAGE_SUFFIXES)}), got {file.suffix!r}.")
    return files


def _read(file: Path, schema: Schema) -> AnyArray:
    try:
        with Image.open(file) as opened:
            grey = opened.mode in ("1", "L", "LA", "I", "I;16", "F")
            channels = schema.channels or (1 if grey else 3)
            if opened.mode.startswith(("I", "F")):
                raise DataError(
                    f"{file}: expected 8 bits per colour, got mode {opened.mode!r}. Convert the image."
                )
            image = opened.convert(_PILLOW_MODES[channels])
            if schema.size is not None and (image.height, image.width) != schema.size:
                height, width = schema.size
                image = image.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(image, np.uint8)
    except (*DECODING_ERRORS, Image.DecompressionBombError) as error:
        raise DataError(f"{file}: cannot be read as an image ({error}).") from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _describe_image(image: AnyArray) -> str:
    channels, height, width = image.shape
    return f"{height} x {width} pixels in {'grey' if channels == 1 else 'colour'}"
