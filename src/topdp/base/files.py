"""Files are written whole or not at all: beside, then renamed.

Not for what is appended to (logs), nor for secrets that must never exist with other rights (`agents/terms`).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
def only_one_in(path: Path) -> Iterator[None]:
    """Refuses where another process is at work in this folder; a lock that dies with its holder.

    File systems that know no locks let everybody in.
    """
    new_folder(path)
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise FileError(f"Could not open the folder {path}: {error.strerror}.") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FileError(
                f"Expected nobody else at work in {path}, another process is: wait for it, or name another "
                "--out."
            ) from error
        except OSError:
            pass
        yield
    finally:
        os.close(handle)


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
