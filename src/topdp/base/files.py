"""Atomic file writes, new folders, and locks between processes.

Not for files that are appended to (logs), nor for secrets, which need strict permissions from the first byte.
"""

from __future__ import annotations

import os
import secrets
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import lock_descriptor

from topdp.errors import InputError

DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RuntimeError,  # nested too deeply; a compression that is not known; a password
    OverflowError,
    zlib.error,
    zipfile.BadZipFile,
)
"""What readers of files raise when bytes are missing, changed or another file's."""


class FileError(InputError):
    """A place that cannot be written to: full, read-only, or not what was expected."""


class LockHeldError(FileError):
    """A folder or file that another process has locked."""


def write_whole(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """`path` becomes `content`; a full disk or a kill leaves the old file or the new one, never half.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder) / "a.txt", "once")
    ...     [file.name for file in Path(folder).iterdir()]
    ['a.txt']
    """
    with written_whole(path, mode) as beside:
        beside.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def written_whole(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """For writers that want a path: what is written to the one given here becomes `path` at the end.

    `mode` is that of a new file, less the process's umask.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        try:
            yield beside
            _to_disk(beside)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"Could not write {path}: {reason}. What was written before is intact.") from error


def new_folder(path: Path) -> None:
    """Makes `path` and what is above it; a folder that is there already is fine."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Could not make the folder {path}: {error.strerror}.") from error


@contextmanager
def gone_if_it_fails(path: Path) -> Iterator[None]:
    """If what is done inside fails, folders on the way to `path` that were not there before go again."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        for folder in new:
            with suppress(OSError):  # where something has come to lie in it
                folder.rmdir()
        raise


@contextmanager
def exclusive_lock(path: Path) -> Iterator[bool]:
    """Hold the lock on `path`, a folder or a file; raise `LockHeldError` at once if another process holds it.

    Creates the file if there is none. The operating system releases the lock when its holder ends, even if
    the holder is killed. Yields False on a file system without locks: there, nobody is kept out.
    """
    if path.is_dir() and os.name == "nt":
        path = path / ".lock"  # Windows does not open folders
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise FileError(f"Could not open {path}: {error.strerror}.") from error
    try:
        try:
            is_free, has_locks = lock_descriptor(descriptor, blocking=False), True
        except OSError:
            is_free, has_locks = True, False
        if not is_free:
            raise LockHeldError(
                f"Expected {path} to be free, but another process is using it. "
                "Wait for it, or name another folder."
            )
        yield has_locks
    finally:
        os.close(descriptor)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)  # Windows flushes only what is open for writing
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
