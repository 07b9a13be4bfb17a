"""The neighbours of one agent: greetings, what is owed to each, and what each has said.

One task per neighbour sends what the ledger holds for it, oldest first, the stored bytes and no others, until
they are acknowledged. Greetings compare what both sides remember, so a restored backup is found (`beliefs`).
Being out of reach is a normal state: it is waited for.

**Guarantees.** Nothing is sent that is not in the ledger. Nothing is acknowledged that is not on disk. What
comes from somebody who is no neighbour, or is quarantined, is refused and logged once. Nothing that a peer
says or does ends the agent, but a proof that its books are an old copy, or that all neighbours hold other
terms; before a run with shared draws begins, also what makes it unknown with whom they would be shared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from time import time
from typing import Any

from topdp.agents.books.database import LedgerError, TamperedError
from topdp.agents.books.entries import digest_of
from topdp.agents.books.inbox import Inbox
from topdp.agents.books.ledger import Ledger
from topdp.agents.books.witness import receiver_of
from topdp.agents.life.beliefs import Beliefs
from topdp.agents.life.cards import Cards
from topdp.agents.life.failpoints import Failpoints
from topdp.agents.life.gossip import Gossip
from topdp.agents.life.greeting import Greeting, NotAGreeting, Terms
from topdp.agents.terms.proofs import Proofs
from topdp.agents.wire.codes import MessageKind, ReplyCode
from topdp.agents.wire.refusals import Told, quoted
from topdp.agents.wire.transport import Message, Reply, Transport, Unreachable, end_all
from topdp.errors import TopdpError, TrustError

TICKS = 8  # of silence make an idle timeout
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 3.0  # seconds between attempts to reach a neighbour

LARGEST_NUMBER = 2**31  # of a neighbour's statements

Check = Callable[[bytes], object]
"""Raises ValueError when a body is not a row of this federation."""


class Peers:
    """Everything between one agent and its neighbours."""

    def __init__(
        self,
        name: str,
        neighbours: list[str],
        terms: Terms,
        ledger: Ledger,
        inbox: Inbox,
        transport: Transport,
        check: Check,
        failpoints: Failpoints,
        told: Told,
        proofs: Proofs,
        last: int,
        gossip: Gossip | None = None,
        cards: Cards | None = None,
        doubtful: bool = False,
    ) -> None:
        """`last`: the last round of the plan. `gossip`: where draws are shared.

        `cards`: where agents may renew theirs. `doubtful`: see `beliefs`.
        """
        self.name, self.neighbours, self.terms = name, neighbours, terms
        self.ledger, self.inbox, self.transport = ledger, inbox, transport
        self.failpoints, self.told, self.gossip = failpoints, told, gossip
        self.check, self.cards, self.proofs, self.last = check, cards, proofs, last
        self.given_up: Callable[[str], bool] = lambda peer: False  # whom this agent counts as gone
        self.beliefs = Beliefs(neighbours, ledger, proofs, lambda peer: self.given_up(peer), doubtful)
        self.changed = asyncio.Event()  # something came in, or somebody's standing changed
        self.silent = dict.fromkeys(neighbours, 0)  # ticks since something was heard
        self.heard_at = dict.fromkeys(neighbours, time())  # for people: nothing is decided by it
        self.refused_by: set[str] = set()  # neighbours that take nothing more from this agent
        self.differing: set[str] = set()  # neighbours that hold other terms
        self._differed = 0  # ticks since the first of them, while nobody holds the same
        self.left_by: set[str] = set()  # neighbours that count this agent as gone
        self.finishing = False  # all rounds are done: neighbours are told so
        self.fault: BaseException | None = None  # why this agent cannot go on
        self.answers: dict[MessageKind, Callable[[str, Message], Awaitable[Reply]]] = {
            MessageKind.HELLO: self._hello,
            MessageKind.ROW: self._row,
            MessageKind.BYE: self._bye,
        }
        if gossip is not None:
            self.answers[MessageKind.NEWS] = self._news
        if cards is not None:
            self.answers[MessageKind.CARD] = self._card
        self._to_send = {peer: asyncio.Event() for peer in neighbours}
        self._asked: set[str] = set()
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.transport.start(self.handle)
        for peer in self.neighbours:
            self.spawn(self._serve(peer))

    async def close(self) -> None:
        await end_all(list(self.tasks), "neighbours")
        await self.transport.close()

    def ask(self, peer: str) -> None:
        """Greets once more: who waits for somebody else has nothing to send, and is alive all the same."""
        self._asked.add(peer)
        self._to_send[peer].set()

    def tick(self) -> None:
        """One more tick of silence from everybody; all are asked whether they are there."""
        for peer in self.neighbours:
            self.silent[peer] += 1
            self.ask(peer)
        if self.differing and not self.beliefs.met:
            self._differed += 1
            if self._differed >= TICKS:
                self._end_by_terms()

    def wake(self) -> None:
        """There is something new to send."""
        for event in self._to_send.values():
            event.set()

    def owes(self, peer: str) -> list[int]:
        """The rounds that `peer` has not acknowledged and may need."""
        if peer in self.refused_by or self.ledger.finished(peer):
            return []
        waiting = self.ledger.waiting(peer)
        # Who is so far behind was gone on without, and takes up the round where others are: these show it.
        return waiting[-2:] if self.inbox.gaps and len(waiting) > self.inbox.window else waiting

    def greeting(self, peer: str) -> Greeting:
        return self.beliefs.greeting(peer, self.terms, self.gossip.run if self.gossip else "")

    # What comes in

    async def handle(self, peer: str, message: Message) -> Reply:
        """Answers one request of an authenticated peer."""
        if peer not in self.silent:
            return self._refused(peer, ReplyCode.STRANGER, message)
        if digest_of(message.body) != message.digest:
            return self._refused(peer, ReplyCode.DAMAGED, message)
        answer = self.answers.get(message.kind)
        if answer is None:
            return self._refused(peer, ReplyCode.UNKNOWN_KIND, message)
        if self.given_up(peer):
            return self._refused(peer, ReplyCode.GONE, message)
        if not self._in_range(message):
            return self._refused(peer, ReplyCode.UNKNOWN_ROUND, message)
        if message.kind is not MessageKind.HELLO:  # whose terms may be others
            self._heard(peer)
        try:
            return await answer(peer, message)
        except (LedgerError, TamperedError) as error:
            self._fail(error)
            raise
        except Unreachable:
            raise
        except Exception as error:
            # A fault of ours that a peer has found: it costs the peer an answer, not us our life.
            self.told.tell(peer, "unanswered", f"{message.kind.name}, by our fault", logging.ERROR, error)
            return Reply(ReplyCode.FAILED)

    def _in_range(self, message: Message) -> bool:
        """News and cards are counted; everything else has a round of the plan."""
        counted = message.kind in (MessageKind.NEWS, MessageKind.CARD)
        most = LARGEST_NUMBER if counted else self.last
        return -1 <= message.round <= most

    def _refused(self, peer: str, code: ReplyCode, message: Message) -> Reply:
        words = f"{message.kind.name} of round {message.round} refused: {code.words}"
        self.told.tell(peer, code.name.lower(), words)
        return Reply(code)

    async def _hello(self, peer: str, message: Message) -> Reply:
        try:
            greeting = Greeting.decode(message.body, self.last)
        except NotAGreeting:
            return self._refused(peer, ReplyCode.NOT_A_GREETING, message)
        if greeting.terms != self.terms:
            self._differ(peer)
            return Reply(ReplyCode.OTHER_TERMS)
        self._heard(peer)
        self._learn(peer, greeting, None)
        standing, body = self.ledger.quarantined(peer), self.greeting(peer).encode()
        if standing is None:
            return Reply(ReplyCode.OK, body=body)
        # What this agent has of it is said in any case: its books may be an old copy.
        if standing.code is ReplyCode.ROLLED_BACK:
            return Reply(standing.code, standing.words, body)
        return Reply(ReplyCode.QUARANTINED, body=body)

    async def _row(self, peer: str, message: Message) -> Reply:
        self.failpoints.reached("before_receive")
        verdict = self.inbox.judge(peer, message.round, message.digest)
        if verdict in (ReplyCode.OK, ReplyCode.LATER):
            try:
                self.check(message.body)
            except ValueError as error:
                self.distrust(peer, ReplyCode.NOT_A_ROW, f"sent what is not a row: {error}")
                return Reply(ReplyCode.NOT_A_ROW, str(error))
            self.beliefs.shown[peer] = max(self.beliefs.shown[peer], message.round)
        signature = self._signature(peer, message) if verdict is ReplyCode.OK else b""
        self.inbox.settle(verdict, peer, message.round, message.digest, message.body, signature)
        settled = peer in self.beliefs.met  # not before it has said, and shown, what it has of this agent
        if verdict is ReplyCode.GAP and settled and self.inbox.leaves_out(peer, message.round):
            # It will never send what is missing: it lies, or these books have lost what they acknowledged.
            words = f"sent round {message.round} and left out {self.inbox.expected(peer)}"
            self.distrust(peer, verdict, words)
        elif not verdict.accepted and verdict is not ReplyCode.LATER:
            self._refused(peer, verdict, message)
        self.failpoints.reached("after_receive")
        self.changed.set()
        return Reply(verdict)

    def _signature(self, peer: str, message: Message) -> bytes:
        """The one under the row, where it holds; it is its sender whom it serves."""
        receiver = receiver_of(self.ledger, self.name)
        facts = (peer, receiver, message.round, message.digest, message.signature)
        return message.signature if self.proofs.holds(*facts) else b""

    def distrust(self, peer: str, code: ReplyCode, words: str) -> None:
        """Nothing more is believed of `peer`, and the log says why."""
        self.told.tell(peer, code.name.lower(), words)
        self.ledger.quarantine(peer, code, words)
        self.changed.set()

    async def _bye(self, peer: str, message: Message) -> Reply:
        self.ledger.note_finished(peer)
        self.changed.set()
        return Reply(ReplyCode.OK)

    async def _news(self, peer: str, message: Message) -> Reply:
        assert self.gossip is not None
        if self.ledger.quarantined(peer) is not None:
            return self._refused(peer, ReplyCode.QUARANTINED, message)
        try:
            code, words = self.gossip.take(message.body)
        except TrustError as error:
            self._fail(error)
            return Reply(ReplyCode.OTHER_TERMS)
        if code is ReplyCode.NOT_A_STATEMENT:
            self.distrust(peer, code, words)
        self.changed.set()
        self.wake()
        return Reply(code, words)

    async def _card(self, peer: str, message: Message) -> Reply:
        assert self.cards is not None
        if self.ledger.quarantined(peer) is not None:
            return self._refused(peer, ReplyCode.QUARANTINED, message)
        code, words, culprit = self.cards.take(message.body)
        if code is ReplyCode.NOT_A_STATEMENT:
            self.distrust(peer, code, words)
        elif culprit is not None and culprit in self.silent:
            self.distrust(culprit, code, words)
        elif code is ReplyCode.OK:
            self.wake()
        return Reply(code, words)

    def _learn(self, peer: str, greeting: Greeting, known: int | None) -> None:
        if self.gossip is not None and self.gossip.run and greeting.run not in ("", self.gossip.run):
            words = "holds other keys of this run than this agent: somebody told two stories"
            if self.gossip.begun:
                self.distrust(peer, ReplyCode.OTHER_TERMS, words)
            else:
                self._fail(TrustError(f"{peer} {words}."))
            return
        judgement = self.beliefs.judge(peer, greeting, known)
        if judgement.fault is not None:
            self._fail(judgement.fault)
            return
        if judgement.is_old:
            self.ask(peer)
            return
        if judgement.code is not None and self.ledger.quarantined(peer) is None:
            self.distrust(peer, judgement.code, judgement.words)
        for round in self.ledger.waiting(peer):
            if round <= greeting.seen:
                self.ledger.acknowledge(peer, round)
        self.beliefs.met.add(peer)
        self.beliefs.passed[peer] = (greeting.sent, greeting.round)
        self.differing.discard(peer)
        self.changed.set()

    def spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Something said on the side; a fault of our own in it ends the agent."""
        task = asyncio.create_task(job)
        self.tasks.append(task)
        task.add_done_callback(self._ended)
        task.add_done_callback(self.tasks.remove)
        return task

    def _heard(self, peer: str) -> None:
        self.silent[peer] = 0
        self.heard_at[peer] = time()

    def _differ(self, peer: str) -> None:
        """`peer` is not believed. Where all are like it, or nobody else is heard, the mistake is here."""
        words = "holds another manifest, plan or model than this agent"
        self.told.tell(peer, "other_terms", words)
        self.differing.add(peer)
        if not set(self.neighbours) - self.differing:
            self._end_by_terms()

    def _end_by_terms(self) -> None:
        self._fail(
            TrustError(
                f"{', '.join(sorted(self.differing))}: another manifest, plan or model than this agent has, "
                "and no neighbour with the same: give all agents the same manifest, the same version of "
                "topdp and data of the same shape."
            )
        )

    def _fail(self, fault: BaseException) -> None:
        self.fault = self.fault or fault
        self.changed.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self._fail(fault)

    # What goes out

    async def _serve(self, peer: str) -> None:
        greeted, pause = False, FIRST_PAUSE
        while not self.ends_with(peer):
            self._to_send[peer].clear()
            try:
                if not greeted or peer in self._asked:
                    self._asked.discard(peer)
                    greeted = await self._greet(peer)
                message = self._next(peer) if greeted else None
                if greeted and message is None:
                    await self._to_send[peer].wait()
                    continue
                if message is not None and await self._deliver(peer, message):
                    pause = FIRST_PAUSE
                    continue
            except Unreachable:
                greeted = False
            except TopdpError:
                raise  # the books, or a disk: a fault of our own
            except Exception as error:
                self.told.tell(peer, "failed", "what it answers, by our fault", logging.ERROR, error)
                greeted = False
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def ends_with(self, peer: str) -> bool:
        """Whether there is nothing more to say to `peer`."""
        lost = self.ledger.quarantined(peer) is not None or self.given_up(peer)
        return lost or peer in self.refused_by

    def _left(self, peer: str) -> None:
        """`peer` has gone on without this agent, for good."""
        self.told.tell(peer, "gone", "counts this agent as gone: it was silent for too long")
        self.left_by.add(peer)
        self.refused_by.add(peer)
        self.changed.set()

    async def _greet(self, peer: str) -> bool:
        known = self.ledger.seen(peer)
        body = self.greeting(peer).encode()
        reply = await self.transport.request(peer, Message.of(MessageKind.HELLO, 0, body))
        if reply.code is ReplyCode.OTHER_TERMS:
            self._differ(peer)
            return False
        self._heard(peer)
        if reply.code is ReplyCode.GONE:
            self._left(peer)
            return False
        if reply.body or reply.ok:
            try:
                greeting = Greeting.decode(reply.body, self.last)
            except NotAGreeting:
                self.told.tell(peer, "not_a_greeting", "what it answers is refused")
                return False
            if greeting.terms != self.terms:
                self._differ(peer)
                return False
            self._learn(peer, greeting, known)
        if not reply.ok and reply.code is not ReplyCode.FAILED:
            self.told.tell(peer, "refused", f"the greeting: {quoted(reply.reason)}")
            if reply.code in (ReplyCode.QUARANTINED, ReplyCode.ROLLED_BACK):
                self._refused_for_good(peer, "the greeting")
        return reply.ok

    def _next(self, peer: str) -> Message | None:
        card = self.cards.untold(peer) if self.cards else None
        if card is not None:
            return Message.of(MessageKind.CARD, *card)
        news = self.gossip.untold(peer) if self.gossip else None
        if news is not None:
            return Message.of(MessageKind.NEWS, *news)
        waiting = self.owes(peer)
        if waiting:
            round, body = waiting[0], self.ledger.body(peer, waiting[0])
            signature = self.proofs.sign(peer, round, digest_of(body))
            return Message.of(MessageKind.ROW, round, body, signature)
        if self.finishing and not self.ledger.told(peer):
            return Message.of(MessageKind.BYE, self.ledger.round)
        return None

    async def _deliver(self, peer: str, message: Message) -> bool:
        self.failpoints.reached("before_send")
        reply = await self.transport.request(peer, message)
        self.failpoints.reached("after_send")
        self._heard(peer)
        if reply.ok and message.kind is MessageKind.ROW:
            for round in self.ledger.waiting(peer):
                if round <= message.round:
                    self.ledger.acknowledge(peer, round)
        elif message.kind is MessageKind.CARD:
            assert self.cards is not None
            self.cards.told(peer, message.round, reply)
        elif reply.ok and message.kind is MessageKind.NEWS:
            assert self.gossip is not None
            self.gossip.acknowledged(peer, message.round)
        elif reply.ok:
            self.ledger.note_told(peer)
        elif reply.code is ReplyCode.GONE:
            self._left(peer)
        elif reply.code not in (ReplyCode.LATER, ReplyCode.FAILED):
            words = f"{message.kind.name} of round {message.round}: {quoted(reply.reason)}"
            self.told.tell(peer, "refused", words)
            self._refused_for_good(peer, "the row" if message.kind is MessageKind.ROW else "")
        self.changed.set()
        return reply.ok

    def _refused_for_good(self, peer: str, what: str) -> None:
        """`peer` takes nothing more of this agent; nothing of it is waited for: nobody can stop another."""
        self.refused_by.add(peer)
        if what:
            self.ledger.depart(f"round {self.ledger.round}: {peer} refused {what}", peer)
        self.changed.set()
