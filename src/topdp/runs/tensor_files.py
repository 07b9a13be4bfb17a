"""Arrays written as safetensors piece by piece: of many gigabytes, none is in memory twice.

The package's own writer makes bytes of an array first. Reading is left to it, but for
bfloat16, which it cannot hand to numpy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

NUMBERS_PER_WRITE = 1 << 24  # numbers written at once

DTYPE_NAMES = {"float32": "F32", "float64": "F64", "int64": "I64", "uint16": "BF16"}
"""numpy has no bfloat16: such numbers are their 16 bits here, and uint16 is nothing else."""


def widened(values: NDArray[Any]) -> NDArray[Any]:
    """Return `values` as numbers. Bits of bfloat16 are the first half of those of float32.

    >>> widened(np.array([0x3F80, 0xC040], np.uint16)).tolist()
    [1.0, -3.0]
    """
    if values.dtype != np.uint16:
        return values
    bits = values.astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def write_tensors(file: Path, tensors: Mapping[str, NDArray[Any]], notes: Mapping[str, str] | None) -> None:
    """`tensors` as one file; rows may stand apart in memory."""
    header: dict[str, Any] = {} if notes is None else {"__metadata__": dict(notes)}
    first = 0
    for name, values in tensors.items():
        size = values.size * values.itemsize
        offsets = [first, first + size]
        header[name] = {
            "dtype": DTYPE_NAMES[values.dtype.name],
            "shape": list(values.shape),
            "data_offsets": offsets,
        }
        first += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # numbers begin where processors like to read them
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            some = max(1, NUMBERS_PER_WRITE * len(values) // max(1, values.size))
            for start in range(0, len(values), some):
                piece = np.ascontiguousarray(values[start : start + some])
                out.write(piece.astype(piece.dtype.newbyteorder("<"), copy=False).data.cast("B"))


def read_tensor(file: Path, name: str) -> NDArray[Any]:
    """An array of such a file, whole; bfloat16 as its bits."""
    with safe_open(file, "numpy") as opened:
        if opened.get_slice(name).get_dtype() != "BF16":
            return np.asarray(opened.get_tensor(name))
    return np.array(mapped(file, name))


def mapped(file: Path, name: str) -> NDArray[Any]:
    """An array of such a file, of which only the parts in use are loaded; changes stay in memory."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        entry = json.loads(opened.read(length))[name]
    kind = next(kind for kind, known in DTYPE_NAMES.items() if known == entry["dtype"])
    offset = 8 + length + entry["data_offsets"][0]
    return np.memmap(file, np.dtype(kind), "c", offset, tuple(entry["shape"]))
