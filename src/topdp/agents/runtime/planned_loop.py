"""The agent loop under a plan: in each round, gather rows, compute, charge and send.

The plan is synchronous, or has pairs that were drawn in advance. Round r begins when the rows of round r-1
have arrived from every neighbour for which the agent waits. It does not wait for a neighbour in quarantine,
or for one that has quarantined this agent. The manifest's rule decides whether it waits for a neighbour that
is silent for the idle timeout (an agent that hears no neighbour at all always waits). Its own estimate
replaces a row that did not arrive, and the log reports that; a row that arrives later is acknowledged and not
used. If the others went on without this agent, it continues with the newest round of which all neighbours
that it hears have sent it rows, whatever they claim. With shared draws no agent can return: a missing
neighbour is excluded for good (`shared_draws`).

**Guarantees.** Those of `AgentLoop`. In addition, every round of the plan is made as written, with two
exceptions: the agent's data enter no round from the first one whose charge would exceed the budget; and draws
shared with a departed agent are left out and taken back if the ledgers of all agents cover that
(`departures`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from torch import Tensor

from topdp.agents.ledger.ledger_entries import ReleaseCost
from topdp.agents.runtime.agent_loop import AgentLoop, TickClock
from topdp.agents.runtime.agent_rows import AS_PLANNED, make_rows, rows_needed_later
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
        rules, note = self.context.manifest.rules, self.ledger.note_suspect
        self.monitor = RowMonitor(self.peers.refusals, rules.largest_drift, note)

    async def _next_round(self) -> bool:
        waits_for_ever, shared_draws = not self.context.manifest.rules.tolerates_silence, self.shared_draws
        ready = self._wait_for_keys(shared_draws) if shared_draws else self._wait_for_reports(waits_for_ever)
        if not await ready:
            return False
        with self.timing.measure("network"):
            gathered = await self._gather(self.ledger.round)
            if gathered is None or not await self._wait_for_departures(self.ledger.round + 1):
                return False
        if shared_draws is None and self._catch_up():
            return True
        if self.paused():
            return True  # nothing was made, and the gathered rows are in the ledger
        await self._round(self.ledger.round + 1, *gathered)
        return True

    async def _round(
        self, round: int, received: dict[int, Tensor], senders: list[str], missing: list[str]
    ) -> None:
        self._remove_far_rows(round, received, senders)
        for peer in missing:
            words = f"no row for round {round}: this agent's own estimate replaces it"
            self.peers.refusals.report(peer, "missing", words)
            self.ledger.note_departure(f"round {round}: nothing from {peer}", peer)
        information = float(self.meter.planned[round])
        kind, cost = self._decide(round, information, planned=self.ledger.departed is None)
        self.hooks.reached("before_compute")
        part, own, draws = self.context.part, self._own_rows(), self.context.draws
        gradients = self.context.gradients if kind == "release" else None
        departures = self.shared_draws.departures if self.shared_draws else None
        changed, notes = departures.row_changes(round) if departures else (AS_PLANNED, {})
        rows = await self._compute(lambda: make_rows(part, round, own, received, gradients, draws, changed))
        memories = part.plan.memories  # these rows have no limit, because no other agent reads them
        rows = {
            row: value if memories[row] else self._bound_norm(round, row, value)
            for row, value in rows.items()
        }
        self.hooks.rows_made(round, rows, received, draws)
        names = self.context.manifest.names
        sent = part.sent_rows(round).items()
        bodies = {names[receiver]: row_payload.encode(rows[row].numpy()) for receiver, row in sent}
        applied = [(sender, round - 1) for sender in senders]
        self._release(round, kind, cost, bodies, rows_needed_later(part, round, rows), applied, notes=notes)

    def _remove_far_rows(self, round: int, received: dict[int, Tensor], senders: list[str]) -> None:
        """Remove rows whose distance exceeds the manifest's limit from `received`."""
        number = self.context.manifest.number
        row_of = {peer: self.context.part.read_rows[round - 1][number(peer)] for peer in senders}
        rows = {peer: received[row] for peer, row in row_of.items()}
        for peer in self.monitor.find_far(round - 1, self.estimate(), rows):
            del received[row_of[peer]]
            self.ledger.note_departure(f"round {round}: the row of {peer} was too far away", peer)

    # Shared draws

    async def _wait_for_keys(self, shared_draws: SharedDraws) -> bool:
        """Wait for the keys of all agents and the reports of all neighbours. Return False if asked to stop.

        If a neighbour has a row of this agent that the ledger lacks, its greeting reports that and ends the
        agent (`peer_judgement`). This happens before any row with shared draws is made, so no two rows have
        the same shared draws.
        """
        ticks, peers = TickClock(self.context.manifest.rules.idle_timeout), self.peers.neighbours
        waited = 0
        while not shared_draws.agree_on_keys() or not self._all_answered(shared_draws):
            self.peers.wake_senders()  # send the notice of the agreement
            unheard = set(peers) - self.peers.beliefs.answered
            self.waits.set_peers({*shared_draws.missing_agents(), *unheard})
            self._raise_faults()
            if self.stopping.is_set():
                return False
            is_tick = await ticks.wait(self.peers)
            waited += is_tick
            if is_tick and waited % (4 * TICKS_PER_TIMEOUT) == 0:
                missing = shared_draws.missing_agents()
                words = "with shared draws, a run begins once all agents have stated keys"
                if not missing:
                    words = (
                        "not heard since the start of this agent. If the others have ended or gone on without"
                        " it, `topdp agent budget close --leave` ends its run and erases its key"
                    )
                self.peers.refusals.note(
                    "keys", f"waits for {', '.join(missing or sorted(unheard))}: {words}"
                )
        self._raise_faults()
        return True

    def _all_answered(self, shared_draws: SharedDraws) -> bool:
        """Return whether each neighbour has reported its rows, is excluded, or has finished.

        A neighbour that this ledger records as finished need not report: it has received no row of this agent
        since then, and may have left.
        """
        answered, finished = self.peers.beliefs.answered, self.ledger.finished
        return all(
            peer in answered or finished(peer) or shared_draws.is_lost(peer) for peer in self.peers.neighbours
        )

    async def _wait_for_departures(self, round: int) -> bool:
        """Wait until all agents have stated every departure. Return False if asked to stop."""
        if self.shared_draws is None:
            return True
        ticks = TickClock(self.context.manifest.rules.idle_timeout)
        while True:
            self._raise_faults()
            if not self.shared_draws.holds_back(round):
                return True
            self.waits.set_peers(self.shared_draws.departures.unsettled_agents())
            if self.stopping.is_set():
                return False
            for peer in self.peers.neighbours:
                self.shared_draws.is_lost(peer)
            if await ticks.wait(self.peers):
                self.shared_draws.count_tick()

    # Waiting

    async def _gather(self, round: int) -> tuple[dict[int, Tensor], list[str], list[str]] | None:
        """Return (rows, their senders, missing neighbours) of `round`, or None if asked to stop."""
        if round < 0:
            return None if self.stopping.is_set() else ({}, [], [])
        names = self.context.manifest.names
        expected = {names[sender]: row for sender, row in self.context.part.read_rows[round].items()}
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
            self.waits.set_peers(waiting)
            if not waiting:
                break
            await ticks.wait(self.peers)
        senders = [peer for peer in expected if peer not in missing]
        rows = {expected[peer]: self._received_row(peer, round) for peer in senders}
        return rows, senders, missing

    def _raise_faults(self) -> None:
        super()._raise_faults()
        if self.shared_draws is not None and not self.all_done:
            self.shared_draws.expect_not_excluded()
            self.meter = self.shared_draws.count_departures(self.history)

    def _is_missing(self, peer: str, round: int) -> bool:
        if self.ledger.unapplied_body(peer, round) is not None:
            return False
        if self.shared_draws is not None:
            return self.shared_draws.is_lost(peer)
        if self.peers.sends_nothing_to(peer):
            return True
        if not self.context.manifest.rules.tolerates_silence:
            return False
        # Its row will not arrive in time: a later row has arrived, or its greeting reports that.
        beliefs = self.peers.beliefs
        passed = self.ledger.last_received(peer) >= round or beliefs.newest_shown[peer] > round
        passed = passed or beliefs.skips_rounds(peer, round)
        return passed or (
            self.peers.silent_ticks[peer] >= TICKS_PER_TIMEOUT
            and min(self.peers.silent_ticks.values()) < TICKS_PER_TIMEOUT
        )

    def _catch_up(self) -> bool:
        """Under the rule `go-on`, skip rounds if the neighbours are rounds ahead; return whether any was
        skipped.

        Rows that were or will be accepted show their rounds; claims do not count. The slowest neighbour
        counts, so a neighbour that invents rows of later rounds has no effect on an agent that hears another
        neighbour.
        """
        heard = [
            peer
            for peer in self.peers.neighbours
            if self.ledger.quarantined(peer) is None and self.peers.silent_ticks[peer] < TICKS_PER_TIMEOUT
        ]
        state = self.ledger.state()
        if not self.context.manifest.rules.tolerates_silence or not heard or state is None:
            return False
        shown = self.peers.beliefs.newest_shown
        target = min(max(shown[peer], self.ledger.last_received(peer)) for peer in heard)
        if target <= self.ledger.round + 2:
            return False
        words = f"the neighbours are at round {target}: continues with it after round {self.ledger.round}"
        self.peers.refusals.note("rejoin", words, round=target)
        worst = self.context.meter.worst_case(self.history)
        self.ledger.release(target, ReleaseCost(0.0, worst, 0.0), {}, state[1], kind="skip")
        self.mark(target)
        self.ledger.note_departure(f"round {target}: rejoined")
        return True

    # The end

    def _peers_in_need(self) -> list[str]:
        """Return the neighbours that lack rows, or have not confirmed that this agent has finished."""
        return [peer for peer in self.peers.neighbours if self._needs_this_agent(peer)]

    def _needs_this_agent(self, peer: str) -> bool:
        if self.peers.sends_nothing_to(peer):
            return False
        is_informed, has_finished = self.ledger.finish_known(peer), self.ledger.finished(peer)
        if is_informed and has_finished:
            return False
        if peer in self.ledger.leaving:  # rows that it makes of this agent's may help those that stay
            return self.ticks_at_end < TICKS_PER_TIMEOUT and bool(self.ledger.unacknowledged(peer))
        may_leave = self.context.manifest.rules.tolerates_silence
        # A silent neighbour of which none of these holds may return and need rows that only this agent has.
        is_silent = self.peers.silent_ticks[peer] >= TICKS_PER_TIMEOUT
        return not is_silent or not (is_informed or has_finished or may_leave)
