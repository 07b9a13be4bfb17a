"""Replies of an agent to its neighbours: to greetings, rows, the last message, notices and cards.

Every request comes from an authenticated peer (`wire`). The handlers check it, store it and reply. Live
pairing adds handlers of its own.

**Guarantees.** Nothing is acknowledged that is not on disk. A request of a stranger or of a quarantined
neighbour is refused and logged once. Nothing that a peer sends ends the agent, except in the cases that
`peer_contacts` lists.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import final

from topdp.agents.ledger.ledger_entries import LedgerError, TamperedError, digest_of
from topdp.agents.ledger.stored_rows import receiver_of
from topdp.agents.runtime.peer_contacts import MAX_OMISSIONS_OF_A_ROW, PeerContacts
from topdp.agents.runtime.peer_messages import MAX_NOTICES
from topdp.agents.wire.transport import Message, MessageKind, Reply, ReplyCode, Unreachable


@final
class RequestHandlers:
    """Replies to the requests of the neighbours of one agent."""

    def __init__(self, peers: PeerContacts) -> None:
        self.peers = peers
        self.ledger, self.refusals, self.notices = peers.ledger, peers.refusals, peers.notices
        self._gaps: dict[str, tuple[int | None, int]] = {}  # the round that each left out, and how often
        peers.handlers |= {
            MessageKind.HELLO: self._hello,
            MessageKind.ROW: self._row,
            MessageKind.BYE: self._bye,
            MessageKind.CARD: self._card,
        }
        if self.notices is not None:
            peers.handlers[MessageKind.NOTICES] = self._notices

    async def handle(self, peer: str, message: Message) -> Reply:
        """Return the reply to one request of an authenticated peer."""
        self.peers.received[peer] += len(message.body)
        reply = await self._answer(peer, message)
        self.peers.sent[peer] += len(reply.body)
        return reply

    async def _answer(self, peer: str, message: Message) -> Reply:
        if peer not in self.peers.silent_ticks:
            return self._refuse(peer, ReplyCode.STRANGER, message)
        if digest_of(message.body) != message.digest:
            return self._refuse(peer, ReplyCode.DAMAGED, message)
        answer = self.peers.handlers.get(message.kind)
        if answer is None:
            return self._refuse(peer, ReplyCode.UNKNOWN_KIND, message)
        if self.peers.is_excluded(peer):
            is_greeting = message.kind is MessageKind.HELLO
            notices = self.notices.parting_notices(peer) if is_greeting and self.notices else b""
            return replace(self._refuse(peer, ReplyCode.GONE, message), body=notices)
        is_notice = message.kind in (MessageKind.NOTICES, MessageKind.CARD)  # has a number instead of a round
        if not -1 <= message.round <= (MAX_NOTICES if is_notice else self.peers.last_round):
            return self._refuse(peer, ReplyCode.UNKNOWN_ROUND, message)
        if message.kind is not MessageKind.HELLO:  # a greeting may have other terms
            self.peers.note_message(peer)
        if is_notice and self.ledger.quarantined(peer) is not None:
            return self._refuse(peer, ReplyCode.QUARANTINED, message)
        try:
            return await answer(peer, message)
        except (LedgerError, TamperedError) as error:
            self.peers.fail(error)
            raise
        except Unreachable:
            raise
        except Exception as error:
            # A peer has triggered an error in this agent: the peer gets no answer, and the agent continues.
            words = f"{message.kind.name}, because of an error in this agent"
            self.refusals.report(peer, "unanswered", words, logging.ERROR, error)
            return Reply(ReplyCode.FAILED)

    def _refuse(self, peer: str, code: ReplyCode, message: Message) -> Reply:
        words = f"{message.kind.name} of round {message.round} refused: {code.words}"
        self.refusals.report(peer, code.name.lower(), words)
        return Reply(code)

    async def _hello(self, peer: str, message: Message) -> Reply:
        code = self.peers.take_greeting(peer, message.body, None)
        if code is ReplyCode.NOT_A_GREETING:
            return self._refuse(peer, code, message)
        if code is ReplyCode.OTHER_TERMS:
            return Reply(code)
        standing, body = self.ledger.quarantined(peer), self.peers.greeting(peer).encode()
        if standing is None:
            return Reply(ReplyCode.OK, body=body)
        # It gets this agent's greeting in any case, because its ledger may be an old copy.
        if standing.code is ReplyCode.ROLLED_BACK:
            return Reply(standing.code, standing.words, body)
        return Reply(ReplyCode.QUARANTINED, body=body)

    async def _row(self, peer: str, message: Message) -> Reply:
        self.peers.hooks.reached("before_receive")
        verdict = self.peers.inbox.judge(peer, message.round, message.digest)
        if verdict in (ReplyCode.OK, ReplyCode.LATER):
            try:
                self.peers.check_row(peer, message.round, message.body)
            except ValueError as error:
                self.peers.distrust(peer, ReplyCode.NOT_A_ROW, f"sent what is not a row: {error}")
                return Reply(ReplyCode.NOT_A_ROW, str(error))
            if not self.peers.beliefs.may_have_reached(peer, message.round):
                words = f"sent a row of round {message.round}, which it cannot have reached: not believed"
                self.refusals.report(peer, "ahead", words)
                return Reply(ReplyCode.LATER)
            self.peers.beliefs.newest_shown[peer] = max(self.peers.beliefs.newest_shown[peer], message.round)
        signature = b""
        if verdict is ReplyCode.OK:  # the row counts without a signature; a valid one helps its sender later
            receiver = receiver_of(self.ledger.database, self.peers.name)
            facts = (peer, receiver, message.round, message.digest, message.signature)
            signature = message.signature if self.peers.signatures.verify(*facts) else b""
        self.peers.inbox.settle(verdict, peer, message.round, message.digest, message.body, signature)
        if verdict is ReplyCode.OK and not self.peers.inbox.gaps:
            # A neighbour that waits for every row has the rows of which its own was made.
            self.peers.acknowledge(peer, message.round - 2)
        if verdict is ReplyCode.GAP and self.peers.inbox.skips_rounds(peer, message.round):
            self._handle_gap(peer, message.round)
        elif not verdict.accepted and verdict is not ReplyCode.LATER:
            self._refuse(peer, verdict, message)
        self.peers.hooks.reached("after_receive")
        self.peers.changed.set()
        return Reply(verdict)

    def _handle_gap(self, peer: str, round: int) -> None:
        """Handle a row that arrives before an earlier one, which this ledger may have lost.

        A greeting asks `peer` for the earlier row again. If `peer` omits the same row
        `MAX_OMISSIONS_OF_A_ROW` times, and has reported which rows of this agent it has, this agent
        quarantines it.
        """
        owed, times = self.peers.inbox.expected(peer), 1
        if self._gaps.get(peer, (None, 0))[0] == owed:
            times += self._gaps[peer][1]
        self._gaps[peer] = (owed, times)
        # Not before it has reported which rows of this agent it has.
        if times >= MAX_OMISSIONS_OF_A_ROW and peer in self.peers.beliefs.reported:
            self.peers.distrust(peer, ReplyCode.GAP, f"sent round {round} and left out {owed}")
        else:
            self.peers.greet_again(peer)

    async def _bye(self, peer: str, message: Message) -> Reply:
        self.ledger.note_finished(peer)
        self.peers.changed.set()
        return Reply(ReplyCode.OK)

    async def _notices(self, peer: str, message: Message) -> Reply:
        return self.peers.take_notices(peer, message.body)

    async def _card(self, peer: str, message: Message) -> Reply:
        code, words, culprit = self.peers.card_updates.accept(message.body)
        if code is ReplyCode.NOT_A_STATEMENT:
            self.peers.distrust(peer, code, words)
        elif culprit is not None and culprit in self.peers.silent_ticks:
            self.peers.distrust(culprit, code, words)
        elif code is ReplyCode.OK:
            self.peers.wake_senders()
        return Reply(code, words)
