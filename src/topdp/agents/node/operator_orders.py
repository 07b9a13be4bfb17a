"""Orders to an agent from another shell, as files in its state folder instead of signals or sockets.

Files work with paths of any length, across containers that share the folder, and while no agent runs. `pause`
outlives a restart because its file does. Write access to the folder permits giving orders: the folder is made
for its owner alone, and a file of another user is ignored.
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
        self._foreign: set[str] = set()

    # For the agent

    def since(self, order: str) -> float | None:
        """Return when the order was given, by the time of its file; None if it is not given.

        Only files of the user of this process, or of root, are orders.
        """
        path = self.folder / order
        try:
            status = os.lstat(path)
        except OSError:
            return None
        if stat.S_ISREG(status.st_mode) and status.st_uid in (os.geteuid(), 0):
            return status.st_mtime
        if order not in self._foreign:
            self._foreign.add(order)
            logger.warning(
                "%s is not obeyed: it is no file of this process's user; check who can write to %s",
                path,
                self.folder,
                extra={"event": "foreign order"},
            )
        return None

    def is_paused(self) -> bool:
        return self.since(PAUSE_FILE) is not None

    def take_stop(self) -> bool:
        """Return whether to stop, once: an order is for the process that read it, not for the next one."""
        if self.since(STOP_FILE) is None:
            return False
        (self.folder / STOP_FILE).unlink(missing_ok=True)
        return True

    # For people

    def give(self, order: str) -> bool:
        """Give an order. Return whether it is new."""
        self._expect_owner()
        if self.since(order) is not None:
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
