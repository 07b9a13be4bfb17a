"""Runs: from a configuration to a run folder. `run.py` lists the steps; read it first.

Names that need torch are imported on first use, so that runs can be planned and reported without torch.
"""

from typing import TYPE_CHECKING

from topdp.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from topdp.runs.callbacks import StopEarly
    from topdp.runs.result import Result
    from topdp.runs.user_training import train

__all__ = ["Result", "StopEarly", "train"]

__getattr__ = lazy_exports(
    __name__,
    {
        "callbacks": ["StopEarly"],
        "result": ["Result"],
        "user_training": ["train"],
    },
)
