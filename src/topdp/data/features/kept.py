"""Features of many records: computed in chunks, with progress, and kept in the cache under what they are of.

A file is named by a digest of the records, of the map and of the kind of device; so it never goes stale. It
is written whole or not at all. What was damaged is computed again. Nothing here knows who holds a record.
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

from topdp.data.checks import Array
from topdp.data.features.maps import FeatureMap
from topdp.data.fetch import cache_folder
from topdp.data.progress import Progress, silent
from topdp.files import FileError, new_folder, written_whole

CHUNK = 1000  # records in memory at once
AT_ONCE = {"cpu": 64, "cuda": 1000}  # records in one call of the map: what stays near a processor
MAGIC = b"topdp features 1\n"
DIGEST = hashlib.sha256().digest_size

Piece = tuple[int, Tensor]
"""The number of the first record, and the features of it and the next ones [m, ...], valid until the next."""


@final
@dataclass(frozen=True)
class Source:
    """Records and what is done to them before they are mapped; `scaling` says that in words."""

    records: Array
    scale: Callable[[Array], Array]
    scaling: str
    name: str


def pieces(
    features: FeatureMap,
    source: Source,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    keep: bool = True,
) -> Iterator[Piece]:
    """The features of all records, chunk by chunk in their order.

    Where the cache turns out to be damaged on the way, all come again from the first on.
    """
    report, where = progress or silent, torch.device(device)
    shape = (len(source.records), *features.shape(source.records.shape[1:]))
    path = _place(features, source, where) if keep else None
    if path is not None and path.exists():
        with suppress(_DamagedError):
            yield from _read(path, shape)
            return
        with suppress(OSError):
            path.unlink()
    computed = _computed(features, source, where, shape, report)
    done = 0
    for first, piece in computed if path is None else _written(path, shape, computed):
        yield first, piece
        done = first + len(piece)
    assert done == shape[0], "features of some records are missing"


def all_of(
    features: FeatureMap, source: Source, device: torch.device | str = "cpu", progress: Progress | None = None
) -> Tensor:
    """[records, *features] in one tensor."""
    found = torch.empty(len(source.records), *features.shape(source.records.shape[1:]))
    for first, piece in pieces(features, source, device, progress):
        found[first : first + len(piece)] = piece
    return found


def is_kept(features: FeatureMap, source: Source, device: torch.device | str = "cpu") -> bool:
    """Whether the cache has a file of these features."""
    path = _place(features, source, torch.device(device))
    return path is not None and path.exists()


class _DamagedError(Exception):
    """The file in the cache is not what was written."""


def _place(features: FeatureMap, source: Source, device: torch.device) -> Path | None:
    """Devices round differently: a run must not depend on where the features in the cache were made."""
    if features.identity is None:
        return None
    records = np.ascontiguousarray(source.records)
    facts = [features.identity, source.scaling, device.type, str(records.dtype), list(records.shape)]
    sha = hashlib.sha256(json.dumps(facts).encode())
    sha.update(records.data)
    return cache_folder() / f"features-{sha.hexdigest()[:32]}.bin"


def _computed(
    features: FeatureMap, source: Source, device: torch.device, shape: tuple[int, ...], report: Progress
) -> Iterator[Piece]:
    total, each = 4 * math.prod(shape), 4 * math.prod(shape[1:])
    message = f"computing features of {source.name}"
    for first in range(0, shape[0], CHUNK):
        report(message, first * each, total)
        records = torch.from_numpy(source.scale(source.records[first : first + CHUNK]))
        parts = [features(part.to(device)).cpu() for part in torch.split(records, AT_ONCE[device.type])]
        yield first, torch.cat(parts)
    report("")


def _header(shape: tuple[int, ...]) -> bytes:
    return MAGIC + json.dumps({"shape": list(shape), "chunk": CHUNK}).encode() + b"\n"


def _written(path: Path, shape: tuple[int, ...], computed: Iterator[Piece]) -> Iterator[Piece]:
    """Passes pieces on and writes them down; a disk without room costs the cache, not the run."""
    try:
        new_folder(path.parent)
        with written_whole(path) as beside, beside.open("wb") as file:
            file.write(_header(shape))
            for first, piece in computed:
                yield first, piece
                content = piece.contiguous().numpy().data
                file.write(content)
                file.write(hashlib.sha256(content).digest())
    except FileError as error:
        warnings.warn(
            f"Features are not kept for the next time. {error} Make room for "
            f"{4 * math.prod(shape) / 1e6:.0f} MB, or set TOPDP_CACHE to a folder on another disk.",
            stacklevel=2,
        )
    yield from computed


def _read(path: Path, shape: tuple[int, ...]) -> Iterator[Piece]:
    header = _header(shape)
    buffer = torch.empty(min(CHUNK, shape[0]), *shape[1:])
    try:
        with path.open("rb") as file:
            if file.read(len(header)) != header:
                raise _DamagedError
            for first in range(0, shape[0], CHUNK):
                piece = buffer[: shape[0] - first]
                content = memoryview(piece.numpy().data).cast("B")
                if file.readinto(content) != len(content):
                    raise _DamagedError
                if file.read(DIGEST) != hashlib.sha256(content).digest():
                    raise _DamagedError
                yield first, piece
    except OSError as error:
        raise _DamagedError from error
