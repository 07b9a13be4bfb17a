"""Data sets: fetched, verified and cached; a user's own files and frames; partitions; shards; image features.

`Shards` and `ScatteringFeatures` need torch and are imported when they are first used. All other names work
without torch.
"""

from typing import TYPE_CHECKING

from topdp.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from topdp.data._dataset_downloads import cache_folder, fetch
    from topdp.data._datasets import Dataset, available, load
    from topdp.data.features.feature_maps import ScatteringFeatures
    from topdp.data.partitions import PARTITIONS, partition
    from topdp.data.readers.table_schema import Schema
    from topdp.data.readers.token_ids import token_ids
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

__getattr__ = lazy_exports(
    __name__,
    {
        "_dataset_downloads": ["cache_folder", "fetch"],
        "_datasets": ["Dataset", "available", "load"],
        "features.feature_maps": ["ScatteringFeatures"],
        "partitions": ["PARTITIONS", "partition"],
        "readers.table_schema": ["Schema"],
        "readers.token_ids": ["token_ids"],
        "shards": ["Shards"],
    },
)


def __dir__() -> list[str]:
    return __all__
