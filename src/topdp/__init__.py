"""topdp: agents on a graph train one model together, and compute what each neighbour can learn.

`topdp.train` takes your model, your shards and your graph; `topdp.privacy` accounts for a plan. Names that
need torch are imported on first use: graphs, plans, privacy and reports work without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topdp.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from topdp import data, errors, plan, privacy, protocols, topology
    from topdp.base.progress import silent
    from topdp.data import Shards
    from topdp.errors import TopdpError
    from topdp.learning.metrics import Metric
    from topdp.learning.pretrained_models import lora
    from topdp.runs.callbacks import StopEarly
    from topdp.runs.result import Result
    from topdp.runs.statistics.aggregate import aggregate
    from topdp.runs.statistics.linear_regression import linear_regression
    from topdp.runs.statistics.table_statistics import describe
    from topdp.runs.stored_results import load
    from topdp.runs.user_training import train

__version__ = "0.1.0"
__all__ = [
    "Metric",
    "Result",
    "Shards",
    "StopEarly",
    "TopdpError",
    "__version__",
    "aggregate",
    "data",
    "describe",
    "errors",
    "linear_regression",
    "load",
    "lora",
    "plan",
    "privacy",
    "protocols",
    "silent",
    "topology",
    "train",
]

_MODULES = ("data", "errors", "plan", "privacy", "protocols", "sklearn", "topology")
_get = lazy_exports(
    __name__,
    {
        "base.progress": ["silent"],
        "data": ["Shards"],
        "errors": ["TopdpError"],
        "learning.pretrained_models": ["lora"],
        "learning.metrics": ["Metric"],
        "runs.callbacks": ["StopEarly"],
        "runs.result": ["Result"],
        "runs.statistics.aggregate": ["aggregate"],
        "runs.statistics.linear_regression": ["linear_regression"],
        "runs.statistics.table_statistics": ["describe"],
        "runs.stored_results": ["load"],
        "runs.user_training": ["train"],
    },
)


def __getattr__(name: str) -> Any:
    return import_module(f"topdp.{name}") if name in _MODULES else _get(name)


def __dir__() -> list[str]:
    return __all__
