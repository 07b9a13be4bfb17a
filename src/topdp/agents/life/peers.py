"""The neighbours of one agent: greetings, what is owed to each, and what each has said.

One task per neighbour sends what the ledger holds for it, oldest first, the stored bytes and no others, until
they are acknowledged. Greetings compare what both sides remember, so a restored backup is found. Being out of
reach is a normal state: it is waited for.

**Guarantees.** Nothing is sent that is not in the ledger. Nothing is acknowledged that is not on disk. What
comes from somebody who is no neighbour, or is quarantined, is refused and logged once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import time

from topdp.agents.books.database import LedgerError, TamperedError
from topdp.agents.books.entries import digest_of
from topdp.agents.books.inbox import Inbox
from topdp.agents.books.ledger import Ledger
from topdp.agents.life.cards import Cards
from topdp.agents.life.failpoints import Failpoints
from topdp.agents.life.gossip import Gossip
from topdp.agents.life.greeting import Greeting, NotAGreeting, Terms
from topdp.agents.wire.codes import MessageKind, ReplyCode
from topdp.agents.wire.refusals import Told, quoted
from topdp.agents.wire.transport import Message, Reply, Transport, Unreachable, end_all
from topdp.errors import TrustError

TICKS = 8  # of silence make an idle timeout
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 3.0  # seconds between attempts to reach a neighbour

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
        gossip: Gossip | None = None,
        cards: Cards | None = None,
    ) -> None:
        """`gossip`: where agents share draws. `cards`: where agents may renew theirs."""
        self.name, self.neighbours, self.terms = name, neighbours, terms
        self.ledger, self.inbox, self.transport = ledger, inbox, transport
        self.failpoints, self.told, self.gossip = failpoints, told, gossip
        self.check, self.cards = check, cards
        self.changed = asyncio.Event()  # something came in, or somebody's standing changed
        self.silent = dict.fromkeys(neighbours, 0)  # ticks since something was heard
        self.heard_at = dict.fromkeys(neighbours, time())  # for people: nothing is decided by it
        self.rounds = dict.fromkeys(neighbours, -1)  # the last round each is known to have done
        self.refused_by: set[str] = set()  # neighbours that take nothing more from this agent
        self.given_up: Callable[[str], bool] = lambda peer: False  # whom this agent counts as gone
        self.left_by: set[str] = set()  # neighbours that count this agent as gone
        self.met: set[str] = set()  # neighbours that have said, in this process's life, what they have seen
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
        self.tasks = [asyncio.create_task(self._serve(peer)) for peer in self.neighbours]
        for task in self.tasks:
            task.add_done_callback(self._ended)

    async def close(self) -> None:
        await end_all(self.tasks, "neighbours")
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

    def wake(self) -> None:
        """There is something new to send."""
        for event in self._to_send.values():
            event.set()

    def owes(self, peer: str) -> list[int]:
        """The rounds that `peer` has not acknowledged and may need."""
        gone = peer in self.refused_by or self.ledger.finished(peer)
        return [] if gone else self.ledger.waiting(peer)

    def greeting(self, peer: str) -> Greeting:
        books = self.ledger
        run = self.gossip.run if self.gossip else ""
        return Greeting(self.terms, books.charged, books.seen(peer), books.round, run)

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
        self._heard(peer)
        try:
            return await answer(peer, message)
        except (LedgerError, TamperedError) as error:
            self._fail(error)
            raise

    def _refused(self, peer: str, code: ReplyCode, message: Message) -> Reply:
        words = f"{message.kind.name} of round {message.round} refused: {code.words}"
        self.told.tell(peer, code.name.lower(), words)
        return Reply(code)

    async def _hello(self, peer: str, message: Message) -> Reply:
        try:
            greeting = Greeting.decode(message.body)
        except NotAGreeting:
            return self._refused(peer, ReplyCode.NOT_A_GREETING, message)
        if greeting.terms != self.terms:
            self._differ(peer)
            return Reply(ReplyCode.OTHER_TERMS)
        self._learn(peer, greeting)
        standing = self.ledger.quarantined(peer)
        if standing is None:
            return Reply(ReplyCode.OK, body=self.greeting(peer).encode())
        if standing.code is ReplyCode.ROLLED_BACK:
            return Reply(standing.code, standing.words)
        return Reply(ReplyCode.QUARANTINED)

    async def _row(self, peer: str, message: Message) -> Reply:
        self.failpoints.reached("before_receive")
        verdict = self.inbox.judge(peer, message.round, message.digest)
        if verdict is ReplyCode.OK:
            try:
                self.check(message.body)
            except ValueError as error:
                self.distrust(peer, ReplyCode.NOT_A_ROW, f"sent what is not a row: {error}")
                return Reply(ReplyCode.NOT_A_ROW, str(error))
        self.inbox.settle(verdict, peer, message.round, message.digest, message.body)
        if not verdict.accepted and verdict is not ReplyCode.LATER:
            self._refused(peer, verdict, message)
        self.failpoints.reached("after_receive")
        if verdict.accepted:
            self.rounds[peer] = max(self.rounds[peer], message.round)
        self.changed.set()
        return Reply(verdict)

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

    def _learn(self, peer: str, greeting: Greeting) -> None:
        if self.gossip is not None and self.gossip.run and greeting.run not in ("", self.gossip.run):
            self._fail(
                TrustError(f"{peer} holds other keys of this run than this agent: somebody told two stories.")
            )
            return
        seen = self.ledger.seen(peer)
        if greeting.charged < seen and self.ledger.quarantined(peer) is None:
            words = f"rolled back: sent round {seen} before, and now knows of {greeting.charged} only"
            self.distrust(peer, ReplyCode.ROLLED_BACK, words)
        if greeting.seen > self.ledger.charged:
            words = (
                f"{peer} has seen round {greeting.seen} of this agent, whose ledger knows of "
                f"{self.ledger.charged} only: it is an old copy, what was spent since is missing. Restore "
                f"the newest {self.ledger.folder}; without it this agent must leave the federation."
            )
            self._fail(TrustError(words))
            return
        for round in self.ledger.waiting(peer):
            if round <= greeting.seen:
                self.ledger.acknowledge(peer, round)
        self.rounds[peer] = max(self.rounds[peer], greeting.round)
        self.met.add(peer)
        self.changed.set()

    def _heard(self, peer: str) -> None:
        self.silent[peer] = 0
        self.heard_at[peer] = time()

    def _differ(self, peer: str) -> None:
        self._fail(
            TrustError(
                f"{peer} holds another manifest, plan or model than this agent: give all agents the same "
                "manifest, the same version of topdp and data of the same shape."
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
        body = self.greeting(peer).encode()
        reply = await self.transport.request(peer, Message.of(MessageKind.HELLO, 0, body))
        self._heard(peer)
        if reply.ok:
            try:
                greeting = Greeting.decode(reply.body)
            except NotAGreeting:
                self.told.tell(peer, "not_a_greeting", "what it answers is refused")
                return False
            if greeting.terms == self.terms:
                self._learn(peer, greeting)
                return True
        if reply.ok or reply.code is ReplyCode.OTHER_TERMS:
            self._differ(peer)
        elif reply.code is ReplyCode.GONE:
            self._left(peer)
        elif reply.code is ReplyCode.ROLLED_BACK:
            words = f"{peer} refuses this agent, whose ledger is an old copy: {quoted(reply.reason)}."
            self._fail(TrustError(words))
        else:
            self.told.tell(peer, "refused", f"the greeting: {quoted(reply.reason)}")
            if reply.code is ReplyCode.QUARANTINED:
                self._refused_for_good(peer, "the greeting")
        return False

    def _next(self, peer: str) -> Message | None:
        card = self.cards.untold(peer) if self.cards else None
        if card is not None:
            return Message.of(MessageKind.CARD, *card)
        news = self.gossip.untold(peer) if self.gossip else None
        if news is not None:
            return Message.of(MessageKind.NEWS, *news)
        waiting = self.owes(peer)
        if waiting:
            return Message.of(MessageKind.ROW, waiting[0], self.ledger.body(peer, waiting[0]))
        if self.finishing and not self.ledger.told(peer):
            return Message.of(MessageKind.BYE, self.ledger.round)
        return None

    async def _deliver(self, peer: str, message: Message) -> bool:
        self.failpoints.reached("before_send")
        reply = await self.transport.request(peer, message)
        self.failpoints.reached("after_send")
        self._heard(peer)
        if reply.ok and message.kind is MessageKind.ROW:
            self.ledger.acknowledge(peer, message.round)
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
        elif reply.code is not ReplyCode.LATER:
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
