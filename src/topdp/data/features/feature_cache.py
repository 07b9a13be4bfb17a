"""Features of many records: computed in chunks, with progress reports, and cached in files.

A file is named by a digest of the records, of the map and of the device type, so it never becomes stale. It
is written atomically. The features in a damaged file are computed again. This module does not know which
agent holds a record.

**Guarantees.** Features disclose as much as the records. The name of a file discloses of which records they
may be, because it can be computed from those records. Therefore only the owner of the folder and its files
has permission to read them.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from topdp.base.array_types import AnyArray
from topdp.base.files import FileError, atomic_path
from topdp.base.progress import Progress, silent
from topdp.data._dataset_downloads import cache_folder
from topdp.data.features.feature_maps import FeatureMap, Shape
from topdp.errors import DataError

RECORDS_PER_CHUNK = 1000
FEATURE_FILE_MAGIC = b"topdp features 1\n"
DIGEST_BYTES = hashlib.sha256().digest_size

FeatureChunk = tuple[int, Tensor]
"""The index of the first record, and the features [m, ...] of it and the m - 1 records that follow.

The features are valid until the next chunk is requested.
"""


@final
@dataclass(frozen=True, kw_only=True)
class FeatureSource:
    """Records, the function `scale` that prepares them for a feature map, and the map.

    `scaling` describes that function in words, and `name` names the records in messages.
    """

    features: FeatureMap
    records: AnyArray
    scale: Callable[[AnyArray], AnyArray]
    scaling: str
    name: str

    @property
    def shape(self) -> Shape:
        """The shape of the features of all records: [records, ...]."""
        example = torch.from_numpy(self.scale(self.records[:1]))[0]
        return len(self.records), *self.features.shape(example)

    def chunks(
        self, device: torch.device | str = "cpu", progress: Progress = silent, keep: bool = True
    ) -> Iterator[FeatureChunk]:
        """Yield the features of all records in chunks, in the order of the records.

        If a damaged chunk is found in the cache, all chunks are yielded again from the first. If `keep` is
        false, the cache is neither read nor written.
        """
        device_of_map, shape = torch.device(device), self.shape
        path = self._cache_path(device_of_map) if keep else None
        if path is not None and path.exists():
            with suppress(_DamagedError):
                yield from _read_chunks(path, shape)
                return
            with suppress(OSError):
                path.unlink()
        computed = self._computed(device_of_map, shape, progress)
        yield from computed if path is None else _write_chunks(path, shape, computed)

    def all(self, device: torch.device | str = "cpu", progress: Progress = silent) -> Tensor:
        """Return the features of all records in one tensor [records, *features]."""
        all_values = torch.empty(*self.shape)
        for first, chunk in self.chunks(device, progress):
            all_values[first : first + len(chunk)] = chunk
        return all_values

    def is_cached(self, device: torch.device | str) -> bool:
        """Return whether the cache has a file of these features."""
        path = self._cache_path(torch.device(device))
        return path is not None and path.exists()

    def _cache_path(self, device: torch.device) -> Path | None:
        """Return the path of the cache file, or None if nothing identifies the feature map.

        The path depends on the device type, because types of devices round differently, and a run must not
        depend on where cached features were computed.
        """
        if self.features.identity is None:
            return None
        records = np.ascontiguousarray(self.records)
        facts = [self.features.identity, self.scaling, device.type, str(records.dtype), list(records.shape)]
        sha = hashlib.sha256(json.dumps(facts).encode())
        sha.update(records.data)
        return cache_folder() / "features" / f"{sha.hexdigest()[:32]}.bin"

    def _computed(self, device: torch.device, shape: Shape, progress: Progress) -> Iterator[FeatureChunk]:
        total, record_bytes = 4 * math.prod(shape), 4 * math.prod(shape[1:])
        message = f"computing features of {self.name}"
        for first in range(0, shape[0], RECORDS_PER_CHUNK):
            progress(message, first * record_bytes, total, unit="byte")
            records = torch.from_numpy(self.scale(self.records[first : first + RECORDS_PER_CHUNK]))
            values = self.features(records.to(device)).cpu()
            broken = (~torch.isfinite(values.flatten(1)).all(1)).nonzero()
            if len(broken):
                raise DataError(
                    f"{self.name}: expected finite features, got NaN or infinite ones for {len(broken)} "
                    f"records, the first at index {first + int(broken[0])}. Remove or repair these records."
                )
            yield first, values


class _DamagedError(Exception):
    """The content of a file in the cache is not what was written."""


def _digest(content: memoryview) -> bytes:
    return hashlib.sha256(content).digest()


def _file_header(shape: Shape) -> bytes:
    facts = json.dumps({"shape": list(shape), "chunk": RECORDS_PER_CHUNK})
    return FEATURE_FILE_MAGIC + facts.encode() + b"\n"


def _write_chunks(path: Path, shape: Shape, computed: Iterator[FeatureChunk]) -> Iterator[FeatureChunk]:
    """Yield the chunks in `computed`, and write them to the cache. If writing fails, warn and continue."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_path(path, mode=0o600) as temporary, temporary.open("wb") as file:
            file.write(_file_header(shape))
            for first, chunk in computed:
                yield first, chunk
                content = chunk.contiguous().numpy().data
                file.write(content)
                file.write(_digest(content))
    except (FileError, OSError) as error:
        warnings.warn(
            f"Features are not cached. {error} Make room for "
            f"{4 * math.prod(shape) / 1e6:.0f} MB, or set TOPDP_CACHE to a folder on another disk.",
            stacklevel=2,
        )
    yield from computed


def _read_chunks(path: Path, shape: Shape) -> Iterator[FeatureChunk]:
    header = _file_header(shape)
    buffer = torch.empty(min(RECORDS_PER_CHUNK, shape[0]), *shape[1:])
    try:
        with path.open("rb") as file:
            if file.read(len(header)) != header:
                raise _DamagedError
            for first in range(0, shape[0], RECORDS_PER_CHUNK):
                chunk = buffer[: shape[0] - first]
                content = memoryview(chunk.numpy().data).cast("B")
                if file.readinto(content) != len(content) or file.read(DIGEST_BYTES) != _digest(content):
                    raise _DamagedError
                yield first, chunk
    except OSError as error:
        raise _DamagedError from error
