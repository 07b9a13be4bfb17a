"""The interface of transports, and the messages that they carry, with the codes of requests and replies.

A transport delivers requests between authenticated peers and returns their replies. It does not interpret
rounds, budgets or ledgers; the agent decides whether to send or accept a message. The numbers of the codes
are those of `wire.proto` (a test compares them); `links` refuses frames with other numbers.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

logger = logging.getLogger("topdp.agents")


ENDING_SECONDS = 2.0
"""The time that cancelled tasks have to end."""


async def end_all(tasks: Iterable[asyncio.Task[Any]], purpose: str) -> None:
    """Cancel `tasks` and wait until they have ended, at most `ENDING_SECONDS`; log those that have not.

    `purpose` names the tasks in the log.
    """
    tasks = set(tasks)
    for task in tasks:
        task.cancel()
    await ends(tasks, purpose)


async def ends(tasks: Iterable[asyncio.Task[Any]], purpose: str) -> None:
    """Wait for `tasks` like `end_all`, without cancelling them, because they are about to end."""
    running = set(tasks)
    if not running:
        return
    done, running = await asyncio.wait(running, timeout=ENDING_SECONDS)
    for task in done:
        if not task.cancelled():
            task.exception()  # marks it as retrieved, otherwise asyncio would log it
    for task in running:
        logger.error("%s: %s did not end in %g s", purpose, named(task), ENDING_SECONDS)


def named(task: asyncio.Task[Any]) -> str:
    """Return a task's function, and the line that it executes."""
    frames = task.get_stack(limit=1)
    position = f" at {frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else ""
    return f"{getattr(task.get_coro(), '__qualname__', task.get_name())}{position}"


class Unreachable(ConnectionError):  # noqa: N818 - a state of the world, not a fault
    """The peer did not reply; the request may have arrived. Sending the same bytes again is safe."""


class MessageKind(IntEnum):
    """What an agent requests of a neighbour."""

    HELLO = 1
    ROW = 2
    BYE = 4
    PROPOSE = 5
    COMMIT = 6
    RESOLVE = 7
    NOTICES = 8
    CARD = 9


class ReplyCode(IntEnum):
    """The replies of a neighbour, and the verdicts on a received row.

    Programs decide by codes; `words` explains a code to people.
    """

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


@dataclass(frozen=True, kw_only=True)
class Message:
    """One request. Its sender, kind and round identify it permanently.

    `digest`: the SHA-256 of `body`, in hex. `signature`: for a row, its sender's signature of the
    identification and digest.
    """

    kind: MessageKind
    round: int
    digest: str
    body: bytes
    signature: bytes = b""

    @classmethod
    def of(cls, kind: MessageKind, round: int, body: bytes = b"", signature: bytes = b"") -> Message:
        """Return a message with the digest of its body."""
        return cls(
            kind=kind, round=round, digest=hashlib.sha256(body).hexdigest(), body=body, signature=signature
        )


@dataclass(frozen=True)
class Reply:
    """The reply of a peer's agent. Programs decide by `code`; `words` explain more than the code's words."""

    code: ReplyCode
    words: str = ""
    body: bytes = b""

    @property
    def ok(self) -> bool:
        return self.code.accepted

    @property
    def reason(self) -> str:
        """The explanation for people; no program depends on it."""
        return self.words or self.code.words


Handler = Callable[[str, Message], Awaitable[Reply]]
"""A function of the peer's authenticated name and a message whose body matches its digest.

It should reply well within the idle timeout, because an exchange without progress for that long is aborted.
It is called again when the peer repeats its request, perhaps while the first call still runs. If it raises,
the fault is logged and the peer gets Unreachable.
"""


class Transport(ABC):
    """The links of one agent to its neighbours."""

    on_other_manifest: Callable[[str], None] = staticmethod(lambda peer: None)
    """Called with a neighbour that has proved its identity and has another manifest."""

    @abstractmethod
    async def start(self, handle: Handler) -> None:
        """Begin to listen and to dial; `handle` replies to every request that arrives."""

    @abstractmethod
    async def request(self, peer: str, message: Message) -> Reply:
        """Send a request and return the reply. Raise Unreachable after an idle timeout, but no total one.

        A caller may cancel the call; the request may still arrive.
        """

    @abstractmethod
    def reaches(self, peer: str) -> bool:
        """Return whether a link to `peer` is open at this moment."""

    @property
    def refused(self) -> Mapping[tuple[str, str], int]:
        """The counts of reported events on links, by (peer, kind); for people."""
        return {}

    @abstractmethod
    async def close(self) -> None:
        """End all links; requests under way raise Unreachable."""
