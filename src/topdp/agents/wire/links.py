"""One open link: requests and replies of both ends over one stream, with bounded memory and patience.

Whoever dialled, the two ends are equal here. The stream is already authenticated (`handshake.py`); what
comes over it is still not trusted: whatever breaks the rules of `wire.proto` ends the link.

**Guarantees.** Each end has at most `in_flight` requests under way and bodies of at most `largest_body`; a
peer that goes beyond is cut. Patience is by progress: a link with no whole frame for `idle_timeout`, or an
exchange in which nothing moved for that long, ends; something that moves is never ended for taking long. What
has moved is what the other end says it has received, not what has gone into a buffer here. A handler that has
begun is not cancelled when its link ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

from topdp.agents.terms.manifest import Rules
from topdp.agents.wire import wire_pb2 as wire
from topdp.agents.wire.chunks import PIECE, Incoming, pieces
from topdp.agents.wire.handshake import Stream
from topdp.agents.wire.patience import CHECKS, Clock, Patience, Work
from topdp.agents.wire.refusals import OUR_FAULT, Refused, Told
from topdp.agents.wire.transport import Handler, Message, Reply, Unreachable

LONGEST_KIND, LONGEST_REASON = 64, 1000

WINDOW = 4
"""Pieces of larger bodies that may be on their way over one link."""

Key = tuple[bool, int]  # whether the body is an answer, and the number of the request


class _Asked:
    """A request of ours that waits for its reply."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.sent = False
        self.head: wire.Response | None = None

    def last_piece(self) -> None:
        self.sent = True


class _Outgoing:
    """A body of several pieces on its way: how many were sent, and how many the peer has."""

    def __init__(self, total: int) -> None:
        self.total, self.sent, self.received = total, 0, 0


