"""The state of each neighbour in this process: silent or not, trusted or not, and whether it refuses rows.

`request_handlers`, `outbox_sender` and the loops share this state. Facts that must survive a restart are in
the ledger.

**Guarantees.** No message of a peer ends the agent, except proof that its ledger is an old copy, or greetings
that show that all neighbours have other terms (manifest, plan, start). Before a run with shared draws begins,
contradictory keys also end it, because it would be unknown with which agents draws are shared.
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
from topdp.agents.wire.transport import Message, Reply, Transport
from topdp.agents.wire.wire_codes import MessageKind, ReplyCode
from topdp.errors import TrustError

if TYPE_CHECKING:
    from topdp.agents.runtime.statement_gossip import StatementGossip

TICKS_PER_TIMEOUT = 8  # ticks of silence in one idle timeout
MAX_RESENDS_PER_ROUND = 32  # rows sent again to one neighbour between two rounds of this agent
MAX_GAPS = 3  # how often a neighbour may leave out the same round, although greetings report that it lacks


RowCheck = Callable[[str, int, bytes], object]
"""Raises ValueError if a body is not a row that this neighbour may have made in this round."""

RequestHandler = Callable[[str, Message], Awaitable[Reply]]


@final
@dataclass(kw_only=True, eq=False, repr=False)
class PeerContacts:
    """The neighbours of one agent: what it exchanges messages with, and their state in this process."""

    name: str
    neighbours: list[str]
    terms: LinkTerms
    ledger: Ledger
    inbox: Inbox
    transport: Transport
    check_row: RowCheck
    refusals: RefusalLog
    signatures: RowSignatures
    last_round: int  # of the plan
    hooks: AgentHooks
    card_updates: CardUpdates
    gossip: StatementGossip | None = None  # where draws are shared
    in_doubt: bool = False  # the ledger may be an old copy: see `peer_judgement`

    def __post_init__(self) -> None:
        self.handlers: dict[MessageKind, RequestHandler] = {}  # what answers each kind of request
        self.finishing = False  # all rounds are done: neighbours are informed
        self.given_up: Callable[[str], bool] = lambda peer: False  # whether this agent has excluded a peer
        self.beliefs = PeerBeliefs(self)
        self.sent: Counter[str] = Counter()  # bytes of the bodies of messages to each neighbour
        self.received: Counter[str] = Counter()
        self.changed = asyncio.Event()  # a message arrived, or the state of a neighbour changed
        self.silent = dict.fromkeys(self.neighbours, 0)  # ticks since the last message
        self.heard_at = dict.fromkeys(self.neighbours, time())  # shown to people; no decision depends on it
        self.refused_by: set[str] = set()  # neighbours that accept nothing more from this agent
        self.differing: set[str] = set()  # neighbours that have other terms
        self._differed = 0  # ticks since the first of them, while no neighbour has the same terms
        self.left_by: set[str] = set()  # neighbours that count this agent as departed
        self.fault: BaseException | None = None  # the error that ends this agent
        self.tasks: list[asyncio.Task[None]] = []
        self._again: dict[str, tuple[int, int]] = {}  # peer -> (own round, number of rows sent again in it)
        self.asked: set[str] = set()  # neighbours to which another greeting is due
        self.to_send = {peer: asyncio.Event() for peer in self.neighbours}

    async def request(self, peer: str, message: Message) -> Reply:
        """Send a message to `peer` and wait for the reply. Raises Unreachable."""
        self.sent[peer] += len(message.body)
        reply = await self.transport.request(peer, message)
        self.received[peer] += len(reply.body)
        return reply

    def ask(self, peer: str) -> None:
        """Send `peer` another greeting: a neighbour that waits for others is alive but sends nothing."""
        self.asked.add(peer)
        self.to_send[peer].set()

    def finish(self) -> None:
        """Inform the neighbours that all rounds are done."""
        self.finishing = True
        self.wake()

    def wake(self) -> None:
        """Wake the senders of all neighbours: there is something new to send."""
        for event in self.to_send.values():
            event.set()

    def tick(self) -> None:
        """Count one more tick of silence for all neighbours, and send each of them a greeting."""
        for peer in self.neighbours:
            self.silent[peer] += 1
            self.ask(peer)
        if self.differing and not self.beliefs.met:
            self._differed += 1
            if self._differed >= TICKS_PER_TIMEOUT:
                self._end_by_terms()

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
            run=self.gossip.run if self.gossip else "",
            seen_digest=received.digest,
            seen_signature=received.signature,
            sent=sent.round,
            sent_digest=sent.digest,
            statements=self.gossip.news.total() if self.gossip else 0,
        )

    def take_greeting(self, peer: str, body: bytes, received: int | None) -> ReplyCode:
        """Learn what `peer` reports in a greeting; return how to answer it.

        `received`: the highest round received from `peer` before this agent requested the greeting; None if
        the agent did not request it.
        """
        try:
            greeting = Greeting.decode(body, self.last_round)
        except GreetingError:
            return ReplyCode.NOT_A_GREETING
        if greeting.terms != self.terms:
            self.differ(peer)
            return ReplyCode.OTHER_TERMS
        self.heard(peer)
        self.learn(peer, greeting, received)
        return ReplyCode.OK

    def learn(self, peer: str, greeting: Greeting, received: int | None) -> None:
        if self.gossip is not None and self.gossip.run and greeting.run not in ("", self.gossip.run):
            words = "holds other keys of this run than this agent: an agent has stated two"
            if self.gossip.begun:
                self.distrust(peer, ReplyCode.OTHER_TERMS, words)
            else:
                self.fail(TrustError(f"{peer} {words}."))
            return
        if not self.beliefs.judge(peer, greeting, received):
            return
        self.acknowledge(peer, greeting.seen)
        self._send_again(peer, greeting)
        self.beliefs.met.add(peer)
        if received is not None:
            self.beliefs.answered.add(peer)
        self.beliefs.passed[peer] = (greeting.sent, greeting.round)
        self.differing.discard(peer)
        self.changed.set()

    def _send_again(self, peer: str, greeting: Greeting) -> None:
        """Resend rows that `peer` acknowledged but reports as missing in its greeting.

        Its ledger was restored from an older copy, or the greeting is outdated. The number of rows is limited
        until this agent's own next round, so no neighbour can make it send without end.
        """
        if self.gossip is not None:
            self.gossip.learn(peer, greeting.statements)
        round, times = self._again.get(peer, (-1, 0))
        times = times if round == self.ledger.round else 0
        times += self.ledger.requeue(peer, greeting.seen, MAX_RESENDS_PER_ROUND - times)
        self._again[peer] = (self.ledger.round, times)
        if times >= MAX_RESENDS_PER_ROUND:
            self.refusals.report(peer, "again", "repeatedly requests rows that it has acknowledged")
        self.to_send[peer].set()

    def acknowledge(self, peer: str, last: int) -> None:
        """Count the rows for `peer` of the rounds up to `last` as acknowledged: they are not sent again."""
        for round in self.ledger.unacknowledged(peer):
            if round <= last:
                self.ledger.acknowledge(peer, round)

    def heard(self, peer: str) -> None:
        self.silent[peer] = 0
        self.heard_at[peer] = time()

    def differ(self, peer: str) -> None:
        """Handle a greeting of `peer` with other terms.

        A neighbour that had the same terms before is quarantined. If all neighbours have other terms, the
        fault is this agent's own, and it ends.
        """
        words = "has another manifest, plan or model than this agent"
        if peer in self.beliefs.met:  # it had the same terms before, so its claim must end no agent
            self.distrust(peer, ReplyCode.OTHER_TERMS, words)
            return
        self.refusals.report(peer, "other_terms", words)
        self.differing.add(peer)
        if not set(self.neighbours) - self.differing:
            self._end_by_terms()

    def _end_by_terms(self) -> None:
        self.fail(
            TrustError(
                "Expected neighbours with the manifest, plan and model of this agent, but "
                f"{', '.join(sorted(self.differing))} has another manifest, plan or model, and no neighbour "
                "has the same. Give all agents the same manifest, the same version of topdp and data of the "
                "same shape."
            )
        )

    def fail(self, fault: BaseException) -> None:
        self.fault = self.fault or fault
        self.changed.set()

    def distrust(self, peer: str, code: ReplyCode, words: str) -> None:
        """Stop accepting messages from `peer` (quarantine), and log the reason."""
        self.refusals.report(peer, code.name.lower(), words)
        self.ledger.quarantine(peer, code, words)
        self.changed.set()

    def ends_with(self, peer: str) -> bool:
        """Return whether there is nothing more to send to `peer`."""
        lost = self.ledger.quarantined(peer) is not None or self.given_up(peer)
        return lost or peer in self.refused_by

    def left(self, peer: str) -> None:
        """Record that `peer` has gone on without this agent, for good."""
        self.refusals.report(peer, "gone", "counts this agent as gone: it was silent for too long")
        self.left_by.add(peer)
        self.refused_by.add(peer)
        self.changed.set()

    def takes_last_words(self, peer: str, body: bytes) -> bool:
        """Accept the notices that `peer` sends with its refusal; return whether to greet `peer` again.

        Applies only while this agent has not begun the run and `peer` has gone on without it. A run begins
        once all agents have stated that they have the same keys. An agent that was disconnected then may lack
        the notice of an agent that sends nothing more; `peer` sends all notices with its refusal. So this
        agent begins too, or learns that it counts as departed. After it has begun, it ignores these notices.
        """
        if self.gossip is None or self.gossip.begun or not body:
            return False
        # Later: keys are here that name the run, and the rest is asked for again.
        return self.take_notices(peer, body).code is ReplyCode.LATER

    def take_notices(self, peer: str, body: bytes) -> Reply:
        """Keep what agents have signed and `peer` passes on; return the answer."""
        assert self.gossip is not None
        try:
            code, words = self.gossip.take(body)
        except TrustError as error:
            self.fail(error)
            return Reply(ReplyCode.OTHER_TERMS)
        if code is ReplyCode.NOT_A_STATEMENT:
            self.distrust(peer, code, words)
        self.changed.set()
        self.wake()
        return Reply(code, words)

    def refused_for_good(self, peer: str, what: str) -> None:
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
