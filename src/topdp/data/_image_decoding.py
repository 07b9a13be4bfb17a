"""Files of published image data sets, in all their formats, to arrays. Reads only; `fetch` downloads.

A reader takes a folder and returns the four arrays of a data set (pixels and labels as uint8, images as [N,
C, H, W]), or None if the folder does not hold its format. An existing but damaged file is a `DataError` that
names the file. Nothing is unpickled: of CIFAR-10 the binary version is read, not the Python version.
"""

from __future__ import annotations

import gzip
import json
import math
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from topdp.base import files
from topdp.data._npz_files import read_arrays
from topdp.errors import DataError

Bytes = npt.NDArray[np.uint8]
Arrays = dict[str, npt.NDArray[Any]]
ARRAY_NAMES = ("train_inputs", "train_labels", "test_inputs", "test_labels")
DECODING_ERRORS = (*files.UNREADABLE_FILE_ERRORS, tarfile.TarError, SyntaxError)
"""What the readers of the standard library, numpy and Pillow raise on bytes that they cannot decode; Pillow
reports a broken PNG chunk as a SyntaxError.
"""


def damage_error(path: Path, why: object) -> DataError:
    return DataError(
        f"{path} is unreadable, damaged or truncated ({why}). Replace it, or delete it and fetch again."
    )


@contextmanager
def name_damaged_file(path: Path) -> Iterator[None]:
    """Raise a `DataError` that names `path` if its content cannot be decoded."""
    try:
        yield
    except DECODING_ERRORS as error:
        raise damage_error(path, error) from error


def read_idx(path: Path) -> Bytes:
    """Read an idx file of unsigned bytes, plain or gzipped (magic 0, 0, 8, number of dimensions)."""
    with name_damaged_file(path):
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        if len(content) < 4 or content[:3] != b"\0\0\x08" or not 1 <= content[3] <= 4:
            raise ValueError(f"expected an idx file of bytes, got the magic number {content[:4].hex()}")
        start = 4 + 4 * content[3]
        shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
        size = start + math.prod(shape)
        if len(content) != size:
            raise ValueError(f"expected {size} bytes for shape {shape}, got {len(content)}")
        return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def idx_files(folder: Path) -> Arrays | None:
    """Read the four files of MNIST and Fashion-MNIST under their original names, with or without `.gz`."""
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    # As downloaded, unpacked, and with the dot that some unpackers write for the dash.
    spellings = [
        (f"{stem}-ubyte.gz", f"{stem}-ubyte", f"{stem}-ubyte".replace("-idx", ".idx")) for stem in stems
    ]
    paths = _find_files(folder, spellings)
    if paths is None:
        return None
    arrays: Arrays = {}
    for name, path in zip(ARRAY_NAMES, paths, strict=True):
        array = read_idx(path)
        arrays[name] = array[:, None] if array.ndim == 3 else array
    return arrays


def csv_files(folder: Path) -> Arrays | None:
    """Read `mnist_train.csv` and `mnist_test.csv`: a header line, then a label and 784 pixels per line."""
    paths = _find_files(folder, [("mnist_train.csv",), ("mnist_test.csv",)])
    if paths is None:
        return None
    train, test = (_small_integers(path, columns=785) for path in paths)
    return _split_labels(train, test, (1, 28, 28))


def cifar_batches(folder: Path) -> Arrays | None:
    """Read CIFAR-10's binary version: six files of records of one label byte and 3,072 pixels."""
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    paths = _find_files(folder, [(name,) for name in names])
    if paths is None:
        return None
    records = []
    for path in paths:
        with name_damaged_file(path):
            records.append(np.fromfile(path, np.uint8).reshape(-1, 3073))
    return _split_labels(np.concatenate(records[:5]), records[5], (3, 32, 32))


def _split_labels(train: Bytes, test: Bytes, shape: tuple[int, ...]) -> Arrays:
    """Return the four arrays of rows that begin with a label, followed by the pixels."""
    parts = (train[:, 1:].reshape(-1, *shape), train[:, 0], test[:, 1:].reshape(-1, *shape), test[:, 0])
    return {name: np.ascontiguousarray(part) for name, part in zip(ARRAY_NAMES, parts, strict=True)}


