"""The neighbours of one agent: greetings, what is owed to each, and what each has said.

One task per neighbour sends what the ledger holds for it, oldest first, the stored bytes and no others, until
they are acknowledged. Greetings compare what both sides remember, so a restored backup is found. Being out of
reach is a normal state: it is waited for.

**Guarantees.** Nothing is sent that is not in the ledger. Nothing is acknowledged that is not on disk. What
comes from somebody who is no neighbour, or is quarantined, is refused and logged once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from topdp.agents.books.database import LedgerError
from topdp.agents.books.inbox import Inbox, Verdict
from topdp.agents.books.ledger import Ledger, digest_of
from topdp.agents.life.failpoints import Failpoints
from topdp.agents.wire.refusals import Told, quoted
from topdp.agents.wire.transport import Message, Reply, Transport, Unreachable

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 3.0  # seconds between attempts to reach a neighbour
ROLLED_BACK = "rolled back"
OTHER_TERMS = "other terms"


class TrustError(Exception):
    """This agent must not go on: its own books or its federation are not what the neighbours know."""


@dataclass(frozen=True)
class Terms:
    """What both ends of a link must hold alike."""

    federation: str  # hash of the manifest
    plan: str  # digest of the plan
    start: str  # digest of the row that all begin with


@dataclass(frozen=True)
class Greeting:
    """What an agent says of itself to a neighbour."""

    terms: Terms
    charged: int  # the last round whose rows may have left
    seen: int  # the highest round that it has from the other
    round: int  # the last round on its books
    stopped: int | None  # it sends nothing from this round on

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def decode(cls, body: bytes) -> Greeting:
        """Raises ValueError on anything that is not a greeting."""
        if len(body) > 4096:
            raise ValueError("too long")
        tree = json.loads(body)
        numbers = [tree["charged"], tree["seen"], tree["round"]]
        stopped = tree["stopped"]
        words = [tree["terms"][key] for key in ("federation", "plan", "start")]
        if not all(type(n) is int for n in numbers) or not (stopped is None or type(stopped) is int):
            raise ValueError("expected whole numbers")
        if not all(isinstance(word, str) for word in words):
            raise ValueError("expected texts")
        charged, seen, round = numbers
        return cls(Terms(*words), charged, seen, round, stopped)


Check = Callable[[bytes], None]
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
    ) -> None:
        self.name, self.neighbours, self.terms = name, neighbours, terms
        self.ledger, self.inbox, self.transport = ledger, inbox, transport
        self.failpoints, self.told = failpoints, told
        self.check = check
        self.changed = asyncio.Event()  # something came in, or somebody's standing changed
        self.silent = dict.fromkeys(neighbours, 0)  # ticks since something was heard
        self.rounds = dict.fromkeys(neighbours, -1)  # the last round each is known to have done
        self.greeted: set[str] = set()
        self.refused_by: set[str] = set()  # neighbours that take nothing more from this agent
        self.finishing = False  # all rounds are done: neighbours are told so
        self.fault: BaseException | None = None  # why this agent cannot go on
        self.answers: dict[str, Callable[[str, Message], Awaitable[Reply]]] = {
            "hello": self._hello,
            "row": self._row,
            "stop": self._stop,
            "bye": self._bye,
        }
        self._work = {peer: asyncio.Event() for peer in neighbours}
        self._told_stop: set[str] = set()
        self._asked: set[str] = set()
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.transport.start(self.handle)
        self.tasks = [asyncio.create_task(self._serve(peer)) for peer in self.neighbours]
        for task in self.tasks:
            task.add_done_callback(self._ended)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.transport.close()

    def ask(self, peer: str) -> None:
        """Greets once more: who waits for somebody else has nothing to send, and is alive all the same."""
        self._asked.add(peer)
        self._work[peer].set()

    def wake(self) -> None:
        """There is something new to send."""
        for event in self._work.values():
            event.set()

    def owes(self, peer: str) -> list[int]:
        """The rounds that `peer` has not acknowledged and may need."""
        gone = peer in self.refused_by or self.ledger.finished(peer)
        return [] if gone else self.ledger.waiting(peer)

    def greeting(self, peer: str) -> Greeting:
        stopped = self.ledger.meta.get("stopped")
        return Greeting(
            self.terms,
            self.ledger.charged,
            self.ledger.seen(peer),
            self.ledger.round,
            None if stopped is None else int(stopped),
        )

    # What comes in

    async def handle(self, peer: str, message: Message) -> Reply:
        """Answers one request of an authenticated peer."""
        if peer not in self.silent:
            self.told.tell(peer, "stranger", f"{quoted(message.kind)} refused")
            return Reply(False, Verdict.STRANGER.value)
        if digest_of(message.body) != message.digest:
            self.told.tell(peer, "damaged", f"{quoted(message.kind)} of round {message.round} refused")
            return Reply(False, Verdict.DAMAGED.value)
        answer = self.answers.get(message.kind)
        if answer is None:
            self.told.tell(peer, "unknown", f"{quoted(message.kind)} refused")
            return Reply(False, "unknown kind of message")
        self._heard(peer)
        try:
            return await answer(peer, message)
        except LedgerError as error:
            self._fail(error)
            raise

    async def _hello(self, peer: str, message: Message) -> Reply:
        try:
            greeting = Greeting.decode(message.body)
        except (ValueError, KeyError, TypeError, RecursionError):
            self.told.tell(peer, "greeting", "not a greeting, refused")
            return Reply(False, "expected a greeting")
        if greeting.terms != self.terms:
            self._differ(peer)
            return Reply(False, OTHER_TERMS)
        self._learn(peer, greeting)
        reason = self.ledger.quarantined(peer)
        if reason is not None:
            return Reply(False, reason if reason.startswith(ROLLED_BACK) else Verdict.QUARANTINED.value)
        return Reply(True, body=self.greeting(peer).encode())

    async def _row(self, peer: str, message: Message) -> Reply:
        self.failpoints.reached("before_receive")
        verdict = self.inbox.judge(peer, message.round, message.digest)
        if verdict is Verdict.NEW:
            try:
                self.check(message.body)
            except ValueError as error:
                self.told.tell(peer, "payload", str(error))
                self.ledger.quarantine(peer, f"sent what is not a row: {error}")
                self.changed.set()
                return Reply(False, str(error))
        self.inbox.settle(verdict, peer, message.round, message.digest, message.body)
        if not verdict.accepted and verdict is not Verdict.LATER:
            self.told.tell(
                peer, verdict.name.lower(), f"row of round {message.round} refused: {verdict.value}"
            )
        self.failpoints.reached("after_receive")
        if verdict.accepted:
            self.rounds[peer] = max(self.rounds[peer], message.round)
        self.changed.set()
        return Reply(verdict.accepted, verdict.value)

    async def _stop(self, peer: str, message: Message) -> Reply:
        if self.ledger.stopped(peer) is None:
            self.told.tell(peer, "stopped", f"sends nothing from round {message.round} on")
        self.ledger.note_stop(peer, message.round)
        self.changed.set()
        return Reply(True)

    async def _bye(self, peer: str, message: Message) -> Reply:
        self.ledger.note_finished(peer)
        self.changed.set()
        return Reply(True)

    def _learn(self, peer: str, greeting: Greeting) -> None:
        seen = self.ledger.seen(peer)
        if greeting.charged < seen and self.ledger.quarantined(peer) is None:
            reason = f"{ROLLED_BACK}: sent round {seen} before, and now knows of {greeting.charged} only"
            self.told.tell(peer, "rollback", reason)
            self.ledger.quarantine(peer, reason)
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
        if greeting.stopped is not None:
            self.ledger.note_stop(peer, greeting.stopped)
        self.rounds[peer] = max(self.rounds[peer], greeting.round)
        self.greeted.add(peer)
        self.changed.set()

    def _heard(self, peer: str) -> None:
        self.silent[peer] = 0

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
        while self.ledger.quarantined(peer) is None and peer not in self.refused_by:
            self._work[peer].clear()
            try:
                if not greeted or peer in self._asked:
                    self._asked.discard(peer)
                    greeted = await self._greet(peer)
                message = self._next(peer) if greeted else None
                if greeted and message is None:
                    await self._work[peer].wait()
                    continue
                if message is not None and await self._deliver(peer, message):
                    pause = FIRST_PAUSE
                    continue
            except Unreachable:
                greeted = False
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _greet(self, peer: str) -> bool:
        body = self.greeting(peer).encode()
        reply = await self.transport.request(peer, Message("hello", 0, digest_of(body), body))
        self._heard(peer)
        if reply.ok:
            try:
                greeting = Greeting.decode(reply.body)
            except (ValueError, KeyError, TypeError, RecursionError):
                self.told.tell(peer, "greeting", "not a greeting, refused")
                return False
            if greeting.terms == self.terms:
                self._learn(peer, greeting)
                return True
        if reply.ok or reply.reason == OTHER_TERMS:
            self._differ(peer)
        elif reply.reason.startswith(ROLLED_BACK):
            words = f"{peer} refuses this agent, whose ledger is an old copy: {quoted(reply.reason)}."
            self._fail(TrustError(words))
        else:
            self.told.tell(peer, "refused", f"the greeting: {quoted(reply.reason)}")
        return False

    def _next(self, peer: str) -> Message | None:
        waiting = self.owes(peer)
        if waiting:
            body = self.ledger.body(peer, waiting[0])
            return Message("row", waiting[0], digest_of(body), body)
        stopped = self.ledger.meta.get("stopped")
        if stopped is not None and peer not in self._told_stop:
            return Message("stop", int(stopped), digest_of(b""), b"")
        if self.finishing and not self.ledger.told(peer):
            return Message("bye", self.ledger.round, digest_of(b""), b"")
        return None

    async def _deliver(self, peer: str, message: Message) -> bool:
        self.failpoints.reached("before_send")
        reply = await self.transport.request(peer, message)
        self.failpoints.reached("after_send")
        self._heard(peer)
        if reply.ok and message.kind == "row":
            self.ledger.acknowledge(peer, message.round)
        elif reply.ok and message.kind == "stop":
            self._told_stop.add(peer)
        elif reply.ok:
            self.ledger.note_told(peer)
        elif reply.reason != Verdict.LATER.value:
            self.told.tell(
                peer, "refused", f"{message.kind} of round {message.round}: {quoted(reply.reason)}"
            )
            self.refused_by.add(peer)
        self.changed.set()
        return reply.ok


def tick(peers: Peers) -> None:
    """One more tick of silence from everybody; all are asked whether they are there."""
    for peer in peers.neighbours:
        peers.silent[peer] += 1
        peers.ask(peer)


def described(peers: Peers) -> dict[str, Any]:
    """Each neighbour's standing, for `topdp agent status` and for metrics."""
    return {
        peer: {
            "round": peers.rounds[peer],
            "seen": peers.ledger.seen(peer),
            "owed": len(peers.owes(peer)),
            "quarantined": peers.ledger.quarantined(peer),
            "stopped": peers.ledger.stopped(peer),
        }
        for peer in peers.neighbours
    }
