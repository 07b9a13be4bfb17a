"""Data: fetched, verified and cached data sets; partitions over agents; shards.

`Shards` are tensors and are imported when first asked for; the rest works without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topdp.data.datasets import Dataset, available, load
from topdp.data.fetch import cache_folder, fetch
from topdp.data.partitions import PARTITIONS, partition

if TYPE_CHECKING:
    from topdp.data.shards import Shards

__all__ = ["PARTITIONS", "Dataset", "Shards", "available", "cache_folder", "fetch", "load", "partition"]


def __getattr__(name: str) -> Any:
    if name == "Shards":
        return import_module("topdp.data.shards").Shards
    raise AttributeError(f"module 'topdp.data' has no attribute {name!r}")
