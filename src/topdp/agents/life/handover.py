"""A row handed over inside a meeting: its round and the meeting's name, then the bytes of the row."""

from __future__ import annotations

import json
from dataclasses import dataclass

from topdp.agents.wire.payload import PayloadError

LONGEST_HEAD = 200  # bytes


@dataclass(frozen=True)
class Handover:
    """`body` is as it came: whether it is a row is for `payload`."""

    round: int
    meeting: str  # empty where the request has named it
    body: bytes

    def pack(self) -> bytes:
        head = json.dumps([self.round, self.meeting]).encode()
        return len(head).to_bytes(2, "big") + head + self.body

    @classmethod
    def unpack(cls, packed: bytes) -> Handover:
        """
        >>> Handover.unpack(Handover(3, "name", b"row").pack())
        Handover(round=3, meeting='name', body=b'row')
        """
        length = int.from_bytes(packed[:2], "big")
        try:
            round, meeting = json.loads(packed[2 : 2 + min(length, LONGEST_HEAD)])
        except (ValueError, TypeError, RecursionError):
            round = meeting = None
        if type(round) is not int or not isinstance(meeting, str):
            raise PayloadError("Expected a round and a name before the row, got something else.")
        return cls(round, meeting, packed[2 + length :])
