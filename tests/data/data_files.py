"""Small data sets in every format in which the real ones are published, so that no test needs the network."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
from PIL import Image

from topdp.data._dataset_decoding import ARRAY_NAMES, Arrays


def small_arrays(name: str, seed: int = 0) -> Arrays:
    """A dozen training and a few test images in the form of the data set `name`."""
    generator = np.random.default_rng(seed)
    image = (3, 32, 32) if name == "cifar10" else (1, 28, 28)
    train, test = (10, 2) if name == "cifar10" else (12, 5)
    sizes = ((train, *image), (train,), (test, *image), (test,))
    tops = (256, 10, 256, 10)
    arrays = [generator.integers(0, top, size, dtype=np.uint8) for top, size in zip(tops, sizes, strict=True)]
    return dict(zip(ARRAY_NAMES, arrays, strict=True))


def write_idx(folder: Path, arrays: Arrays, *, packed: bool = True) -> list[Path]:
    """The four idx files of `arrays`, under the original names."""
    folder.mkdir(parents=True, exist_ok=True)
    stems = (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )
    paths = []
    for name, stem in zip(ARRAY_NAMES, stems, strict=True):
        array = arrays[name][:, 0] if arrays[name].ndim == 4 else arrays[name]
        header = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
        content = header + array.tobytes()
        path = folder / (stem + (".gz" if packed else ""))
        path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
        paths.append(path)
    return paths


def write_csv(folder: Path, arrays: Arrays) -> None:
    """`mnist_train.csv` and `mnist_test.csv` of `arrays`."""
    folder.mkdir(parents=True, exist_ok=True)
    header = ",".join(["label", *(f"{i}x{j}" for i in range(1, 29) for j in range(1, 29))])
    for part in ("train", "test"):
        rows = zip(arrays[f"{part}_labels"], arrays[f"{part}_inputs"].reshape(-1, 784), strict=True)
        lines = [",".join(map(str, [label, *pixels])) for label, pixels in rows]
        (folder / f"mnist_{part}.csv").write_text("\n".join([header, *lines, ""]))


def write_sheets(folder: Path, arrays: Arrays) -> None:
    """The six PNG sheets and two label lists of `arrays` (a fifth of the training images per sheet)."""
    folder.mkdir(parents=True, exist_ok=True)
    sheets = [*np.split(arrays["train_inputs"], 5), arrays["test_inputs"]]
    for name, images in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], sheets, strict=True):
        pixels = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).reshape(len(images), 1024, 3)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps(arrays["train_labels"].tolist()))
    (folder / "test_lables.json").write_text(json.dumps(arrays["test_labels"].tolist()))


def write_batches(folder: Path, arrays: Arrays) -> None:
    """The six files of CIFAR-10's binary version."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [
        *zip(np.split(arrays["train_labels"], 5), np.split(arrays["train_inputs"], 5), strict=True),
        (arrays["test_labels"], arrays["test_inputs"]),
    ]
    for name, (labels, images) in zip(
        [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], parts, strict=True
    ):
        np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1).tofile(
            folder / f"{name}.bin"
        )


def same(left: Arrays, right: Arrays) -> bool:
    return all(
        np.array_equal(left[name], right[name]) and left[name].dtype == np.uint8 for name in ARRAY_NAMES
    )
