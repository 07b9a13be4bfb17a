"""What an agent needs to share draws with others: its key of the run, everybody's statements, the seeds.

One object from the first start to the end of a run: makes or finds the key, states it, waits for those of all
others, hands the seeds to `draws`, marks what was made, erases the key. How statements travel: `gossip`.

**Guarantees.** No shared draw is made before the keys of all agents are here, and all have stated the run
that these name: so nobody begins while somebody has told two stories. A key that is stated is on disk before;
a round is marked before its row leaves.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from topdp.agents.agreement.run_marks import RunSecret
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.statement_store import StatementStore
from topdp.agents.runtime.agent_context import AgentContext, PrivateFiles
from topdp.agents.runtime.departures import Departures
from topdp.agents.runtime.pair_keys import AGREED, RUN_KEY, RunKey, agree
from topdp.agents.runtime.statement_gossip import StatementGossip
from topdp.errors import InputError, TrustError
from topdp.privacy.observers.survivors import recalls_draws

LEFT_BEHIND = "left behind"
"""The key in the books of the fact that others have gone on without this agent."""


class SharedDraws:
    """The run of one agent, as far as it shares draws."""

    def __init__(self, context: AgentContext, ledger: Ledger, private: PrivateFiles | None) -> None:
        if private is None:
            raise InputError(
                "Expected the identity of an agent that shares draws: it signs a key for the run."
            )
        self.context, self.ledger, self.hooks = context, ledger, context.hooks
        manifest, self.plan = context.manifest, context.part.plan.digest()
        self.gossip = StatementGossip(manifest, private.identity, self.plan, StatementStore(ledger))
        self.secret = RunSecret(private.folder, manifest.hash)
        exposure = context.meter.spending.analysis.exposure()
        self.departures = Departures(context.part, self.gossip, ledger, recalls_draws(exposure))
        self._private: X25519PrivateKey | None = None  # all rounds are on the books: it is gone, or will be
        if LEFT_BEHIND in ledger.meta:
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
                self.secret.note(ledger.round)  # who was killed between entry and mark has none of it
        self.agreed()

    def missing(self) -> list[str]:
        """The agents whose keys are not here; or, once all are, who have not said that they have them."""
        run = self.gossip.run
        there = self.gossip.news.on(run, AGREED) if run else self.gossip.keys()
        return [name for name in self.context.manifest.names if name not in there]

    def agreed(self) -> bool:
        """Whether all agents hold the same keys; when they are here, draws get their seeds."""
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
            gossip.state(AGREED, "")
        gossip.begun = gossip.begun or bool(gossip.run and not self.missing())
        return gossip.begun

    def note(self, round: int) -> None:
        """The row of `round` is on the books and may leave from now on."""
        if self.context.part.shared(round):
            self.secret.note(round)
            self.hooks.reached("after_mark")

    def left_behind(self) -> TrustError:
        """The others have gone on without this agent: the run is over for it, for good."""
        self.ledger.database.remember(LEFT_BEHIND, "yes")
        self.end()
        return TrustError(
            "The others have gone on without this agent, which was silent for longer than the idle "
            "timeout: what it shares with them is left out. It can take no further part in this run."
        )

    def end(self) -> None:
        """No row is made any more: the key is erased, and with it what could give shared draws away."""
        self.secret.erase()
        self.context.draws.share({})
        self._private = None
