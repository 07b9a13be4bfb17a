"""Audits of real agents: canaries for a manifest before a rehearsal, findings from the recordings after it.

folder/manifest.toml, folder/canaries.npz        the files that all agents were given
folder/NAME/state/recording/                     the recording of each agent
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from topdp.agents.agreement import manifest as manifests
from topdp.agents.agreement.run_setup import RunSetup
from topdp.audit.audit_run import Audit, AuditRequest, PreparedAudit
from topdp.audit.canaries import AuditError
from topdp.audit.findings import Findings
from topdp.audit.rehearsal_record import (
    CANARIES_FILE,
    RECORDING_FOLDER,
    AgentRecording,
    RehearsalCanaries,
    recorded_rounds,
)
from topdp.base.progress import Progress, silent
from topdp.learning.models import FlatModel
from topdp.runs.planning import accounted

MANIFEST_FILE = "manifest.toml"


def plant(
    setup: RunSetup,
    input_shape: tuple[int, ...],
    outputs: int,
    request: AuditRequest,
    progress: Progress = silent,
) -> RehearsalCanaries:
    """Plant canaries for the agents of a manifest."""
    config, dimension = setup.manifest.config, FlatModel(setup.model(input_shape, outputs)).dimension
    request.expect_possible(setup.plan.agents)
    account = accounted(setup.run, setup.plan, None, progress)
    audit = Audit.of(setup.plan, account, config.privacy, dimension, request, progress)
    canaries = audit.plant(request.seed, order=config.seed)
    return RehearsalCanaries(canaries, audit.signs, setup.plan.digest(), request.seed)


def of_recordings(folder: Path, request: AuditRequest, progress: Progress = silent) -> PreparedAudit:
    """Prepare an audit of the recordings of a rehearsal in `folder`."""
    setup = RunSetup.of(manifests.read_manifest(folder / MANIFEST_FILE))
    planted = RehearsalCanaries.load(folder / CANARIES_FILE)
    if planted.plan != setup.plan.digest():
        raise AuditError(f"Expected canaries for the plan of {folder / MANIFEST_FILE}, got those of another.")
    if request.canaries is not None or request.seed or request.owner not in (None, planted.canaries.owner):
        raise AuditError(
            f"Expected no --owner, --canaries or --seed: this rehearsal has its canaries in "
            f"agent {planted.canaries.owner}. Remove these options."
        )
    recordings = [AgentRecording(folder / name / "state" / RECORDING_FOLDER) for name in setup.manifest.names]
    missing = [recording.folder for recording in recordings if not recording.folder.is_dir()]
    if missing:
        raise AuditError(f"Expected the recordings of every agent, got none in {missing[0]}.")
    request = replace(request, owner=planted.canaries.owner, canaries=len(planted.canaries), seed=0)
    dimension = max(int(planted.canaries.coordinates.max()) + 1, len(planted.canaries))
    request.expect_possible(setup.plan.agents)
    account = accounted(setup.run, setup.plan, None, progress)
    privacy = setup.manifest.config.privacy
    audit = Audit.of(setup.plan, account, privacy, dimension, request, progress, planted.signs)

    def execute(progress: Progress) -> Findings:
        rounds = recorded_rounds(recordings, audit.observer, planted.canaries)
        return audit.judge(planted.canaries, recordings[0].start, rounds, planted.seed, progress)

    return PreparedAudit(setup.manifest.config, setup.plan.agents, execute)
