"""Arrays written as safetensors piece by piece: of many gigabytes, none is in memory twice.

The package's own writer makes bytes of an array first. Reading whole files is left to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE = 1 << 24  # numbers written at once

NAMES = {"float32": "F32", "float64": "F64", "int64": "I64"}


def write_tensors(file: Path, tensors: Mapping[str, NDArray[Any]], notes: Mapping[str, str] | None) -> None:
    """`tensors` as one file; rows may stand apart in memory."""
    header: dict[str, Any] = {} if notes is None else {"__metadata__": dict(notes)}
    first = 0
    for name, values in tensors.items():
        size = values.size * values.itemsize
        offsets = [first, first + size]
        header[name] = {
            "dtype": NAMES[values.dtype.name],
            "shape": list(values.shape),
            "data_offsets": offsets,
        }
        first += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # numbers begin where processors like to read them
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            some = max(1, PIECE * len(values) // max(1, values.size))
            for start in range(0, len(values), some):
                piece = np.ascontiguousarray(values[start : start + some])
                out.write(piece.astype(piece.dtype.newbyteorder("<"), copy=False).data.cast("B"))


def mapped(file: Path, name: str) -> NDArray[Any]:
    """An array of such a file, of which only what is looked at comes into memory; changes stay there."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        found = json.loads(opened.read(length))[name]
    kind = next(kind for kind, known in NAMES.items() if known == found["dtype"])
    offset = 8 + length + found["data_offsets"][0]
    return np.memmap(file, np.dtype(kind), "c", offset, tuple(found["shape"]))
