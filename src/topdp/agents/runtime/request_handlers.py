"""How an agent answers its neighbours: greetings, rows, the last message, notices and cards.

Every request comes from an authenticated peer (`wire`); here it is judged, written down and answered. Live
pairing adds answers of its own.

**Guarantees.** Nothing is acknowledged that is not on disk. A request of a stranger or of a quarantined
neighbour is refused and logged once. Nothing that a peer sends ends the agent, except as `peer_contacts`
states.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import final

from topdp.agents.ledger.ledger_entries import LedgerError, TamperedError, digest_of
from topdp.agents.ledger.stored_rows import receiver_of
from topdp.agents.runtime.peer_contacts import MAX_GAPS, PeerContacts
from topdp.agents.wire.transport import Message, Reply, Unreachable
from topdp.agents.wire.wire_codes import MessageKind, ReplyCode

MAX_STATEMENT_NUMBER = 2**31


@final
class RequestHandlers:
    """Answers the requests of the neighbours of one agent."""

    def __init__(self, peers: PeerContacts) -> None:
        self.peers = peers
        self.ledger, self.refusals, self.gossip = peers.ledger, peers.refusals, peers.gossip
        self._gaps: dict[str, tuple[int | None, int]] = {}  # the round that each passed over, and how often
        peers.handlers |= {
            MessageKind.HELLO: self._hello,
            MessageKind.ROW: self._row,
            MessageKind.BYE: self._bye,
            MessageKind.CARD: self._card,
        }
        if self.gossip is not None:
            peers.handlers[MessageKind.NEWS] = self._news

    async def handle(self, peer: str, message: Message) -> Reply:
        """Answer one request of an authenticated peer."""
        self.peers.received[peer] += len(message.body)
        reply = await self._answer(peer, message)
        self.peers.sent[peer] += len(reply.body)
        return reply

    async def _answer(self, peer: str, message: Message) -> Reply:
        if peer not in self.peers.silent:
            return self._refused(peer, ReplyCode.STRANGER, message)
        if digest_of(message.body) != message.digest:
            return self._refused(peer, ReplyCode.DAMAGED, message)
        answer = self.peers.handlers.get(message.kind)
        if answer is None:
            return self._refused(peer, ReplyCode.UNKNOWN_KIND, message)
        if self.peers.given_up(peer):
            asks = message.kind is MessageKind.HELLO and self.gossip is not None
            last_words = self.gossip.parting(peer) if asks and self.gossip else b""
            return replace(self._refused(peer, ReplyCode.GONE, message), body=last_words)
        is_notice = message.kind in (MessageKind.NEWS, MessageKind.CARD)  # numbered: all else has a round
        if not -1 <= message.round <= (MAX_STATEMENT_NUMBER if is_notice else self.peers.last_round):
            return self._refused(peer, ReplyCode.UNKNOWN_ROUND, message)
        if message.kind is not MessageKind.HELLO:  # its terms may differ
            self.peers.heard(peer)
        if is_notice and self.ledger.quarantined(peer) is not None:
            return self._refused(peer, ReplyCode.QUARANTINED, message)
        try:
            return await answer(peer, message)
        except (LedgerError, TamperedError) as error:
            self.peers.fail(error)
            raise
        except Unreachable:
            raise
        except Exception as error:
            # A fault of ours that a peer has triggered: the peer gets no answer, and the agent goes on.
            self.refusals.report(
                peer, "unanswered", f"{message.kind.name}, by our fault", logging.ERROR, error
            )
            return Reply(ReplyCode.FAILED)

    def _refused(self, peer: str, code: ReplyCode, message: Message) -> Reply:
        words = f"{message.kind.name} of round {message.round} refused: {code.words}"
        self.refusals.report(peer, code.name.lower(), words)
        return Reply(code)

    async def _hello(self, peer: str, message: Message) -> Reply:
        code = self.peers.take_greeting(peer, message.body, None)
        if code is ReplyCode.NOT_A_GREETING:
            return self._refused(peer, code, message)
        if code is ReplyCode.OTHER_TERMS:
            return Reply(code)
        standing, body = self.ledger.quarantined(peer), self.peers.greeting(peer).encode()
        if standing is None:
            return Reply(ReplyCode.OK, body=body)
        # It gets this agent's greeting in any case: its ledger may be an old copy.
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
            self.peers.beliefs.shown[peer] = max(self.peers.beliefs.shown[peer], message.round)
        signature = b""
        if verdict is ReplyCode.OK:  # a valid signature serves the sender
            receiver = receiver_of(self.ledger.database, self.peers.name)
            facts = (peer, receiver, message.round, message.digest, message.signature)
            signature = message.signature if self.peers.signatures.verify(*facts) else b""
        self.peers.inbox.settle(verdict, peer, message.round, message.digest, message.body, signature)
        if verdict is ReplyCode.OK and not self.peers.inbox.gaps:
            # A neighbour that waits for every row has those that its own is made of.
            self.peers.acknowledge(peer, message.round - 2)
        if verdict is ReplyCode.GAP and self.peers.inbox.skips_rounds(peer, message.round):
            self._passed_over(peer, message.round)
        elif not verdict.accepted and verdict is not ReplyCode.LATER:
            self._refused(peer, verdict, message)
        self.peers.hooks.reached("after_receive")
        self.peers.changed.set()
        return Reply(verdict)

    def _passed_over(self, peer: str, round: int) -> None:
        """Handle a row that comes before one that this ledger may have lost.

        A greeting requests the lost row again. A neighbour that still omits it will never send it, and is not
        waited for.
        """
        owed, times = self.peers.inbox.expected(peer), 1
        if self._gaps.get(peer, (None, 0))[0] == owed:
            times += self._gaps[peer][1]
        self._gaps[peer] = (owed, times)
        # Not before it has reported, and shown, what it has of this agent.
        if times >= MAX_GAPS and peer in self.peers.beliefs.met:
            self.peers.distrust(peer, ReplyCode.GAP, f"sent round {round} and left out {owed}")
        else:
            self.peers.ask(peer)

    async def _bye(self, peer: str, message: Message) -> Reply:
        self.ledger.note_finished(peer)
        self.peers.changed.set()
        return Reply(ReplyCode.OK)

    async def _news(self, peer: str, message: Message) -> Reply:
        return self.peers.take_notices(peer, message.body)

    async def _card(self, peer: str, message: Message) -> Reply:
        code, words, culprit = self.peers.card_updates.take(message.body)
        if code is ReplyCode.NOT_A_STATEMENT:
            self.peers.distrust(peer, code, words)
        elif culprit is not None and culprit in self.peers.silent:
            self.peers.distrust(culprit, code, words)
        elif code is ReplyCode.OK:
            self.peers.wake()
        return Reply(code, words)
