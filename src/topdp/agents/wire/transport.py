"""How agents reach each other: the interface of transports, and the messages that they carry.

A transport delivers requests between authenticated peers and brings the reply back. It knows nothing of
rounds, budgets or ledgers; the agent decides whether a message may be sent or believed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from topdp.agents.wire.wire_codes import MessageKind, ReplyCode

logger = logging.getLogger("topdp.agents")


ENDING_SECONDS = 2.0
"""How long cancelled tasks may take to end."""


async def end_all(tasks: Iterable[asyncio.Task[Any]], of_what: str) -> None:
    """Cancel `tasks` and wait until they have ended, at most `ENDING_SECONDS`; log those that have not."""
    left = set(tasks)
    for task in left:
        task.cancel()
    await ends(left, of_what)


async def ends(tasks: Iterable[asyncio.Task[Any]], of_what: str) -> None:
    """Wait for tasks like `end_all`, without cancelling them, because they are about to end."""
    left = set(tasks)
    if not left:
        return
    done, left = await asyncio.wait(left, timeout=ENDING_SECONDS)
    for task in done:
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio would log it
    for task in left:
        logger.error("%s: %s did not end in %g s", of_what, named(task), ENDING_SECONDS)


def named(task: asyncio.Task[Any]) -> str:
    """A task by its function, and the line at which it is."""
    frames = task.get_stack(limit=1)
    where = f" at {frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else ""
    return f"{getattr(task.get_coro(), '__qualname__', task.get_name())}{where}"


class Unreachable(ConnectionError):  # noqa: N818 - a state of the world, not a fault
    """The peer did not answer; the request may have arrived. Sending the same bytes again is safe."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One request. `digest` is the SHA-256 of `body`, in hex; (sender, kind, round) names it for good.

    `signature`: of a row, its sender's signature under that name and digest.
    """

    kind: MessageKind
    round: int
    digest: str
    body: bytes
    signature: bytes = b""

    @classmethod
    def of(cls, kind: MessageKind, round: int, body: bytes = b"", signature: bytes = b"") -> Message:
        """A message with the digest of its body."""
        return cls(
            kind=kind, round=round, digest=hashlib.sha256(body).hexdigest(), body=body, signature=signature
        )


@dataclass(frozen=True)
class Reply:
    """The answer of the peer's agent: a code to decide by, and words where those of the code are too few."""

    code: ReplyCode
    words: str = ""
    body: bytes = b""

    @property
    def ok(self) -> bool:
        return self.code.accepted

    @property
    def reason(self) -> str:
        """The explanation for people; no code depends on it."""
        return self.words or self.code.words


Handler = Callable[[str, Message], Awaitable[Reply]]
"""Called with the authenticated name of the peer, and only with bodies that match their digest.

It should answer well within the idle timeout: an exchange in which nothing moves for that long is given up.
It is called again when the peer sends again, perhaps while the first call still runs. If it raises, the
fault is logged and the peer gets Unreachable.
"""


class Transport(ABC):
    """The links of one agent to its neighbours."""

    @abstractmethod
    async def start(self, handle: Handler) -> None:
        """Begin to listen and to dial; `handle` answers every request that comes in."""

    @abstractmethod
    async def request(self, peer: str, message: Message) -> Reply:
        """Send and wait for the reply. Raises Unreachable after an idle timeout, never a total one.

        A caller may give up waiting (cancel); the request may still arrive.
        """

    @abstractmethod
    def reaches(self, peer: str) -> bool:
        """Whether there is a link to `peer` at this moment."""

    @property
    def refused(self) -> Mapping[tuple[str, str], int]:
        """Counts of refusals and reports on links, by (peer, kind); for people."""
        return {}

    @abstractmethod
    async def close(self) -> None:
        """End all links; requests under way raise Unreachable."""
