"""Data: fetched, verified and cached data sets; partitions over agents; shards; batches of a round."""

from topdp.data.batches import BATCHES, Batches, Cycle, Full, Participation, Poisson, Selection
from topdp.data.datasets import Available, Dataset, available, load
from topdp.data.errors import DataError, DiskError
from topdp.data.fetch import Fetched, cache_folder, fetch
from topdp.data.partitions import PARTITIONS, partition
from topdp.data.progress import Progress, console_progress
from topdp.data.shards import Shards

__all__ = [
    "BATCHES",
    "PARTITIONS",
    "Available",
    "Batches",
    "Cycle",
    "DataError",
    "Dataset",
    "DiskError",
    "Fetched",
    "Full",
    "Participation",
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
