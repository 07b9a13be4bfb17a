"""Features of many records: computed in chunks, with progress, and kept in the cache under what they are of.

A file is named by a digest of the records, of the map and of the kind of device; so it never goes stale. It
is written whole or not at all. What was damaged is computed again. Nothing here knows who holds a record.

**Guarantees.** Features tell as much as the records, and the name of a file tells whose records they may be:
the folder and its files are for their owner alone.
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

from topdp.base.files import FileError, atomic_path
from topdp.base.progress import Progress, silent
from topdp.data.features.feature_maps import FeatureMap
from topdp.data.fetch import cache_folder
from topdp.data.record_checks import Array
from topdp.errors import DataError

RECORDS_PER_CHUNK = 1000  # records at a time
FEATURE_FILE_MAGIC = b"topdp features 1\n"
DIGEST_BYTES = hashlib.sha256().digest_size

FeatureChunk = tuple[int, Tensor]
"""The number of the first record, and the features of it and the next ones [m, ...], valid until the next."""


@final
@dataclass(frozen=True)
class RecordSource:
    """Records and what is done to them before they are mapped; `scaling` says that in words."""

    records: Array
    scale: Callable[[Array], Array]
    scaling: str
    name: str

    def __len__(self) -> int:
        return len(self.records)

    @property
    def example(self) -> Tensor:
        """One record as the map sees it."""
        return torch.from_numpy(self.scale(self.records[:1]))[0]


def feature_chunks(
    features: FeatureMap,
    source: RecordSource,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
    keep: bool = True,
) -> Iterator[FeatureChunk]:
    """The features of all records, chunk by chunk in their order.

    Where the cache turns out to be damaged on the way, all come again from the first on.
    """
    where = torch.device(device)
    shape = (len(source), *features.shape(source.example))
    path = _cache_path(features, source, where) if keep else None
    if path is not None and path.exists():
        with suppress(_DamagedError):
            yield from _read_chunks(path, shape)
            return
        with suppress(OSError):
            path.unlink()
    computed = _compute_chunks(features, source, where, shape, progress)
    done = 0
    for first, piece in computed if path is None else _write_chunks(path, shape, computed):
        yield first, piece
        done = first + len(piece)
    assert done == shape[0], "features of some records are missing"


def all_features(
    features: FeatureMap,
    source: RecordSource,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> Tensor:
    """[records, *features] in one tensor."""
    found = torch.empty(len(source), *features.shape(source.example))
    for first, piece in feature_chunks(features, source, device, progress):
        found[first : first + len(piece)] = piece
    return found


def is_cached(features: FeatureMap, source: RecordSource, device: torch.device | str = "cpu") -> bool:
    """Whether the cache has a file of these features."""
    path = _cache_path(features, source, torch.device(device))
    return path is not None and path.exists()


class _DamagedError(Exception):
    """The file in the cache is not what was written."""


def _cache_path(features: FeatureMap, source: RecordSource, device: torch.device) -> Path | None:
    """Devices round differently: a run must not depend on where the features in the cache were made."""
    if features.identity is None:
        return None
    records = np.ascontiguousarray(source.records)
    facts = [features.identity, source.scaling, device.type, str(records.dtype), list(records.shape)]
    sha = hashlib.sha256(json.dumps(facts).encode())
    sha.update(records.data)
    return cache_folder() / "features" / f"{sha.hexdigest()[:32]}.bin"


def _compute_chunks(
    features: FeatureMap,
    source: RecordSource,
    device: torch.device,
    shape: tuple[int, ...],
    progress: Progress,
) -> Iterator[FeatureChunk]:
    total, each = 4 * math.prod(shape), 4 * math.prod(shape[1:])
    message = f"computing features of {source.name}"
    for first in range(0, shape[0], RECORDS_PER_CHUNK):
        progress(message, first * each, total, unit="byte")
        records = torch.from_numpy(source.scale(source.records[first : first + RECORDS_PER_CHUNK]))
        found = features(records.to(device)).cpu()
        if not torch.isfinite(found.sum()):
            fine = torch.isfinite(found.flatten(1)).all(1)
            if not fine.all():
                raise DataError(
                    f"{source.name}: expected finite features, got NaN or infinite ones for "
                    f"{int((~fine).sum())} records, the first at index {first + int((~fine).nonzero()[0])}."
                )
        yield first, found


def _digest(content: memoryview) -> bytes:
    return hashlib.sha256(content).digest()


def _file_header(shape: tuple[int, ...]) -> bytes:
    return (
        FEATURE_FILE_MAGIC + json.dumps({"shape": list(shape), "chunk": RECORDS_PER_CHUNK}).encode() + b"\n"
    )


def _write_chunks(
    path: Path, shape: tuple[int, ...], computed: Iterator[FeatureChunk]
) -> Iterator[FeatureChunk]:
    """Passes pieces on and writes them down; a disk without room costs the cache, not the run."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_path(path, mode=0o600) as beside, beside.open("wb") as file:
            file.write(_file_header(shape))
            for first, piece in computed:
                yield first, piece
                content = piece.contiguous().numpy().data
                file.write(content)
                file.write(_digest(content))
    except (FileError, OSError) as error:
        warnings.warn(
            f"Features are not kept for the next time. {error} Make room for "
            f"{4 * math.prod(shape) / 1e6:.0f} MB, or set TOPDP_CACHE to a folder on another disk.",
            stacklevel=2,
        )
    yield from computed


def _read_chunks(path: Path, shape: tuple[int, ...]) -> Iterator[FeatureChunk]:
    header = _file_header(shape)
    buffer = torch.empty(min(RECORDS_PER_CHUNK, shape[0]), *shape[1:])
    try:
        with path.open("rb") as file:
            if file.read(len(header)) != header:
                raise _DamagedError
            for first in range(0, shape[0], RECORDS_PER_CHUNK):
                piece = buffer[: shape[0] - first]
                content = memoryview(piece.numpy().data).cast("B")
                if file.readinto(content) != len(content):
                    raise _DamagedError
                if file.read(DIGEST_BYTES) != _digest(content):
                    raise _DamagedError
                yield first, piece
    except OSError as error:
        raise _DamagedError from error
