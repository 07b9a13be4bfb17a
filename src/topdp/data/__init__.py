"""Data: fetched, verified and cached data sets; partitions over agents; shards; batches of a round.

`Shards` and the batches are tensors and are imported when first asked for; the rest works without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topdp.data.datasets import Available, Dataset, available, load
from topdp.data.disk import DiskError
from topdp.data.fetch import Fetched, cache_folder, fetch
from topdp.data.partitions import PARTITIONS, partition
from topdp.data.progress import Progress, console_progress
from topdp.errors import DataError

if TYPE_CHECKING:
    from topdp.data.batches import Batches, Cycle, Full, Poisson, Selection
    from topdp.data.shards import Shards

__all__ = [
    "PARTITIONS",
    "Available",
    "Batches",
    "Cycle",
    "DataError",
    "Dataset",
    "DiskError",
    "Fetched",
    "Full",
    "Poisson",
    "Progress",
    "Selection",
    "Shards",
    "available",
    "cache_folder",
    "console_progress",
    "fetch",
    "load",
    "partition",
]


def __getattr__(name: str) -> Any:
    if name == "Shards":
        return import_module("topdp.data.shards").Shards
    if name in ("Batches", "Cycle", "Full", "Poisson", "Selection"):
        return getattr(import_module("topdp.data.batches"), name)
    raise AttributeError(f"module 'topdp.data' has no attribute {name!r}")
