"""Audits: a plan is run once with canaries in it, and what an observer makes of them bounds ε from below.

`audit.py` is the walk; read it first.
"""

from topdp.audit.audit import Audit, Prepared, Question, of_config, of_run
from topdp.audit.canaries import AuditError
from topdp.audit.findings import Findings

__all__ = ["Audit", "AuditError", "Findings", "Prepared", "Question", "of_config", "of_run"]
