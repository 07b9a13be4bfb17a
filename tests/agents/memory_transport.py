"""A transport in memory, for federations in one process."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Any

from topdp.agents.wire.transport import Handler, Message, Reply, ReplyCode, Transport, Unreachable, end_all

logger = logging.getLogger("topdp.agents")


class MemoryNetwork:
    """The connections of in-memory transports."""

    def __init__(self) -> None:
        self.transports: dict[str, MemoryTransport] = {}

    def transport(self, name: str) -> MemoryTransport:
        return MemoryTransport(self, name)


class MemoryTransport(Transport):
    """Delivers by calling the peer's handler; a peer that is not connected is unreachable at once."""

    def __init__(self, wire: MemoryNetwork, name: str) -> None:
        self.wire, self.name = wire, name
        self._handle: Handler | None = None
        self._tasks: set[asyncio.Task[Reply]] = set()

    async def start(self, handle: Handler) -> None:
        self._handle = handle
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wire.transports[self.name] = self

    async def request(self, peer: str, message: Message) -> Reply:
        other = self.wire.transports.get(peer)
        if self.wire.transports.get(self.name) is not self or other is None:
            raise Unreachable(f"{peer} is not there.")
        if hashlib.sha256(message.body).hexdigest() != message.digest:
            return Reply(ReplyCode.DAMAGED)
        task = other._work(self.name, message)
        ends: set[asyncio.Future[Any]] = {task, self._gone, other._gone}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._gone.done() or not task.done() or task.cancelled():
            raise Unreachable(f"The link between {self.name} and {peer} ended.")
        return task.result()

    def reaches(self, peer: str) -> bool:
        return peer in self.wire.transports

    async def close(self) -> None:
        if self.wire.transports.get(self.name) is self:
            del self.wire.transports[self.name]
            self._gone.set_result(None)
        await end_all(self._tasks, "what was asked in memory")

    def _work(self, peer: str, message: Message) -> asyncio.Task[Reply]:
        """Runs the handler in its own task, so that a sender that leaves does not cancel it."""
        task = asyncio.create_task(self._answer(peer, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, peer: str, message: Message) -> Reply:
        assert self._handle is not None
        try:
            return await self._handle(peer, message)
        except Exception as error:
            logger.exception("%s: %s from %s was not answered", self.name, message.kind.name, peer)
            raise Unreachable(f"{self.name} could not answer; its log says why.") from error