def cifar_sheets(folder: Path) -> Arrays | None:
    """Read six lossless PNG sheets, one image per line of 1,024 RGB pixels; labels are two JSON lists."""
    names = [*(f"data_batch_{number}.png" for number in range(1, 6)), "test_batch.png"]
    names += ["train_lables.json", "test_lables.json"]  # the package's own spelling
    paths = _find_files(folder, [(name,) for name in names])
    if paths is None:
        return None
    images = []
    for path in paths[:6]:
        with name_damaged_file(path), Image.open(path) as sheet:
            pixels = np.asarray(sheet, np.uint8)
            images.append(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))
    labels = []
    for path in paths[6:]:
        with name_damaged_file(path):
            labels.append(np.array(json.loads(path.read_text()), np.uint8))
    train, test = np.concatenate(images[:5]), images[5]
    contiguous = (np.ascontiguousarray(train), labels[0], np.ascontiguousarray(test), labels[1])
    return dict(zip(ARRAY_NAMES, contiguous, strict=True))


def read_cached_arrays(path: Path) -> Arrays | None:
    """Read a cache file of topdp: one uncompressed `.npz` with the four arrays."""
    if not path.is_file():
        return None
    with name_damaged_file(path):
        arrays = read_arrays(path)
        return {name: arrays[name] for name in ARRAY_NAMES}


def unpack(archive: Path, into: Path, wanted: Callable[[str], bool]) -> None:
    """Extract the `wanted` members (by base name) of a `.tgz`, `.whl` or `.deb` into the folder `into`,
    without subfolders.
    """
    try:
        if archive.suffix == ".deb":
            _unpack_deb(archive, into)
        elif zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as package:
                for member in package.infolist():
                    if wanted(Path(member.filename).name):
                        _save(package.open(member), into / Path(member.filename).name)
        else:
            with tarfile.open(archive) as tar:
                for entry in tar:
                    if (
                        wanted(Path(entry.name).name)
                        and entry.isfile()
                        and (source := tar.extractfile(entry))
                    ):
                        _save(source, into / Path(entry.name).name)
    except DECODING_ERRORS as error:
        # gzip reports a damaged stream as an OSError without errno. A full disk sets errno and is not damage.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise damage_error(archive, error) from error


def _save(source: IO[bytes], path: Path) -> None:
    with source, path.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)


def _unpack_deb(archive: Path, into: Path) -> None:
    tool = shutil.which("dpkg-deb")
    if tool is None:
        raise DataError(
            f"{archive}: expected the tool dpkg-deb to unpack it, which is not installed. It exists on "
            "Debian-like Linux systems; elsewhere use another source."
        )
    tree = into / "package"
    done = subprocess.run([tool, "-x", str(archive), str(tree)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise damage_error(archive, done.stderr.strip() or f"dpkg-deb ended with {done.returncode}")
    for path in tree.rglob("*-ubyte.gz"):
        path.rename(into / path.name)


def _find_files(folder: Path, spellings: Sequence[tuple[str, ...]]) -> list[Path] | None:
    """Return, for each file, the first of its spellings that is in `folder`; None if no file exists.
    Otherwise all must exist.
    """
    matches = [
        next((folder / name for name in names if (folder / name).is_file()), None) for names in spellings
    ]
    paths = [path for path in matches if path is not None]
    if paths and len(paths) < len(matches):
        missing = [names[0] for names, path in zip(spellings, matches, strict=True) if path is None]
        raise DataError(f"{folder} is incomplete: {', '.join(missing)} missing.")
    return paths or None


def _small_integers(path: Path, columns: int) -> Bytes:
    """Read the rows of a CSV file of integers 0..255 below a header line.

    128 MB take a few seconds; `numpy.loadtxt` takes half a minute.
    """
    with name_damaged_file(path), path.open("rb") as file:
        file.readline()
        text = file.read().rstrip().replace(b"\n", b",")
        values = np.fromstring(text, np.int16, sep=",").reshape(-1, columns)
        if values.min() < 0 or values.max() > 255:
            raise ValueError(f"expected lines of {columns} integers in 0..255")
        return values.astype(np.uint8)
