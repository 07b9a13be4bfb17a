"""Rows as bytes: safetensors with one tensor named `row`, and nothing else. No pickle.

safetensors rejects malformed headers, but accepts NaN, further tensors, other types and metadata. `decode`
accepts only a row of the length and type that the manifest determines. It does not know the
sender, which the transport authenticates.
"""

from __future__ import annotations

import json
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from topdp.errors import InputError

TENSOR_NAME = "row"
ROW_TYPES = {"float32": "F32", "float64": "F64"}
"""The types that a row may have: their names in a manifest, and in safetensors."""

MAX_HEADER_BYTES = 512
"""The header of one row has about 70 bytes."""


class PayloadError(InputError):
    """Bytes that are not a row of this federation; the message states what was expected and what arrived."""


def largest_size(d: int, dtype: str = "float32") -> int:
    """Return the largest number of bytes that `decode` accepts for a row of d numbers."""
    return 8 + MAX_HEADER_BYTES + d * np.dtype(dtype).itemsize


def encode(row: NDArray[Any]) -> bytes:
    """Return the bytes of a row, which has one dimension and is float32 or float64.

    >>> decode(encode(np.ones(3, np.float32)), 3).tolist()
    [1.0, 1.0, 1.0]
    """
    if row.ndim != 1 or row.dtype.name not in ROW_TYPES:
        raise PayloadError(
            f"Expected a row of one dimension of {' or '.join(ROW_TYPES)}, got {row.dtype} of shape "
            f"{row.shape}."
        )
    if not np.isfinite(row).all():
        raise PayloadError("Expected finite numbers in a row to send, got NaN or infinity.")
    return save({TENSOR_NAME: np.ascontiguousarray(row)})


def decode(data: bytes, d: int, dtype: str = "float32", largest_norm: float = float("inf")) -> NDArray[Any]:
    """Return the row of d numbers in `data`; raise a PayloadError that names the fault if it is none."""
    if len(data) > largest_size(d, dtype):
        raise PayloadError(f"Expected at most {largest_size(d, dtype)} bytes for a row, got {len(data)}.")
    row_bytes = d * np.dtype(dtype).itemsize
    entry = [["data_offsets", [0, row_bytes]], ["dtype", ROW_TYPES[dtype]], ["shape", [d]]]
    header, header_end = _read_header(data)
    if json.dumps(header) != json.dumps([[TENSOR_NAME, entry]]):  # unlike Python, JSON tells 1 from true
        expected = f"one tensor named {TENSOR_NAME!r} with {entry}, and nothing else"
        raise PayloadError(f"Expected the safetensors header of {expected}, got {header!r:.120}.")
    if (got := len(data) - header_end) != row_bytes:
        raise PayloadError(f"Expected {row_bytes} bytes after the safetensors header, got {got}.")
    row = np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), offset=header_end).astype(dtype)
    if not np.isfinite(row).all():
        raise PayloadError("Expected finite numbers in the row, got NaN or infinity.")
    with np.errstate(over="ignore"):
        norm = float(np.linalg.norm(row.astype(np.float64)))
    if not norm <= largest_norm:
        raise PayloadError(f"Expected a row of norm at most {largest_norm:g}, got {norm:g}.")
    return row


def _read_header(data: bytes) -> tuple[Any, int]:
    """Return the JSON header, with objects as sorted lists of their entries, and the position of its end.

    In a dict, a second entry of the same name would be lost.
    """
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= size <= min(MAX_HEADER_BYTES, len(data) - 8):
        raise PayloadError(
            f"Expected a safetensors header of 2 to {MAX_HEADER_BYTES} bytes, got {len(data)} bytes that "
            f"announce one of {size}."
        )
    try:
        text = data[8 : 8 + size].decode("utf-8")
        header = json.loads(
            text, object_pairs_hook=lambda entries: sorted(map(list, entries), key=itemgetter(0))
        )
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise PayloadError("Expected JSON in the safetensors header, got something else.") from None
    return header, 8 + size
