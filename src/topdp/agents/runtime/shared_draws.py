"""Shared draws of one agent: its key of the run, the pair secrets, and the effects of departures.

One object accompanies an agent from its first start to the end of a run. It creates or finds the agent's key,
states it in a notice, waits for the keys of all other agents, passes the pair secrets to the draws, marks the
rounds that were made, and erases the key. It applies the result of `departures` to the agent loop: for which
neighbours the loop does not wait, which colluders its charges count, and when the agent must stop.
`notice_exchange` exchanges the notices.

**Guarantees.** This agent makes no shared draw until it has the keys of all agents, and all agents have
confirmed that they hold the same set of keys. If an agent has stated two different keys, the sets differ, and
no agent begins. A key is on disk before it is stated; a round is marked before its row is sent. An agent that
counts another agent as a colluder first charges its ledger for that, and then states it. Other agents rely on
it only after they have received the statement.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from topdp.agents.agreement.card_succession import CardDirectory
from topdp.agents.agreement.run_marks import RunSecret
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.notice_store import NoticeStore
from topdp.agents.ledger.start_choices import LEFT_BEHIND_KEY
from topdp.agents.runtime.agent_context import AgentContext, PrivateFiles
from topdp.agents.runtime.budget_meter import BudgetMeter, allows
from topdp.agents.runtime.departures import Departures
from topdp.agents.runtime.notice_exchange import NoticeExchange
from topdp.agents.runtime.pair_keys import KEYS_AGREED, RUN_KEY, RunKey, derive_run
from topdp.agents.runtime.peer_contacts import TICKS_PER_TIMEOUT, PeerContacts
from topdp.errors import TrustError
from topdp.privacy.observers.survivors import recalls_draws
from topdp.privacy.spending_curve import ReleaseHistory


class SharedDraws:
    """The part of one agent in a run with shared draws."""

    def __init__(
        self, context: AgentContext, ledger: Ledger, private: PrivateFiles, directory: CardDirectory
    ) -> None:
        self.context, self.ledger, self.hooks = context, ledger, context.hooks
        self.plan = context.part.plan.digest()
        self.notices = NoticeExchange(directory, private.identity, self.plan, NoticeStore(ledger))
        self.secret = RunSecret(private.folder, context.manifest.hash)
        exposure = context.meter.spending.analysis.exposure()
        self.departures = Departures(context.part, self.notices, ledger, recalls_draws(exposure))
        self._meter = context.meter
        self._counts: dict[str, int] = {}  # agent -> round from which this meter counts it as a colluder
        self._delays: dict[str, int] = {}  # agent -> ticks for which rows were held back because of it
        self._private: X25519PrivateKey | None = None  # None once all rounds are in the ledger
        if LEFT_BEHIND_KEY in ledger.meta:
            raise self._left_behind_error()
        stated = self.notices.store.text(context.name, "", RUN_KEY)
        if stated is None:
            public = self.secret.begin()
            self.hooks.reached("after_key")
            self.notices.publish(RUN_KEY, RunKey.fresh(self.plan, public).text())
            self._private = self.secret.resume(public, ledger.round)
        elif not ledger.is_complete(context.part.plan.releases):
            self._private = self.secret.resume(RunKey.read(stated).public, ledger.round)
            if ledger.round >= 0 and context.part.shared_in(ledger.round):
                self.secret.note(ledger.round)  # the process may have ended between entry and mark
        self.agree_on_keys()

    def attach(self, peers: PeerContacts) -> None:
        """Let `peers` know which neighbours this agent has excluded."""
        self.peers = peers
        peers.is_excluded = self.departures.is_given_up

    def missing_agents(self) -> list[str]:
        """Return the agents whose keys have not arrived; then, those that have not confirmed all keys."""
        run = self.notices.run
        authors = self.notices.store.on(run, KEYS_AGREED) if run else self.notices.keys()
        return [name for name in self.context.manifest.names if name not in authors]

    def agree_on_keys(self) -> bool:
        """Derive pair secrets once all keys have arrived; return whether all agents have confirmed the
        keys.
        """
        notices = self.notices
        if not notices.run and not self.missing_agents():
            keys, part = notices.keys(), self.context.part
            names, partner = self.context.manifest.names, part.partner
            stated, others = [keys[name] for name in names], sorted(set(partner.values()))
            federation = self.context.manifest.hash
            notices.run, seeds = derive_run(federation, stated, part.agent, others, self._private)
            if self._private is not None:
                self.context.draws.set_pair_seeds({draw: seeds[other] for draw, other in partner.items()})
            notices.publish(KEYS_AGREED, "")
        notices.has_begun = notices.has_begun or bool(notices.run and not self.missing_agents())
        return notices.has_begun

    def mark_round(self, round: int) -> None:
        """Record on disk that the row of `round` is in the ledger and may be sent from now on."""
        if self.context.part.shared_in(round):
            self.secret.note(round)
            self.hooks.reached("after_mark")

    def _left_behind_error(self) -> TrustError:
        """Record that the run is over for this agent, and return the error that says so."""
        self.ledger.database.remember(LEFT_BEHIND_KEY, "yes")
        self.erase_key()
        return TrustError(
            "The others have gone on without this agent, which was silent for longer than the idle "
            "timeout: what it shares with them is left out. It can take no further part in this run."
        )

    def erase_key(self) -> None:
        """Erase the key, which could reveal shared draws, because this agent makes no further row."""
        self.secret.erase()
        self.context.draws.set_pair_seeds({})
        self._private = None

    # Missing neighbours

    def is_lost(self, peer: str) -> bool:
        """Return whether the agent expects nothing more from `peer`.

        With the rule `go-on`, it then excludes a silent or quarantined peer for good.
        """
        if self.departures.is_given_up(peer) or peer in self.peers.excluded_by:
            return True
        if self.ledger.quarantined(peer) is not None:
            self._exclude(peer, "quarantined")
            return True
        is_silent = self.peers.silent_ticks[peer] >= TICKS_PER_TIMEOUT and self._hears_a_neighbour()
        return is_silent and self._exclude(peer, "silent for the idle timeout")

    def _hears_a_neighbour(self) -> bool:
        """Return whether some neighbour that is not excluded has sent a message within the idle timeout.

        An agent that hears no neighbour is itself disconnected.
        """
        ticks = self.peers.silent_ticks
        return any(ticks[peer] < TICKS_PER_TIMEOUT for peer in ticks if not self.departures.is_given_up(peer))

    def _exclude(self, peer: str, reason: str) -> bool:
        """State that `peer` is silent if the manifest has the rule `go-on`; return whether it has."""
        if not self.context.manifest.rules.tolerates_silence or not self.notices.has_begun:
            return False
        if self.departures.give_up(peer):
            self.peers.refusals.report(peer, "given_up", f"{reason}: its further rows are refused")
            self.peers.wake_senders()
        return True

    def expect_not_excluded(self) -> None:
        """Raise TrustError if others count this agent as departed: its shared draws would not cancel."""
        peers = self.peers
        is_alone = bool(peers.excluded_by) and all(map(peers.sends_nothing_to, peers.neighbours))
        if is_alone or self.context.name in self.departures.departed_agents():
            raise self._left_behind_error()

    # The cost of departures

    def count_departures(self, history: ReleaseHistory) -> BudgetMeter:
        """Count departed agents as colluders, charge the cost and state it; return the meter from now on.

        They count from the round after the last one that some neighbour received from them, if the budget
        allows that; otherwise from the next round onwards.
        """
        departed, counts = self.departures.departed_agents(), self.ledger.departed_members()
        new = {name: last_seen + 1 for name, last_seen in departed.items() if name not in counts}
        if not new and counts == self._counts:
            return self._meter
        self._set_counts({**counts, **new})
        if new and not self._charge_earlier_releases(history):
            self._set_counts({**counts, **dict.fromkeys(new, self.ledger.round + 1)})
        for name in new:
            self.departures.count_as_colluder(name, self._counts[name])
            self.peers.wake_senders()
            words = f"{name} is gone for good, and counts as a colluder from round {self._counts[name]} on"
            self.peers.refusals.note("gone", words, peer=name)
        return self._meter

    def _charge_earlier_releases(self, history: ReleaseHistory) -> bool:
        """Charge the additional cost of earlier releases; return whether the budget allows it.

        Return False, without a charge, if no draws are taken back.
        """
        if not self.departures.takes_back:
            return False
        cost = self._meter.cost_without_data(history, self.ledger.total, planned=True)
        if not allows(self.context.epsilon, self.ledger.total, cost):
            return False
        if cost.charge:
            self.ledger.charge_late(cost)
        return True

    def _set_counts(self, counts: dict[str, int]) -> None:
        """Use the meter that counts these agents as colluders, each from its round onwards."""
        self._counts, meter = counts, self.context.meter
        if meter.in_the_open:  # otherwise all other agents count as colluders already
            number = self.context.manifest.number
            meter = meter.with_colluders({number(name): first for name, first in counts.items()})
        self._meter = meter

    # Rows that are held back

    def holds_back(self, round: int) -> bool:
        """Return whether rows of `round` are held back because departures are unsettled.

        Shared noise in these rows would not cancel. The wait is limited to two idle timeouts, because
        an agent that is silent towards one neighbour only is never counted as departed.
        """
        if not self.context.part.shared_in(round):
            return False
        names = self.departures.unsettled_agents()
        return any(self._delays.get(name, 0) < 2 * TICKS_PER_TIMEOUT for name in names)

    def count_tick(self) -> None:
        """Count one tick during which rows were held back."""
        for name in self.departures.unsettled_agents():
            self._delays[name] = self._delays.get(name, 0) + 1