class Link:
    """`run` serves the link until it ends; `request` may be called meanwhile."""

    def __init__(
        self,
        peer: str,
        stream: Stream,
        handle: Handler,
        rules: Rules,
        work: Work,
        told: Told,
        clock: Clock = time.monotonic,
    ) -> None:
        self.peer, self.stream, self.handle, self.rules = peer, stream, handle, rules
        self.work, self.told = work, told
        self._patience = Patience(rules.idle_timeout, clock)
        self._end: asyncio.Future[Refused] = asyncio.get_running_loop().create_future()
        self._write_lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(rules.in_flight)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._last_id = 0
        self._asked: dict[int, _Asked] = {}
        self._their_last_id = 0
        self._answering: set[int] = set()
        self._incoming: dict[Key, tuple[Incoming, Any]] = {}
        self._window = asyncio.Semaphore(WINDOW)
        self._outgoing: dict[Key, _Outgoing] = {}
        self._to_confirm: dict[Key, int] = {}
        self._confirming = False

    def cut(self, kind: str, words: str) -> None:
        """Ends the link; the first reason counts."""
        if not self._end.done():
            self._end.set_result(Refused(kind, words))

    async def run(self) -> Refused:
        """Serves the link until it ends, and says why it did."""
        self._patience.moved("link")
        self._spawn(self._read_all())
        self._spawn(self._watch())
        try:
            return await asyncio.shield(self._end)  # cancelling us must not cancel what others look at
        finally:
            self.cut("lost", "the link was closed")
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for asked in self._asked.values():
                self._fail(asked)
            self._asked.clear()
            self._incoming.clear()

    async def request(self, message: Message) -> Reply:
        if len(message.body) > self.rules.largest_body or not 0 < len(message.kind) <= LONGEST_KIND:
            raise ValueError(
                f"Expected a kind of 1 to {LONGEST_KIND} letters and a body of at most "
                f"{self.rules.largest_body} bytes, got {message.kind!r:.80} with "
                f"{len(message.body)}; see largest_body in the manifest."
            )
        if self._end.done():
            raise self._unreachable()
        # A task of its own: a caller who gives up must not leave half a body on the stream.
        task = self._spawn(self._exchange(message))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by the end of the link, and not the caller
                raise self._unreachable() from None
            raise

    async def _exchange(self, message: Message) -> Reply:
        async with self._slots:
            self._last_id += 1
            number, asked = self._last_id, _Asked()
            self._asked[number] = asked
            try:
                head = wire.Request(
                    kind=message.kind, round=message.round, digest=bytes.fromhex(message.digest)
                )
                await self._send(("asked", number), number, head, message.body, asked.last_piece)
                return await asked.reply
            finally:
                self._patience.done(("asked", number))

    async def _answer(self, number: int, head: wire.Request, body: Incoming) -> None:
        message = Message(head.kind, head.round, head.digest.hex(), body.body)
        await self._respond(number, await self.work.do(lambda: self._handled(message)))

    async def _handled(self, message: Message) -> Reply | None:
        try:
            reply = await self.handle(self.peer, message)
            if len(reply.body) > self.rules.largest_body:
                raise ValueError(f"Expected a reply of at most {self.rules.largest_body} bytes.")
        except Exception as error:
            self.told.tell(self.peer, "unanswered", f"{message.kind!r}, by our fault", logging.ERROR, error)
            return None
        return reply

    async def _respond(self, number: int, reply: Reply | None) -> None:
        """None: the handler failed; the peer may ask again."""
        body = b"" if reply is None else reply.body
        head = wire.Response(digest=hashlib.sha256(body).digest())
        if reply is None:
            head.failed = True
        else:
            head.ok, head.reason = reply.ok, reply.reason[:LONGEST_REASON]
        # The peer may ask again as soon as it has the last piece, before we are told that it is written.
        await self._send(("answer", number), number, head, body, last=lambda: self._answering.discard(number))
        self._patience.done(("answer", number))

    async def _send(
        self,
        what: Hashable,
        number: int,
        head: wire.Request | wire.Response,
        body: bytes,
        last: Callable[[], None] = lambda: None,
    ) -> None:
        """The body in pieces. Pieces of other bodies may come between: the lock is per frame."""
        head.id, head.size = number, len(body)
        answer, left = isinstance(head, wire.Response), len(body)
        several = _Outgoing(-(-len(body) // PIECE)) if len(body) > PIECE else None
        if several is not None:
            self._outgoing[answer, number] = several
        self._patience.moved(what)
        for k, piece in enumerate(pieces(body)):
            if several is not None:
                await self._window.acquire()
                several.sent += 1
            if k > 0:
                frame = wire.Frame(chunk=wire.Chunk(id=number, answer=answer, data=piece))
            elif isinstance(head, wire.Response):
                head.data = piece
                frame = wire.Frame(response=head)
            else:
                head.data = piece
                frame = wire.Frame(request=head)
            left -= len(piece)
            await self._write(frame, last if left == 0 else lambda: None)

    async def _write(self, frame: wire.Frame, before: Callable[[], None] = lambda: None) -> None:
        async with self._write_lock:
            before()
            await self._put(frame)

    async def _put(self, frame: wire.Frame) -> None:
        try:
            await self.stream.write(frame)
        except ConnectionError as error:
            self.cut("lost", str(error))
            raise self._unreachable() from error

    async def _read_all(self) -> None:
        try:
            while (frame := await self.stream.read()) is not None:
                self._patience.moved("link")
                self._take(frame)
            self.cut("lost", "the peer ended the link")
        except Refused as refused:
            self.cut(refused.kind, refused.words)
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
            self._take_receipt(frame.received)
        elif kind != "ping":
            raise Refused("protocol", f"expected a request, response, chunk, receipt or ping, got {kind}")

    def _take_request(self, head: wire.Request) -> None:
        if head.id != self._their_last_id + 1:
            raise Refused("protocol", f"expected request {self._their_last_id + 1}, got {head.id}")
        if len(self._answering) >= self.rules.in_flight:
            raise Refused("flood", f"expected at most {self.rules.in_flight} requests under way, got more")
        if not 0 < len(head.kind) <= LONGEST_KIND:
            raise Refused("protocol", f"expected a kind of 1 to {LONGEST_KIND} letters, got {len(head.kind)}")
        self._their_last_id = head.id
        self._answering.add(head.id)
        self._begin(False, head)

    def _take_response(self, head: wire.Response) -> None:
        asked = self._asked.get(head.id)
        if asked is None or not asked.sent or asked.head is not None:
            raise Refused("protocol", f"got a response to request {head.id}, which does not wait for one")
        if len(head.reason) > LONGEST_REASON:
            raise Refused("protocol", f"expected a reason of at most {LONGEST_REASON} letters")
        asked.head = head
        self._begin(True, head)

    def _begin(self, answer: bool, head: wire.Request | wire.Response) -> None:
        first = head.data
        head.ClearField("data")  # the piece must not be kept twice
        self._incoming[answer, head.id] = (Incoming(head.size, head.digest, self.rules.largest_body), head)
        self._take_piece(answer, head.id, first)

    def _take_piece(self, answer: bool, number: int, piece: bytes) -> None:
        if (answer, number) not in self._incoming:
            raise Refused("protocol", f"got a piece of body {number}, which is not under way")
        body, head = self._incoming[answer, number]
        what = ("asked", number) if answer else ("body", number)
        self._patience.moved(what)
        complete = body.add(piece)
        if body.size > PIECE:
            self._confirm((answer, number), body.pieces)
        if not complete:
            return
        del self._incoming[answer, number]
        self._patience.done(what)
        if answer:
            self._complete(number, head, body)
        elif body.intact:
            self._spawn(self._answer(number, head, body))
        else:
            self.told.tell(self.peer, "digest", f"the body of {head.kind!r} does not match its digest")
            self._spawn(self._respond(number, Reply(False, "the body does not match its digest")))

    def _confirm(self, key: Key, count: int) -> None:
        """Tells the peer, soon; what is told later includes what was to be told before."""
        self._to_confirm[key] = count
        if not self._confirming:
            self._confirming = True
            self._spawn(self._confirm_all())

    async def _confirm_all(self) -> None:
        while self._to_confirm:
            async with self._write_lock:
                (answer, number), count = self._to_confirm.popitem()
                frame = wire.Frame(received=wire.Received(id=number, answer=answer, pieces=count))
                await self._put(frame)
        self._confirming = False

    def _take_receipt(self, receipt: wire.Received) -> None:
        key = (receipt.answer, receipt.id)
        body = self._outgoing.get(key)
        if body is None or not body.received < receipt.pieces <= body.sent:
            raise Refused("protocol", f"got a receipt for {receipt.pieces} pieces of body {receipt.id}")
        for _ in range(receipt.pieces - body.received):
            self._window.release()
        body.received = receipt.pieces
        if body.received == body.total:
            del self._outgoing[key]
        # Whatever waits to be sent, or lies in a buffer behind these pieces, is on its way.
        for what in self._patience.waiting():
            if isinstance(what, tuple) and what[0] != "body":
                self._patience.moved(what)

    def _complete(self, number: int, head: wire.Response, body: Incoming) -> None:
        if not body.intact:
            raise Refused("digest", "a reply does not match its digest")
        asked = self._asked.pop(number)
        if head.failed:
            self._fail(asked, Unreachable(f"{self.peer} could not answer; its log says why."))
        elif not asked.reply.done():
            asked.reply.set_result(Reply(head.ok, head.reason, body.body))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.rules.idle_timeout / CHECKS)
            if (what := self._patience.lost()) is not None:
                words = f"nothing moved for {self.rules.idle_timeout:g} s"
                kind = "silent" if what == "link" else "stalled"
                self.cut(kind, words if what == "link" else f"{words} in {what}")
            if not self._write_lock.locked():  # else something is being sent
                self._spawn(self._write(wire.Frame(ping=wire.Ping())))

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
            self.told.tell(self.peer, "failed", "the link, by our fault", logging.ERROR, error)
            self.cut("failed", OUR_FAULT)

    def _fail(self, asked: _Asked, error: Unreachable | None = None) -> None:
        if not asked.reply.done():
            asked.reply.set_exception(error or self._unreachable())
            asked.reply.exception()  # nobody may be waiting any more

    def _unreachable(self) -> Unreachable:
        reason = f" ({self._end.result().words})" if self._end.done() else ""
        return Unreachable(f"The link with {self.peer} ended{reason}.")
