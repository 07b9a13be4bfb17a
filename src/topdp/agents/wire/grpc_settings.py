"""What links need of the machine around them: settings that gRPC reads, and a folder for sockets."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

PREFIX, LOCK = "topdp-sockets-", "lock"
FRESH = 60.0
"""Seconds in which a folder without a lock may be one that is just being made."""


def settle_grpc() -> None:
    """What gRPC takes from the environment; called again by whoever may have been forked into another one."""
    # gRPC writes every failed TLS handshake to stderr: strangers could fill the log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Ciphers of TLS 1.2, and only for RSA keys: ours are elliptic, so nothing but TLS 1.3 can be agreed on.
    os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


class SocketFolder:
    """A folder that nobody else may look into. What killed processes left behind is removed on the way."""

    def __init__(self) -> None:
        for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            _remove_if_left(left)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock: IO[str] = (self.path / LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_if_left(folder: Path) -> None:
    """A lock that can be taken is that of a process which is gone."""
    with suppress(OSError):
        if folder.stat().st_uid != os.geteuid() or time.time() - folder.stat().st_mtime < FRESH:
            return
        with (folder / LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
