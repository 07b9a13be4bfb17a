"""Data: fetched, verified and cached data sets; partitions over agents; shards; the records of a round.

`Shards` and selections are tensors and are imported when first asked for; the rest works without torch.
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
    from topdp.data.selection import Selection, select
    from topdp.data.shards import Shards

__all__ = [
    "PARTITIONS",
    "Available",
    "DataError",
    "Dataset",
    "DiskError",
    "Fetched",
    "Progress",
    "Selection",
    "Shards",
    "available",
    "cache_folder",
    "console_progress",
    "fetch",
    "load",
    "partition",
    "select",
]


def __getattr__(name: str) -> Any:
    if name == "Shards":
        return import_module("topdp.data.shards").Shards
    if name in ("Selection", "select"):
        return getattr(import_module("topdp.data.selection"), name)
    raise AttributeError(f"module 'topdp.data' has no attribute {name!r}")
