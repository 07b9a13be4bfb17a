"""Sending to neighbours: one task per neighbour sends the rows that the ledger has for it, oldest first.

A task sends the stored bytes and no others, until they are acknowledged. It waits while the neighbour is
unreachable, which is a normal state. Greetings compare the rows that both sides have, so a restored backup is
detected (`peer_judgement`).

**Guarantees.** Every row that is sent is in the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import final

from topdp.agents.ledger.ledger_entries import digest_of
from topdp.agents.runtime.peer_contacts import MAX_OMISSIONS_OF_A_ROW, PeerContacts
from topdp.agents.wire.link_limits import MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS
from topdp.agents.wire.link_refusals import quoted
from topdp.agents.wire.transport import Message, MessageKind, ReplyCode, Unreachable
from topdp.errors import TopdpError


@final
class OutboxSender:
    """Sends rows, notices, cards and the last message of one agent to its neighbours."""

    def __init__(self, peers: PeerContacts) -> None:
        self.peers = peers
        self.ledger, self.refusals, self.notices = peers.ledger, peers.refusals, peers.notices
        self._gaps: Counter[str] = Counter()  # how often in succession each neighbour lacked an earlier row

    def rounds_owed(self, peer: str) -> list[int]:
        """Return the rounds whose rows `peer` has not acknowledged and may need."""
        if peer in self.peers.refused_by or self.ledger.finished(peer):
            return []
        waiting = self.ledger.unacknowledged(peer)
        # A neighbour that is this far behind skips to the round of the others, which these rows show.
        return waiting[-2:] if self.peers.inbox.gaps and len(waiting) > self.peers.inbox.window else waiting

    async def serve(self, peer: str) -> None:
        """Send to `peer` until there is nothing more to send."""
        greeted, pause = False, MIN_PAUSE_SECONDS
        while not self.peers.sends_nothing_to(peer):
            self.peers.to_send[peer].clear()
            try:
                if not greeted or peer in self.peers.to_greet:
                    self.peers.to_greet.discard(peer)
                    greeted = await self._greet(peer)
                message = self._next(peer) if greeted else None
                if greeted and message is None:
                    await self.peers.to_send[peer].wait()
                    continue
                if message is not None and await self._deliver(peer, message):
                    pause = MIN_PAUSE_SECONDS
                    continue
            except Unreachable:
                greeted = False
            except TopdpError:
                raise  # a fault of this agent, such as a full disk
            except Exception as error:
                words = "its reply was not handled, because of an error in this agent"
                self.refusals.report(peer, "failed", words, logging.ERROR, error)
                greeted = False
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    async def _greet(self, peer: str) -> bool:
        last_received = self.ledger.last_received(peer)
        body = self.peers.greeting(peer).encode()
        reply = await self.peers.request(peer, Message.of(MessageKind.HELLO, 0, body))
        if reply.code is ReplyCode.OTHER_TERMS:
            self.peers.handle_other_terms(peer)
            return False
        self.peers.note_message(peer)
        if reply.code is ReplyCode.GONE:
            if not self.peers.accept_parting_notices(peer, reply.body):
                self.peers.record_exclusion(peer)
            return False
        if reply.body or reply.ok:
            code = self.peers.take_greeting(peer, reply.body, last_received)
            if code is ReplyCode.NOT_A_GREETING:
                self.refusals.report(peer, "not_a_greeting", "its reply is refused")
            if code is not ReplyCode.OK:
                return False
        if not reply.ok and reply.code is not ReplyCode.FAILED:
            self.refusals.report(peer, "refused", f"the greeting: {quoted(reply.reason)}")
            if reply.code in (ReplyCode.QUARANTINED, ReplyCode.ROLLED_BACK):
                self.peers.record_refusal(peer, "the greeting")
        return reply.ok

    def _next(self, peer: str) -> Message | None:
        card = self.peers.card_updates.next_unsent(peer)
        if card is not None:
            return Message.of(MessageKind.CARD, *card)
        notices = self.notices.next_unsent(peer) if self.notices else None
        if notices is not None:
            return Message.of(MessageKind.NOTICES, *notices)
        waiting = self.rounds_owed(peer)
        if waiting:
            round, body = waiting[0], self.ledger.body(peer, waiting[0])
            signature = self.peers.signatures.sign(peer, round, digest_of(body))
            return Message.of(MessageKind.ROW, round, body, signature)
        if self.peers.finishing and not self.ledger.finish_known(peer):
            return Message.of(MessageKind.BYE, self.ledger.round)
        return None

    async def _deliver(self, peer: str, message: Message) -> bool:
        self.peers.hooks.reached("before_send")
        reply = await self.peers.request(peer, message)
        self.peers.hooks.reached("after_send")
        self.peers.note_message(peer)
        if reply.ok and message.kind is MessageKind.ROW:
            self._gaps.pop(peer, None)
            self.peers.acknowledge(peer, message.round)
        elif message.kind is MessageKind.CARD:
            self.peers.card_updates.record_reply(peer, message.round, reply)
        elif reply.ok and message.kind is MessageKind.NOTICES:
            assert self.notices is not None
            self.notices.note_acknowledged(peer, message.round)
        elif reply.ok:
            self.ledger.note_finish_known(peer)
        elif reply.code is ReplyCode.GONE:
            self.peers.greet_again(peer)  # its reply may contain its last notices
        elif reply.code is ReplyCode.GAP and self._gaps[peer] + 1 < MAX_OMISSIONS_OF_A_ROW:
            self._gaps[peer] += 1
            self.peers.greet_again(peer)  # it reports what it lacks, perhaps rows that it had acknowledged
        elif reply.code not in (ReplyCode.LATER, ReplyCode.FAILED):
            words = f"{message.kind.name} of round {message.round}: {quoted(reply.reason)}"
            self.refusals.report(peer, "refused", words)
            self.peers.record_refusal(peer, "the row" if message.kind is MessageKind.ROW else "")
        self.peers.changed.set()
        return reply.ok
