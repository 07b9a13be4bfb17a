"""Audits: a plan is run once with canaries in it, and what an observer makes of them bounds ε from below.

`audit.py` is the walk; read it first. It is imported when first asked for: agents need the canaries alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topdp.audit.audit_run import Audit, Prepared, Question, of_config, of_run
    from topdp.audit.canaries import AuditError
    from topdp.audit.findings import Findings

__all__ = ["Audit", "AuditError", "Findings", "Prepared", "Question", "of_config", "of_run"]

_LAZY = {
    "Audit": "topdp.audit.audit_run",
    "AuditError": "topdp.audit.canaries",
    "Findings": "topdp.audit.findings",
    "Prepared": "topdp.audit.audit_run",
    "Question": "topdp.audit.audit_run",
    "of_config": "topdp.audit.audit_run",
    "of_run": "topdp.audit.audit_run",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'topdp.audit' has no attribute {name!r}")
