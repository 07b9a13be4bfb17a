"""Audits: a plan is run once with canaries in it, and what an observer makes of them bounds ε from below.

`audit.py` is the walk; read it first. It is imported when first asked for: agents need the canaries alone.
"""

from typing import TYPE_CHECKING

from topdp.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from topdp.audit.audit_run import Audit, Prepared, Question, of_config, of_run
    from topdp.audit.canaries import AuditError
    from topdp.audit.findings import Findings

__all__ = ["Audit", "AuditError", "Findings", "Prepared", "Question", "of_config", "of_run"]

__getattr__ = lazy_exports(
    __name__,
    {
        "Audit": "audit_run",
        "AuditError": "canaries",
        "Findings": "findings",
        "Prepared": "audit_run",
        "Question": "audit_run",
        "of_config": "audit_run",
        "of_run": "audit_run",
    },
)
