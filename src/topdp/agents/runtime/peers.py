"""The neighbours of one agent: what it knows of them, answers them and sends them, put together.

Greetings, what is owed to each, and what each has said are in `contacts`, `answering` and `sending`; this is
the one door that an agent's life uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, final

from topdp.agents.agreement.signatures import RowSignatures
from topdp.agents.ledger.inbox import Inbox
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.runtime.agent_hooks import AgentHooks
from topdp.agents.runtime.card_updates import CardUpdates
from topdp.agents.runtime.greeting import Greeting, LinkTerms
from topdp.agents.runtime.outbox_sender import OutboxSender
from topdp.agents.runtime.peer_contacts import PeerContacts
from topdp.agents.runtime.request_handlers import Check, RequestHandlers
from topdp.agents.runtime.statement_gossip import StatementGossip
from topdp.agents.wire.link_refusals import RefusalLog
from topdp.agents.wire.transport import Message, Reply, Transport, end_all
from topdp.agents.wire.wire_codes import ReplyCode


@final
class Peers:
    """Everything between one agent and its neighbours."""

    def __init__(
        self,
        name: str,
        neighbours: list[str],
        terms: LinkTerms,
        ledger: Ledger,
        inbox: Inbox,
        transport: Transport,
        check: Check,
        hooks: AgentHooks,
        refusals: RefusalLog,
        proofs: RowSignatures,
        last: int,
        gossip: StatementGossip | None = None,
        cards: CardUpdates | None = None,
        doubtful: bool = False,
    ) -> None:
        """`last`: the last round of the plan. `gossip`: where draws are shared.

        `cards`: where agents may renew theirs. `doubtful`: see `beliefs`.
        """
        self.name, self.neighbours, self.ledger, self.inbox = name, neighbours, ledger, inbox
        self.transport, self.refusals, self.proofs = transport, refusals, proofs
        self.terms, self.check, self.last = terms, check, last
        self.contacts = contacts = PeerContacts(neighbours, terms, ledger, refusals, proofs, gossip, doubtful)
        self.answering = RequestHandlers(name, contacts, inbox, check, hooks, last, cards)
        self.sending = OutboxSender(contacts, inbox, transport, hooks, last, cards)
        self.beliefs, self.changed, self.silent = contacts.beliefs, contacts.changed, contacts.silent
        self.heard_at, self.differing = contacts.heard_at, contacts.differing
        self.refused_by, self.left_by, self.tasks = contacts.refused_by, contacts.left_by, contacts.tasks

    @property
    def fault(self) -> BaseException | None:
        """Why this agent cannot go on; None while it can."""
        return self.contacts.fault

    async def start(self) -> None:
        await self.transport.start(self.handle)
        for peer in self.neighbours:
            self.spawn(self.sending.serve(peer))

    async def close(self) -> None:
        await end_all(list(self.tasks), "neighbours")
        await self.transport.close()

    async def handle(self, peer: str, message: Message) -> Reply:
        """Answers one request of an authenticated peer."""
        return await self.answering.handle(peer, message)

    def finish(self) -> None:
        """All rounds are done: neighbours are told so."""
        self.sending.finishing = True
        self.wake()

    def wake(self) -> None:
        self.contacts.wake()

    def tick(self) -> None:
        self.contacts.tick()

    def owes(self, peer: str) -> list[int]:
        return self.sending.owes(peer)

    def greeting(self, peer: str) -> Greeting:
        return self.contacts.greeting(peer)

    def ends_with(self, peer: str) -> bool:
        return self.contacts.ends_with(peer)

    def distrust(self, peer: str, code: ReplyCode, words: str) -> None:
        self.contacts.distrust(peer, code, words)

    def spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.contacts.spawn(job)
