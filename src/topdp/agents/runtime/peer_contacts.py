"""What this process knows of each neighbour: heard or silent, believed or not, and which neighbours refuse
it.

`request_handlers`, `outbox_sender` and the loops share it; it does none of their work. What must survive a
restart is in the ledger.

**Guarantees.** Nothing that a peer sends ends the agent, except proof that its ledger is an old copy, or that
all neighbours hold other terms; before a run with shared draws begins, also whatever leaves open with whom
they would be shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any, final

from topdp.agents.agreement.signatures import RowSignatures
from topdp.agents.ledger.inbox import Inbox
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.runtime.agent_hooks import AgentHooks
from topdp.agents.runtime.card_updates import CardUpdates
from topdp.agents.runtime.peer_judgement import PeerBeliefs
from topdp.agents.runtime.peer_messages import Greeting, LinkTerms
from topdp.agents.wire.link_refusals import RefusalLog
from topdp.agents.wire.transport import Message, Reply, Transport
from topdp.agents.wire.wire_codes import MessageKind, ReplyCode
from topdp.errors import TrustError

if TYPE_CHECKING:
    from topdp.agents.runtime.statement_gossip import StatementGossip

TICKS_PER_TIMEOUT = 8  # ticks of silence in one idle timeout
MAX_RESENDS_PER_ROUND = 32  # to one neighbour, between two rounds of this agent
MAX_GAPS = 3  # how often a neighbour may leave out a round; greetings between say which one


RowCheck = Callable[[str, int, bytes], object]
"""Raises ValueError if a body is not a row that this neighbour may have made in this round."""

RequestHandler = Callable[[str, Message], Awaitable[Reply]]


@dataclass(frozen=True, kw_only=True)
class PeerServices:
    """What all parts of one agent that talk to its neighbours share."""

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
    gossip: StatementGossip | None = None  # where draws are shared
    card_updates: CardUpdates | None = None  # where agents may renew their cards
    in_doubt: bool = False  # the ledger may be an old copy: see `peer_judgement`


@final
class PeerContacts:
    """The neighbours of one agent, as it knows them."""

    def __init__(self, services: PeerServices) -> None:
        self.services, self.neighbours = services, services.neighbours
        self.ledger, self.terms, self.gossip = services.ledger, services.terms, services.gossip
        self.refusals, self.transport = services.refusals, services.transport
        self.handlers: dict[MessageKind, RequestHandler] = {}  # what answers each kind of request
        self.finishing = False  # all rounds are done: neighbours are told so
        self.given_up: Callable[[str], bool] = lambda peer: False  # counted as gone by this agent
        self.beliefs = PeerBeliefs(
            neighbours=services.neighbours,
            ledger=services.ledger,
            signatures=services.signatures,
            given_up=lambda peer: self.given_up(peer),
            in_doubt=services.in_doubt,
        )
        self.changed = asyncio.Event()  # something came in, or what is known of a neighbour changed
        self.silent = dict.fromkeys(self.neighbours, 0)  # ticks since something was heard
        self.heard_at = dict.fromkeys(self.neighbours, time())  # for people: nothing is decided by it
        self.refused_by: set[str] = set()  # neighbours that take nothing more from this agent
        self.differing: set[str] = set()  # neighbours that hold other terms
        self._differed = 0  # ticks since the first of them, while nobody holds the same
        self.left_by: set[str] = set()  # neighbours that count this agent as gone
        self.fault: BaseException | None = None  # why this agent cannot go on
        self.tasks: list[asyncio.Task[None]] = []
        self._again: dict[str, tuple[int, int]] = {}  # in which round of ours how many rows were sent again
        self.asked: set[str] = set()  # neighbours that are to be greeted once more
        self.to_send = {peer: asyncio.Event() for peer in self.neighbours}

    def ask(self, peer: str) -> None:
        """Greet `peer` once more: a neighbour that waits for another has nothing to send, and is alive all
        the same.
        """
        self.asked.add(peer)
        self.to_send[peer].set()

    def finish(self) -> None:
        """All rounds are done: tell the neighbours so."""
        self.finishing = True
        self.wake()

    def wake(self) -> None:
        """There is something new to send."""
        for event in self.to_send.values():
            event.set()

    def tick(self) -> None:
        """Count one more tick of silence for all neighbours, and ask them whether they are there."""
        for peer in self.neighbours:
            self.silent[peer] += 1
            self.ask(peer)
        if self.differing and not self.beliefs.met:
            self._differed += 1
            if self._differed >= TICKS_PER_TIMEOUT:
                self._end_by_terms()

    def greeting(self, peer: str) -> Greeting:
        run, statements = (self.gossip.run, self.gossip.news.total()) if self.gossip else ("", 0)
        return self.beliefs.greeting(peer, self.terms, run, statements)

    def learn(self, peer: str, greeting: Greeting, known: int | None) -> None:
        if self.gossip is not None and self.gossip.run and greeting.run not in ("", self.gossip.run):
            words = "holds other keys of this run than this agent: an agent has stated two"
            if self.gossip.begun:
                self.distrust(peer, ReplyCode.OTHER_TERMS, words)
            else:
                self.fail(TrustError(f"{peer} {words}."))
            return
        judgement = self.beliefs.judge(peer, greeting, known)
        if judgement.fault is not None:
            self.fail(judgement.fault)
            return
        if judgement.is_old:
            self.ask(peer)
            return
        if judgement.code is not None and self.ledger.quarantined(peer) is None:
            self.distrust(peer, judgement.code, judgement.words)
        for round in self.ledger.unacknowledged(peer):
            if round <= greeting.seen:
                self.ledger.acknowledge(peer, round)
        self._send_again(peer, greeting)
        self.beliefs.met.add(peer)
        if known is not None:
            self.beliefs.answered.add(peer)
        self.beliefs.passed[peer] = (greeting.sent, greeting.round)
        self.differing.discard(peer)
        self.changed.set()

    def _send_again(self, peer: str, greeting: Greeting) -> None:
        """Resend rows: a neighbour that has less than it acknowledged lost it with its ledger, or its word
        was overtaken.

        Limited until this agent's own next round: nobody can make it send without end.
        """
        if self.gossip is not None:
            self.gossip.learn(peer, greeting.statements)
        round, times = self._again.get(peer, (-1, 0))
        times = times if round == self.ledger.round else 0
        times += self.ledger.requeue(peer, greeting.seen, MAX_RESENDS_PER_ROUND - times)
        self._again[peer] = (self.ledger.round, times)
        if times >= MAX_RESENDS_PER_ROUND:
            self.refusals.report(peer, "again", "asks repeatedly for rows that it has acknowledged")
        self.to_send[peer].set()

    def needs_nothing_before(self, peer: str, round: int) -> None:
        """Drop rows of earlier rounds for `peer`; it keeps the newest, as if it had acknowledged the
        others.
        """
        for earlier in self.ledger.unacknowledged(peer):
            if earlier < round:
                self.ledger.acknowledge(peer, earlier)

    def heard(self, peer: str) -> None:
        self.silent[peer] = 0
        self.heard_at[peer] = time()

    def differ(self, peer: str) -> None:
        """Do not believe `peer`. If all are like it, or nobody else is heard, the mistake is here."""
        words = "holds another manifest, plan or model than this agent"
        if peer in self.beliefs.met:  # it held the same before, and can end nobody by saying otherwise
            self.distrust(peer, ReplyCode.OTHER_TERMS, words)
            return
        self.refusals.report(peer, "other_terms", words)
        self.differing.add(peer)
        if not set(self.neighbours) - self.differing:
            self._end_by_terms()

    def _end_by_terms(self) -> None:
        self.fail(
            TrustError(
                f"{', '.join(sorted(self.differing))}: another manifest, plan or model than this agent has, "
                "and no neighbour with the same: give all agents the same manifest, the same version of "
                "topdp and data of the same shape."
            )
        )

    def fail(self, fault: BaseException) -> None:
        self.fault = self.fault or fault
        self.changed.set()

    def distrust(self, peer: str, code: ReplyCode, words: str) -> None:
        """Believe nothing more of `peer`, and log why."""
        self.refusals.report(peer, code.name.lower(), words)
        self.ledger.quarantine(peer, code, words)
        self.changed.set()

    def ends_with(self, peer: str) -> bool:
        """Whether there is nothing more to send to `peer`."""
        lost = self.ledger.quarantined(peer) is not None or self.given_up(peer)
        return lost or peer in self.refused_by

    def left(self, peer: str) -> None:
        """`peer` has gone on without this agent, for good."""
        self.refusals.report(peer, "gone", "counts this agent as gone: it was silent for too long")
        self.left_by.add(peer)
        self.refused_by.add(peer)
        self.changed.set()

    def takes_last_words(self, peer: str, body: bytes) -> bool:
        """Whether to ask `peer` again, which has begun and gone on without this agent, which has not.

        A run begins once all have said that they hold the same keys. An agent that was cut off then may lack
        the statement of another that will send nothing more: it comes with the refusal. Then this agent
        begins too, or finds that it is gone. Once it has begun it relies on what it hears itself.
        """
        if self.gossip is None or self.gossip.begun or not body:
            return False
        try:
            code, words = self.gossip.take(body)
        except TrustError as error:
            self.fail(error)
            return False
        if code is ReplyCode.NOT_A_STATEMENT:
            self.distrust(peer, code, words)
        self.changed.set()
        self.wake()
        return code is ReplyCode.LATER  # keys are here that name the run: the rest is asked for again

    def refused_for_good(self, peer: str, what: str) -> None:
        """`peer` takes nothing more from this agent, and nothing of it is awaited: no agent can stop
        another.
        """
        self.refused_by.add(peer)
        if what:
            self.ledger.note_departure(f"round {self.ledger.round}: {peer} refused {what}", peer)
        self.changed.set()

    def spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a job in the background; a fault of our own in it ends the agent."""
        task = asyncio.create_task(job)
        self.tasks.append(task)
        task.add_done_callback(self._ended)
        task.add_done_callback(self.tasks.remove)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self.fail(fault)
