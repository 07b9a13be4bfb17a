"""Audits: run a plan once with canaries, and bound ε from below by how well an observer recognises them.

Read `audit_run.py` first.
"""

from topdp.audit.audit_run import Audit, AuditRequest, PreparedAudit, of_config, of_run
from topdp.audit.canaries import AuditError
from topdp.audit.findings import Findings

__all__ = ["Audit", "AuditError", "AuditRequest", "Findings", "PreparedAudit", "of_config", "of_run"]
