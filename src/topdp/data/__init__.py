"""Data sets: fetched, verified and cached; a user's own files and frames; partitions; shards; image features.

`Shards` and `ScatteringFeatures` need torch and are imported on first use; the rest works without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topdp.data.datasets import Dataset, available, load
from topdp.data.fetch import cache_folder, fetch
from topdp.data.partitions import PARTITIONS, partition
from topdp.data.readers.table_schema import Schema
from topdp.data.readers.token_ids import token_ids

if TYPE_CHECKING:
    from topdp.data.features.feature_maps import ScatteringFeatures
    from topdp.data.shards import Shards

__all__ = [
    "PARTITIONS",
    "Dataset",
    "ScatteringFeatures",
    "Schema",
    "Shards",
    "available",
    "cache_folder",
    "fetch",
    "load",
    "partition",
    "token_ids",
]
_LAZY = {"ScatteringFeatures": "topdp.data.features.feature_maps", "Shards": "topdp.data.shards"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'topdp.data' has no attribute {name!r}")
