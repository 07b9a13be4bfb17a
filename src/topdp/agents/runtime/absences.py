"""Missing neighbours under shared draws: excluded for good, and counted as colluders.

Applies the result of `departures` to one agent's loop: for which neighbours it does not wait, which colluders
its meter counts, and when the agent must stop. Not for plans without shared draws: there, a missing neighbour
may return.

**Guarantees.** An agent states that it counts another agent as a colluder only after the charge for that is
in its ledger, and no agent relies on it before.
"""

from __future__ import annotations

from typing import final

from topdp.agents.runtime.agent_context import AgentContext
from topdp.agents.runtime.budget_meter import BudgetMeter, allows
from topdp.agents.runtime.peer_contacts import TICKS_PER_TIMEOUT, PeerContacts
from topdp.agents.runtime.shared_draws import SharedDraws
from topdp.privacy.spending_curve import ReleaseHistory


@final
class Absences:
    """The agents that one agent considers missing for good."""

    def __init__(self, context: AgentContext, peers: PeerContacts, shared_draws: SharedDraws) -> None:
        self.context, self.ledger, self.peers, self.shared_draws = context, peers.ledger, peers, shared_draws
        self.departures = shared_draws.departures
        peers.given_up = self.departures.given_up
        self._meter = context.meter
        self._counts: dict[str, int] = {}  # agent -> round from which this meter counts it as a colluder
        self._held: dict[str, int] = {}  # agent -> ticks for which rows were held back because of it

    # Neighbours

    def lost(self, peer: str) -> bool:
        """Return whether nothing more will come from `peer`.

        With the rule `go-on`, a silent or quarantined peer is excluded for good.
        """
        if self.departures.given_up(peer) or peer in self.peers.left_by:
            return True
        if self.ledger.quarantined(peer) is not None:
            self._give_up(peer, "quarantined")
            return True
        silent = self.peers.silent[peer] >= TICKS_PER_TIMEOUT and self._hears_somebody()
        return silent and self._give_up(peer, "silent for the idle timeout")

    def _hears_somebody(self) -> bool:
        """Return whether some neighbour that is not excluded has sent a message within the idle timeout.

        An agent that hears no neighbour is itself disconnected.
        """
        silent = self.peers.silent
        return any(silent[peer] < TICKS_PER_TIMEOUT for peer in silent if not self.departures.given_up(peer))

    def _give_up(self, peer: str, why: str) -> bool:
        """State that `peer` is silent if the manifest has the rule `go-on`; return whether it has."""
        if not self.context.manifest.rules.tolerates_silence or not self.shared_draws.gossip.begun:
            return False
        if self.departures.give_up(peer):
            self.peers.refusals.report(peer, "given_up", f"{why}: its further rows are refused")
            self.peers.wake()
        return True

    def expect_to_be_counted_in(self) -> None:
        """Raise TrustError if the others count this agent as departed: draws in its rows would not cancel."""
        peers = self.peers
        left = bool(peers.left_by) and all(peers.ends_with(peer) for peer in peers.neighbours)
        if left or self.context.name in self.departures.gone():
            raise self.shared_draws.left_behind()

    # What counting somebody out costs

    def settle(self, history: ReleaseHistory) -> BudgetMeter:
        """Count departed agents as colluders, charge the cost and state it; return the meter from now on.

        They count from the round after the last one that some neighbour received from them, if the budget
        allows that; otherwise from the next round onwards.
        """
        gone, counts = self.departures.gone(), self.ledger.departed_members()
        new = {name: last_seen + 1 for name, last_seen in gone.items() if name not in counts}
        if not new and counts == self._counts:
            return self._meter
        self._meter, self._counts = self._without({**counts, **new}), {**counts, **new}
        if new and not self._pays(history):
            late = dict.fromkeys(new, self.ledger.round + 1)
            self._meter, self._counts = self._without({**counts, **late}), {**counts, **late}
        for name in new:
            self.departures.count_out(name, self._counts[name])
            self.peers.wake()
            words = f"{name} is gone for good, and counts as a colluder from round {self._counts[name]} on"
            self.peers.refusals.note("gone", words, peer=name)
        return self._meter

    def _pays(self, history: ReleaseHistory) -> bool:
        """Charge the additional cost of earlier releases under this meter, if the budget allows it.

        Return whether the budget allows it; False, without a charge, if no draws are taken back.
        """
        if not self.departures.takes_back:
            return False
        cost = self._meter.owed(history, self.ledger.total, planned=True)
        if not allows(self.context.epsilon, self.ledger.total, cost):
            return False
        if cost.charge:
            self.ledger.charge_late(cost)
        return True

    def _without(self, counts: dict[str, int]) -> BudgetMeter:
        if not self.context.meter.in_the_open:
            return self.context.meter  # all others count as colluders already
        number = self.context.manifest.number
        return self.context.meter.without({number(name): first for name, first in counts.items()})

    # Rows that are held back

    def holds(self, round: int) -> bool:
        """Return whether rows of `round` are held back because departures are unsettled.

        Shared noise in these rows would not cancel. Rows are held back for at most two idle timeouts, because
        an agent may be silent towards one neighbour only.
        """
        if not self.context.part.shared(round):
            return False
        return any(self._held.get(name, 0) < 2 * TICKS_PER_TIMEOUT for name in self.departures.unsettled())

    def tick(self) -> None:
        """Count one tick during which rows were held back."""
        for name in self.departures.unsettled():
            self._held[name] = self._held.get(name, 0) + 1
