"""Audits: a plan is run once with canaries in it, and what an observer makes of them bounds ε from below.

`audit.py` is the walk; read it first. It is imported when first asked for: agents need the canaries alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topdp.audit.audit import Audit, Prepared, Question, of_config, of_run
    from topdp.audit.canaries import AuditError
    from topdp.audit.findings import Findings

__all__ = ["Audit", "AuditError", "Findings", "Prepared", "Question", "of_config", "of_run"]

_LAZY = {
    "Audit": "topdp.audit.audit",
    "AuditError": "topdp.audit.canaries",
    "Findings": "topdp.audit.findings",
    "Prepared": "topdp.audit.audit",
    "Question": "topdp.audit.audit",
    "of_config": "topdp.audit.audit",
    "of_run": "topdp.audit.audit",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'topdp.audit' has no attribute {name!r}")
