"""Codes on a link: the kinds of messages and of replies, and their words for people.

The numbers are those of `wire.proto` (a test compares them). Programs decide by codes; words are shown, never
read. A number that is not here is refused where it comes in (`links.py`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar


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
    """How a neighbour answers, and what is decided about a row that came in."""

    OK = 1
    AGAIN = 2
    ABORTED = 3
    COMMITTED = 4
    LATER = 5
    STRANGER = 6
    UNKNOWN_KIND = 7
    UNKNOWN_ROUND = 8
    GAP = 9
    DAMAGED = 10
    EQUIVOCATION = 11
    QUARANTINED = 12
    ROLLED_BACK = 13
    OTHER_TERMS = 14
    NOT_A_GREETING = 15
    NOT_A_ROW = 16
    BUSY = 17
    UNDECIDED = 18
    NO_MEETING = 19
    FAILED = 20
    NOT_A_STATEMENT = 21
    GONE = 22

    @property
    def accepted(self) -> bool:
        return self <= ReplyCode.COMMITTED

    @property
    def words(self) -> str:
        return REPLY_WORDS[self]


REPLY_WORDS = {
    ReplyCode.OK: "yes",
    ReplyCode.AGAIN: "yes, as before",
    ReplyCode.ABORTED: "the meeting did not take place",
    ReplyCode.COMMITTED: "the meeting took place",
    ReplyCode.LATER: "too far ahead: later",
    ReplyCode.STRANGER: "not a neighbour that sends to me",
    ReplyCode.UNKNOWN_KIND: "not a kind of message that is answered here",
    ReplyCode.UNKNOWN_ROUND: "not a round in which you send to me",
    ReplyCode.GAP: "an earlier round is missing",
    ReplyCode.DAMAGED: "the digest is not that of the bytes",
    ReplyCode.EQUIVOCATION: "another row under this name came before",
    ReplyCode.QUARANTINED: "quarantined",
    ReplyCode.ROLLED_BACK: "rolled back: you knew more before",
    ReplyCode.OTHER_TERMS: "another manifest, plan or start",
    ReplyCode.NOT_A_GREETING: "expected a greeting",
    ReplyCode.NOT_A_ROW: "expected a row",
    ReplyCode.BUSY: "busy, or no further meetings",
    ReplyCode.UNDECIDED: "not decided yet",
    ReplyCode.NO_MEETING: "no meeting of which you could be in doubt",
    ReplyCode.FAILED: "no answer: ask again",
    ReplyCode.NOT_A_STATEMENT: "expected signed statements",
    ReplyCode.GONE: "you were silent for too long: you count as gone",
}

Code = TypeVar("Code", bound=IntEnum)


def known(codes: type[Code], number: int) -> Code | None:
    """The code with this number; None for one that this version does not know.

    >>> known(MessageKind, 2), known(MessageKind, 99)
    (<MessageKind.ROW: 2>, None)
    """
    try:
        return codes(number)
    except ValueError:
        return None
