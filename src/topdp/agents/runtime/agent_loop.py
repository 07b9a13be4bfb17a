"""The part of the agent loop that all agents share: charge before release, and an orderly end.

`planned_loop` follows a plan, `live_pairing_loop` finds partners while it runs. They differ in the neighbours
for which they wait and in what they compute.

**Guarantees.** A charge is on disk, with the bytes and the state that it pays for, before a byte is sent.
Time only decides how long to wait: waits are counted in ticks of this process, so a stopped process or a
clock that jumps costs one tick. If the budget of an agent allows no further release, the agent continues with
noise, but its data enter no further round: the others keep the noise that they rely on, and the agent spends
nothing more. After a start, no data enter a round until every neighbour that may have newer rows of this
agent has reported which rows it has, and so has the same terms. The agent waits for that before its first
charge and under the rule to wait; under the rule to go on, once others have begun, its rows carry only noise
until then.
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
from topdp.agents.runtime.agent_rows import shorten
from topdp.agents.runtime.agent_timing import PeerWaits, RoundTiming
from topdp.agents.runtime.budget_meter import allows
from topdp.agents.runtime.peer_contacts import TICKS_PER_TIMEOUT, PeerContacts

if TYPE_CHECKING:
    from topdp.agents.runtime.shared_draws import SharedDraws

T = TypeVar("T")
Activity = Literal["waits", "computes", "ends"]
"""The current activity, for people: the agent waits between releases, computes one, or ends."""


@dataclass(eq=False, repr=False)
class AgentLoop(ABC):
    """The loop of one agent, from its first round to its end."""

    context: AgentContext
    peers: PeerContacts
    _: KW_ONLY
    finish: Callable[[], None]  # called after the last round, before the agent sends its remaining messages
    shared_draws: SharedDraws | None  # None if no draws are shared
    mark: Callable[[int], None]  # called when a round is in the ledger, before its rows are sent

    def __post_init__(self) -> None:
        self._has_waited_for_reports = False
        self.ticks_at_end = 0  # ticks since the last round
        self.ledger, self.hooks = self.peers.ledger, self.context.hooks
        self.meter, self.name = self.context.meter, self.context.name
        self.stopping = asyncio.Event()
        self.timing, self.waits = RoundTiming(), PeerWaits()
        self.paused: Callable[[], bool] = lambda: False  # whether a person has paused releases
        self.activity: Activity = "waits"
        self.history = [
            (e.round, infinite_if_none(e.information)) for e in self.ledger.entries() if e.kind == "release"
        ]

    @property
    def out_of_budget(self) -> bool:
        """Whether the agent's data enter no further round. A restart with another budget does not change
        it.
        """
        return self.ledger.stopped_at is not None

    @property
    def all_done(self) -> bool:
        """Whether every round is in the ledger."""
        return self.ledger.is_complete(self.context.part.plan.releases)

    def estimate(self) -> Tensor:
        return self._own_rows()[self.context.part.agent]

    def reported(self) -> Tensor:
        """Return the row that the owner gets: the estimate, or the average of estimates if the plan has
        one.
        """
        own = self._own_rows()
        return own.get(self.context.part.reported, own[self.context.part.agent])

    async def run(self) -> bool:
        """Execute the remaining rounds, then send the remaining messages. Return False if asked to stop."""
        while not self.all_done:
            self._raise_faults()
            if not await self._wait_while_paused() or not await self._next_round():
                return False
        self.finish()
        return await self._drain()

    # Differences between the two kinds of loop

    @abstractmethod
    async def _next_round(self) -> bool:
        """Execute one round, or skip rounds. Return False if asked to stop before."""

    @abstractmethod
    def _peers_in_need(self) -> list[str]:
        """Return the neighbours that may still need this agent."""

    async def _settle(self) -> None:  # noqa: B027 - under a plan, `outbox_sender` suffices
        """Do what this agent can do at its end for the neighbours that need it."""

    # Common parts

    async def _wait_while_paused(self) -> bool:
        """Wait while a person has paused this agent. Return False if asked to stop.

        A paused agent makes no new release. It continues to answer, to receive, and to send the rows in its
        ledger.
        """
        ticks = TickClock(self.context.manifest.rules.idle_timeout)
        while self.paused() and not self.stopping.is_set():
            self._raise_faults()
            await ticks.wait(self.peers)
        return not self.stopping.is_set()

    def _decide(self, round: int, information: float, planned: bool) -> tuple[EntryKind, ReleaseCost]:
        """Decide whether the agent's data enter `round`, and what that costs.

        The decision depends on budget, plan and departures, never on the data, so it reveals nothing about
        them.
        """
        meter, total = self.meter, self.ledger.total
        # With shared draws, `PlannedLoop` makes no round before it knows that this ledger is no old copy.
        is_in_doubt = self.shared_draws is None and bool(self.peers.beliefs.unheard_peers())
        if not self.out_of_budget and not is_in_doubt:
            cost = meter.cost(round, self.history, total, information, planned)
            if allows(self.context.epsilon, total, cost):
                return "release", cost
            self.ledger.stop_data(round)
            words = (
                f"round {round} would bring the spent epsilon to {total + cost.charge:.6g}, the budget is "
                f"{self.context.epsilon:.6g}: from now on its rows carry noise and no data"
            )
            self.peers.refusals.note("budget", words, round=round)
        return "noise", meter.cost_without_data(self.history, total, planned)

    async def _wait_for_reports(self, for_ever: bool) -> bool:
        """Wait once after a start until the neighbours have reported which rows of this agent they have.

        Return False if asked to stop. Unless `for_ever`, or the run has not begun, wait at most for the idle
        timeout; the agent then continues without data until they have reported. So it does without waiting
        for agents that leave.
        """
        ticks, waited = TickClock(self.context.manifest.rules.idle_timeout), 0
        while not self._has_waited_for_reports and (unheard := self._needed_reports()):
            self._raise_faults()
            self.waits.set_peers(unheard)
            if self.stopping.is_set():
                return False
            begins = self.ledger.round < 0 and not self.peers.beliefs.run_has_begun
            if waited >= TICKS_PER_TIMEOUT and not (for_ever or begins):
                break
            if await ticks.wait(self.peers):
                waited += 1
                if waited % (4 * TICKS_PER_TIMEOUT) == TICKS_PER_TIMEOUT:
                    self._explain_wait(unheard, for_ever, begins)
        self.waits.set_peers(())
        self._has_waited_for_reports = True
        self._raise_faults()
        return True

    def _needed_reports(self) -> list[str]:
        return [peer for peer in self.peers.beliefs.unheard_peers() if peer not in self.ledger.leaving]

    def _explain_wait(self, unheard: list[str], for_ever: bool, begins: bool) -> None:
        """Log for which reports the agent waits, and what helps."""
        if begins:
            contradict = sorted(self.peers.peers_with_other_terms.intersection(unheard))
            hint = f"; {', '.join(contradict)} has other terms: compare the hashes of the manifests"
            words = (
                "not heard yet, and nothing is spent before all neighbours are. Who never comes can be left "
                f"out of a new manifest{hint if contradict else ''}"
            )
        else:
            goes_on = "goes on with noise and without data until it is"
            words = (
                "not heard since the start of this agent, whose ledger might be an old copy: "
                f"{'waits for it' if for_ever else goes_on}"
            )
        self.peers.refusals.note("unheard_peers", f"{', '.join(unheard)}: {words}")

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
        """Write charge, bytes and state to the ledger in one transaction, before anything is sent."""
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
            self.shared_draws.mark_round(round)
        if kind == "release":
            self.history.append((round, infinite_if_none(cost.information)))
        self.peers.wake_senders()

    def _bound_norm(self, round: int, number: int, row: Tensor) -> Tensor:
        """Return the row, shortened if it exceeds the largest norm, because neighbours would refuse it.

        A row just below the largest norm may exceed it after a step. If the guarantee relies on hidden rows,
        only estimates are ever shortened (`row_guards`).
        """
        largest = self.context.limits.limit_of(round, number)
        bounded = shorten(row, largest)
        if bounded is not row:
            words = (
                f"the row of round {round} exceeded the largest norm, {largest:g}, and was shortened: a "
                "neighbour sends huge rows, or training diverges"
            )
            self.peers.refusals.note("largest_norm", words, round=round)
        return bounded

    def _own_rows(self) -> Mapping[int, Tensor]:
        """Return the agent's rows of the last round in the ledger."""
        state = self.ledger.state()
        if state is None:
            return {self.context.part.agent: self.context.start}
        return {int(row): value for row, value in load(state[1]).items()}

    def _received_row(self, peer: str, round: int) -> Tensor:
        """Return the row that `peer` sent in `round`."""
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
        """Continue while a neighbour needs this agent. Return False if asked to stop before that."""
        self.peers.finish()
        self.activity = "ends"
        for peer in self.peers.silent_ticks:
            self.peers.silent_ticks[peer] = 0
        ticks = TickClock(self.context.manifest.rules.idle_timeout)
        while self._peers_in_need():
            self._raise_faults()
            if self.stopping.is_set():
                return False
            await self._settle()
            if peers_in_need := self._peers_in_need():
                self.waits.set_peers(peers_in_need)
                self.ticks_at_end += await ticks.wait(self.peers)
        self.waits.set_peers(())
        return True

    def _raise_faults(self) -> None:
        if self.peers.fault is not None:
            raise self.peers.fault


class TickClock:
    """Counts ticks of silence: at most one per call, so a sleep of this process does not count against
    peers.
    """

    def __init__(self, idle_timeout: float) -> None:
        self.length = idle_timeout / TICKS_PER_TIMEOUT
        self.next = asyncio.get_running_loop().time() + self.length

    async def wait(self, peers: PeerContacts) -> bool:
        """Wait until something changes or the tick ends; return whether the tick has ended."""
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
