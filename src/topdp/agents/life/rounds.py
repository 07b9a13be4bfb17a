"""Planned rounds of one agent: gather, compute, charge, send; synchronous, or in pairs as the plan drew them.

Round r closes when every live neighbour that sends to this agent in round r-1 has been heard. One that is
quarantined, or has said that it stopped, is not waited for. One that answers nothing for the idle timeout is
waited for or not, as the manifest's rule says (an agent that hears nobody at all waits in any case); what it
would have sent is replaced by this agent's own estimate, the log says so, and what it sends later is
acknowledged and not used. An agent that others went on without takes up the round where they are.

**Guarantees.** A charge is on disk before a byte leaves. From the round in which the next charge would pass
the budget, nothing is sent and the agent's data enter no longer; it goes on to receive and mix. Time only
decides whom to wait for: patience is counted in ticks of this process, so a stopped process or a clock that
jumps costs one tick.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

import torch
from safetensors.torch import load, save
from torch import Tensor

from topdp.agents.books.ledger import Cost, Ledger
from topdp.agents.life.budget import allows
from topdp.agents.life.equipment import Equipment
from topdp.agents.life.failpoints import Failpoints
from topdp.agents.life.peers import Peers, tick
from topdp.agents.life.rows import kept, make, rest
from topdp.agents.life.timing import Timing
from topdp.agents.wire import payload

logger = logging.getLogger("topdp.agents")
TICKS = 8  # of silence make an idle timeout
T = TypeVar("T")


class Rounds:
    """The life of one agent under a plan."""

    def __init__(
        self,
        work: Equipment,
        ledger: Ledger,
        peers: Peers,
        failpoints: Failpoints,
        finished: Callable[[], None],
    ) -> None:
        """`finished` is called after the last round, before what is still owed to others."""
        self.finished = finished
        self.work, self.ledger, self.peers, self.failpoints = work, ledger, peers, failpoints
        self.name = peers.name
        self.stopping = asyncio.Event()
        self.timing = Timing()
        self.missed: list[tuple[int, str]] = []
        self.history = [(e.round, e.information or 0.0) for e in ledger.entries() if e.kind == "release"]

    @property
    def out_of_budget(self) -> bool:
        return "stopped" in self.ledger.meta

    @property
    def departed(self) -> str | None:
        """Why the plan is no longer followed as written, as far as this agent has seen."""
        return self.ledger.meta.get("departed")

    def estimate(self) -> Tensor:
        return self._own()[self.work.part.agent]

    async def run(self) -> bool:
        """All rounds that are left, then what is still owed. False: asked to stop before the end."""
        rounds = self.work.part.plan.releases
        while self.ledger.round + 1 < rounds:
            self._catch_up()
            with self.timing.measure("network"):
                gathered = await self._gather(self.ledger.round)
            if gathered is None:
                return False
            await self._round(self.ledger.round + 1, *gathered)
        self.finished()
        return await self._drain()

    async def _round(
        self, round: int, received: dict[int, Tensor], senders: list[str], missing: list[str]
    ) -> None:
        for peer in missing:
            self._depart(round, peer)
        applied = [(sender, round - 1) for sender in senders]
        cost = self.work.meter.cost(
            round,
            self.history,
            self.ledger.total,
            float(self.work.meter.planned[round]),
            planned=self.departed is None,
        )
        if self.out_of_budget or not allows(self.work.epsilon, self.ledger.total, cost):
            await self._rest(round, received, applied, cost)
            return
        self.failpoints.reached("before_compute")
        part, own = self.work.part, self._own()
        with self.timing.measure("compute"):
            rows = await self._compute(
                lambda: make(part, round, own, received, self.work.gradients, self.work.draws)
            )
        bodies = {
            self.work.names[to]: payload.encode(rows[row].numpy()) for to, row in part.sent(round).items()
        }
        self.failpoints.reached("before_ledger")
        with self.timing.measure("ledger"):
            self.ledger.before_commit = lambda: self.failpoints.reached("in_ledger")
            self.ledger.release(round, cost, bodies, _state(kept(part, round, rows)), applied)
        self.failpoints.reached("after_ledger")
        self.history.append((round, cost.information or 0.0))
        self.timing.rounds += 1
        self.peers.wake()

    async def _rest(
        self, round: int, received: dict[int, Tensor], applied: list[tuple[str, int]], next: Cost
    ) -> None:
        """A round without one's own data, of which nothing is sent."""
        if not self.out_of_budget:
            self.ledger.database.remember("stopped", str(round))
            logger.warning(
                "%s: round %d would bring the spent epsilon to %.6g, the budget is %.6g: sends nothing from "
                "here on, receives and mixes",
                self.name,
                round,
                self.ledger.total + next.charge,
                self.work.epsilon,
                extra={"agent": self.name, "event": "budget", "round": round},
            )
        rows = rest(self.work.part, round, self._own(), received)
        worst = self.work.meter.worst_case(self.history)
        # Once the plan is departed from, what was sent before has cost what the worst case says: booked here.
        owed = max(0.0, worst - self.ledger.total) if self.departed is not None else 0.0
        with self.timing.measure("ledger"):
            self.ledger.before_commit = lambda: self.failpoints.reached("in_ledger")
            self.ledger.release(
                round,
                Cost(owed, worst, 0.0),
                {},
                _state(rows),
                applied,
                kind="release" if owed else "mix",
            )
        self.timing.rounds += 1
        self.peers.wake()

    def _own(self) -> Mapping[int, Tensor]:
        """The agent's rows of the last round on the books."""
        state = self.ledger.state()
        if state is None:
            return {self.work.part.agent: self.work.start}
        return {int(row): value for row, value in load(state[1]).items()}

    async def _compute(self, job: Callable[[], T]) -> T:
        return await asyncio.to_thread(job) if self.work.in_thread else job()

    # Whom to wait for

    async def _gather(self, round: int) -> tuple[dict[int, Tensor], list[str], list[str]] | None:
        """(rows, who sent them, who is missing) of `round`; None when asked to stop."""
        if round < 0:
            return None if self.stopping.is_set() else ({}, [], [])
        expected = {self.work.names[sender]: row for sender, row in self.work.part.read(round).items()}
        patience = Patience(self.work.idle_timeout)
        while True:
            self._raise_faults()
            if self.stopping.is_set():
                return None
            missing = [peer for peer in expected if self._is_missing(peer, round)]
            waiting = [
                peer for peer in expected if peer not in missing and self.ledger.received(peer, round) is None
            ]
            if not waiting:
                break
            await patience.wait(self.peers)
        rows: dict[int, Tensor] = {}
        senders = [peer for peer in expected if peer not in missing]
        for peer in senders:
            body = self.ledger.received(peer, round)
            assert body is not None
            d, dtype = len(self.work.start), _name(self.work.start.dtype)
            rows[expected[peer]] = torch.from_numpy(payload.decode(body, d, dtype))
        return rows, senders, missing

    def _is_missing(self, peer: str, round: int) -> bool:
        if self.ledger.received(peer, round) is not None:
            return False
        stopped = self.ledger.stopped(peer)
        if self.ledger.quarantined(peer) is not None or (stopped is not None and stopped <= round):
            return True
        if not self.work.goes_on:
            return False
        passed = self.ledger.seen(peer) >= round  # it came too late, or is left out: rows come in order
        return passed or (self.peers.silent[peer] >= TICKS and min(self.peers.silent.values()) < TICKS)

    def _depart(self, round: int, peer: str) -> None:
        self.missed.append((round, peer))
        self.peers.told.tell(
            peer, "missing", f"no row for round {round}: this agent's own estimate stands in for it"
        )
        if self.departed is None:
            self.ledger.database.remember("departed", f"round {round}: nothing from {peer}")

    def _catch_up(self) -> None:
        """Under the rule to go on: others are rounds ahead, so those rounds are over for this agent too."""
        live = [peer for peer in self.peers.neighbours if self.ledger.quarantined(peer) is None]
        if not (self.work.goes_on and live):
            return
        target = min(self.peers.rounds[peer] for peer in live)
        state = self.ledger.state()
        if target <= self.ledger.round + 2 or state is None:
            return
        logger.warning(
            "%s: the neighbours are at round %d, takes it up from round %d",
            self.name,
            target,
            self.ledger.round,
            extra={"agent": self.name, "event": "rejoin", "round": target},
        )
        worst = self.work.meter.worst_case(self.history)
        self.ledger.release(target - 1, Cost(0.0, worst, 0.0), {}, state[1], kind="skip")
        self.ledger.database.remember("departed", f"round {target}: rejoined")

    # The end

    async def _drain(self) -> bool:
        """Stays until every neighbour has what it needs, and knows that this agent has."""
        self.peers.finishing = True
        self.peers.wake()
        for peer in self.peers.silent:
            self.peers.silent[peer] = 0
        patience = Patience(self.work.idle_timeout)
        while any(self._stays_for(peer) for peer in self.peers.neighbours):
            self._raise_faults()
            if self.stopping.is_set():
                return False
            await patience.wait(self.peers)
        return True

    def _stays_for(self, peer: str) -> bool:
        if self.ledger.quarantined(peer) is not None or peer in self.peers.refused_by:
            return False
        knows, finished = self.ledger.told(peer), self.ledger.finished(peer)
        if knows and finished:
            return False
        # Who neither knows nor has finished may come back and need what only this agent has.
        return self.peers.silent[peer] < TICKS or not (knows or finished or self.work.goes_on)

    def _raise_faults(self) -> None:
        if self.peers.fault is not None:
            raise self.peers.fault


class Patience:
    """Counts ticks of silence, at most one each time it is asked: time we slept is not held against peers."""

    def __init__(self, idle_timeout: float) -> None:
        self.length = idle_timeout / TICKS
        self.next = asyncio.get_running_loop().time() + self.length

    async def wait(self, peers: Peers) -> None:
        """Until something changes, or a tick is over."""
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self.next - loop.time())):
                await peers.changed.wait()
        peers.changed.clear()
        if loop.time() >= self.next:
            tick(peers)
            self.next = loop.time() + self.length


def _state(rows: Mapping[int, Tensor]) -> bytes:
    return save({str(row): value.contiguous() for row, value in rows.items()})


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
