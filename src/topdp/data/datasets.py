"""Data sets by name or by path, as arrays fit for training. Who holds which record: see `partitions`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topdp.data import own
from topdp.data.catalogue import CATALOGUE
from topdp.data.checks import Array
from topdp.data.fetch import cache_file, fetch, from_folder, known
from topdp.data.progress import Progress


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records to learn from and records to test on.

    `train_inputs` and `test_inputs` are [records, ...]; for the data sets we know uint8 [N, C, H, W]. Targets
    are [records, ...] in int64, float32 or float64; where there are `classes`, labels in 0..classes-1.
    Without test records nothing is evaluated.

    Guarantees: `mean` and `deviation` are public constants fixed in the catalogue (none for a user's own
    data). Nothing here is computed from the records, so preparing them costs no privacy.

    >>> import numpy as np
    >>> x, y = np.zeros((4, 3)), np.zeros(4, int)
    >>> some = Dataset("own", x, y, x[:2], y[:2], classes=2)
    >>> some.train()[0].shape, some.train()[0].dtype.name
    ((4, 3), 'float32')
    """

    name: str
    train_inputs: Array
    train_targets: Array
    test_inputs: Array | None
    test_targets: Array | None
    classes: int | None
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    def scale(self, inputs: Array) -> npt.NDArray[np.float32]:
        """`inputs` as float32 for a model: bytes divided by 255, then (x - mean) / deviation per channel."""
        factor = np.float32(1 / 255 if inputs.dtype == np.uint8 else 1)
        if not self.mean:
            scaled: npt.NDArray[np.float32] = inputs.astype(np.float32)
            if factor != 1:
                scaled *= factor
            return scaled
        channels = (-1,) + (1,) * (inputs.ndim - 2)
        deviation = np.array(self.deviation, np.float32).reshape(channels)
        scaled = np.multiply(inputs, factor / deviation, dtype=np.float32)
        scaled -= np.array(self.mean, np.float32).reshape(channels) / deviation
        return scaled

    def train(self) -> tuple[npt.NDArray[np.float32], Array]:
        """All training inputs, scaled, and their targets."""
        return self.scale(self.train_inputs), self.train_targets

    def test(self) -> tuple[npt.NDArray[np.float32], Array] | None:
        """All test inputs, scaled, and their targets; None where there are none."""
        if self.test_inputs is None or self.test_targets is None:
            return None
        return self.scale(self.test_inputs), self.test_targets


class Available(NamedTuple):
    """One line of `topdp data list`."""

    name: str
    cached: bool
    bytes: int
    description: str


def load(
    name: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    progress: Progress | None = None,
) -> Dataset:
    """The data set `name`: one of `CATALOGUE`, fetched and verified, or the path of a user's own arrays.

    A name of the catalogue wins over a path of the same spelling; write `./mnist` for a folder. What a path
    may hold is said in `topdp.data.own`.

    >>> import numpy as np
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     x, y = np.zeros((6, 2)), np.arange(6) % 3
    ...     np.savez(f"{folder}/own.npz", train_inputs=x, train_labels=y, test_inputs=x, test_labels=y)
    ...     load(f"{folder}/own.npz").classes
    3
    """
    if not isinstance(name, str) or name not in CATALOGUE:
        text = os.fspath(name)
        if os.sep not in text and not text.endswith(".npz") and not os.path.exists(text):
            known(text)
        arrays = own.read(text)
        test_inputs, test_targets = arrays.test or (None, None)
        return Dataset(text, *arrays.train, test_inputs, test_targets, arrays.classes)
    entry = known(name)
    stored = from_folder(entry, data_dir)
    if stored is None:
        stored = fetch(name, data_dir=data_dir, download=download, progress=progress).arrays
        if progress is not None:
            progress("")
    return Dataset(
        name=name,
        train_inputs=stored["train_inputs"],
        train_targets=stored["train_labels"].astype(np.int64),
        test_inputs=stored["test_inputs"],
        test_targets=stored["test_labels"].astype(np.int64),
        classes=entry.classes,
        mean=entry.mean,
        deviation=entry.deviation,
    )


def available() -> list[Available]:
    """The data sets we know, whether the cache holds each, and its size there.

    >>> [(row.name, row.bytes) for row in available() if row.name == "mnist"]
    [('mnist', 54950000)]
    """
    return [
        Available(entry.name, cache_file(entry.name).exists(), entry.bytes, entry.description)
        for entry in CATALOGUE.values()
    ]
