"""Codes on a link: the kinds of messages and of replies, and their words for people.

The numbers are those of `wire.proto` (a test compares them). Programs decide by codes; words are shown, never
read. A number that is not here is refused where it comes in (`links.py`).
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
    """How a neighbour answers, and what is decided about a row that came in; each code with its `words`."""

    words: str

    def __new__(cls, number: int, words: str = "") -> Self:
        code = int.__new__(cls, number)
        code._value_, code.words = number, words
        return code

    OK = 1, "yes"
    AGAIN = 2, "yes, as before"
    ABORTED = 3, "the exchange did not take place"
    COMMITTED = 4, "the exchange took place"
    LATER = 5, "too far ahead: later"
    STRANGER = 6, "not a neighbour that sends to me"
    UNKNOWN_KIND = 7, "not a kind of message that is answered here"
    UNKNOWN_ROUND = 8, "not a round in which you send to me"
    GAP = 9, "an earlier round is missing"
    DAMAGED = 10, "the digest is not that of the bytes"
    EQUIVOCATION = 11, "another row under this name came before"
    QUARANTINED = 12, "quarantined"
    ROLLED_BACK = 13, "rolled back: you knew more before"
    OTHER_TERMS = 14, "another manifest, plan or start"
    NOT_A_GREETING = 15, "expected a greeting"
    NOT_A_ROW = 16, "expected a row"
    BUSY = 17, "busy, or no further exchanges"
    UNDECIDED = 18, "not decided yet"
    NO_MEETING = 19, "no exchange of which you could be in doubt"
    FAILED = 20, "no answer: ask again"
    NOT_A_STATEMENT = 21, "expected notices"
    GONE = 22, "you were silent for too long: you count as gone"

    @property
    def accepted(self) -> bool:
        return self <= ReplyCode.COMMITTED


KNOWN_MESSAGE_KINDS: frozenset[int] = frozenset(MessageKind)
KNOWN_REPLY_CODES: frozenset[int] = frozenset(ReplyCode)
