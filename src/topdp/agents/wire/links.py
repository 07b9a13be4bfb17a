"""One open link: requests and replies of both ends over one stream, with bounded memory and time limits; and
a neighbour over all its links.

Whichever end dialled, the two ends are equal here. The stream is already authenticated (`handshake.py`); its
content is still not trusted: whatever breaks the rules of `wire.proto` ends the link.

**Guarantees.** Each end has at most `in_flight` requests under way and bodies of at most `largest_body`; a
peer that goes beyond is cut off. Time limits count progress: a link with no whole frame for `idle_timeout`,
or an exchange in which nothing moved for that long, ends; something that moves is never ended for taking
long. What has moved is what the other end confirms, not what has gone into a buffer here. A handler that has
begun is not cancelled when its link ends; what it has answered by then goes out before `finish` cuts the
link.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

from topdp.agents.agreement.identity_card import Card
from topdp.agents.agreement.manifest import Rules
from topdp.agents.wire import wire_pb2 as wire
from topdp.agents.wire.byte_pipes import FLUSH_SECONDS
from topdp.agents.wire.handshake import FrameStream
from topdp.agents.wire.link_bodies import PIECE_BYTES, IncomingBody, Key, LinkWriter
from topdp.agents.wire.link_limits import CHECKS_PER_TIMEOUT, PendingRequests, StallDetector
from topdp.agents.wire.link_refusals import OUR_FAULT, LinkEnded, RefusalLog
from topdp.agents.wire.transport import Handler, Message, Reply, Unreachable, end_all
from topdp.agents.wire.wire_codes import KNOWN_MESSAGE_KINDS, KNOWN_REPLY_CODES, MessageKind, ReplyCode
from topdp.errors import InputError

MAX_REASON_LETTERS = 1000
MAX_PINGS = 64
"""In a quarter of the idle timeout, in which an honest peer sends one; more may have waited in a buffer."""


PLAIN_FIELDS = [field.name for field in fields(Message) if field.name not in ("kind", "digest", "body")]
"""The fields that a `Message` and a `wire.Request` have in common, by name and type."""


def request_head(message: Message) -> wire.Request:
    """Return the request that announces `message`, without its body."""
    plain = {name: getattr(message, name) for name in PLAIN_FIELDS}
    return wire.Request(kind=message.kind.name, digest=bytes.fromhex(message.digest), **plain)


def announced_message(head: wire.Request, body: bytes) -> Message:
    """Return the message that `head` announced, once its body has arrived."""
    plain = {name: getattr(head, name) for name in PLAIN_FIELDS}
    return Message(kind=MessageKind(head.kind), digest=head.digest.hex(), body=body, **plain)


class _PendingReply:
    """A request of ours that waits for its reply."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.sent = False
        self.head: wire.Response | None = None

    def last_piece(self) -> None:
        self.sent = True


