"""Full disks for some agents of one process: SQLite and whole-file writes then fail."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from unittest import mock

from faults.clock import OWNER

WRITES = ("INSERT", "UPDATE", "DELETE", "CREATE", "REPLACE")


class _Connection(sqlite3.Connection):
    def execute(self, sql, *values):
        _expect_room(sql)
        return super().execute(sql, *values)

    def executemany(self, sql, *values):
        _expect_room(sql)
        return super().executemany(sql, *values)


def _full():
    owner = OWNER.get()
    return owner.disk_full if owner else ""


def _expect_room(sql):
    kind = _full()
    if kind and sql.lstrip()[:6].upper().startswith("COMMIT" if kind == "commit" else WRITES):
        raise sqlite3.OperationalError("database or disk is full")


@contextlib.contextmanager
def disks():
    """Within this context, disks can be full (`Process.disk_full`)."""
    connect, replace, opened = sqlite3.connect, os.replace, os.open

    def connected(*arguments, **options):
        return connect(*arguments, **{"factory": _Connection, **options})

    def replaced(*arguments, **options):
        if _full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(*arguments, **options)

    def made(path, flags, *arguments, **options):
        if flags & os.O_CREAT and _full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, flags, *arguments, **options)

    with (
        mock.patch.object(sqlite3, "connect", connected),
        mock.patch.object(os, "replace", replaced),
        mock.patch.object(os, "open", made),
    ):
        yield
