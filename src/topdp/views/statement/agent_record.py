"""What an organisation's own books say of its part in a run: read whole, of one moment, and not changed.

For statements (`own_statement.py`). Not for where a running agent stands (`status.py`), nor for what other
runs on the same records have cost (`books/site_book.py`).

**Guarantees.** Books that are not whole, or are of another manifest, are refused. ε is what was charged, and
that is at least what the releases on the books cost; μ is at least that of Gaussian noise with this ε, and
none is named where it would not follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from topdp.agents.agreement import manifest as manifests
from topdp.agents.agreement.hidden_rows import relies_on_hidden_rows
from topdp.agents.agreement.run_setup import RunSetup
from topdp.agents.ledger import start_choices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_check import verify
from topdp.agents.runtime.run_end import last_round
from topdp.errors import InputError, TrustError
from topdp.privacy.answers import WORST_CASE, AnswerKind, answer_kind
from topdp.privacy.basics.gaussian import mu_of

UPWARDS = 1 + 1e-9  # μ is found by halving: on the private side of the last step
LEAST = 1e-9  # ε of which μ is found: that of less is smaller


@dataclass(frozen=True)
class OwnBooks:
    """One agent's run. `epsilon`, `worst_case` None: infinite."""

    agent: str
    setup: RunSetup
    charges: int
    round: int  # the last on the books; -1 before the first
    epsilon: float | None
    worst_case: float | None
    budget: float | None
    charged_by: str
    seeded: bool
    rehearsal: bool
    stopped: int | None
    ends: int | None
    departed: str | None
    departures: tuple[str, ...]  # within the reserve
    gone: tuple[str, ...]  # who counts as a colluder, because it is gone
    upgraded: bool  # begun by a version that signed no rows

    @property
    def protects(self) -> bool:
        """Whether anything may be promised: neither the noise nor the gradients are known to others."""
        return not (self.seeded or self.rehearsal)

    @property
    def of_older_version(self) -> bool:
        """Whether manifest, and so maybe releases, are of a version that summed in the model's type."""
        return self.setup.manifest.rules.dtype != "auto"

    @property
    def rounded(self) -> bool:
        """Whether rows that some do not see were rounded on their way: then only the worst case holds."""
        setup, rules = self.setup, self.setup.manifest.rules
        guarantee = setup.manifest.config.privacy.guarantee
        hidden = relies_on_hidden_rows(guarantee, setup.plan, setup.coalition, not rules.tolerates_silence)
        return hidden and rules.dtype == "float32"

    @property
    def relied(self) -> AnswerKind:
        """The answer that may be promised."""
        return self.charging if self.charging.proved and not self.rounded else WORST_CASE

    @property
    def charging(self) -> AnswerKind:
        """The answer by which the ledger was charged."""
        return answer_kind(self.charged_by)

    @property
    def promised(self) -> float | None:
        """What was charged, where that is by a guarantee; else the worst case, which always is one."""
        return self.epsilon if self.charging == self.relied else self.worst_case

    @property
    def delta(self) -> float:
        return self.setup.manifest.config.privacy.delta

    @property
    def colluders(self) -> int:
        """How many of the others the guarantee lets put together what they see; the reserve is not in it."""
        return self.setup.manifest.config.privacy.colluders

    @property
    def records(self) -> int:
        return self.setup.counts[self.setup.manifest.names.index(self.agent)]

    @property
    def over(self) -> bool:
        """Whether nothing more can be charged by the plan."""
        last = self.setup.plan.releases - 1
        return self.round >= (last if self.ends is None else min(last, self.ends))

    @property
    def sampled(self) -> bool:
        analysis = self.setup.run.analysis
        return bool(analysis.exposure().sampled)

    def mu(self, epsilon: float | None) -> float | None:
        """Of Gaussian noise without samples one ε says the whole; 0 where nothing was released.

        Releases can cost nothing at this δ, and have a μ all the same.
        """
        if epsilon is None or self.sampled:
            return None
        return UPWARDS * float(mu_of(max(epsilon, LEAST), self.delta)) if self.round >= 0 else 0.0


def own_books(state: Path, manifest: Path) -> OwnBooks:
    """The books in a state folder, under the manifest that they were kept by."""
    agreed = manifests.read_manifest(manifest)
    ledger = Ledger(state, writable=False)
    try:
        charges = verify(ledger)
        found = _read(ledger, RunSetup.of(_expect_agreed(ledger, agreed, manifest)), charges)
    finally:
        ledger.close()
    return found


def _expect_agreed(ledger: Ledger, agreed: manifests.Manifest, path: Path) -> manifests.Manifest:
    """What the books do not say (colluders, records, rules) is in the manifest, whose hash they hold."""
    meta, privacy = ledger.meta, agreed.config.privacy
    if meta.get("federation") != agreed.hash:
        raise InputError(
            f"Expected the manifest by which the books in {ledger.folder} were kept "
            f"({meta.get('federation', '')[:12]}), got {agreed.hash[:12]} in {path}."
        )
    delta = meta.get(start_choices.DELTA_KEY)
    if meta.get("agent") not in agreed.names or (delta is not None and float(delta) != privacy.delta):
        raise TrustError(
            f"Expected the agent and delta of {path} in the books in {ledger.folder}, got others."
        )
    return agreed


def _read(ledger: Ledger, setup: RunSetup, charges: int) -> OwnBooks:
    return OwnBooks(
        agent=ledger.meta["agent"],
        setup=setup,
        charges=charges,
        round=ledger.round,
        epsilon=ledger.spent,
        worst_case=ledger.last_entry.worst_case if ledger.last_entry else 0.0,
        budget=start_choices.recorded_budget(ledger),
        charged_by=ledger.charged_by,
        seeded=start_choices.ever_chosen(ledger, start_choices.SEEDED_KEY),
        rehearsal=start_choices.ever_chosen(ledger, start_choices.REHEARSAL_KEY),
        stopped=ledger.stopped_at,
        ends=last_round(ledger),
        departed=ledger.departed,
        departures=tuple(ledger.covered_departures()),
        gone=tuple(ledger.departed_members()),
        upgraded="migrated_from" in ledger.meta,
    )
