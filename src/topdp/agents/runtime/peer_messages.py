"""The bodies of messages between neighbours: greetings, and rows sent in an exchange.

Every field states its valid values, so a decoded body contains no others. `peer_judgement` decides which
reports of a greeting to believe.
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
MAX_NOTICES = 2**31
Term = Annotated[str, Field(pattern=r"^[ -~]{1,128}$")]
OptionalDigest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
HexSignature = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$", max_length=2 * MAX_SIGNATURE_BYTES)]
ExchangeName = Annotated[str, Field(pattern=r"^[0-9A-Za-z]{0,64}$")]
OptionalRound = Annotated[int, Field(ge=-1)]
"""A round of the plan; -1: none."""


class GreetingError(ValueError):
    """Bytes that are not a greeting."""


@dataclass(frozen=True)
class LinkTerms:
    """The terms that both agents of a link must have in common."""

    federation: Term  # hash of the manifest
    plan: Term  # digest of the plan
    start: Term  # digest of the public start row


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """A report to a neighbour: the common terms, and the newest rows from it and for it."""

    terms: LinkTerms
    charged: OptionalRound  # the last round whose rows may have been sent
    seen: OptionalRound  # the highest round received from the neighbour
    round: OptionalRound  # the last round in the ledger
    run: OptionalDigest  # the run's name, if draws are shared and all keys have arrived; otherwise empty
    seen_digest: OptionalDigest  # of the row of round `seen`; empty if there is none
    seen_signature: HexSignature  # the neighbour's signature under that row
    sent: OptionalRound  # the highest round with a row for the neighbour
    sent_digest: OptionalDigest
    statements: Annotated[int, Field(ge=-1, le=MAX_NOTICES)] = 0  # number of notices in the ledger

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
HANDOVER_HEAD_ADAPTER = TypeAdapter(tuple[Annotated[int, Field(ge=0)], ExchangeName, HexSignature])


@dataclass(frozen=True)
class Handover:
    """A row sent in an exchange. `row_payload` decides whether `body` is a valid row."""

    round: int
    exchange: str  # id of the exchange; empty if the request contains it
    body: bytes
    signature: str = ""  # the sender's signature under that row, in hex

    @property
    def signature_bytes(self) -> bytes:
        return bytes.fromhex(self.signature)

    def pack(self) -> bytes:
        head = json.dumps([self.round, self.exchange, self.signature]).encode()
        return len(head).to_bytes(2, "big") + head + self.body

    @classmethod
    def unpack(cls, packed: bytes, last: int = 2**31) -> Handover:
        """Return the row in `packed`, or raise PayloadError; `last` is the last round of the plan.

        >>> Handover.unpack(Handover(3, "name", b"row").pack())
        Handover(round=3, exchange='name', body=b'row', signature='')
        """
        length = int.from_bytes(packed[:2], "big")
        head = packed[2 : 2 + min(length, MAX_HANDOVER_HEAD_BYTES)]
        try:
            round, exchange, signature = HANDOVER_HEAD_ADAPTER.validate_json(head, strict=True)
            valid = round <= last
        except ValueError:
            valid = False
        if not valid:
            raise PayloadError("Expected a round, a name and a signature before the row, got something else.")
        return cls(round, exchange, packed[2 + length :], signature)
