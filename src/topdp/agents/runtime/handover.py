"""A row handed over inside a meeting: its round and the meeting's name, then the bytes of the row."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from topdp.agents.agreement.signatures import MAX_SIGNATURE_BYTES
from topdp.agents.wire.row_payload import PayloadError

LONGEST_HEAD = 500  # bytes
NAME = re.compile(r"[0-9A-Za-z]{0,64}", re.ASCII)
SIGNATURE = re.compile(rf"(?:[0-9a-f]{{2}}){{0,{MAX_SIGNATURE_BYTES}}}", re.ASCII)


@dataclass(frozen=True)
class Handover:
    """`body` is as it came: whether it is a row is for `payload`."""

    round: int
    meeting: str  # empty where the request has named it
    body: bytes
    signature: str = ""  # the sender's, under that row, in hex

    def pack(self) -> bytes:
        head = json.dumps([self.round, self.meeting, self.signature]).encode()
        return len(head).to_bytes(2, "big") + head + self.body

    @classmethod
    def unpack(cls, packed: bytes, last: int = 2**31) -> Handover:
        """Raises PayloadError on anything else; `last` is the last round of the plan.

        >>> Handover.unpack(Handover(3, "name", b"row").pack())
        Handover(round=3, meeting='name', body=b'row', signature='')
        """
        length = int.from_bytes(packed[:2], "big")
        try:
            round, meeting, signature = json.loads(packed[2 : 2 + min(length, LONGEST_HEAD)])
            whole = type(round) is int and 0 <= round <= last
            whole = whole and bool(NAME.fullmatch(meeting)) and bool(SIGNATURE.fullmatch(signature))
        except (ValueError, TypeError, RecursionError):
            whole = False
        if not whole:
            raise PayloadError("Expected a round, a name and a signature before the row, got something else.")
        return cls(round, meeting, packed[2 + length :], signature)
