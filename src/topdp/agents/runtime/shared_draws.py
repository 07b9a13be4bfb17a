"""What an agent needs to share draws with others: its key of the run, the notices of all, the pair seeds.

One object from the first start to the end of a run: it makes or finds the key, states it, waits for those of
all others, hands the seeds to the draws, marks what was made, and erases the key. `statement_gossip` carries
the notices.

**Guarantees.** No shared draw is made before the keys of all agents are here, and all have stated the run
that these name: so nobody begins while an agent has stated two different keys. A key is on disk before it is
stated; a round is marked before its row leaves.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from topdp.agents.agreement.run_marks import RunSecret
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.notice_store import NoticeStore
from topdp.agents.runtime.agent_context import AgentContext, PrivateFiles
from topdp.agents.runtime.departures import Departures
from topdp.agents.runtime.pair_keys import KEYS_AGREED, RUN_KEY, RunKey, agree
from topdp.agents.runtime.statement_gossip import StatementGossip
from topdp.errors import InputError, TrustError
from topdp.privacy.observers.survivors import recalls_draws

LEFT_BEHIND_KEY = "left behind"
"""The ledger's key for the fact that others have gone on without this agent."""


class SharedDraws:
    """The part of one agent in a run with shared draws."""

    def __init__(self, context: AgentContext, ledger: Ledger, private: PrivateFiles | None) -> None:
        if private is None:
            raise InputError(
                "Expected the identity of an agent that shares draws: it signs a key for the run."
            )
        self.context, self.ledger, self.hooks = context, ledger, context.hooks
        manifest, self.plan = context.manifest, context.part.plan.digest()
        self.gossip = StatementGossip(manifest, private.identity, self.plan, NoticeStore(ledger))
        self.secret = RunSecret(private.folder, manifest.hash)
        exposure = context.meter.spending.analysis.exposure()
        self.departures = Departures(context.part, self.gossip, ledger, recalls_draws(exposure))
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
            pair_seeds = agree(
                self.context.manifest.hash,
                (keys[name] for name in names),
                part.agent,
                sorted(set(partner.values())),
                self._private,
            )
            if self._private is not None:
                self.context.draws.share({draw: pair_seeds.seeds[other] for draw, other in partner.items()})
            gossip.run = pair_seeds.run
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
