"""The content of an agent's ledger about its part in a run: a complete, consistent, read-only snapshot.

For statements (`agent_statement.py`). `agents/node/agent_status.py` reports the state of a running agent, and
`agents/ledger/site_budget.py` the cost of other runs on the same records.

**Guarantees.** A ledger that is incomplete, or belongs to another manifest, is refused. ε is what was
charged, which is at least the cost of the releases in the ledger. The μ of `AgentRecord` is at least the μ of
the Gaussian mechanism with this ε and δ. It is None for random batches, because ε does not determine μ there.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from topdp.agents.agreement import manifest as manifests
from topdp.agents.agreement.hidden_rows import relies_on_hidden_rows
from topdp.agents.agreement.run_setup import RunSetup, granted_deltas
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_check import verify
from topdp.agents.node.agent_status import charged_facts
from topdp.errors import InputError, TrustError
from topdp.privacy.answers import AnswerKind, answer_kind, proved_kind
from topdp.privacy.basics.gaussian import mu_of
from topdp.privacy.basics.privacy_loss import GaussianLoss, power_of_point
from topdp.views.statement.statement_text import FALSE_ALARM_SHARES

MU_MARGIN = 1 + 1e-9  # μ comes from a bisection; this factor makes it an upper bound
MIN_EPSILON = 1e-9  # stands for all smaller ε, whose μ is smaller


@dataclass(frozen=True, kw_only=True)
class AgentRecord:
    """One agent's part in a run, from its ledger. `epsilon` and `worst_case` are None if infinite."""

    agent: str
    setup: RunSetup
    charges: int
    round: int  # the last charged release; -1 before the first
    epsilon: float | None
    worst_case: float | None
    budget: float | None
    charged_by: str
    seeded: bool
    rehearsal: bool
    stopped: int | None
    ends: int | None
    departed: str | None
    departures: Collection[str]  # members that dropped out within the reserve
    gone: Collection[str]  # members that count as colluders because they are gone

    @property
    def protects(self) -> bool:
        """Whether the run can guarantee anything: nobody else knows its noise or its unnoised gradients."""
        return not (self.seeded or self.rehearsal)

    @property
    def rounded(self) -> bool:
        """Whether the guarantee relies on hidden rows that were rounded to float32 before they were sent.

        If so, only the `worst-case` answer holds.
        """
        setup, rules = self.setup, self.setup.manifest.rules
        guarantee = setup.manifest.config.privacy.guarantee
        hidden = relies_on_hidden_rows(guarantee, setup.plan, setup.coalition, not rules.tolerates_silence)
        return hidden and rules.dtype == "float32"

    @property
    def relied(self) -> AnswerKind:
        """The answer on which the statement relies.

        This is the charged answer if it is proved and no hidden rows were rounded, and otherwise the
        `worst-case` answer.
        """
        return proved_kind(None if self.rounded else self.charging)

    @property
    def charging(self) -> AnswerKind:
        """The answer by which the ledger was charged."""
        return answer_kind(self.charged_by)

    @property
    def promised(self) -> float | None:
        """The ε of the answer on which the statement relies; None if infinite."""
        return self.epsilon if self.charging == self.relied else self.worst_case

    @property
    def delta(self) -> float:
        return self.setup.delta(self.setup.manifest.number(self.agent))

    @property
    def colluders(self) -> int:
        """The number of other agents that may pool what they see, without the reserve for departures."""
        return self.setup.manifest.config.privacy.colluders

    @property
    def over(self) -> bool:
        """Whether the plan allows no further charges."""
        last = self.setup.plan.releases - 1
        return self.round >= (last if self.ends is None else min(last, self.ends))

    def mu(self, epsilon: float | None) -> float | None:
        """Return an upper bound on the μ that `epsilon` implies.

        Return None for random batches or an infinite ε, and 0 before the first release. For Gaussian noise
        without sampling, ε at this δ determines μ. A release may have ε = 0 at this δ although its μ is above
        0.
        """
        if epsilon is None or self.setup.run.analysis.exposure().sampled:
            return None
        return MU_MARGIN * float(mu_of(max(epsilon, MIN_EPSILON), self.delta)) if self.round >= 0 else 0.0

    def powers(self, kind: AnswerKind, epsilon: float) -> list[float]:
        """Return, for each of `FALSE_ALARM_SHARES`, a bound on any attacker's power.

        It is the power at the μ of `epsilon` if the answer has one, as in the account of a run. Otherwise it
        follows from ε and δ alone, and is larger.
        """
        mu = self.mu(epsilon) if kind.has_mu else None
        if mu is not None:
            return [GaussianLoss(mu).power(share) for share in FALSE_ALARM_SHARES]
        return [power_of_point(epsilon, self.delta, share) for share in FALSE_ALARM_SHARES]


def agent_record(state: Path, manifest: Path) -> AgentRecord:
    """Return an agent's part in a run, from the ledger in the folder `state`.

    `manifest`: the file of the manifest with which the agent was started. Raise InputError or TrustError if
    the ledger belongs to another manifest, agent or δ.
    """
    agreed = manifests.read_manifest(manifest)
    with closing(Ledger(state, writable=False)) as ledger:
        charges, facts = verify(ledger), charged_facts(ledger)
    _expect_agreed(facts, state, agreed, manifest)
    own = {field.name: facts[field.name] for field in fields(AgentRecord) if field.name in facts}
    return AgentRecord(setup=RunSetup.of(agreed), charges=charges, **own)


def _expect_agreed(facts: dict[str, Any], state: Path, agreed: manifests.Manifest, path: Path) -> None:
    """Raise InputError or TrustError if the ledger with `facts` belongs to another manifest, agent or δ."""
    if facts["federation"] != agreed.hash:
        raise InputError(
            f"Expected the manifest of the ledger in {state} "
            f"({(facts['federation'] or '')[:12]}), got {agreed.hash[:12]} in {path}. Name the manifest with "
            "which the agent was started."
        )
    delta, agreed_deltas = facts["delta"], granted_deltas(agreed)
    if facts["agent"] not in agreed_deltas or delta not in (None, agreed_deltas[facts["agent"]]):
        raise TrustError(
            f"Expected an agent and the delta of {path} in the ledger in {state}, got {facts['agent']!r} and "
            f"{delta}. One of the files was changed or is damaged."
        )
