"""The codes on a link: the kinds of messages and replies, with their words for people.

The numbers are those of `wire.proto` (a test compares them). Programs decide by codes; words are only shown.
`links` refuses frames with other numbers.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class MessageKind(IntEnum):
    """What an agent requests of a neighbour."""

    HELLO = 1
    ROW = 2
    BYE = 4
    PROPOSE = 5
    COMMIT = 6
    RESOLVE = 7
    NEWS = 8
    CARD = 9


class ReplyCode(IntEnum):
    """The replies of a neighbour, and the verdicts on a received row; `words` explains each code."""

    words: str

    def __new__(cls, number: int, words: str = "") -> Self:
        code = int.__new__(cls, number)
        code._value_, code.words = number, words
        return code

    OK = 1, "accepted"
    AGAIN = 2, "accepted, as before"
    ABORTED = 3, "the exchange did not take place"
    COMMITTED = 4, "the exchange took place"
    LATER = 5, "too far ahead: send it again later"
    STRANGER = 6, "this agent receives no rows from you"
    UNKNOWN_KIND = 7, "this agent does not answer this kind of message"
    UNKNOWN_ROUND = 8, "this agent receives no row from you in this round"
    GAP = 9, "an earlier round is missing"
    DAMAGED = 10, "the digest does not match the bytes"
    EQUIVOCATION = 11, "a different row for this round arrived before"
    QUARANTINED = 12, "quarantined"
    ROLLED_BACK = 13, "your ledger is an old copy: you knew more before"
    OTHER_TERMS = 14, "another manifest, plan or start"
    NOT_A_GREETING = 15, "expected a greeting"
    NOT_A_ROW = 16, "expected a row"
    BUSY = 17, "busy, or no further exchanges"
    UNDECIDED = 18, "not decided yet"
    NO_MEETING = 19, "there is no undecided exchange with you"
    FAILED = 20, "no reply: send the request again"
    NOT_A_STATEMENT = 21, "expected notices"
    GONE = 22, "you were silent for too long and count as gone"

    @property
    def accepted(self) -> bool:
        return self <= ReplyCode.COMMITTED


KNOWN_MESSAGE_KINDS: frozenset[int] = frozenset(MessageKind)
KNOWN_REPLY_CODES: frozenset[int] = frozenset(ReplyCode)
