"""Orders to an agent from another shell, as files in its state folder instead of signals or sockets.

Files work with paths of any length, across containers that share the folder, and while no agent runs. An
agent stays paused after a restart, because the file remains. Anyone with write access to the folder may give
orders: only its owner has access, and a file of another user is ignored.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from pathlib import Path

from topdp.base.files import FileError, write_atomically
from topdp.errors import TrustError

logger = logging.getLogger("topdp.agents")

PAUSE_FILE, STOP_FILE = "pause", "stop"


class OperatorOrders:
    """The orders in one state folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reported_orders: set[str] = set()  # orders of other users that were logged

    # For the agent

    def given_at(self, order: str) -> float | None:
        """Return the time of the order's file, in seconds since the epoch; None if there is no such order.

        Only files of the user of this process, or of root, are orders.
        """
        path = self.folder / order
        try:
            status = os.lstat(path)
        except OSError:
            return None
        if stat.S_ISREG(status.st_mode) and status.st_uid in (os.geteuid(), 0):
            return status.st_mtime
        if order not in self._reported_orders:
            self._reported_orders.add(order)
            logger.warning(
                "%s is not obeyed: it belongs to another user or is no plain file; check who can write to %s",
                path,
                self.folder,
                extra={"event": "foreign order"},
            )
        return None

    def is_paused(self) -> bool:
        return self.given_at(PAUSE_FILE) is not None

    def take_stop(self) -> bool:
        """Return whether to stop, once: an order is for the process that read it, not for the next one."""
        if self.given_at(STOP_FILE) is None:
            return False
        (self.folder / STOP_FILE).unlink(missing_ok=True)
        return True

    # For people

    def give(self, order: str) -> bool:
        """Give an order. Return whether it is new."""
        self._expect_owner()
        if self.given_at(order) is not None:
            return False
        text = json.dumps({"order": order, "since": time.time()}) + "\n"
        write_atomically(self.folder / order, text, mode=0o600)
        return True

    def withdraw(self, order: str) -> bool:
        """Withdraw an order. Return whether it was given."""
        self._expect_owner()
        try:
            (self.folder / order).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise FileError(f"Could not remove {self.folder / order}: {error.strerror}.") from error
        return True

    def _expect_owner(self) -> None:
        owner = os.stat(self.folder).st_uid
        if os.geteuid() not in (owner, 0):
            raise TrustError(
                f"Expected the owner of {self.folder} (user {owner}), got user {os.geteuid()}: nobody else "
                "gives orders to this agent."
            )
