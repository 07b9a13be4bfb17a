"""Hashes that bind what is on the books to what came before it. No table and no file is known here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def genesis_hash(meta: Mapping[str, str]) -> str:
    """What the first charge is chained to."""
    return digest_of(json.dumps([meta.get("federation"), meta.get("agent")]).encode())


def chain_hash(previous: str, text: str) -> str:
    """The hash of an entry: over its text and the hash before it."""
    return digest_of(f"{previous}\n{text}".encode())


def first_broken_link(head: str, rows: Iterable[tuple[str, str]]) -> int | None:
    """The place of the first (text, hash) that does not follow from the one before; None: all do.

    >>> one = link("head", "one")
    >>> first_broken("head", [("one", one), ("two", link(one, "two"))])
    >>> first_broken("head", [("one", one), ("another", link(one, "two"))])
    1
    """
    for place, (text, stored) in enumerate(rows):
        head = chain_hash(head, text)
        if head != stored:
            return place
    return None
