"""Atomic file writes, reads of arrays without pickle, new folders, and locks between processes.

Do not use this module for files to which a program appends (logs), nor for secrets, which need strict
permissions from the first byte.
"""

from __future__ import annotations

import os
import secrets
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import lock_descriptor

from topdp.errors import InputError

if TYPE_CHECKING:
    from topdp.base.array_types import AnyArray

# What file readers raise if bytes are missing or changed, or if they belong to another kind of file.
UNREADABLE_FILE_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RuntimeError,  # for nesting that is too deep, unknown compression, or an encrypted archive
    OverflowError,
    zlib.error,
    zipfile.BadZipFile,
)


class FileError(InputError):
    """A path that cannot be written or read.

    For example, the disk is full, the file system is read-only, or a file is where a folder should be.
    """


class LockHeldError(FileError):
    """A folder or file that another process has locked."""


def read_text(path: Path) -> str:
    """Return the text (UTF-8) in `path`; raise FileError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
    except FileNotFoundError:
        raise FileError(f"Expected a file {path}, but found none. Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"Could not read {path}: {getattr(error, 'strerror', error)}.") from None


def read_arrays(path: Path) -> dict[str, AnyArray]:
    """Return all arrays of an `.npz` file by name; nothing is unpickled.

    Raise one of `UNREADABLE_FILE_ERRORS` if the file cannot be read.
    """
    import numpy as np  # slow to import, and not needed to write files

    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("expected an archive of named arrays, got another kind of file")
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666, durable: bool = True) -> None:
    """Replace the content of `path` atomically.

    Even if the disk is full or the process is killed, the file contains either the complete old content or
    the complete new content. If `durable` is true, wait until the content is on disk, so that this also holds
    after a power cut. `mode` is the mode of a new file, to which the process's umask is applied.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "a.txt", "once")
    ...     [file.name for file in Path(folder).iterdir()]
    ['a.txt']
    """
    with atomic_path(path, mode, durable) as temporary:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def atomic_path(path: Path, mode: int = 0o666, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path` for a writer. If the body succeeds, rename it to `path`.

    If the body fails, remove the temporary file. `mode` and `durable`: as for `write_atomically`.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        try:
            yield temporary
            if durable:
                with temporary.open("rb+") as file:  # Windows flushes only files that are open for writing
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"Could not write {path}: {reason}. The previous content is intact.") from error


def make_folder(path: Path) -> None:
    """Create the folder `path` and its parents, unless they exist."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Could not create the folder {path}: {error.strerror}.") from error


@contextmanager
def remove_new_folders_on_error(path: Path) -> Iterator[None]:
    """If the body fails, remove the folder `path` and its parents if they are new and empty."""
    new_folders = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        for folder in new_folders:
            with suppress(OSError):  # the folder is no longer empty
                folder.rmdir()
        raise


@contextmanager
def exclusive_lock(path: Path) -> Iterator[bool]:
    """Hold the lock on the folder or file `path` while the body runs. Create the file if it does not exist.

    Raise `LockHeldError` at once if another process holds the lock. The operating system releases the lock
    when the process ends, even if it is killed. Yield True if the lock is held. Yield False if the file
    system has no locks; other processes are then not excluded.
    """
    if path.is_dir() and os.name == "nt":
        path = path / ".lock"  # Windows cannot open folders
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
                "Wait until that process ends, or name another folder."
            )
        yield has_locks
    finally:
        os.close(descriptor)
