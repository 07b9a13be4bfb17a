"""The bodies of messages between neighbours: greetings, and rows handed over in an exchange.

Every field states the values it may have, so a body that was read holds no others. `peer_judgement` decides
what to believe of a greeting.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter

from topdp.agents.agreement.signatures import MAX_SIGNATURE_BYTES
from topdp.agents.wire.row_payload import PayloadError

MAX_GREETING_BYTES = 4096
MAX_HANDOVER_HEAD_BYTES = 500
MAX_STATEMENTS = 2**31
Term = Annotated[str, Field(pattern=r"^[ -~]{1,128}$")]
OptionalDigest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
HexSignature = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$", max_length=2 * MAX_SIGNATURE_BYTES)]
MeetingName = Annotated[str, Field(pattern=r"^[0-9A-Za-z]{0,64}$")]
OptionalRound = Annotated[int, Field(ge=-1)]
"""A round of the plan; -1: none."""


class GreetingError(ValueError):
    """Bytes that are not a greeting."""


@dataclass(frozen=True)
class LinkTerms:
    """What both ends of a link must hold alike."""

    federation: Term  # hash of the manifest
    plan: Term  # digest of the plan
    start: Term  # digest of the public start row


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """What an agent reports to a neighbour: their common terms, and what it has of the other."""

    terms: LinkTerms
    charged: OptionalRound  # the last round whose rows may have left
    seen: OptionalRound  # the highest round that it has from the other
    round: OptionalRound  # the last round in its ledger; nothing is decided by it
    run: OptionalDigest  # the run's name, where draws are shared and all keys are there
    seen_digest: OptionalDigest  # of that row from the other; empty if there is none
    seen_signature: HexSignature  # the other's signature under that row
    sent: OptionalRound  # the highest round of which it has a row for the other
    sent_digest: OptionalDigest
    statements: Annotated[int, Field(ge=-1, le=MAX_STATEMENTS)] = 0  # in its ledger, where draws are shared

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def decode(cls, body: bytes, last: int) -> Greeting:
        """Return the greeting in `body`, or raise GreetingError; `last` is the last round of the plan."""
        try:
            if len(body) > MAX_GREETING_BYTES:
                raise GreetingError
            greeting = GREETING_ADAPTER.validate_json(body, strict=True)
        except ValueError:
            raise GreetingError from None
        if max(greeting.charged, greeting.seen, greeting.round, greeting.sent) > last:
            raise GreetingError
        if (greeting.seen < 0) != (not greeting.seen_digest):
            raise GreetingError
        if (greeting.sent < 0) == bool(greeting.sent_digest):
            raise GreetingError
        return greeting


GREETING_ADAPTER = TypeAdapter(Greeting)
HANDOVER_HEAD_ADAPTER = TypeAdapter(tuple[Annotated[int, Field(ge=0)], MeetingName, HexSignature])


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
        head = packed[2 : 2 + min(length, MAX_HANDOVER_HEAD_BYTES)]
        try:
            round, meeting, signature = HANDOVER_HEAD_ADAPTER.validate_json(head, strict=True)
            valid = round <= last
        except ValueError:
            valid = False
        if not valid:
            raise PayloadError("Expected a round, a name and a signature before the row, got something else.")
        return cls(round, meeting, packed[2 + length :], signature)
