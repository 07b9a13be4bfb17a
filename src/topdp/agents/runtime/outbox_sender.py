"""What an agent says to its neighbours: one task for each sends what the ledger holds for it, oldest first.

The stored bytes and no others, until they are acknowledged. Being out of reach is a normal state: it is
waited for. Greetings compare what both sides remember, so a restored backup is found (`beliefs`).

**Guarantees.** Nothing is sent that is not in the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import final

from topdp.agents.ledger.inbox import Inbox
from topdp.agents.ledger.ledger_entries import digest_of
from topdp.agents.runtime.agent_hooks import AgentHooks
from topdp.agents.runtime.card_updates import CardUpdates
from topdp.agents.runtime.greeting import Greeting, GreetingError
from topdp.agents.runtime.peer_contacts import MOST_GAPS, PeerContacts
from topdp.agents.wire.link_refusals import quoted
from topdp.agents.wire.transport import Message, Transport, Unreachable
from topdp.agents.wire.wire_codes import MessageKind, ReplyCode
from topdp.errors import TopdpError

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 3.0  # seconds between attempts to reach a neighbour


@final
class OutboxSender:
    """What one agent owes its neighbours, and how it gets there."""

    def __init__(
        self,
        contacts: PeerContacts,
        inbox: Inbox,
        transport: Transport,
        hooks: AgentHooks,
        last: int,
        cards: CardUpdates | None,
    ) -> None:
        """`last`: the last round of the plan. `cards`: where agents may renew theirs."""
        self.contacts, self.inbox, self.transport = contacts, inbox, transport
        self.hooks, self.last, self.cards = hooks, last, cards
        self.ledger, self.refusals, self.gossip = contacts.ledger, contacts.refusals, contacts.gossip
        self._gaps: Counter[str] = Counter()  # how often each lacked an earlier row, one time after another
        self.finishing = False  # all rounds are done: neighbours are refusals so

    def owes(self, peer: str) -> list[int]:
        """The rounds that `peer` has not acknowledged and may need."""
        if peer in self.contacts.refused_by or self.ledger.finished(peer):
            return []
        waiting = self.ledger.unacknowledged(peer)
        # Who is so far behind was gone on without, and takes up the round where others are: these show it.
        return waiting[-2:] if self.inbox.gaps and len(waiting) > self.inbox.window else waiting

    async def serve(self, peer: str) -> None:
        greeted, pause = False, FIRST_PAUSE
        while not self.contacts.ends_with(peer):
            self.contacts.to_send[peer].clear()
            try:
                if not greeted or peer in self.contacts.asked:
                    self.contacts.asked.discard(peer)
                    greeted = await self._greet(peer)
                message = self._next(peer) if greeted else None
                if greeted and message is None:
                    await self.contacts.to_send[peer].wait()
                    continue
                if message is not None and await self._deliver(peer, message):
                    pause = FIRST_PAUSE
                    continue
            except Unreachable:
                greeted = False
            except TopdpError:
                raise  # the books, or a disk: a fault of our own
            except Exception as error:
                self.refusals.report(peer, "failed", "what it answers, by our fault", logging.ERROR, error)
                greeted = False
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _greet(self, peer: str) -> bool:
        known = self.ledger.last_received(peer)
        body = self.contacts.greeting(peer).encode()
        reply = await self.transport.request(peer, Message.of(MessageKind.HELLO, 0, body))
        if reply.code is ReplyCode.OTHER_TERMS:
            self.contacts.differ(peer)
            return False
        self.contacts.heard(peer)
        if reply.code is ReplyCode.GONE:
            if not self.contacts.takes_last_words(peer, reply.body):
                self.contacts.left(peer)
            return False
        if reply.body or reply.ok:
            try:
                greeting = Greeting.decode(reply.body, self.last)
            except GreetingError:
                self.refusals.report(peer, "not_a_greeting", "what it answers is refused")
                return False
            if greeting.terms != self.contacts.terms:
                self.contacts.differ(peer)
                return False
            self.contacts.learn(peer, greeting, known)
        if not reply.ok and reply.code is not ReplyCode.FAILED:
            self.refusals.report(peer, "refused", f"the greeting: {quoted(reply.reason)}")
            if reply.code in (ReplyCode.QUARANTINED, ReplyCode.ROLLED_BACK):
                self.contacts.refused_for_good(peer, "the greeting")
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
            signature = self.contacts.proofs.sign(peer, round, digest_of(body))
            return Message.of(MessageKind.ROW, round, body, signature)
        if self.finishing and not self.ledger.finish_known(peer):
            return Message.of(MessageKind.BYE, self.ledger.round)
        return None

    async def _deliver(self, peer: str, message: Message) -> bool:
        self.hooks.reached("before_send")
        reply = await self.transport.request(peer, message)
        self.hooks.reached("after_send")
        self.contacts.heard(peer)
        if reply.ok and message.kind is MessageKind.ROW:
            self._gaps.pop(peer, None)
            for round in self.ledger.unacknowledged(peer):
                if round <= message.round:
                    self.ledger.acknowledge(peer, round)
        elif message.kind is MessageKind.CARD:
            assert self.cards is not None
            self.cards.told(peer, message.round, reply)
        elif reply.ok and message.kind is MessageKind.NEWS:
            assert self.gossip is not None
            self.gossip.acknowledged(peer, message.round)
        elif reply.ok:
            self.ledger.note_finish_known(peer)
        elif reply.code is ReplyCode.GONE:
            self.contacts.ask(peer)  # what it answers then may hold its last words
        elif reply.code is ReplyCode.GAP and self._gaps[peer] + 1 < MOST_GAPS:
            self._gaps[peer] += 1
            self.contacts.ask(peer)  # it says what it lacks, which may be what it had acknowledged
        elif reply.code not in (ReplyCode.LATER, ReplyCode.FAILED):
            words = f"{message.kind.name} of round {message.round}: {quoted(reply.reason)}"
            self.refusals.report(peer, "refused", words)
            self.contacts.refused_for_good(peer, "the row" if message.kind is MessageKind.ROW else "")
        self.contacts.changed.set()
        return reply.ok
