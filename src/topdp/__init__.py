"""topdp: agents on a graph train one model together, and know what each neighbour can learn.

`topdp.train` takes your model, your shards and your graph; `topdp.privacy` says how private a plan is. What
needs torch is imported when first asked for: graphs, plans, privacy and reports work without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topdp import data, errors, plan, privacy, protocols, topology
    from topdp.data import Shards
    from topdp.errors import TopdpError
    from topdp.learning.lora_adapters import lora
    from topdp.learning.metrics import Metric
    from topdp.runs import Result, StopEarly, train

__version__ = "0.1.0"
__all__ = [
    "Metric",
    "Result",
    "Shards",
    "StopEarly",
    "TopdpError",
    "__version__",
    "data",
    "errors",
    "lora",
    "plan",
    "privacy",
    "protocols",
    "topology",
    "train",
]

_LAZY = {
    "Metric": "topdp.learning.metrics",
    "Result": "topdp.runs",
    "Shards": "topdp.data",
    "StopEarly": "topdp.runs",
    "TopdpError": "topdp.errors",
    "lora": "topdp.learning.lora_adapters",
    "train": "topdp.runs",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name in __all__:
        return import_module(f"topdp.{name}")
    raise AttributeError(f"module 'topdp' has no attribute {name!r}")
