"""Neighbours that are missing where draws are shared: given up for good, and counted as colluders.

Applies what `departures` settles by statements to one agent's loop: which neighbours it does not wait for,
what its meter counts, and when it must stop. Not for plans without shared draws: there a missing neighbour
may come back.

**Guarantees.** An agent states that it counts another as a colluder once the charge for that is in its
ledger, and nobody relies on it before.
"""

from __future__ import annotations

import logging
from typing import final

from topdp.agents.runtime.agent_context import AgentContext
from topdp.agents.runtime.budget_meter import BudgetMeter, allows
from topdp.agents.runtime.peer_contacts import TICKS_PER_TIMEOUT, PeerContacts
from topdp.agents.runtime.shared_draws import SharedDraws
from topdp.privacy.spending_curve import ReleaseHistory

logger = logging.getLogger("topdp.agents")


@final
class Absences:
    """The agents that are missing for good, as one agent sees them."""

    def __init__(self, context: AgentContext, peers: PeerContacts, shared_draws: SharedDraws) -> None:
        self.context, self.ledger, self.peers, self.shared_draws = context, peers.ledger, peers, shared_draws
        self.departures = shared_draws.departures
        peers.given_up = self.departures.given_up
        self._meter = context.meter
        self._counts: dict[str, int] = {}  # as colluders in this meter, from these rounds on
        self._held: dict[str, int] = {}  # ticks for which each has held back rows

    # Neighbours

    def lost(self, peer: str) -> bool:
        """Whether nothing will come of `peer` any more. Under the rule to go on, this decides it."""
        if self.departures.given_up(peer) or peer in self.peers.left_by:
            return True
        if self.ledger.quarantined(peer) is not None:
            self._give_up(peer, "quarantined")
            return True
        silent = self.peers.silent[peer] >= TICKS_PER_TIMEOUT and self._hears_somebody()
        return silent and self._give_up(peer, "silent for the idle timeout")

    def _hears_somebody(self) -> bool:
        """An agent that hears nobody is itself cut off. A late word of a neighbour that was given up does not
        count.
        """
        silent = self.peers.silent
        return any(silent[peer] < TICKS_PER_TIMEOUT for peer in silent if not self.departures.given_up(peer))

    def _give_up(self, peer: str, why: str) -> bool:
        """State that `peer` is silent, where the rule is to go on without it; return whether it is."""
        if not self.context.manifest.rules.tolerates_silence or not self.shared_draws.gossip.begun:
            return False
        if self.departures.give_up(peer):
            self.peers.refusals.report(peer, "given_up", f"{why}: its further rows are refused")
            self.peers.wake()
        return True

    def expect_to_be_counted_in(self) -> None:
        """Stop an agent that is gone for the others: they leave out what would cancel in its rows."""
        peers = self.peers
        left = bool(peers.left_by) and all(peers.ends_with(peer) for peer in peers.neighbours)
        if left or self.context.name in self.departures.gone():
            raise self.shared_draws.left_behind()

    # What counting somebody out costs

    def settle(self, history: ReleaseHistory) -> BudgetMeter:
        """Count departed agents as colluders, charge what that costs and state it; return the meter from now
        on.

        They count from the round after the last that some neighbour has of them, if the budget allows that;
        otherwise from the next round on.
        """
        gone, counts = self.departures.gone(), self.ledger.departed_members()
        new = {name: one.seen + 1 for name, one in gone.items() if name not in counts}
        if not new and counts == self._counts:
            return self._meter
        self._meter, self._counts = self._without({**counts, **new}), {**counts, **new}
        if new and not self._pays(history):
            late = dict.fromkeys(new, self.ledger.round + 1)
            self._meter, self._counts = self._without({**counts, **late}), {**counts, **late}
        for name in new:
            self.departures.count_out(name, self._counts[name])
            self.peers.wake()
            logger.warning(
                "%s: %s is gone for good, and counts as a colluder from round %d on",
                self.context.name,
                name,
                self._counts[name],
                extra={"agent": self.context.name, "peer": name, "event": "gone"},
            )
        return self._meter

    def _pays(self, history: ReleaseHistory) -> bool:
        """Charge what the releases made so far cost by this meter, if the budget allows it."""
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
        """Whether the rows of `round` wait until all know who is gone: shared noise in them would not cancel.

        For two idle timeouts at most: an agent may be silent for one neighbour alone.
        """
        if not self.context.part.shared(round):
            return False
        return any(self._held.get(name, 0) < 2 * TICKS_PER_TIMEOUT for name in self.departures.unsettled())

    def tick(self) -> None:
        """Count one tick in which rows were held back."""
        for name in self.departures.unsettled():
            self._held[name] = self._held.get(name, 0) + 1
