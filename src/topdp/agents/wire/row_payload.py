"""Rows on the wire: safetensors bytes with one tensor named `row`, and nothing else. No pickle.

safetensors refuses malformed headers, but accepts NaN, extra tensors, other types and text beside the
tensors; `decode` accepts only a row of the length and type that the manifest says. It does not know the
sender.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from topdp.errors import InputError

TENSOR_NAME = "row"
ROW_TYPES = {"float32": "F32", "float64": "F64"}
"""The types that a row may have, by their names in a manifest and in safetensors."""

MAX_HEADER_BYTES = 512
"""Bytes; the header of one row takes about 70."""


class PayloadError(InputError):
    """Bytes that are not a row of this federation; the message says what was expected and what came."""


def largest_size(d: int, dtype: str = "float32") -> int:
    """The most bytes that `decode` reads for a row of d numbers."""
    return 8 + MAX_HEADER_BYTES + d * np.dtype(dtype).itemsize


def encode(row: NDArray[Any]) -> bytes:
    """The bytes of a row, float32 or float64, of one dimension.

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
    """The row of d numbers in `data`, or a PayloadError that names what is wrong with it."""
    if len(data) > largest_size(d, dtype):
        raise PayloadError(f"Expected at most {largest_size(d, dtype)} bytes for a row, got {len(data)}.")
    header = _header(data)
    if "__metadata__" in header:
        raise PayloadError("Expected no metadata beside the row, got some.")
    if list(header) != [TENSOR_NAME]:
        raise PayloadError(f"Expected one tensor named {TENSOR_NAME!r}, got {_shown(sorted(header))}.")
    entry = header[TENSOR_NAME] if isinstance(header[TENSOR_NAME], dict) else {}
    if entry.get("dtype") != ROW_TYPES[dtype]:
        raise PayloadError(f"Expected a row of {ROW_TYPES[dtype]}, got {_shown(entry.get('dtype'))}.")
    if entry.get("shape") != [d]:
        raise PayloadError(f"Expected a row of shape [{d}], got {_shown(entry.get('shape'))}.")
    try:
        row = load(data)[TENSOR_NAME].copy()  # what was loaded cannot be written to
    except (SafetensorError, ValueError) as error:
        raise PayloadError(f"Expected safetensors bytes: {_shown(str(error))}.") from None
    if row.dtype != dtype or row.shape != (d,):
        raise PayloadError(f"Expected a row of {d} {dtype}, got {row.dtype} of shape {row.shape}.")
    if not np.isfinite(row).all():
        raise PayloadError("Expected finite numbers in the row, got NaN or infinity.")
    with np.errstate(over="ignore"):
        norm = float(np.linalg.norm(row.astype(np.float64)))
    if not norm <= largest_norm:
        raise PayloadError(f"Expected a row of norm at most {largest_norm:g}, got {norm:g}.")
    return row


def _header(data: bytes) -> dict[str, Any]:
    """The header, before safetensors reads it: that would hide metadata and repeated names."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, len(data) - 8):
        raise PayloadError(
            f"Expected a safetensors header of 2 to {MAX_HEADER_BYTES} bytes, got {len(data)} bytes that "
            f"announce one of {length}."
        )

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise PayloadError("Expected every name once in the safetensors header, got one twice.")
        return dict(pairs)

    try:
        header = json.loads(data[8 : 8 + length].decode("utf-8"), object_pairs_hook=once)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise PayloadError("Expected JSON in the safetensors header, got something else.") from None
    if not isinstance(header, dict):
        raise PayloadError(f"Expected a JSON object as safetensors header, got {_shown(header)}.")
    return header


def _shown(value: object) -> str:
    """A peer's words, short and on one line, whatever they are."""
    return f"{value!r:.80}"
