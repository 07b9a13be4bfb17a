"""Runs: from a configuration to a run folder. `run.py` is the walk; read it first.

What needs torch is imported when first asked for, so that runs can be planned and reported without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topdp.runs.callbacks import StopEarly
    from topdp.runs.result import Result
    from topdp.runs.user_training import train

__all__ = ["Result", "StopEarly", "train"]

_LAZY = {
    "Result": "topdp.runs.result",
    "StopEarly": "topdp.runs.callbacks",
    "train": "topdp.runs.user_training",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'topdp.runs' has no attribute {name!r}")
