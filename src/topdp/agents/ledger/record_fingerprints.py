"""Keyed digests by which a site recognises records: of single records, and of the file that contains them.

If the person is the unit of protection, a digest is that of a person's identifier instead of a record's
numbers.

The same numbers give the same digest in any order of records and from any file. Values are compared as
float32, because models read them as float32. Digests and their key stay in the site budget.

**Guarantees.** Records with the same numbers in the same columns are recognised, and so is every record of a
file whose bytes were used before, under any schema. Not recognised: another file in which the same records
are scaled or truncated, or whose columns are in another order.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from topdp.base.array_types import AnyArray

RECORD_DIGEST_BYTES = 16  # two of 10**9 records collide by chance once in 10**20


@dataclass(frozen=True)
class DataFingerprint:
    """The digests of a data set that the site budget records: one per record, and one of the source.

    `unit`: "record", or "person" if `records` has one digest per person.
    """

    records: frozenset[bytes]
    source: bytes
    unit: str = "record"

    @cached_property
    def name(self) -> bytes:
        """The digest of the whole data set; it does not depend on the order of the records."""
        return hashlib.sha256(b"".join(sorted(self.records)) + self.source).digest()


def fingerprint_records(key: bytes, inputs: AnyArray, targets: AnyArray, source: str) -> DataFingerprint:
    """Return the fingerprint of the records of one agent.

    `inputs` [records, ...] and `targets` [records, ...] are the numbers of the records; `source` is a file, a
    folder, or the name of a data set.

    >>> x, y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 0])
    >>> first = fingerprint_records(b"key", x, y, "numbers")
    >>> second = fingerprint_records(b"key", x[::-1].astype("float32"), y[::-1].astype("int32"), "others")
    >>> first.records == second.records, first.name == second.name
    (True, False)
    """
    count = len(targets)
    rows = np.hstack([_canonical_rows(inputs, count), _canonical_rows(targets, count)])
    digests = (hmac.digest(key, b"record\n" + row.tobytes(), "sha256")[:RECORD_DIGEST_BYTES] for row in rows)
    return DataFingerprint(
        frozenset(digests), hmac.digest(key, b"source\n" + _content_digest(source), "sha256")
    )


def fingerprint_persons(key: bytes, identifiers: AnyArray, source: str) -> DataFingerprint:
    """Return the fingerprint of the persons of one agent, whatever their records are.

    `identifiers`: the identifier of each record's person, as text; `source`: as in `fingerprint_records`.

    >>> first = fingerprint_persons(b"key", np.array(["ann", "bob", "ann"]), "one")
    >>> len(first.records), first.records < fingerprint_persons(b"key", np.array(list("ab")), "").records
    (2, False)
    """
    digests = (
        hmac.digest(key, b"person\n" + text.encode(), "sha256")[:RECORD_DIGEST_BYTES]
        for text in set(identifiers.tolist())
    )
    return DataFingerprint(
        frozenset(digests), hmac.digest(key, b"source\n" + _content_digest(source), "sha256"), "person"
    )


def _canonical_rows(values: AnyArray, count: int) -> AnyArray:
    """Return [records, columns] little-endian float32 with one representation of zero and of NaN."""
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(np.asarray(values).reshape(count, -1).astype("<f4"))
    rows[rows == 0] = 0.0
    rows[np.isnan(rows)] = np.nan
    return rows


def _content_digest(source: str) -> bytes:
    """Return a digest of the content of a file or folder, or of the name if `source` is neither."""
    path = Path(source)
    if not path.exists():
        return b"name\n" + source.encode()
    total = hashlib.sha256()
    for file in sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]:
        with file.open("rb") as content:
            total.update(hashlib.file_digest(content, "sha256").digest())
    return b"content\n" + total.digest()
