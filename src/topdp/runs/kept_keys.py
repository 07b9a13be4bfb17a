"""The noise key of a run that is not finished, in its folder.

An interrupted run must continue with the same draws: other draws of rounds that somebody has seen would
reveal more than the account states. So the folder keeps the key (`plan.noise_key`) until the run ends or is
abandoned, in a file that only its owner can read. A run with a noise seed needs no file.

**Guarantees.** The key is in no other file: not in checkpoints, not in run.json, and in no temporary file. At
the end, the file is overwritten and removed before the run counts as done. This is no proof that the key is
gone: drives with flash memory, file systems that copy on write, snapshots and backups may keep old bytes.
"""

from __future__ import annotations

import hmac
import os
from pathlib import Path

from topdp.base.files import FileError
from topdp.plan.noise_key import KEY_BYTES, NoiseKey
from topdp.runs.config import RunConfig

KEY_FILE = "noise.key"
RECORDS_KEY_FILE = "records.key"  # of an unfinished sweep: under it, digests of records are kept


def key_of(config: RunConfig) -> NoiseKey:
    """Return the key of a new run: that of its noise seed, or a new one."""
    return NoiseKey.fresh() if config.noise_seed is None else NoiseKey.of_seed(config.noise_seed)


def write_key(folder: Path, key: NoiseKey, name: str = KEY_FILE) -> None:
    """Write the key to `folder`. Raise FileError if a key is there, or if it cannot be written."""
    path = folder / name
    try:
        # Not atomically: a process that is killed would leave the key in a temporary file.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key.secret)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise FileError(f"Could not write {path}: {error.strerror}.") from error


def read_key(folder: Path, name: str = KEY_FILE) -> NoiseKey | None:
    """Return the key in `folder`; None if there is none. Raise FileError if it cannot be read."""
    path = folder / name
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            secret = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"Could not read {path}: {error.strerror}.") from error
    if not any(secret):
        return None  # a process that was killed had overwritten the key, but not removed it
    if len(secret) != KEY_BYTES:
        raise FileError(f"Expected a key of {KEY_BYTES} bytes in {path}, got {len(secret)}: it is damaged.")
    return NoiseKey(secret)


def erase_key(folder: Path, name: str = KEY_FILE) -> None:
    """Overwrite and remove the key in `folder`, if there is one."""
    path = folder / name
    try:
        with open(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+b") as file:
            file.write(bytes(max(KEY_BYTES, path.stat().st_size)))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise FileError(f"Could not erase {path}: {error.strerror}. Erase it yourself.") from error


def kept_or_new_key(folder: Path, config: RunConfig) -> NoiseKey:
    """Return the key of an unfinished run in `folder` that begins again, or of a new run."""
    return (read_key(folder) if config.noise_seed is None else None) or key_of(config)


def keyed_digest(key: NoiseKey, digest: str) -> str:
    """Return a digest of records that means nothing without the key.

    A plain digest would let anybody who knows all other records test what the last one is.
    """
    return hmac.new(key.derive("records"), digest.encode(), "sha256").hexdigest()
