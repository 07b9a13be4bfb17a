"""Decode the files of published data sets, in all their formats, to arrays. Reads only; `fetch` downloads.

A reader takes a folder and returns the four arrays of a data set, or None if the folder does not contain the
format of the reader. It raises a `DataError` that names the file if a file exists but is damaged. Images
become bytes [N, C, H, W]. Tables and texts are published without a test part: every fifth record, in the
order of the file, becomes a test record. Nothing is unpickled: of CIFAR-10, only the binary version is read.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from PIL import Image

from topdp.base.array_types import AnyArray, Floats
from topdp.base.files import UNREADABLE_FILE_ERRORS, read_arrays
from topdp.data.readers.token_ids import token_ids
from topdp.errors import DataError

Bytes = npt.NDArray[np.uint8]
Arrays = dict[str, AnyArray]
ARRAY_NAMES = ("train_inputs", "train_labels", "test_inputs", "test_labels")
DECODING_ERRORS = (*UNREADABLE_FILE_ERRORS, tarfile.TarError, SyntaxError)
"""What the standard library, numpy and Pillow raise for bytes that they cannot decode. Pillow reports a
broken PNG chunk as a SyntaxError.
"""
SPAM_TOKENS = 128
SPAM_VOCABULARY = 4096
_MARKUP = re.compile(r"<[^>]{0,2000}>")


def damage_error(path: Path, why: object) -> DataError:
    return DataError(
        f"{path} is unreadable, damaged or truncated ({why}). Replace it, or delete it and fetch it again."
    )


@contextmanager
def name_damaged_file(path: Path) -> Iterator[None]:
    """Raise a `DataError` that names `path` if its content cannot be decoded."""
    try:
        yield
    except DECODING_ERRORS as error:
        raise damage_error(path, error) from error


def read_idx(path: Path) -> Bytes:
    """Return the array in an idx file of bytes, plain or gzipped. Its magic number is 0, 0, 8, dimensions."""
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
    """Return the arrays in the four files of MNIST or Fashion-MNIST, with or without the suffix `.gz`."""
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    # The name as downloaded, as unpacked, and with the dot that some unpackers write instead of the dash.
    spellings = [
        (f"{stem}-ubyte.gz", f"{stem}-ubyte", f"{stem}-ubyte".replace("-idx", ".idx")) for stem in stems
    ]
    paths = _find_files(folder, spellings)
    if paths is None:
        return None
    arrays = map(read_idx, paths)
    return _name_arrays(*(array[:, None] if array.ndim == 3 else array for array in arrays))


def csv_files(folder: Path) -> Arrays | None:
    """Return the arrays in `mnist_train.csv` and `mnist_test.csv`: below a header, a label and 784 pixels."""
    paths = _find_files(folder, [("mnist_train.csv",), ("mnist_test.csv",)])
    if paths is None:
        return None
    train, test = (_small_integers(path, columns=785) for path in paths)
    return _split_labels(train, test, (1, 28, 28))


def cifar_batches(folder: Path) -> Arrays | None:
    """Return the arrays in CIFAR-10's binary version: per record, a label byte and 3,072 pixels."""
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
    """Return the four arrays that follow from rows of one label and the pixels of an image."""
    train_images, test_images = (part[:, 1:].reshape(-1, *shape) for part in (train, test))
    return _name_arrays(train_images, train[:, 0], test_images, test[:, 0])


def _name_arrays(*arrays: AnyArray) -> Arrays:
    return {name: np.ascontiguousarray(array) for name, array in zip(ARRAY_NAMES, arrays, strict=True)}


def cifar_sheets(folder: Path) -> Arrays | None:
    """Return the arrays in six lossless PNG sheets, one image per line of 1,024 RGB pixels.

    Two JSON lists contain the labels.
    """
    names = [*(f"data_batch_{number}.png" for number in range(1, 6)), "test_batch.png"]
    names += ["train_lables.json", "test_lables.json"]  # as the package spells them
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
    return _name_arrays(train, labels[0], test, labels[1])


def breast_cancer(folder: Path) -> Arrays | None:
    """Return the arrays in scikit-learn's `breast_cancer.csv`.

    Below a line with counts, each line has 30 numbers and the label: 0 is malignant, 1 is benign.
    """
    file = folder / "breast_cancer.csv"
    if not file.is_file():
        return None
    table = _read_numbers(file, delimiter=",", skip=1, columns=31)
    return _split_every_fifth(table[:, :-1].astype(np.float32), table[:, -1].astype(np.uint8))


def diabetes(folder: Path) -> Arrays | None:
    """Return the arrays in scikit-learn's `diabetes_data_raw.csv.gz` and `diabetes_target.csv.gz`.

    The lines of the first file have ten numbers, those of the second file one.
    """
    files = [folder / "diabetes_data_raw.csv.gz", folder / "diabetes_target.csv.gz"]
    if not all(file.is_file() for file in files):
        return None
    inputs, targets = (
        _read_numbers(file, None, 0, columns) for file, columns in zip(files, (10, 1), strict=True)
    )
    return _split_every_fifth(inputs.astype(np.float32), targets[:, 0].astype(np.float32))


