"""Tests of rows on the wire: encoding and decoding are inverse, and anything else is refused by name."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import save

from topdp.agents.wire.row_payload import PayloadError, decode, encode, largest_size

D = 5


def good(dtype=np.float32):
    return np.arange(D, dtype=dtype) - 2


def raw(header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(dtype="F32", shape=(D,), start=0, end=4 * D):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


BYTES = good().tobytes()
NAN = good().copy()
NAN[3] = np.nan
INFINITE = good().copy()
INFINITE[0] = -np.inf

BAD = {
    "nan": (save({"row": NAN}), "finite"),
    "inf": (save({"row": INFINITE}), "finite"),
    "extra tensor": (save({"row": good(), "more": np.zeros(1, np.float32)}), "one tensor"),
    "other name": (save({"rows": good()}), "one tensor"),
    "no tensor": (raw({}, b""), "one tensor"),
    "metadata": (save({"row": good()}, {"note": "x"}), r"nothing else, got .*__metadata__"),
    "short": (save({"row": good()[:-1]}), r"got .*\'shape\', \[4\]"),
    "long": (save({"row": np.zeros(D + 1, np.float32)}), r"got .*\'shape\', \[6\]"),
    "matrix": (save({"row": good().reshape(1, D)}), r"got .*\'shape\', \[1, 5\]"),
    "scalar": (save({"row": np.array(1, np.float32)}), r"got .*\'shape\', \[\]"),
    "half": (save({"row": good(np.float16)}), r"F32.*got .*F16"),
    "double": (save({"row": good(np.float64)}), r"F32.*got .*F64"),
    "whole numbers": (save({"row": good(np.int32)}), r"F32.*got .*I32"),
    "norm": (save({"row": np.full(D, 1e3, np.float32)}), "norm"),
    "oversized": (save({"row": np.zeros(D + 1000, np.float32)}), "at most"),
    "empty": (b"", "header"),
    "no header": (b"\x00" * 8, "header"),
    "header beyond the end": (struct.pack("<Q", 400) + b"{}", "header"),
    "huge header": (struct.pack("<Q", 2**63) + b"{}", "header"),
    "not JSON": (raw(b"{row", BYTES), "JSON"),
    "not UTF-8": (raw(b'{"\xff": 1}', BYTES), "JSON"),
    "deep": (raw(b"[" * 500, b""), "JSON"),
    "list": (raw(b"[1, 2]", BYTES), r"one tensor .*got \[1, 2\]"),
    "twice": (
        raw(b'{"row": 1, "row": %s}' % json.dumps(entry()).encode(), BYTES),
        r"nothing else, got \[\['row', 1\], \['row', ",
    ),
    "trailing bytes": (encode(good()) + b"\x00", "20 bytes after the safetensors header, got 21"),
    "missing bytes": (encode(good())[:-1], "20 bytes after the safetensors header, got 19"),
    "hole": (
        raw({"row": entry(start=4, end=4 + 4 * D)}, b"\x00" * 4 + BYTES),
        r"got .*'data_offsets', \[4, 24\]",
    ),
    "fractional length": (raw({"row": entry(shape=[5.0])}, BYTES), r"got .*'shape', \[5.0\]"),
    "pickle": (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00.", "header"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_payloads_are_refused_by_name(case):
    data, word = BAD[case]
    with pytest.raises(PayloadError, match=word):
        decode(data, D, "float32", 100.0)


@given(
    dtype=st.sampled_from(["float32", "float64"]),
    data=st.data(),
    length=st.integers(1, 40),
)
def test_decoding_inverts_encoding(dtype, data, length):
    width = 32 if dtype == "float32" else 64
    row = data.draw(
        arrays.arrays(dtype, length, elements=st.floats(allow_nan=False, allow_infinity=False, width=width))
    )
    sent = encode(row)
    assert len(sent) <= largest_size(length, dtype)
    with np.errstate(over="ignore"):
        huge = not np.isfinite(np.linalg.norm(row.astype(float)))
    if huge:
        with pytest.raises(PayloadError, match="norm"):
            decode(sent, length, dtype, 1e308)
        return
    found = decode(sent, length, dtype)
    assert found.dtype == row.dtype and found.tobytes() == row.tobytes() and found.flags.writeable


def test_encoding_refuses_invalid_rows():
    for row in (NAN, good().reshape(1, D), good(np.int64)):
        with pytest.raises(PayloadError):
            encode(row)
    assert decode(encode(np.zeros(2 * D, np.float32)[::2]), D).tolist() == [0] * D


def test_the_norm_bound_is_inclusive():
    row = np.array([3, 4], np.float32)
    assert decode(encode(row), 2, largest_norm=5.0).tolist() == [3, 4]
    with pytest.raises(PayloadError, match="norm"):
        decode(encode(row), 2, largest_norm=4.999)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data):
    with pytest.raises(PayloadError):
        decode(data, D)


@settings(max_examples=300)
@given(at=st.integers(0, len(encode(good())) - 1), value=st.integers(0, 255))
def test_a_changed_byte_gives_a_finite_row_or_is_refused(at, value):
    data = bytearray(encode(good()))
    data[at] = value
    try:
        row = decode(bytes(data), D)
    except PayloadError:
        return
    assert row.shape == (D,) and row.dtype == np.float32 and np.isfinite(row).all()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["row", "dtype", "shape", "data_offsets", "__metadata__", "x"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    )
)
def test_any_header_is_refused_unless_it_describes_the_expected_row(header):
    try:
        row = decode(raw(header, BYTES), D)
    except PayloadError:
        return
    assert row.tobytes() == BYTES
