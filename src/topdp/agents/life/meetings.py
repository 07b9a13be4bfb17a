"""Asynchronous rounds of one agent with partners it finds by itself, instead of those a plan drew.

In every iteration the agent asks its neighbours, in random order and never the last partner first, until one
says yes; the two swap estimates (Algorithm 2). Who finds nobody, or waits to hear how a meeting ended, works
alone with full noise. Iterations are each agent's own count; nobody waits for anybody.

**Guarantees.** As for `rounds`: the charge and the bytes are on disk before anything leaves, and the budget
stops the agent in time. Which meetings happen is not known beforehand, so charges are by worst case, which
counts an agent's own draws only. Poisson batches are refused: their cost is computed for a plan.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import suppress

import torch
from safetensors.torch import load, save
from torch import Tensor

from topdp.agents.books.inbox import Verdict
from topdp.agents.books.ledger import ANYBODY, Ledger, digest_of
from topdp.agents.books.pairing import Pair, Pairing
from topdp.agents.life.budget import allows
from topdp.agents.life.equipment import Equipment
from topdp.agents.life.failpoints import Failpoints
from topdp.agents.life.peers import Peers
from topdp.agents.life.rounds import TICKS, Patience, logger
from topdp.agents.life.rows import mixed
from topdp.agents.life.timing import Timing
from topdp.agents.terms.setup import Setup
from topdp.agents.wire import payload
from topdp.agents.wire.transport import Message, Reply, Unreachable
from topdp.protocols.base import reduced
from topdp.settings import build

CHANCE: Callable[[], random.Random] = random.SystemRandom  # who asks whom first: no secret, but not seeded
LISTENING = 0.3  # seconds at most that an agent waits to be asked; decides how many meet, nothing else


class Meetings:
    """The life of one agent without a drawn plan; takes the place of `rounds.Rounds`."""

    def __init__(
        self,
        setup: Setup,
        work: Equipment,
        ledger: Ledger,
        peers: Peers,
        failpoints: Failpoints,
        finished: Callable[[], None],
    ) -> None:
        self.finished = finished
        self.work, self.ledger, self.peers, self.failpoints = work, ledger, peers, failpoints
        self.stopping, self.timing = asyncio.Event(), Timing()
        self.pairing = Pairing(ledger)
        self.alpha = build.protocol(setup.config).alpha
        self.reuses = build.method(setup.config).reuses_noise
        self.deviation = setup.plan.full_scale
        self.history = [(e.round, e.information or 0.0) for e in ledger.entries() if e.kind == "release"]
        self._chance = CHANCE()
        self._absent: set[str] = set()  # who was waited for in vain
        peers.answers |= {"propose": self._propose, "commit": self._commit, "resolve": self._resolve}

    departed = None

    @property
    def out_of_budget(self) -> bool:
        return "stopped" in self.ledger.meta

    def estimate(self) -> Tensor:
        state = self.ledger.state()
        return self.work.start if state is None else load(state[1])["estimate"]

    async def run(self) -> bool:
        plan = self.work.part.plan
        while self.ledger.round + 1 < plan.releases and not self.stopping.is_set() and not self.out_of_budget:
            self._raise_faults()
            if self.ledger.round >= 0:
                with self.timing.measure("network"):
                    await self._settle()
                    await self._seek()
            await self._round(self.ledger.round + 1, self.pairing.ready())
        done = await self._drain()
        if done:
            self.finished()
        return done

    async def _round(self, round: int, pair: Pair | None) -> None:
        plan, me = self.work.part.plan, self.work.part.agent
        scale, rate = float(plan.scale[round]), float(plan.rate[round])
        std = float(self.deviation[me])
        if pair is not None and self.reuses:
            other = self.deviation[[self.work.names.index(pair.partner)]]
            std = float(reduced(self.deviation[[me]], other, self.alpha)[0])
        information = self.work.meter.spending.release(rate, scale, std)
        cost = self.work.meter.cost(round, self.history, self.ledger.total, information, planned=False)
        if not allows(self.work.epsilon, self.ledger.total, cost):
            self.ledger.database.remember("stopped", str(round))
            logger.warning(
                "%s: the next charge would pass the budget: meets nobody from here on", self.peers.name
            )
            return
        estimate = self.estimate()
        with self.timing.measure("compute"):
            row = await self._compute(round, pair, estimate, std * scale, rate)
        body = payload.encode(row.numpy())
        self.failpoints.reached("before_ledger")
        self.pairing.forget_rows()
        with self.timing.measure("ledger"):
            self.ledger.before_commit = lambda: self.failpoints.reached("in_ledger")
            applied = [(pair.partner, pair.partner_round or 0)] if pair else []
            self.ledger.release(
                round, cost, {ANYBODY: body}, save({"estimate": row}), applied, pair.id if pair else None
            )
        self.failpoints.reached("after_ledger")
        self.history.append((round, cost.information or 0.0))
        self.timing.rounds += 1

    async def _compute(
        self, round: int, pair: Pair | None, estimate: Tensor, std: float, rate: float
    ) -> Tensor:
        parts, before = [(0, 1.0)], {0: estimate}
        if pair is not None:
            body = self.ledger.received(pair.partner, pair.partner_round or 0)
            assert body is not None
            dtype = str(estimate.dtype).removeprefix("torch.")
            before[1] = torch.from_numpy(payload.decode(body, len(estimate), dtype))
            parts = [(0, self.alpha), (1, 1 - self.alpha)]

        def job() -> Tensor:
            row = mixed(parts, before, estimate)
            row.add_(self.work.gradients.mean(round, estimate), alpha=-rate)
            z = self.work.draws.fill(torch.empty_like(row), round, self.work.part.agent)
            return row.add_(z, alpha=std)

        return await asyncio.to_thread(job) if self.work.in_thread else job()

    # Asking

    async def _seek(self) -> None:
        """Listens or asks first, as a coin says: if all asked at once, all would be busy."""
        if self._chance.random() < 0.5:
            await self._listen()
        if not self.pairing.busy:
            await self._ask()
        if self.pairing.ready() is None:
            await self._listen()

    async def _listen(self) -> None:
        """For a while, until a meeting is committed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._chance.uniform(0.5, 1.0) * LISTENING):
                while self.pairing.ready() is None and not self.stopping.is_set():
                    self.peers.changed.clear()
                    await self.peers.changed.wait()

    async def _ask(self) -> None:
        """Asks neighbours until one says yes, or all have been asked."""
        last = next((p.partner for p in reversed(self.pairing.pairs()) if p.applied is not None), None)
        free = [
            peer for peer in self.peers.neighbours if self.ledger.quarantined(peer) is None and peer != last
        ]
        for peer in self._chance.sample(free, len(free)):
            if self.pairing.busy or self.stopping.is_set():
                return
            id, own = self.pairing.propose(), self.ledger.round
            try:
                reply = await self._request(peer, _message("propose", own, id))
                self.failpoints.reached("after_propose")
                if not reply.ok:
                    continue
                round, body = _unpack(reply.body)
                self.peers.check(body)
                self.failpoints.reached("before_commit")
                if self.pairing.commit(id, peer, own, round, body) is Verdict.EQUIVOCATION:
                    raise ValueError(f"two different rows for round {round}")
                self.failpoints.reached("after_commit")
                await self._tell()
            except Unreachable:
                pass
            except ValueError as error:
                self.peers.told.tell(peer, "payload", str(error))
                self.ledger.quarantine(peer, f"sent what is not a row: {error}")
            finally:
                self.pairing.give_up()

    async def _settle(self) -> None:
        """Tells acceptors what was decided, and asks the proposer about a meeting in doubt."""
        await self._tell()
        pair = self.pairing.prepared()
        if pair is None:
            return
        try:
            reply = await self._request(pair.partner, _message("resolve", 0, pair.id))
        except Unreachable:
            return
        if reply.ok and reply.reason == "aborted":
            self.pairing.aborted(pair.id)
        elif reply.ok and reply.reason == "committed":
            self._take(pair.partner, pair.id, reply.body)

    async def _tell(self) -> None:
        for pair in self.pairing.untold():
            body = _pack(pair.own_round, self.pairing.own_row(pair.own_round), pair.id)
            try:
                reply = await self._request(
                    pair.partner, Message("commit", pair.own_round, digest_of(body), body)
                )
            except Unreachable:
                continue
            if reply.ok:
                self.pairing.told(pair.id)
                self.failpoints.reached("after_told")

    async def _request(self, peer: str, message: Message) -> Reply:
        """Waits for an absent neighbour once, for as long as links are patient; then only once it is back."""
        if peer in self._absent and not self.peers.transport.reaches(peer):
            raise Unreachable(f"{peer} has not come back.")
        try:
            reply = await self.peers.transport.request(peer, message)
        except Unreachable:
            self._absent.add(peer)
            raise
        self._absent.discard(peer)
        return reply

    # Being asked

    async def _propose(self, peer: str, message: Message) -> Reply:
        if not self.pairing.accept(message.body.decode("ascii", "replace")[:64], peer):
            return Reply(False, "busy")
        self.failpoints.reached("after_prepare")
        round = self.ledger.round
        return Reply(True, body=_pack(round, self.pairing.own_row(round)))

    async def _commit(self, peer: str, message: Message) -> Reply:
        return Reply(self._take(peer, None, message.body))

    async def _resolve(self, peer: str, message: Message) -> Reply:
        id = message.body.decode("ascii", "replace")
        outcome, pair = self.pairing.outcome(id), self.pairing.find(id)
        if outcome != "committed" or pair is None or pair.partner != peer or pair.told:
            return Reply(outcome == "aborted", outcome)
        return Reply(True, outcome, _pack(pair.own_round, self.pairing.own_row(pair.own_round), id))

    def _take(self, peer: str, id: str | None, packed: bytes) -> bool:
        try:
            round, body = _unpack(packed)
            self.peers.check(body)
            verdict = self.pairing.committed(id or _id(packed), peer, round, body)
        except ValueError as error:
            self.peers.told.tell(peer, "payload", str(error))
            self.ledger.quarantine(peer, f"sent what is not a row: {error}")
            return False
        if not verdict.accepted:
            self.peers.told.tell(peer, verdict.name.lower(), f"commit refused: {verdict.value}")
        self.peers.changed.set()
        return verdict.accepted

    async def _drain(self) -> bool:
        """Stays until nobody is in doubt about a meeting with this agent, or is silent for too long."""
        self.pairing.closed = True
        patience = Patience(self.work.idle_timeout)
        for peer in self.peers.silent:
            self.peers.silent[peer] = 0
        while any(self.peers.silent[peer] < TICKS for peer in self._in_doubt()):
            self._raise_faults()
            if self.stopping.is_set():
                return False
            await self._settle()
            if self._in_doubt():
                await patience.wait(self.peers)
        return self.ledger.round + 1 >= self.work.part.plan.releases or self.out_of_budget

    def _in_doubt(self) -> list[str]:
        """Partners with whom a meeting is decided on one side only."""
        prepared = self.pairing.prepared()
        return [pair.partner for pair in [*self.pairing.untold(), *([prepared] if prepared else [])]]

    def _raise_faults(self) -> None:
        if self.peers.fault is not None:
            raise self.peers.fault


def _message(kind: str, round: int, id: str) -> Message:
    return Message(kind, round, digest_of(id.encode()), id.encode())


def _pack(round: int, body: bytes, id: str = "") -> bytes:
    head = json.dumps([round, id]).encode()
    return len(head).to_bytes(2, "big") + head + body


def _head(packed: bytes) -> tuple[int, str, int]:
    length = int.from_bytes(packed[:2], "big")
    try:
        round, id = json.loads(packed[2 : 2 + min(length, 200)])
    except (ValueError, TypeError, RecursionError):
        raise ValueError("expected a round and a name before the row") from None
    if type(round) is not int or not isinstance(id, str):
        raise ValueError("expected a round and a name before the row")
    return round, id, 2 + length


def _unpack(packed: bytes) -> tuple[int, bytes]:
    round, _, start = _head(packed)
    return round, packed[start:]


def _id(packed: bytes) -> str:
    return _head(packed)[1]