def spam_assassin(folder: Path) -> Arrays | None:
    """Return the arrays in JSON files with one message each, with its `text` and `group`. Label 1 is spam.

    Only the subject and the body of a message are used, because other headers reveal when and where the mail
    was gathered. Markup is removed. Only ASCII is read, so that ids are the same under every version of
    Unicode.
    """
    files = sorted(folder.glob("0????.*.json"))
    if not files:
        return None
    messages = []
    for file in files:
        with name_damaged_file(file):
            message = json.loads(file.read_text(encoding="utf-8"))
            messages.append((str(message["group"]), file.name, str(message["text"])))
    messages.sort()
    ids = token_ids([_message_text(text) for _, _, text in messages], SPAM_TOKENS, SPAM_VOCABULARY)
    spam = np.array([group.startswith("spam") for group, _, _ in messages])
    return _split_every_fifth(ids.astype(np.uint16), spam.astype(np.uint8))


def read_cached_arrays(path: Path) -> Arrays | None:
    """Return the arrays in a cache file of topdp, an uncompressed `.npz`; None if the file does not exist."""
    if not path.is_file():
        return None
    with name_damaged_file(path):
        arrays = read_arrays(path)
        return {name: arrays[name] for name in ARRAY_NAMES}


def unpack(archive: Path, into: Path, wanted: Callable[[str], bool]) -> None:
    """Extract members of a `.tgz`, `.whl` or `.deb` archive into the folder `into`, without subfolders.

    `wanted` decides for each member, by its base name, whether to extract it.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as package:
                for member in package.infolist():
                    if wanted(Path(member.filename).name):
                        _save(package.open(member), into / Path(member.filename).name)
        else:
            with _open_tar(archive) as tar:
                for entry in tar:
                    name = Path(entry.name).name
                    if wanted(name) and entry.isfile() and (source := tar.extractfile(entry)):
                        _save(source, into / name)
    except DECODING_ERRORS as error:
        # For a damaged stream, gzip raises an OSError without errno. An OSError with errno is a full disk.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise damage_error(archive, error) from error


def _save(source: IO[bytes], path: Path) -> None:
    with source, path.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)


def _open_tar(archive: Path) -> tarfile.TarFile:
    """Return the tar archive in the file `archive`, or inside it if it is a Debian package."""
    if archive.suffix != ".deb":
        return tarfile.open(archive)
    tool = shutil.which("dpkg-deb")
    if tool is None:
        raise DataError(
            f"{archive}: expected the tool dpkg-deb to unpack the archive, which is not installed. It exists "
            "on Debian-like Linux systems; on other systems use another source."
        )
    done = subprocess.run([tool, "--fsys-tarfile", str(archive)], capture_output=True, check=False)
    if done.returncode:
        raise damage_error(archive, done.stderr.decode(errors="replace").strip() or done.returncode)
    return tarfile.open(fileobj=io.BytesIO(done.stdout))


def _find_files(folder: Path, spellings: Sequence[tuple[str, ...]]) -> list[Path] | None:
    """Return, for each file, the path of the first of its spellings that exists in `folder`.

    Return None if no file exists. Raise DataError if some files exist and others do not.
    """
    matches = [
        next((folder / name for name in names if (folder / name).is_file()), None) for names in spellings
    ]
    paths = [path for path in matches if path is not None]
    if paths and len(paths) < len(matches):
        missing = [names[0] for names, path in zip(spellings, matches, strict=True) if path is None]
        raise DataError(f"{folder} is incomplete: {', '.join(missing)} missing. Add what is missing.")
    return paths or None


def _small_integers(path: Path, columns: int) -> Bytes:
    """Return the integers 0..255 in a CSV file, `columns` per row. The first line is a header.

    Reading 128 MB takes a few seconds; `numpy.loadtxt` takes half a minute.
    """
    with name_damaged_file(path), path.open("rb") as file:
        file.readline()
        text = file.read().rstrip().replace(b"\n", b",")
        values = np.fromstring(text, np.int16, sep=",").reshape(-1, columns)
        if values.min() < 0 or values.max() > 255:
            raise ValueError(f"expected lines of {columns} integers in 0..255")
        return values.astype(np.uint8)


def _message_text(message: str) -> str:
    headers, _, body = message.partition("\n\n")
    subject = re.search(r"^subject:(.*)$", headers, re.IGNORECASE | re.MULTILINE)
    text = f"{subject[1] if subject else ''} {_MARKUP.sub(' ', body)}"
    return text.encode("ascii", "replace").decode("ascii").replace("?", " ")


def _split_every_fifth(inputs: AnyArray, targets: AnyArray) -> Arrays:
    test = np.arange(len(inputs)) % 5 == 4
    return _name_arrays(inputs[~test], targets[~test], inputs[test], targets[test])


def _read_numbers(file: Path, delimiter: str | None, skip: int, columns: int) -> Floats:
    with name_damaged_file(file):
        table = np.loadtxt(file, delimiter=delimiter, skiprows=skip, ndmin=2, encoding="ascii")
        if table.shape[1] != columns:
            raise ValueError(f"expected lines of {columns} numbers")
        return table
