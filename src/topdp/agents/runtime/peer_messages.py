"""The bodies of messages between neighbours: greetings, and rows handed over in an exchange.

Every field states the values it may have, so a body that was read holds no others. `peer_judgement` decides
what to believe of a greeting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from topdp.agents.agreement.signatures import MAX_SIGNATURE_BYTES
from topdp.agents.wire.row_payload import PayloadError

MAX_GREETING_BYTES = 4096
MAX_HANDOVER_HEAD_BYTES = 500
MAX_STATEMENTS = 2**31
WORD_PATTERN = re.compile(r"[ -~]{1,128}", re.ASCII)
OPTIONAL_DIGEST_PATTERN = re.compile(r"(?:[0-9a-f]{64})?", re.ASCII)
SIGNATURE_PATTERN = re.compile(rf"(?:[0-9a-f]{{2}}){{0,{MAX_SIGNATURE_BYTES}}}", re.ASCII)
MEETING_PATTERN = re.compile(r"[0-9A-Za-z]{0,64}", re.ASCII)


class GreetingError(ValueError):
    """Bytes that are not a greeting."""


@dataclass(frozen=True)
class LinkTerms:
    """What both ends of a link must hold alike."""

    federation: str  # hash of the manifest
    plan: str  # digest of the plan
    start: str  # digest of the public start row


def _text(pattern: re.Pattern[str]) -> Any:
    return field(default="", metadata={"pattern": pattern})


def _count(default: int = -1, most: int | None = None) -> Any:
    """A whole number from -1 to `most`; None: to the last round of the plan."""
    return field(default=default, metadata={"most": most})


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """What an agent reports to a neighbour: their common terms, and what it has of the other."""

    terms: LinkTerms
    charged: int = _count()  # the last round whose rows may have left
    seen: int = _count()  # the highest round that it has from the other
    round: int = _count()  # the last round in its ledger; nothing is decided by it
    run: str = _text(OPTIONAL_DIGEST_PATTERN)  # the run's name, where draws are shared and all keys are there
    seen_digest: str = _text(OPTIONAL_DIGEST_PATTERN)  # of that row from the other; empty if there is none
    seen_signature: str = _text(SIGNATURE_PATTERN)  # the other's signature under that row, in hex
    sent: int = _count()  # the highest round of which it has a row for the other
    sent_digest: str = _text(OPTIONAL_DIGEST_PATTERN)
    statements: int = _count(0, MAX_STATEMENTS)  # in its ledger, where draws are shared

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def decode(cls, body: bytes, last: int) -> Greeting:
        """Return the greeting in `body`, or raise GreetingError; `last` is the last round of the plan."""
        try:
            if len(body) > MAX_GREETING_BYTES:
                raise GreetingError
            tree = {"statements": 0, **json.loads(body)}
            words = [_checked_text(tree["terms"], name.name, WORD_PATTERN) for name in fields(LinkTerms)]
            values: dict[str, Any] = {}
            for entry in fields(cls):
                if "pattern" in entry.metadata:
                    values[entry.name] = _checked_text(tree, entry.name, entry.metadata["pattern"])
                elif "most" in entry.metadata:
                    most = entry.metadata["most"]
                    values[entry.name] = _checked_count(tree, entry.name, last if most is None else most)
            greeting = cls(terms=LinkTerms(*words), **values)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise GreetingError from None
        if (greeting.seen < 0) != (not greeting.seen_digest):
            raise GreetingError
        if (greeting.sent < 0) == bool(greeting.sent_digest):
            raise GreetingError
        return greeting


def _checked_count(tree: Mapping[str, Any], key: str, most: int) -> int:
    value = tree[key]
    if type(value) is not int or not -1 <= value <= most:
        raise GreetingError
    return value


def _checked_text(tree: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    value = tree[key]
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise GreetingError
    return value


@dataclass(frozen=True)
class Handover:
    """A row handed over in an exchange. `body` is as it came: `row_payload` decides whether it is a row."""

    round: int
    meeting: str  # empty where the request has named it
    body: bytes
    signature: str = ""  # the sender's signature under that row, in hex

    def pack(self) -> bytes:
        head = json.dumps([self.round, self.meeting, self.signature]).encode()
        return len(head).to_bytes(2, "big") + head + self.body

    @classmethod
    def unpack(cls, packed: bytes, last: int = 2**31) -> Handover:
        """Return what was packed, or raise PayloadError; `last` is the last round of the plan.

        >>> Handover.unpack(Handover(3, "name", b"row").pack())
        Handover(round=3, meeting='name', body=b'row', signature='')
        """
        length = int.from_bytes(packed[:2], "big")
        try:
            round, meeting, signature = json.loads(packed[2 : 2 + min(length, MAX_HANDOVER_HEAD_BYTES)])
            valid = type(round) is int and 0 <= round <= last
            valid = valid and bool(MEETING_PATTERN.fullmatch(meeting))
            valid = valid and bool(SIGNATURE_PATTERN.fullmatch(signature))
        except (ValueError, TypeError, RecursionError):
            valid = False
        if not valid:
            raise PayloadError("Expected a round, a name and a signature before the row, got something else.")
        return cls(round, meeting, packed[2 + length :], signature)