@dataclass(eq=False, repr=False)
class Link:
    """One link. `run` serves it until it ends; `request` may be called meanwhile."""

    peer: str
    stream: FrameStream
    _: KW_ONLY
    handle: Handler
    rules: Rules
    pending: PendingRequests
    refusals: RefusalLog

    def __post_init__(self) -> None:
        self._stalls = StallDetector(self.rules.idle_timeout, time.monotonic)
        self._end: asyncio.Future[LinkEnded] = asyncio.get_running_loop().create_future()
        self._writer = LinkWriter(self.stream, self._stalls, self._lost)
        self._slots = asyncio.Semaphore(self.rules.in_flight)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._replies: set[asyncio.Task[None]] = set()  # of handlers that have ended, on their way
        self._last_id = 0
        self._pending: dict[int, _PendingReply] = {}
        self._their_last_id = 0
        self._pings = 0
        self._answering: set[int] = set()
        self._incoming: dict[Key, tuple[IncomingBody, Any]] = {}

    def cut(self, kind: str, words: str) -> None:
        """End the link; the first reason counts."""
        if not self._end.done():
            self._end.set_result(LinkEnded(kind, words))

    async def finish(self) -> None:
        """End the link once the peer has its answers, or after `FLUSH_SECONDS`.

        An agent that leaves for good must not drop its last answer, because the peer would wait for it.
        """
        with suppress(TimeoutError, ConnectionError, LinkEnded):
            async with asyncio.timeout(FLUSH_SECONDS):
                if self._replies:
                    await asyncio.wait(self._replies)
                await self._writer.end()
        self.cut("lost", "this agent closes")

    async def run(self) -> LinkEnded:
        """Serve the link until it ends, and return the reason."""
        self._stalls.moved("link")
        self._spawn(self._read_all())
        self._spawn(self._watch())
        try:
            return await asyncio.shield(self._end)  # cancelling us must not cancel what others look at
        finally:
            self.cut("lost", "the link was closed")
            await end_all(self._tasks, f"the link with {self.peer}")
            for pending in self._pending.values():
                self._fail(pending)
            self._pending.clear()
            self._incoming.clear()

    async def request(self, message: Message) -> Reply:
        if len(message.body) > self.rules.largest_body:
            raise InputError(
                f"Expected a body of at most {self.rules.largest_body} bytes, got {message.kind.name} with "
                f"{len(message.body)}; see largest_body in the manifest."
            )
        if self._end.done():
            raise self._unreachable()
        # A task of its own: a caller who gives up must not leave half a body on the stream.
        task = self._spawn(self._exchange(message))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and not (caller and caller.cancelling()):  # by the end of the link alone
                raise self._unreachable() from None
            raise

    async def _exchange(self, message: Message) -> Reply:
        async with self._slots:
            self._last_id += 1
            number, pending = self._last_id, _PendingReply()
            self._pending[number] = pending
            try:
                head = request_head(message)
                await self._writer.send(("pending", number), number, head, message.body, pending.last_piece)
                return await pending.reply
            finally:
                self._stalls.done(("pending", number))

    async def _answer(self, number: int, head: wire.Request, body: IncomingBody) -> None:
        message = announced_message(head, body.body)
        await self.pending.do(lambda: self._handled(number, message))

    async def _handled(self, number: int, message: Message) -> None:
        reply = await self._reply(message)
        if not self._end.done():
            task = self._spawn(self._respond(number, reply))
            self._replies.add(task)
            task.add_done_callback(self._replies.discard)

    async def _reply(self, message: Message) -> Reply:
        try:
            reply = await self.handle(self.peer, message)
            if len(reply.body) > self.rules.largest_body:
                raise ValueError(f"Expected a reply of at most {self.rules.largest_body} bytes.")
        except Exception as error:
            self.refusals.report(
                self.peer, "unanswered", f"{message.kind.name}, by our fault", logging.ERROR, error
            )
            return Reply(ReplyCode.FAILED)  # the peer may ask again
        return reply

    async def _respond(self, number: int, reply: Reply) -> None:
        digest = hashlib.sha256(reply.body).digest()
        head = wire.Response(code=reply.code.name, words=reply.words[:MAX_REASON_LETTERS], digest=digest)
        what = ("answer", number)
        # The peer may ask again as soon as it has the last piece, before its writing has returned here.
        await self._writer.send(what, number, head, reply.body, last=lambda: self._answering.discard(number))
        self._stalls.done(what)

    async def _read_all(self) -> None:
        try:
            while (frame := await self.stream.read()) is not None:
                self._stalls.moved("link")
                self._take(frame)
            self.cut("lost", "the peer ended the link")
        except LinkEnded as ended:
            self.cut(ended.kind, ended.words)
        except ConnectionError as error:
            self.cut("lost", str(error))

    def _take(self, frame: wire.Frame) -> None:
        kind = frame.WhichOneof("content")
        if kind == "request":
            self._take_request(frame.request)
        elif kind == "response":
            self._take_response(frame.response)
        elif kind == "chunk":
            self._take_piece(frame.chunk.answer, frame.chunk.id, frame.chunk.data)
        elif kind == "received":
            self._writer.take_receipt(frame.received)
        elif kind == "ping":
            self._pings += 1
            if self._pings > MAX_PINGS:
                raise LinkEnded("flood", f"expected at most {MAX_PINGS} pings at a time")
        else:
            raise LinkEnded("protocol", f"expected a request, response, chunk, receipt or ping, got {kind}")

    def _take_request(self, head: wire.Request) -> None:
        if head.id != self._their_last_id + 1:
            raise LinkEnded("protocol", f"expected request {self._their_last_id + 1}, got {head.id}")
        if len(self._answering) >= self.rules.in_flight:
            raise LinkEnded("flood", f"expected at most {self.rules.in_flight} requests under way, got more")
        if head.kind not in KNOWN_MESSAGE_KINDS:
            raise LinkEnded("protocol", f"expected a kind of message that we know, got number {head.kind}")
        self._their_last_id = head.id
        self._answering.add(head.id)
        self._begin(False, head)

    def _take_response(self, head: wire.Response) -> None:
        pending = self._pending.get(head.id)
        if pending is None or not pending.sent or pending.head is not None:
            raise LinkEnded("protocol", f"got a response to request {head.id}, which does not wait for one")
        if head.code not in KNOWN_REPLY_CODES:
            raise LinkEnded("protocol", f"expected a code of a reply that we know, got number {head.code}")
        if len(head.words) > MAX_REASON_LETTERS:
            raise LinkEnded("protocol", f"expected words of at most {MAX_REASON_LETTERS} letters")
        pending.head = head
        self._begin(True, head)

    def _begin(self, answer: bool, head: wire.Request | wire.Response) -> None:
        first = head.data
        head.ClearField("data")  # the piece must not be kept twice
        self._incoming[answer, head.id] = (
            IncomingBody(head.size, head.digest, self.rules.largest_body),
            head,
        )
        self._take_piece(answer, head.id, first)

    def _take_piece(self, answer: bool, number: int, piece: bytes) -> None:
        if (answer, number) not in self._incoming:
            raise LinkEnded("protocol", f"got a piece of body {number}, which is not under way")
        body, head = self._incoming[answer, number]
        what = ("pending", number) if answer else ("body", number)
        self._stalls.moved(what)
        complete = body.add(piece)
        if body.size > PIECE_BYTES and self._writer.confirm((answer, number), body.pieces):
            self._spawn(self._writer.confirm_all())
        if not complete:
            return
        del self._incoming[answer, number]
        self._stalls.done(what)
        if answer:
            self._complete(number, head, body)
        elif body.intact:
            self._spawn(self._answer(number, head, body))
        else:
            kind = MessageKind(head.kind).name
            self.refusals.report(self.peer, "digest", f"the body of {kind} does not match its digest")
            self._spawn(self._respond(number, Reply(ReplyCode.DAMAGED)))

    def _complete(self, number: int, head: wire.Response, body: IncomingBody) -> None:
        if not body.intact:
            raise LinkEnded("digest", "a reply does not match its digest")
        pending = self._pending.pop(number)
        code = ReplyCode(head.code)
        if code is ReplyCode.FAILED:
            self._fail(pending, Unreachable(f"{self.peer} could not answer; its log says why."))
        elif not pending.reply.done():
            pending.reply.set_result(Reply(code, head.words, body.body))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.rules.idle_timeout / CHECKS_PER_TIMEOUT)
            self._pings = 0
            if (what := self._stalls.lost()) is not None:
                words = f"nothing moved for {self.rules.idle_timeout:g} s"
                kind = "silent" if what == "link" else "stalled"
                self.cut(kind, words if what == "link" else f"{words} in {what}")
            if not self._writer.busy:  # else something is being sent
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
            self.refusals.report(self.peer, "failed", "the link, by our fault", logging.ERROR, error)
            self.cut("failed", OUR_FAULT)

    def _fail(self, pending: _PendingReply, error: Unreachable | None = None) -> None:
        if not pending.reply.done():
            pending.reply.set_exception(error or self._unreachable())
            pending.reply.exception()  # nobody may be waiting any more

    def _lost(self, ended: LinkEnded) -> Unreachable:
        """The stream is gone, or the peer has refused us: the link ends, and whoever writes is told."""
        self.cut(ended.kind, ended.words)
        return self._unreachable()

    def _unreachable(self) -> Unreachable:
        reason = f" ({self._end.result().words})" if self._end.done() else ""
        return Unreachable(f"The link with {self.peer} ended{reason}.")


