"""Runs: from a configuration to a run folder. `run.py` is the walk; read it first.

What needs torch is imported when first asked for, so that runs can be planned and reported without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topdp.runs.run import Result, train

__all__ = ["Result", "train"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("topdp.runs.run"), name)
    raise AttributeError(f"module 'topdp.runs' has no attribute {name!r}")
