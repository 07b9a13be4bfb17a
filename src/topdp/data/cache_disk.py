"""Errors for a cache folder that cannot be written: how much space is needed and where."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from topdp.base.files import FileError
from topdp.errors import DataError

_DISK_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
}


class DiskError(DataError):
    """The disk has no room for the data or denies permission; another source would not help."""


def disk_error(folder: Path, reason: str, needed: int) -> DiskError:
    return DiskError(
        f"Cannot write to {folder}: {reason}; about {needed / 1e6:.0f} MB are needed. "
        "No partial file is left. Make room, or set TOPDP_CACHE to a folder on another disk."
    )


@contextmanager
def translate_disk_errors(folder: Path, needed: int) -> Iterator[None]:
    """Turn errors of writing to `folder` into a `DiskError`, which says how much space is needed and
    where.
    """
    try:
        yield
    except (FileError, OSError) as error:
        cause = error.__cause__ if isinstance(error, FileError) else error
        # Network errors are OSErrors too, but name no file.
        if not isinstance(cause, OSError) or (cause.errno not in _DISK_REASONS and cause.filename is None):
            raise
        reason = _DISK_REASONS.get(cause.errno or 0, str(cause.strerror))
        raise disk_error(folder, reason, needed) from error
