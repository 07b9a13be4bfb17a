"""The state of each neighbour in this process: whether it is silent, trusted, or refuses rows.

`request_handlers`, `outbox_sender` and the loops share this state. Facts that must survive a restart are in
the ledger.

**Guarantees.** No message of a peer ends the agent, except proof that its ledger is an old copy, or greetings
or handshakes that show that all neighbours have other terms (manifest, plan, start). Before a run with shared
draws begins, contradictory keys also end it, because it would be unknown with which agents draws are shared.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any, final

from topdp.agents.agreement.signatures import RowSignatures
from topdp.agents.ledger import stored_rows
from topdp.agents.ledger.inbox import Inbox
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.runtime.agent_hooks import AgentHooks
from topdp.agents.runtime.card_updates import CardUpdates
from topdp.agents.runtime.peer_judgement import PeerBeliefs
from topdp.agents.runtime.peer_messages import Greeting, GreetingError, LinkTerms
from topdp.agents.wire.link_refusals import RefusalLog
from topdp.agents.wire.transport import Message, MessageKind, Reply, ReplyCode, Transport
from topdp.errors import TrustError

if TYPE_CHECKING:
    from topdp.agents.runtime.notice_exchange import NoticeExchange

TICKS_PER_TIMEOUT = 8  # ticks in one idle timeout
MAX_RESENDS_PER_ROUND = 32  # rows sent again to one neighbour between two rounds of this agent
MAX_OMISSIONS_OF_A_ROW = 3  # how often a neighbour may leave out a round that greetings report as missing

RowCheck = Callable[[str, int, bytes], object]
"""Raises ValueError if a body is not a row that this neighbour may have made in this round."""

RequestHandler = Callable[[str, Message], Awaitable[Reply]]


@final
@dataclass(kw_only=True, eq=False, repr=False)
class PeerContacts:
    """The neighbours of one agent, the objects that exchange messages with them, and their state."""

    terms: LinkTerms
    ledger: Ledger
    inbox: Inbox
    transport: Transport
    check_row: RowCheck
    signatures: RowSignatures
    last_round: int  # of the plan
    hooks: AgentHooks
    card_updates: CardUpdates
    notices: NoticeExchange | None = None  # None if no draws are shared

    def __post_init__(self) -> None:
        self.name = self.signatures.identity.card.name
        self.neighbours = list(self.signatures.directory.manifest.neighbours(self.name))
        self.refusals = RefusalLog(self.name)
        self.handlers: dict[MessageKind, RequestHandler] = {}
        self.finishing = False  # True once all rounds are in the ledger: neighbours are informed
        self.is_excluded: Callable[[str], bool] = lambda peer: False  # whether this agent has excluded a peer
        self.beliefs = PeerBeliefs(self)
        self.sent: Counter[str] = Counter()  # bytes of the bodies of messages to each neighbour
        self.received: Counter[str] = Counter()
        self.changed = asyncio.Event()  # set if a message arrives or the state of a neighbour changes
        self.silent_ticks = dict.fromkeys(self.neighbours, 0)  # ticks since the last message
        self.heard_at = dict.fromkeys(self.neighbours, time())  # shown to people; no decision depends on it
        self.refused_by: set[str] = set()  # neighbours that accept nothing more from this agent
        self.peers_with_other_terms: set[str] = set()  # neighbours that have other terms
        self.excluded_by: set[str] = set()  # neighbours that count this agent as departed
        self.fault: BaseException | None = None  # the error that ends this agent
        self.tasks: list[asyncio.Task[None]] = []
        self._resent: dict[str, tuple[int, int]] = {}  # peer -> (own round, number of rows sent again in it)
        self.to_greet: set[str] = set()  # neighbours to which another greeting must be sent
        self.to_send = {peer: asyncio.Event() for peer in self.neighbours}
        self.transport.on_other_manifest = self.handle_other_manifest

    async def request(self, peer: str, message: Message) -> Reply:
        """Send a message to `peer` and wait for the reply. Raises Unreachable."""
        self.sent[peer] += len(message.body)
        loop, answered = asyncio.get_running_loop(), None
        begin = loop.time()
        try:
            reply = await self.transport.request(peer, message)
            answered = loop.time()
        finally:
            self.beliefs.note_contact(peer, begin, answered)
        self.received[peer] += len(reply.body)
        return reply

    def greet_again(self, peer: str) -> None:
        """Send `peer` another greeting. A neighbour that waits for others sends nothing, but replies."""
        self.to_greet.add(peer)
        self.to_send[peer].set()

    def finish(self) -> None:
        """Inform the neighbours that this agent has finished all rounds."""
        self.finishing = True
        self.wake_senders()

    def wake_senders(self) -> None:
        """Wake the senders of all neighbours, because there is something new to send."""
        for event in self.to_send.values():
            event.set()

    def tick(self) -> None:
        """Count one more tick of silence for all neighbours, and send each of them a greeting."""
        for peer in self.neighbours:
            self.silent_ticks[peer] += 1
            self.greet_again(peer)

    def greeting(self, peer: str) -> Greeting:
        """Return what this agent reports to `peer`."""
        database = self.ledger.database
        received = stored_rows.newest_received(database, peer)
        sent = stored_rows.newest_sent(database, stored_rows.receiver_of(database, peer))
        return Greeting(
            terms=self.terms,
            charged=self.ledger.last_sent_round,
            seen=received.round,
            round=self.ledger.round,
            run=self.notices.run if self.notices else "",
            seen_digest=received.digest,
            seen_signature=received.signature,
            sent=sent.round,
            sent_digest=sent.digest,
            statements=self.notices.store.total() if self.notices else 0,
        )

    def take_greeting(self, peer: str, body: bytes, received: int | None) -> ReplyCode:
        """Apply what `peer` reports in a greeting, and return the code of the reply.

        `received`: the highest round received from `peer` before this agent requested the greeting; None if
        the agent did not request it.
        """
        try:
            greeting = Greeting.decode(body, self.last_round)
        except GreetingError:
            return ReplyCode.NOT_A_GREETING
        if greeting.terms != self.terms:
            self.handle_other_terms(peer)
            return ReplyCode.OTHER_TERMS
        self.note_message(peer)
        self._apply_greeting(peer, greeting, received)
        return ReplyCode.OK

    def _apply_greeting(self, peer: str, greeting: Greeting, received: int | None) -> None:
        if self.notices is not None and self.notices.run and greeting.run not in ("", self.notices.run):
            words = "has other keys of this run than this agent: an agent has stated two"
            if self.notices.has_begun:
                self.distrust(peer, ReplyCode.OTHER_TERMS, words)
            else:
                self.fail(TrustError(f"{peer} {words}."))
            return
        if not self.beliefs.judge(peer, greeting, received):
            return
        self.acknowledge(peer, greeting.seen)
        self._send_again(peer, greeting)
        self.beliefs.reported.add(peer)
        if received is not None:
            self.beliefs.note_answer(peer, greeting.round)
        self.beliefs.passed_rounds[peer] = (greeting.sent, greeting.round)
        self.peers_with_other_terms.discard(peer)
        self.changed.set()

    def _send_again(self, peer: str, greeting: Greeting) -> None:
        """Resend rows that `peer` acknowledged but reports as missing in its greeting.

        Its ledger was restored from an older copy, or the greeting is outdated. The number of rows is limited
        until this agent's own next round, so no neighbour can make it send without end.
        """
        if self.notices is not None:
            self.notices.note_reported_count(peer, greeting.statements)
        round, count = self._resent.get(peer, (-1, 0))
        count = count if round == self.ledger.round else 0
        count += self.ledger.requeue(peer, greeting.seen, MAX_RESENDS_PER_ROUND - count)
        self._resent[peer] = (self.ledger.round, count)
        if count >= MAX_RESENDS_PER_ROUND:
            self.refusals.report(peer, "again", "repeatedly requests rows that it has acknowledged")
        self.to_send[peer].set()

    def acknowledge(self, peer: str, last: int) -> None:
        """Count the rows for `peer` of the rounds up to `last` as acknowledged: they are not sent again."""
        for round in self.ledger.unacknowledged(peer):
            if round <= last:
                self.ledger.acknowledge(peer, round)

    def note_message(self, peer: str) -> None:
        self.silent_ticks[peer] = 0
        self.heard_at[peer] = time()

    def handle_other_terms(self, peer: str) -> None:
        """Handle a greeting of `peer` with other terms.

        A neighbour that had the same terms before is quarantined. If all neighbours have other terms, the
        fault is this agent's own, and it ends. One that contradicts may lie, so the agent waits for the
        others.
        """
        words = "has another manifest, plan or model than this agent"
        if peer in self.beliefs.reported:  # it had the same terms before, so its claim must end no agent
            self.distrust(peer, ReplyCode.OTHER_TERMS, words)
            return
        self.refusals.report(peer, "other_terms", f"{words}, which waits for its other neighbours")
        self.peers_with_other_terms.add(peer)
        if not set(self.neighbours) - self.peers_with_other_terms:
            self.fail(
                TrustError(
                    "Expected neighbours with the manifest, plan and model of this agent, got only "
                    f"neighbours with others: {', '.join(sorted(self.peers_with_other_terms))}. Give all "
                    "agents the same manifest, the same version of topdp and data of the same shape."
                )
            )

    def handle_other_manifest(self, peer: str) -> None:
        """Handle a handshake in which `peer` has stated another manifest.

        A neighbour that had the same manifest before has perhaps begun the next run.
        """
        if peer not in self.beliefs.reported:
            self.handle_other_terms(peer)

    def fail(self, fault: BaseException) -> None:
        self.fault = self.fault or fault
        self.changed.set()

    def distrust(self, peer: str, code: ReplyCode, words: str) -> None:
        """Stop accepting messages from `peer` (quarantine), and log the reason."""
        self.refusals.report(peer, code.name.lower(), words)
        self.ledger.quarantine(peer, code, words)
        self.changed.set()

    def sends_nothing_to(self, peer: str) -> bool:
        """Return whether there is nothing more to send to `peer`."""
        is_closed = self.ledger.quarantined(peer) is not None or self.is_excluded(peer)
        return is_closed or peer in self.refused_by

    def record_exclusion(self, peer: str) -> None:
        """Record that `peer` counts this agent as departed, for good."""
        self.refusals.report(peer, "gone", "counts this agent as gone: it was silent for too long")
        self.excluded_by.add(peer)
        self.refused_by.add(peer)
        self.changed.set()

    def accept_parting_notices(self, peer: str, body: bytes) -> bool:
        """Accept the notices that `peer` sends with its refusal; return whether to greet `peer` again.

        Applies only while this agent has not begun the run and `peer` has gone on without it. A run begins
        once all agents have stated that they have the same keys. An agent that was disconnected then may lack
        the notice of an agent that sends nothing more; `peer` sends all notices with its refusal. So this
        agent begins too, or learns that it counts as departed. After it has begun, it ignores these notices.
        """
        if self.notices is None or self.notices.has_begun or not body:
            return False
        # LATER: all keys have arrived now, and the next greeting requests the remaining notices.
        return self.take_notices(peer, body).code is ReplyCode.LATER

    def take_notices(self, peer: str, body: bytes) -> Reply:
        """Store the notices that `peer` passes on, and return the reply."""
        assert self.notices is not None
        try:
            code, words = self.notices.accept(body)
        except TrustError as error:
            self.fail(error)
            return Reply(ReplyCode.OTHER_TERMS)
        if code is ReplyCode.NOT_A_STATEMENT:
            self.distrust(peer, code, words)
        self.changed.set()
        self.wake_senders()
        return Reply(code, words)

    def record_refusal(self, peer: str, what: str) -> None:
        """Record that `peer` accepts nothing more from this agent; the agent does not wait for it any more.

        `what`: the refused message, which is recorded as a departure from the plan; empty: none is recorded.
        """
        self.refused_by.add(peer)
        if what:
            self.ledger.note_departure(f"round {self.ledger.round}: {peer} refused {what}", peer)
        self.changed.set()

    def spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `job` as a task in the background, and return the task. An exception in it ends the agent."""
        task = asyncio.create_task(job)
        self.tasks.append(task)
        task.add_done_callback(self._ended)
        task.add_done_callback(self.tasks.remove)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self.fail(fault)
