"""The reasons why links end, and a log that reports each peer and kind once, so that nobody can fill it.

An event that continues is reported again after an hour, with the number of its occurrences.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger("topdp.agents")

OUR_FAULT = "a fault at this end; its log says more"
REPEAT_SECONDS = 3600.0  # before the same peer and kind is logged again


class LinkEnded(Exception):  # noqa: N818 - a decision, not a fault
    """The end of a link, as this side decided or observed it; it never leaves the transport.

    `kind` is one short word for programs. `reason` is for people and may quote the peer. `culprit` names the
    agent that caused the end, if it is known and is not the agent at the other end.
    """

    def __init__(self, kind: str, reason: str, culprit: str = "") -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind, self.reason, self.culprit = kind, reason, culprit


class RefusalLog:
    """The log of one agent's refusals. Peers are members of the manifest or `someone`, so it stays small."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name, self._clock = name, clock
        self.counts: dict[tuple[str, str], int] = {}
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}  # time of the last entry, count then

    def report(
        self, peer: str, kind: str, text: str, level: int = logging.WARNING, error: Exception | None = None
    ) -> None:
        """Count an event, and log it unless this peer and kind were logged in the last hour.

        `error`: a fault of this agent, which is logged with its traceback.
        """
        count = self.counts[peer, kind] = self.counts.get((peer, kind), 0) + 1
        last, logged_count = self._logged.get((peer, kind), (-REPEAT_SECONDS, 0))
        is_due = not logged_count or self._clock() - last >= REPEAT_SECONDS
        if is_due:
            self._logged[peer, kind] = self._clock(), count
            text += f" ({count - logged_count} times since this was last logged)" if logged_count else ""
        self.note(kind, f"{peer}: {kind}: {text}", level if is_due else logging.DEBUG, error, peer=peer)

    def note(
        self,
        event: str,
        text: str,
        level: int = logging.WARNING,
        error: Exception | None = None,
        **facts: object,
    ) -> None:
        """Log an event of this agent, every time; `facts` are further fields of the log entry."""
        extra = {"agent": self.name, "event": event, **facts}
        logger.log(level, "%s: %s", self.name, text, exc_info=error, extra=extra)


def quoted(value: object, limit: int = 200) -> str:
    """Return what a peer sent as one line of at most `limit` characters."""
    return repr(value)[:limit]