class Neighbour:
    """One neighbour over all its links, of which it has one at a time."""

    def __init__(self, card: Card, in_flight: int) -> None:
        self.card = card
        self.pending = PendingRequests(in_flight)
        self.link: Link | None = None
        self.linked = asyncio.Event()
        self.greetings = 0
        self.dialled = 0
        self.trouble = "it has not been reached yet"
        self._closed = False

    async def reached(self, timeout: float) -> Link:
        """Return the neighbour's link, or the next one that is opened within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self.linked.wait()
        except TimeoutError:
            raise Unreachable(f"{self.card.name} is not linked: {self.trouble}.") from None
        if self.link is None:
            raise Unreachable(f"{self.card.name} is not linked: this agent was closed.")
        return self.link

    async def serve(self, link: Link) -> LinkEnded:
        """Serve a link that both ends believe in, until it ends. A newer one replaces an older one."""
        if self.link is not None:
            self.link.cut("replaced", "the peer has opened a new link")
        self.link = link
        self.linked.set()
        try:
            ended = await link.run()
            self.trouble = f"the last link ended: {ended.words}"
            return ended
        finally:
            if self.link is link:
                self.link = None
                if not self._closed:
                    self.linked.clear()

    async def close(self) -> None:
        """End the link; requests that wait for one fail."""
        self._closed = True
        link, self.link = self.link, None
        self.linked.set()
        if link is not None:
            await link.finish()
