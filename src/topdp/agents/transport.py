"""How agents reach each other: one abstract class, and one that stays in memory for tests.

A transport delivers requests between authenticated peers and brings the reply back. It knows nothing of
rounds, budgets or ledgers; whether a message may be sent or believed is for the agent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


class Unreachable(ConnectionError):  # noqa: N818 - a state of the world, not a fault
    """The peer did not answer; the request may have arrived. Sending the same bytes again is safe."""


@dataclass(frozen=True)
class Message:
    """One request. `digest` is the SHA-256 of `body`, in hex; (sender, kind, round) names it for ever."""

    kind: str  # hello, row, propose, commit, ...: the agent's words
    round: int
    digest: str
    body: bytes


@dataclass(frozen=True)
class Reply:
    """`ok` False is a refusal by the peer's agent, with its reason."""

    ok: bool
    reason: str = ""
    body: bytes = b""


Handler = Callable[[str, Message], Awaitable[Reply]]
"""Called with the authenticated name of the peer."""


class Transport(ABC):
    """The links of one agent to its neighbours."""

    @abstractmethod
    async def start(self, handle: Handler) -> None:
        """Begins to listen and to dial; `handle` answers every request that comes in."""

    @abstractmethod
    async def request(self, peer: str, message: Message) -> Reply:
        """Sends and waits for the reply. Raises Unreachable after an idle timeout, never a total one."""

    @abstractmethod
    async def close(self) -> None:
        """Ends all links; requests under way raise Unreachable."""


class Memory:
    """The wire of in-memory transports: who is connected to whom. For tests, and for a federation in one process."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}

    def transport(self, name: str) -> InMemory:
        return InMemory(self, name)


class InMemory(Transport):
    """Delivers by calling the peer's handler."""

    def __init__(self, wire: Memory, name: str) -> None:
        self.wire, self.name = wire, name

    async def start(self, handle: Handler) -> None:
        self.wire.handlers[self.name] = handle

    async def request(self, peer: str, message: Message) -> Reply:
        if self.name not in self.wire.handlers or peer not in self.wire.handlers:
            raise Unreachable(f"{peer} is not there.")
        return await self.wire.handlers[peer](self.name, message)

    async def close(self) -> None:
        self.wire.handlers.pop(self.name, None)
