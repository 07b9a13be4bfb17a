"""Arrays in safetensors files, written piece by piece, so that no array is in memory twice.

The writer of the package safetensors first copies an array to bytes. Files are read with the package, except
for bfloat16, which it cannot return as a numpy array.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

NUMBERS_PER_WRITE = 1 << 24

# The type of a tensor in a file, by its numpy type. numpy has no bfloat16: uint16 means bits of bfloat16.
DTYPE_NAMES = {"float32": "F32", "float64": "F64", "int64": "I64", "uint16": "BF16"}


def widened(values: NDArray[Any]) -> NDArray[Any]:
    """Return bits of bfloat16, stored as uint16, as float32, and other arrays unchanged.

    The 16 bits of a bfloat16 number are the upper half of the bits of the same float32 number.

    >>> widened(np.array([0x3F80, 0xC040], np.uint16)).tolist()
    [1.0, -3.0]
    """
    if values.dtype != np.uint16:
        return values
    bits = values.astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def write_tensors(file: Path, tensors: Mapping[str, NDArray[Any]], notes: Mapping[str, str] | None) -> None:
    """Write `tensors`, with `notes` as their metadata, to one file. Rows need not be adjacent in memory."""
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
    text += b" " * (-len(text) % 8)  # aligns the numbers to 8 bytes
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            rows = max(1, NUMBERS_PER_WRITE * len(values) // max(1, values.size))
            for start in range(0, len(values), rows):
                piece = np.ascontiguousarray(values[start : start + rows])
                out.write(piece.astype(piece.dtype.newbyteorder("<"), copy=False).data.cast("B"))


def read_tensor(file: Path, name: str) -> NDArray[Any]:
    """Return the array `name` in `file`, loaded as a whole; bfloat16 as its bits."""
    with safe_open(file, "numpy") as opened:
        if opened.get_slice(name).get_dtype() != "BF16":
            return np.asarray(opened.get_tensor(name))
    return np.array(mapped(file, name))


def mapped(file: Path, name: str) -> NDArray[Any]:
    """Return the array `name` as a memory map of `file`; bfloat16 as its bits.

    Only the parts in use are loaded. Changes to the array stay in memory.
    """
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        entry = json.loads(opened.read(length))[name]
    kind = next(kind for kind, name_in_file in DTYPE_NAMES.items() if name_in_file == entry["dtype"])
    offset = 8 + length + entry["data_offsets"][0]
    return np.memmap(file, np.dtype(kind), "c", offset, tuple(entry["shape"]))
