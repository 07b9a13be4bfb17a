"""Planned rounds of one agent: gather, compute, charge, send; synchronous, or in pairs as the plan drew them.

Round r closes when every live neighbour that sends to this agent in round r-1 has been heard. The agent does
not wait for a neighbour in quarantine, or for one that has quarantined it. Whether it waits for a neighbour
that answers nothing for the idle timeout follows from the manifest's rule (an agent that hears nobody at all
waits in any case). Its own estimate replaces a row that did not come, the log reports it, and a row that
comes later is acknowledged and not used. An agent that others went on without takes up the round of which all
neighbours it hears have shown rows, whatever they claim. Where draws are shared nobody comes back: a missing
neighbour is given up for good (`shared_draws`).

**Guarantees.** As for every `AgentLoop`; and every round of the plan is made as written, except that the
agent's data enter no round from the one on whose charge would exceed the budget, and that draws shared with a
departed agent are left out and taken back where the ledgers of all cover that (`departures`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from torch import Tensor

from topdp.agents.ledger.ledger_entries import ReleaseCost
from topdp.agents.runtime.agent_loop import AgentLoop, TickClock
from topdp.agents.runtime.agent_rows import AS_PLANNED, kept, make
from topdp.agents.runtime.peer_contacts import TICKS_PER_TIMEOUT
from topdp.agents.runtime.row_monitor import RowMonitor
from topdp.agents.wire import row_payload

if TYPE_CHECKING:
    from topdp.agents.runtime.shared_draws import SharedDraws


@final
class PlannedLoop(AgentLoop):
    """The loop of one agent under a plan."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.watch = RowMonitor(self.peers.refusals, self.context.manifest.rules.largest_drift)

    async def _next_round(self) -> bool:
        waits_for_ever = not self.context.manifest.rules.tolerates_silence
        shared_draws = self.shared_draws
        if not await (self._agreed(shared_draws) if shared_draws else self._heard_all(waits_for_ever)):
            return False
        with self.timing.measure("network"):
            gathered = await self._gather(self.ledger.round)
            if gathered is None or not await self._settled(self.ledger.round + 1):
                return False
        if shared_draws is None and self._catch_up():
            return True
        if self.paused():
            return True  # before anything is made: what was gathered is in the ledger
        await self._round(self.ledger.round + 1, *gathered)
        return True

    async def _round(
        self, round: int, received: dict[int, Tensor], senders: list[str], missing: list[str]
    ) -> None:
        self._leave_out(round, received, senders)
        for peer in missing:
            words = f"no row for round {round}: this agent's own estimate stands in for it"
            self.peers.refusals.report(peer, "missing", words)
            self.ledger.note_departure(f"round {round}: nothing from {peer}", peer)
        information = float(self.meter.planned[round])
        kind, cost = self._decide(round, information, planned=self.ledger.departed is None)
        self.hooks.reached("before_compute")
        part, own, draws = self.context.part, self._own(), self.context.draws
        gradients = self.context.gradients if kind == "release" else None
        changed, notes = (
            self.shared_draws.departures.changes(round) if self.shared_draws else (AS_PLANNED, {})
        )
        rows = await self._compute(lambda: make(part, round, own, received, gradients, draws, changed))
        memories = part.plan.memories  # rows that nobody reads may be longer
        rows = {
            row: value if memories[row] else self._bounded(round, row, value) for row, value in rows.items()
        }
        self.hooks.rows_made(round, rows, received, draws)
        names = self.context.manifest.names
        bodies = {names[to]: row_payload.encode(rows[row].numpy()) for to, row in part.sent(round).items()}
        applied = [(sender, round - 1) for sender in senders]
        self._release(round, kind, cost, bodies, kept(part, round, rows), applied, notes=notes)

    def _leave_out(self, round: int, received: dict[int, Tensor], senders: list[str]) -> None:
        """Examine the rows that came in, and remove those beyond the manifest's limit from `received`."""
        number = self.context.manifest.number
        row_of = {peer: self.context.part.read(round - 1)[number(peer)] for peer in senders}
        rows = {peer: received[row] for peer, row in row_of.items()}
        for peer in self.watch.far(round - 1, self.estimate(), rows):
            del received[row_of[peer]]
            self.ledger.note_departure(f"round {round}: the row of {peer} was too far away", peer)

    # Shared draws

    async def _agreed(self, shared_draws: SharedDraws) -> bool:
        """Wait for the keys of all agents, and for what neighbours have; False if asked to stop.

        A neighbour that has seen more of this agent than its ledger holds reports that in its greeting, and
        that ends the agent (`peer_contacts`): before anything is made under shared draws, and so never twice
        under the same.
        """
        ticks, peers = TickClock(self.context.manifest.rules.idle_timeout), self.peers.neighbours
        waited = 0
        while not shared_draws.agreed() or not self._all_met(peers):
            self.peers.wake()  # neighbours get what was just agreed on
            self.waits.now({*shared_draws.missing(), *(set(peers) - self.peers.beliefs.answered)})
            self._raise_faults()
            if self.stopping.is_set():
                return False
            await ticks.wait(self.peers)
            waited += 1
            if waited % (4 * TICKS_PER_TIMEOUT) == 0 and (missing := shared_draws.missing()):
                words = "where draws are shared, a run begins once all have stated keys"
                self.peers.refusals.note("keys", f"waits for {', '.join(missing)}: {words}")
        self._raise_faults()
        return True

    def _all_met(self, peers: list[str]) -> bool:
        """A neighbour that has finished, by this very ledger, has got nothing since and may have left."""
        answered, finished = self.peers.beliefs.answered, self.ledger.finished
        return all(peer in answered or finished(peer) or self._lost(peer) for peer in peers)

    async def _settled(self, round: int) -> bool:
        """Wait, where an agent has departed, until all know it; False if asked to stop."""
        if self.shared_draws is None:
            return True
        ticks = TickClock(self.context.manifest.rules.idle_timeout)
        while True:
            self._raise_faults()
            if not self.shared_draws.holds(round):
                return True
            self.waits.now(self.shared_draws.departures.unsettled())
            if self.stopping.is_set():
                return False
            for peer in self.peers.neighbours:
                self.shared_draws.lost(peer)
            if await ticks.wait(self.peers):
                self.shared_draws.tick()

    # Waiting

    async def _gather(self, round: int) -> tuple[dict[int, Tensor], list[str], list[str]] | None:
        """(rows, their senders, missing neighbours) of `round`; None if asked to stop."""
        if round < 0:
            return None if self.stopping.is_set() else ({}, [], [])
        names = self.context.manifest.names
        expected = {names[sender]: row for sender, row in self.context.part.read(round).items()}
        ticks = TickClock(self.context.manifest.rules.idle_timeout)
        while True:
            self._raise_faults()
            if self.stopping.is_set():
                return None
            missing = [peer for peer in expected if self._is_missing(peer, round)]
            waiting = [
                peer
                for peer in expected
                if peer not in missing and self.ledger.unapplied_body(peer, round) is None
            ]
            self.waits.now(waiting)
            if not waiting:
                break
            await ticks.wait(self.peers)
        senders = [peer for peer in expected if peer not in missing]
        rows = {expected[peer]: self._received(peer, round) for peer in senders}
        return rows, senders, missing

    def _raise_faults(self) -> None:
        super()._raise_faults()
        if self.shared_draws is not None and not self.all_done:
            self.shared_draws.expect_to_be_counted_in()
            self.meter = self.shared_draws.settle(self.history)

    def _lost(self, peer: str) -> bool:
        return self.shared_draws is not None and self.shared_draws.lost(peer)

    def _is_missing(self, peer: str, round: int) -> bool:
        if self.ledger.unapplied_body(peer, round) is not None:
            return False
        if self.shared_draws is not None:
            return self.shared_draws.lost(peer)
        if self.peers.ends_with(peer):
            return True
        if not self.context.manifest.rules.tolerates_silence:
            return False
        # Its row came too late, or will not come: a later one was shown, or its greeting reports that.
        beliefs = self.peers.beliefs
        passed = self.ledger.last_received(peer) >= round or beliefs.shown[peer] > round
        passed = passed or beliefs.skips_rounds(peer, round)
        return passed or (
            self.peers.silent[peer] >= TICKS_PER_TIMEOUT
            and min(self.peers.silent.values()) < TICKS_PER_TIMEOUT
        )

    def _catch_up(self) -> bool:
        """Skip the rounds that are over, under the rule go-on, because others are rounds ahead.

        Their rounds show in rows that were or will be accepted, never in mere claims. The slowest counts, so
        a neighbour that invents rows of later rounds moves no agent that hears another one.
        """
        heard = [
            peer
            for peer in self.peers.neighbours
            if self.ledger.quarantined(peer) is None and self.peers.silent[peer] < TICKS_PER_TIMEOUT
        ]
        state = self.ledger.state()
        if not self.context.manifest.rules.tolerates_silence or not heard or state is None:
            return False
        target = min(self.peers.beliefs.round_of(peer) for peer in heard)
        if target <= self.ledger.round + 2:
            return False
        words = f"the neighbours are at round {target}, takes it up from round {self.ledger.round}"
        self.peers.refusals.note("rejoin", words, round=target)
        worst = self.context.meter.worst_case(self.history)
        self.ledger.release(target, ReleaseCost(0.0, worst, 0.0), {}, state[1], kind="skip")
        self.mark(target)
        self.ledger.note_departure(f"round {target}: rejoined")
        return True

    # The end

    def _stays_with(self) -> list[str]:
        """Return the neighbours that lack rows, or do not know yet that this agent has all it needs."""
        return [peer for peer in self.peers.neighbours if self._stays_for(peer)]

    def _stays_for(self, peer: str) -> bool:
        if self.peers.ends_with(peer):
            return False
        knows, finished = self.ledger.finish_known(peer), self.ledger.finished(peer)
        if knows and finished:
            return False
        tolerates_silence = self.context.manifest.rules.tolerates_silence or peer in self.ledger.leaving
        # A neighbour that neither knows nor has finished may come back and need what only this agent has.
        return self.peers.silent[peer] < TICKS_PER_TIMEOUT or not (knows or finished or tolerates_silence)
