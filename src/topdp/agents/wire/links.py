"""One open link, with requests and replies in both directions; and a neighbour over all its links.

The two ends are equal, whichever of them dialled. The stream is authenticated (`handshake`), but its content
is not trusted: everything that violates the rules of `wire.proto` ends the link. Memory and time are limited.

**Guarantees.** Each end has at most `in_flight` requests under way, and bodies of at most `largest_body`; the
link with a peer that exceeds them ends. Time limits count progress: a link ends if no complete frame arrives
for `idle_timeout`, or if an exchange makes no progress for that long; an exchange that makes progress may
take any time. Progress is what the other end confirms, not what enters a buffer at this end. A handler that
has begun is not cancelled when its link ends; replies that exist by then are sent before `finish` ends the
link.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import partial
from typing import Any

from topdp.agents.agreement.identity_card import Card
from topdp.agents.agreement.manifest import Rules
from topdp.agents.wire import wire_pb2 as wire
from topdp.agents.wire.byte_pipes import FLUSH_SECONDS
from topdp.agents.wire.handshake import FrameStream
from topdp.agents.wire.link_bodies import PIECE_BYTES, IncomingBody, Key, LinkWriter
from topdp.agents.wire.link_limits import CHECKS_PER_TIMEOUT, PendingRequests, StallDetector
from topdp.agents.wire.link_refusals import OUR_FAULT, LinkEnded, RefusalLog
from topdp.agents.wire.transport import Handler, Message, MessageKind, Reply, ReplyCode, Unreachable, end_all
from topdp.errors import InputError

MAX_REASON_LETTERS = 1000
MAX_PINGS = 64
"""Pings in a quarter of the idle timeout. An honest peer sends one; more may have waited in a buffer."""


SHARED_FIELDS = [each.name for each in fields(Message) if each.name not in ("kind", "digest", "body")]
"""The fields that `Message` and `wire.Request` share, with the same names and types."""


def request_head(message: Message) -> wire.Request:
    """Return the request that announces `message`, without its body."""
    shared = {name: getattr(message, name) for name in SHARED_FIELDS}
    return wire.Request(kind=message.kind.name, digest=bytes.fromhex(message.digest), **shared)


def announced_message(head: wire.Request, body: bytes) -> Message:
    """Return the message that `head` announced, once its body has arrived."""
    shared = {name: getattr(head, name) for name in SHARED_FIELDS}
    return Message(kind=MessageKind(head.kind), digest=head.digest.hex(), body=body, **shared)


def _new_future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(eq=False)
class _PendingReply:
    """A request of this agent that waits for its reply."""

    reply: asyncio.Future[Reply] = field(default_factory=_new_future)
    is_sent: asyncio.Event = field(default_factory=asyncio.Event)
    head: wire.Response | None = None


@dataclass(eq=False, repr=False)
class Link:
    """One open link. `run` serves it until it ends; other tasks may call `request` meanwhile."""

    peer: str
    stream: FrameStream
    _: KW_ONLY
    handle: Handler
    rules: Rules
    pending: PendingRequests
    refusals: RefusalLog

    def __post_init__(self) -> None:
        self._stalls = StallDetector(self.rules.idle_timeout, time.monotonic)
        self._end: asyncio.Future[LinkEnded] = _new_future()
        self._writer = LinkWriter(self.stream, self._stalls, self._end_with)
        self._slots = asyncio.Semaphore(self.rules.in_flight)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._replies: set[asyncio.Task[Any]] = set()  # writing replies of handlers that have ended
        self._last_id = 0
        self._pending: dict[int, _PendingReply] = {}
        self._peers_last_id = 0
        self._pings = 0
        self._unanswered: set[int] = set()  # numbers of the peer's requests
        self._incoming: dict[Key, tuple[IncomingBody, Any]] = {}

    def cut(self, kind: str, reason: str) -> None:
        """End the link at once; if it is called again, the first reason stays."""
        if not self._end.done():
            self._end.set_result(LinkEnded(kind, reason))

    async def finish(self) -> None:
        """End the link once the peer has its replies, or after `FLUSH_SECONDS`.

        An agent that leaves for good must not drop its last reply, because the peer would wait for it.
        """
        with suppress(TimeoutError, LinkEnded):
            async with asyncio.timeout(FLUSH_SECONDS):
                if self._replies:
                    await asyncio.wait(self._replies)
                await self._writer.end()
        self.cut("lost", "this agent closes")

    async def run(self) -> LinkEnded:
        """Serve the link until it ends, and return the reason."""
        self._stalls.note_progress("link")
        self._spawn(self._read_all())
        self._spawn(self._check_regularly())
        try:
            return await asyncio.shield(self._end)  # cancelling `run` must not cancel the shared future
        finally:
            self.cut("lost", "the link was closed")
            for pending in self._pending.values():
                self._fail(pending)
            self._pending.clear()
            self._incoming.clear()
            # The last step, because gRPC may cancel `run` a second time while it waits.
            await end_all(self._tasks, f"the link with {self.peer}")

    async def request(self, message: Message) -> Reply:
        if len(message.body) > self.rules.largest_body:
            raise InputError(
                f"Expected a body of at most {self.rules.largest_body} bytes, got {message.kind.name} with "
                f"{len(message.body)}; see largest_body in the manifest."
            )
        if self._end.done():
            raise self._unreachable()
        # A separate task: a caller that is cancelled must not leave half a body on the stream.
        task = self._spawn(self._exchange(message))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and not (caller and caller.cancelling()):  # only the link has ended
                raise self._unreachable() from None
            raise

    async def _exchange(self, message: Message) -> Reply:
        async with self._slots:
            self._last_id += 1
            number, pending = self._last_id, _PendingReply()
            self._pending[number] = pending
            try:
                head = request_head(message)
                await self._writer.send(number, head, message.body, pending.is_sent.set)
                return await pending.reply
            finally:
                self._stalls.remove(("pending", number))

    async def _answer(self, number: int, message: Message) -> None:
        """Run the handler, and begin to send its reply."""
        try:
            reply = await self.handle(self.peer, message)
            if len(reply.body) > self.rules.largest_body:
                raise ValueError(f"Expected a reply of at most {self.rules.largest_body} bytes.")
        except Exception as error:
            text = f"{message.kind.name}, because of a fault in this agent"
            self.refusals.report(self.peer, "unanswered", text, logging.ERROR, error)
            reply = Reply(ReplyCode.FAILED)  # the peer may repeat the request
        if not self._end.done():
            task = self._spawn(self._respond(number, reply))
            self._replies.add(task)
            task.add_done_callback(self._replies.discard)

    async def _respond(self, number: int, reply: Reply) -> None:
        digest = hashlib.sha256(reply.body).digest()
        head = wire.Response(code=reply.code.name, words=reply.words[:MAX_REASON_LETTERS], digest=digest)
        # The peer may send its next request once it has the last piece, even before `send` returns.
        await self._writer.send(number, head, reply.body, partial(self._unanswered.discard, number))
        self._stalls.remove(("answer", number))

    async def _read_all(self) -> None:
        try:
            while (frame := await self.stream.read()) is not None:
                self._stalls.note_progress("link")
                self._accept(frame)
            self.cut("lost", "the peer ended the link")
        except LinkEnded as ended:
            self.cut(ended.kind, ended.reason)

    def _accept(self, frame: wire.Frame) -> None:
        kind = frame.WhichOneof("content")
        if kind == "request":
            self._accept_request(frame.request)
        elif kind == "response":
            self._accept_response(frame.response)
        elif kind == "chunk":
            self._accept_piece(frame.chunk.answer, frame.chunk.id, frame.chunk.data)
        elif kind == "received":
            self._writer.accept_receipt(frame.received)
        elif kind == "ping":
            self._pings += 1
            if self._pings > MAX_PINGS:
                raise LinkEnded("flood", f"expected at most {MAX_PINGS} pings at a time")
        else:
            words = f"expected a request, response, chunk, receipt or ping, got {kind or 'an unknown frame'}"
            raise LinkEnded("protocol", f"{words}: the peer runs another version of topdp, or other software")

    def _accept_request(self, head: wire.Request) -> None:
        if head.id != self._peers_last_id + 1:
            raise LinkEnded("protocol", f"expected request {self._peers_last_id + 1}, got {head.id}")
        if len(self._unanswered) >= self.rules.in_flight:
            raise LinkEnded("flood", f"expected at most {self.rules.in_flight} requests under way, got more")
        if int(head.kind) not in tuple(MessageKind):
            raise LinkEnded("protocol", f"expected a known kind of message, got number {head.kind}")
        self._peers_last_id = head.id
        self._unanswered.add(head.id)
        self._begin(False, head)

    def _accept_response(self, head: wire.Response) -> None:
        pending = self._pending.get(head.id)
        if pending is None or not pending.is_sent.is_set() or pending.head is not None:
            raise LinkEnded("protocol", f"got a response to request {head.id}, which waits for none")
        if int(head.code) not in tuple(ReplyCode):
            raise LinkEnded("protocol", f"expected a known code of a reply, got number {head.code}")
        if len(head.words) > MAX_REASON_LETTERS:
            raise LinkEnded("protocol", f"expected words of at most {MAX_REASON_LETTERS} letters")
        pending.head = head
        self._begin(True, head)

    def _begin(self, answer: bool, head: wire.Request | wire.Response) -> None:
        piece, body = head.data, IncomingBody(head.size, head.digest, self.rules.largest_body)
        head.ClearField("data")  # otherwise the piece would be stored twice
        self._incoming[answer, head.id] = body, head
        self._accept_piece(answer, head.id, piece)

    def _accept_piece(self, answer: bool, number: int, piece: bytes) -> None:
        if (answer, number) not in self._incoming:
            raise LinkEnded("protocol", f"got a piece of body {number}, which is not under way")
        body, head = self._incoming[answer, number]
        item = ("pending", number) if answer else ("body", number)
        self._stalls.note_progress(item)
        is_complete = body.add(piece)
        if body.size > PIECE_BYTES:
            receipt = wire.Received(id=number, answer=answer, pieces=body.pieces)
            self._spawn(self._writer.write(wire.Frame(received=receipt)))
        if not is_complete:
            return
        del self._incoming[answer, number]
        self._stalls.remove(item)
        if answer:
            self._finish_exchange(number, head, body)
        elif body.intact:
            message = announced_message(head, body.body)
            self._spawn(self.pending.run(partial(self._answer, number, message)))
        else:
            kind = MessageKind(head.kind).name
            self.refusals.report(self.peer, "digest", f"the body of {kind} does not match its digest")
            self._spawn(self._respond(number, Reply(ReplyCode.DAMAGED)))

    def _finish_exchange(self, number: int, head: wire.Response, body: IncomingBody) -> None:
        if not body.intact:
            raise LinkEnded("digest", "a reply does not match its digest")
        pending = self._pending.pop(number)
        code = ReplyCode(head.code)
        if code is ReplyCode.FAILED:
            self._fail(pending, Unreachable(f"{self.peer} could not answer; its log says why."))
        elif not pending.reply.done():
            pending.reply.set_result(Reply(code, head.words, body.body))

    async def _check_regularly(self) -> None:
        """End the link if something has stalled, and send a ping unless something is being sent."""
        while True:
            await asyncio.sleep(self.rules.idle_timeout / CHECKS_PER_TIMEOUT)
            self._pings = 0
            if (item := self._stalls.stalled_item()) is not None:
                kind, suffix = ("silent", "") if item == "link" else ("stalled", f" in {item}")
                self.cut(kind, f"nothing moved for {self.rules.idle_timeout:g} s{suffix}")
            if not self._writer.is_writing:
                self._spawn(self._writer.write(wire.Frame(ping=wire.Ping())))

    def _spawn(self, job: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, Exception) and not isinstance(error, ConnectionError):
            text = "the link ended because of a fault in this agent"
            self.refusals.report(self.peer, "failed", text, logging.ERROR, error)
            self.cut("failed", OUR_FAULT)

    def _fail(self, pending: _PendingReply, error: Unreachable | None = None) -> None:
        if not pending.reply.done():
            pending.reply.set_exception(error or self._unreachable())
            pending.reply.exception()  # marks it as retrieved: the caller may have been cancelled

    def _end_with(self, ended: LinkEnded) -> Unreachable:
        """End the link, and return the error for the caller that writes."""
        self.cut(ended.kind, ended.reason)
        return self._unreachable()

    def _unreachable(self) -> Unreachable:
        reason = f" ({self._end.result().reason})" if self._end.done() else ""
        return Unreachable(f"The link with {self.peer} ended{reason}.")


class Neighbour:
    """A neighbour over all its links, of which one at a time is open."""

    def __init__(self, card: Card, in_flight: int) -> None:
        self.card = card
        self.pending = PendingRequests(in_flight)
        self.link: Link | None = None
        self.has_link = asyncio.Event()  # also set when this agent closes
        self.handshakes = 0  # under way, opened by the neighbour
        self.attempts = 0  # to dial the neighbour, since the last link
        self.problem = "it has not been reached yet"

    async def open_link(self, timeout: float) -> Link:
        """Return the neighbour's open link, or the next one that opens within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self.has_link.wait()
        except TimeoutError:
            raise Unreachable(f"{self.card.name} is not linked: {self.problem}.") from None
        if self.link is None:
            raise Unreachable(f"{self.card.name} is not linked: this agent was closed.")
        return self.link

    async def serve(self, link: Link) -> LinkEnded:
        """Serve an authenticated link until it ends. A newer link replaces an older one."""
        if self.link is not None:
            self.link.cut("replaced", "the peer has opened a new link")
        self.link = link
        self.has_link.set()
        try:
            ended = await link.run()
            self.problem = f"the last link ended: {ended.reason}"
            return ended
        finally:
            if self.link is link:
                self.link = None
                self.has_link.clear()

    async def close(self) -> None:
        """End the link; requests that wait for a link fail."""
        link, self.link = self.link, None
        self.has_link.set()
        if link is not None:
            await link.finish()
