"""What every agent does round after round, whatever its partners: charge before release, and an orderly end.

`planned_loop` follows a plan, `live_pairing_loop` looks for partners; both are final. They differ in which
neighbours they wait for and in what they compute.

**Guarantees.** A charge is on disk, with the bytes and the state that it pays for, before a byte leaves. Time
only decides how long to wait: waiting is counted in ticks of this process, so a stopped process or a clock
that jumps costs one tick. An agent whose budget allows no further release goes on as before, noise included,
but its data enter no more: others keep the noise that they count on, and its own spending ends there. After a
start no data enter a round while a neighbour that may have newer rows of this agent has not reported which it
has: under the rule to wait the agent waits for it; under the rule to go on, rows carry noise alone meanwhile.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from safetensors.torch import load, save
from torch import Tensor

from topdp.agents.ledger.ledger_entries import EntryKind, ReleaseCost, infinite_if_none
from topdp.agents.runtime.agent_context import AgentContext
from topdp.agents.runtime.agent_rows import within
from topdp.agents.runtime.agent_timing import PeerWaits, RoundTiming
from topdp.agents.runtime.budget_meter import allows
from topdp.agents.runtime.peer_contacts import TICKS_PER_TIMEOUT, PeerContacts

if TYPE_CHECKING:
    from topdp.agents.runtime.shared_draws import SharedDraws

T = TypeVar("T")
Activity = Literal["waits", "computes", "ends"]
"""What an agent does at the moment, for people: wait between releases, compute one, or end."""


@dataclass(eq=False, repr=False)
class AgentLoop(ABC):
    """One agent from its first round to its end."""

    context: AgentContext
    peers: PeerContacts
    _: KW_ONLY
    finished: Callable[[], None]  # called after the last round, before the agent sends what it still owes
    shared_draws: SharedDraws | None  # where agents share draws
    mark: Callable[[int], None]  # called when a round is in the ledger, before its rows leave

    def __post_init__(self) -> None:
        self._heard = False  # has waited, as long as the rule allows, for what neighbours have
        self.drained = 0  # ticks since the last round
        self.ledger, self.hooks = self.peers.ledger, self.context.hooks
        self.meter, self.name = self.context.meter, self.context.name
        self.stopping = asyncio.Event()
        self.timing, self.waits = RoundTiming(), PeerWaits()
        self.paused: Callable[[], bool] = lambda: False  # whether a person wants no further release for now
        self.activity: Activity = "waits"
        self.history = [
            (e.round, infinite_if_none(e.information)) for e in self.ledger.entries() if e.kind == "release"
        ]

    @property
    def out_of_budget(self) -> bool:
        """Whether the agent's data enter no further round; final, whatever budget a restart gets."""
        return self.ledger.stopped_at is not None

    @property
    def all_done(self) -> bool:
        """Whether every round is in the ledger."""
        return self.ledger.is_complete(self.context.part.plan.releases)

    def estimate(self) -> Tensor:
        return self._own()[self.context.part.agent]

    def reported(self) -> Tensor:
        """The row that the owner gets: the estimate, or the average of estimates if the plan has one."""
        own = self._own()
        return own.get(self.context.part.reported, own[self.context.part.agent])

    async def run(self) -> bool:
        """Do all remaining rounds, then send what is still owed. False: asked to stop before the end."""
        while not self.all_done:
            self._raise_faults()
            if not await self._may_release() or not await self._next_round():
                return False
        self.finished()
        return await self._drain()

    # What the two kinds of loop differ in

    @abstractmethod
    async def _next_round(self) -> bool:
        """Do one round, or find that there is none to do; False if asked to stop meanwhile."""

    @abstractmethod
    def _stays_with(self) -> list[str]:
        """The neighbours that may still need this agent."""

    async def _settle(self) -> None:  # noqa: B027 - under a plan, `outbox_sender` sends what is owed
        """Do what this agent can do by itself for the neighbours that need it."""

    # What they share

    async def _may_release(self) -> bool:
        """Wait while a person has paused this agent; False if asked to stop.

        A paused agent makes no new release, and goes on answering, receiving and sending what is in its
        ledger.
        """
        ticks = TickClock(self.context.manifest.rules.idle_timeout)
        while self.paused() and not self.stopping.is_set():
            self._raise_faults()
            await ticks.wait(self.peers)
        return not self.stopping.is_set()

    def _decide(self, round: int, information: float, planned: bool) -> tuple[EntryKind, ReleaseCost]:
        """Decide whether the agent's data enter `round`, and what that costs.

        Decided by budget, plan and departures, never by the data: so the decision reveals nothing of them.
        """
        meter, total = self.meter, self.ledger.total
        # Where draws are shared, nothing is made until it is known that this ledger is no old copy.
        is_in_doubt = self.shared_draws is None and bool(self.peers.beliefs.unheard())
        if not self.out_of_budget and not is_in_doubt:
            cost = meter.cost(round, self.history, total, information, planned)
            if allows(self.context.epsilon, total, cost):
                return "release", cost
            self.ledger.stop_data(round)
            words = (
                f"round {round} would bring the spent epsilon to {total + cost.charge:.6g}, the budget is "
                f"{self.context.epsilon:.6g}: from here on its rows carry noise and no data"
            )
            self.peers.refusals.note("budget", words, round=round)
        return "noise", meter.owed(self.history, total, planned)

    async def _heard_all(self, for_ever: bool) -> bool:
        """Wait, once after a start, until the neighbours have reported what they have of this agent; False:
        asked to stop.

        Not `for_ever`: for the idle timeout. Then the agent goes on without data until they have reported.
        """
        ticks, waited = TickClock(self.context.manifest.rules.idle_timeout), 0
        while not self._heard and (unheard := self.peers.beliefs.unheard()):
            self._raise_faults()
            if self.stopping.is_set():
                return False
            if await ticks.wait(self.peers):
                waited += 1
                if waited % (4 * TICKS_PER_TIMEOUT) == TICKS_PER_TIMEOUT:
                    goes_on = "goes on with noise and without data until it is"
                    words = (
                        f"{', '.join(unheard)}: not heard since the start of this agent, whose ledger might "
                        f"be an old copy: {'waits for it' if for_ever else goes_on}"
                    )
                    self.peers.refusals.note("unheard", words)
            if waited >= TICKS_PER_TIMEOUT and not for_ever:
                break
        self._heard = True
        self._raise_faults()
        return True

    def _release(
        self,
        round: int,
        kind: EntryKind,
        cost: ReleaseCost,
        bodies: Mapping[str, bytes],
        rows: Mapping[int, Tensor],
        applied: Iterable[tuple[str, int]],
        pair: str | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """Write charge, bytes and state in one transaction; nothing is sent before."""
        for peer in filter(self.ledger.finished, self.peers.neighbours):
            self.peers.acknowledge(peer, round - 1)
        self.hooks.reached("before_ledger")
        state = save({str(row): value.contiguous() for row, value in rows.items()})
        with self.timing.measure("ledger"):
            self.ledger.before_commit = lambda: self.hooks.reached("in_ledger")
            self.ledger.release(round, cost, bodies, state, applied, pair, kind, notes)
        self.timing.rounds += 1
        self.activity = "waits"
        self.hooks.reached("after_ledger")
        self.mark(round)
        if self.shared_draws is not None:
            self.shared_draws.note(round)
        if kind == "release":
            self.history.append((round, infinite_if_none(cost.information)))
        self.peers.wake()

    def _bounded(self, round: int, number: int, row: Tensor) -> Tensor:
        """The row, shortened if others would refuse it: rows just below the largest norm plus a step may
        exceed it.

        Where the guarantee relies on hidden rows, only estimates are ever shortened (`row_guards`).
        """
        largest = self.context.limits.of(round, number)
        bounded = within(row, largest)
        if bounded is not row:
            words = (
                f"the row of round {round} exceeded the largest norm, {largest:g}, and was shortened: a "
                "neighbour sends huge rows, or training diverges"
            )
            self.peers.refusals.note("largest_norm", words, round=round)
        return bounded

    def _own(self) -> Mapping[int, Tensor]:
        """The agent's rows of the last round in the ledger."""
        state = self.ledger.state()
        if state is None:
            return {self.context.part.agent: self.context.start}
        return {int(row): value for row, value in load(state[1]).items()}

    def _received(self, peer: str, round: int) -> Tensor:
        """The row that `peer` sent in `round`."""
        body = self.ledger.unapplied_body(peer, round)
        assert body is not None
        return torch.from_numpy(self.context.decode(body))

    async def _compute(self, job: Callable[[], T]) -> T:
        self.activity = "computes"

        def timed() -> T:
            with self.timing.computing():
                return job()

        with self.timing.measure("compute"):
            return await asyncio.to_thread(timed) if self.context.in_thread else timed()

    async def _drain(self) -> bool:
        """Stay while a neighbour needs this agent. Return False if asked to stop before that."""
        self.peers.finish()
        self.activity = "ends"
        for peer in self.peers.silent:
            self.peers.silent[peer] = 0
        ticks = TickClock(self.context.manifest.rules.idle_timeout)
        while self._stays_with():
            self._raise_faults()
            if self.stopping.is_set():
                return False
            await self._settle()
            if stays_with := self._stays_with():
                self.waits.now(stays_with)
                self.drained += await ticks.wait(self.peers)
        self.waits.now(())
        return True

    def _raise_faults(self) -> None:
        if self.peers.fault is not None:
            raise self.peers.fault


class TickClock:
    """Counts ticks of silence, at most one per call: time in which this process slept does not count against
    peers.
    """

    def __init__(self, idle_timeout: float) -> None:
        self.length = idle_timeout / TICKS_PER_TIMEOUT
        self.next = asyncio.get_running_loop().time() + self.length

    async def wait(self, peers: PeerContacts) -> bool:
        """Wait until something changes or a tick is over; return whether it is over."""
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self.next - loop.time())):
                await peers.changed.wait()
        peers.changed.clear()
        if loop.time() < self.next:
            return False
        peers.tick()
        self.next = loop.time() + self.length
        return True
