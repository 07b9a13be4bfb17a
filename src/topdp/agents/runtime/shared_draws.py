"""What an agent needs to share draws with others: its key of the run, the pair seeds, and who is missing.

One object from the first start to the end of a run: it makes or finds the key, states it, waits for those of
all others, hands the seeds to the draws, marks what was made, and erases the key. Missing neighbours are
excluded for good, and counted as colluders: it applies the result of `departures` to the agent's loop, for
which neighbours it does not wait, which colluders its meter counts, and when the agent must stop.
`statement_gossip` carries the notices.

**Guarantees.** No shared draw is made before the keys of all agents are here, and all have stated the run
that these name: so nobody begins while an agent has stated two different keys. A key is on disk before it is
stated; a round is marked before its row leaves. An agent states that it counts another agent as a colluder
only after the charge for that is in its ledger, and no agent relies on it before.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from topdp.agents.agreement.run_marks import RunSecret
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.notice_store import NoticeStore
from topdp.agents.runtime.agent_context import AgentContext, PrivateFiles
from topdp.agents.runtime.budget_meter import BudgetMeter, allows
from topdp.agents.runtime.departures import Departures
from topdp.agents.runtime.pair_keys import KEYS_AGREED, RUN_KEY, RunKey, agree
from topdp.agents.runtime.peer_contacts import TICKS_PER_TIMEOUT, PeerContacts
from topdp.agents.runtime.statement_gossip import StatementGossip
from topdp.errors import TrustError
from topdp.privacy.observers.survivors import recalls_draws
from topdp.privacy.spending_curve import ReleaseHistory

LEFT_BEHIND_KEY = "left behind"
"""The ledger's key for the fact that others have gone on without this agent."""


class SharedDraws:
    """The part of one agent in a run with shared draws."""

    def __init__(self, context: AgentContext, ledger: Ledger, private: PrivateFiles) -> None:
        self.context, self.ledger, self.hooks = context, ledger, context.hooks
        manifest, self.plan = context.manifest, context.part.plan.digest()
        self.gossip = StatementGossip(manifest, private.identity, self.plan, NoticeStore(ledger))
        self.secret = RunSecret(private.folder, manifest.hash)
        exposure = context.meter.spending.analysis.exposure()
        self.departures = Departures(context.part, self.gossip, ledger, recalls_draws(exposure))
        self._meter = context.meter
        self._counts: dict[str, int] = {}  # agent -> round from which this meter counts it as a colluder
        self._delays: dict[str, int] = {}  # agent -> ticks for which rows were held back because of it
        self._private: X25519PrivateKey | None = None  # None once all rounds are in the ledger
        if LEFT_BEHIND_KEY in ledger.meta:
            raise self.left_behind()
        stated = self.gossip.news.text(context.name, "", RUN_KEY)
        if stated is None:
            public = self.secret.begin()
            self.hooks.reached("after_key")
            self.gossip.state(RUN_KEY, RunKey.fresh(self.plan, public).text())
            self._private = self.secret.resume(public, ledger.round)
        elif not ledger.is_complete(context.part.plan.releases):
            self._private = self.secret.resume(RunKey.read(stated).public, ledger.round)
            if ledger.round >= 0 and context.part.shared(ledger.round):
                self.secret.note(ledger.round)  # after a kill between entry and mark
        self.agreed()

    def attach(self, peers: PeerContacts) -> None:
        """Take over which of these neighbours this agent has excluded."""
        self.peers = peers
        peers.given_up = self.departures.given_up

    def missing(self) -> list[str]:
        """The agents whose keys are not here; or, once all are, those that have not confirmed that they have
        them.
        """
        run = self.gossip.run
        there = self.gossip.news.on(run, KEYS_AGREED) if run else self.gossip.keys()
        return [name for name in self.context.manifest.names if name not in there]

    def agreed(self) -> bool:
        """Whether all agents hold the same keys. Once they are here, draws get their seeds."""
        gossip = self.gossip
        if not gossip.run and not self.missing():
            keys, part = gossip.keys(), self.context.part
            names, partner = self.context.manifest.names, part.partner
            stated, others = [keys[name] for name in names], sorted(set(partner.values()))
            gossip.run, seeds = agree(self.context.manifest.hash, stated, part.agent, others, self._private)
            if self._private is not None:
                self.context.draws.share({draw: seeds[other] for draw, other in partner.items()})
            gossip.state(KEYS_AGREED, "")
        gossip.begun = gossip.begun or bool(gossip.run and not self.missing())
        return gossip.begun

    def note(self, round: int) -> None:
        """Mark that the row of `round` is in the ledger and may leave from now on."""
        if self.context.part.shared(round):
            self.secret.note(round)
            self.hooks.reached("after_mark")

    def left_behind(self) -> TrustError:
        """The error of an agent that the others have gone on without: the run is over for it, for good."""
        self.ledger.database.remember(LEFT_BEHIND_KEY, "yes")
        self.end()
        return TrustError(
            "The others have gone on without this agent, which was silent for longer than the idle "
            "timeout: what it shares with them is left out. It can take no further part in this run."
        )

    def end(self) -> None:
        """Erase the key, which could reveal shared draws, because no further row is made."""
        self.secret.erase()
        self.context.draws.share({})
        self._private = None

    # Missing neighbours

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
        if not self.context.manifest.rules.tolerates_silence or not self.gossip.begun:
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
            raise self.left_behind()

    # What counting somebody out costs

    def settle(self, history: ReleaseHistory) -> BudgetMeter:
        """Count departed agents as colluders, charge the cost and state it; return the meter from now on.

        They count from the round after the last one that some neighbour received from them, if the budget
        allows that; otherwise from the next round onwards.
        """
        departed, counts = self.departures.gone(), self.ledger.departed_members()
        new = {name: last_seen + 1 for name, last_seen in departed.items() if name not in counts}
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
        return any(self._delays.get(name, 0) < 2 * TICKS_PER_TIMEOUT for name in self.departures.unsettled())

    def tick(self) -> None:
        """Count one tick during which rows were held back."""
        for name in self.departures.unsettled():
            self._delays[name] = self._delays.get(name, 0) + 1
