"""Audits of real agents: canaries for a manifest before a rehearsal, findings from the notes after it.

folder/manifest.toml, folder/canaries.npz        what all agents were given
folder/NAME/state/recording/                     the notes of each
"""

from __future__ import annotations

from pathlib import Path

from topdp.agents.agreement import manifest as manifests
from topdp.agents.agreement.run_setup import RunSetup
from topdp.audit.audit_run import Audit, Prepared, Question
from topdp.audit.canaries import AuditError
from topdp.audit.findings import Findings
from topdp.audit.rehearsal_record import CANARIES, NOTES, Notes, Planted, rounds
from topdp.base.progress import Progress, silent
from topdp.learning.models import FlatModel
from topdp.runs import builders
from topdp.runs.planning import accounted

MANIFEST = "manifest.toml"


def plant(
    setup: RunSetup,
    input_shape: tuple[int, ...],
    outputs: int,
    asked: Question,
    progress: Progress = silent,
) -> Planted:
    """Canaries for the agents of a manifest."""
    dimension = FlatModel(setup.model(input_shape, outputs)).dimension
    audit = _audit(setup, dimension, asked, progress)
    canaries = audit.plant(asked.seed, order=setup.manifest.config.seed)
    return Planted(canaries, audit.signs, setup.plan.digest(), asked.seed)


def of_notes(folder: Path, asked: Question, progress: Progress = silent) -> Prepared:
    """An audit of what agents noted in a rehearsal."""
    setup = RunSetup.of(manifests.read_manifest(folder / MANIFEST))
    planted = Planted.load(folder / CANARIES)
    if planted.plan != setup.plan.digest():
        raise AuditError(f"Expected canaries for the plan of {folder / MANIFEST}, got those of another.")
    if asked.canaries is not None or asked.seed or asked.owner not in (None, planted.canaries.owner):
        raise AuditError(
            f"The canaries of this rehearsal were planted before it, in agent {planted.canaries.owner}: "
            "leave --owner, --canaries and --seed away."
        )
    notes = [Notes(folder / name / "state" / NOTES) for name in setup.manifest.names]
    missing = [one.folder for one in notes if not one.folder.is_dir()]
    if missing:
        raise AuditError(f"Expected the recordings of every agent, {missing[0]} is missing.")
    asked = Question(
        planted.canaries.owner,
        asked.observer,
        asked.sees,
        len(planted.canaries),
        asked.confidence,
        asked.delta,
    )
    dimension = int(planted.canaries.coordinates.max()) + 1
    audit = _audit(setup, max(dimension, len(planted.canaries)), asked, progress).with_signs(planted.signs)

    def carry_out(shown: Progress) -> Findings:
        seen = rounds(notes, audit.observer, planted.canaries)
        return audit.judge(planted.canaries, notes[0].start, seen, planted.seed, shown)

    return Prepared(setup.manifest.config, setup.plan.agents, carry_out)


def _audit(setup: RunSetup, dimension: int, asked: Question, progress: Progress) -> Audit:
    config = setup.manifest.config
    asked.expect_possible(setup.plan.agents)
    found = accounted(config, setup.plan, builders.analysis(config, setup.counts), None, progress)
    return Audit.of(setup.plan, found, config.privacy, dimension, asked, progress)
