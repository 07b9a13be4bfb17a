"""A disk that is full, read-only or forbidden, in words: what is needed where."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from topdp.errors import DataError

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
}


class DiskError(DataError):
    """There is no room, or no permission, to keep the data; another source would not help."""


def disk_error(folder: Path, reason: str, needed: int) -> DiskError:
    return DiskError(
        f"Cannot write to {folder}: {reason}; about {needed / 1e6:.0f} MB are needed. "
        "Nothing was left half-written. Make room, or set TOPDP_CACHE to a folder on another disk."
    )


@contextmanager
def disk_errors(folder: Path, needed: int) -> Iterator[None]:
    """Turn a full, read-only or forbidden disk into a `DiskError` that says what is needed where."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REASONS:
            raise
        raise disk_error(folder, _REASONS[error.errno], needed) from error
