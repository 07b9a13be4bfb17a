"""Refusals on a link, and their log: once per peer and kind, so that nobody can fill it.

What goes on is reported again after an hour, with how often it happened.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger("topdp.agents")

OUR_FAULT = "a fault at this end; its log says more"
REPEAT_SECONDS = 3600.0  # before the same peer and kind is logged again


class LinkEnded(Exception):  # noqa: N818 - a decision, not a fault
    """This side ends the link; never leaves the transport. `kind` is one short word of ours.

    `words` are for people, and may quote the peer. `culprit` names the agent behind it, if that is known and
    is not the one at the other end.
    """

    def __init__(self, kind: str, words: str, culprit: str = "") -> None:
        super().__init__(f"{kind}: {words}")
        self.kind, self.words, self.culprit = kind, words, culprit


class RefusalLog:
    """Remembers what has been logged. Peers are names of the manifest (or `someone`), so it stays small."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name, self._clock = name, clock
        self.counts: dict[tuple[str, str], int] = {}
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}  # when, and the count then

    def report(
        self, peer: str, kind: str, words: str, level: int = logging.WARNING, error: Exception | None = None
    ) -> None:
        """`error`: a fault of our own, shown with its traceback."""
        count = self.counts[peer, kind] = self.counts.get((peer, kind), 0) + 1
        last, before = self._logged.get((peer, kind), (-REPEAT_SECONDS, 0))
        aloud = not before or self._clock() - last >= REPEAT_SECONDS
        if aloud:
            self._logged[peer, kind] = self._clock(), count
            words += f" ({count - before} times since this was last logged)" if before else ""
        self.note(kind, f"{peer}: {kind}: {words}", level if aloud else logging.DEBUG, error, peer=peer)

    def note(
        self,
        event: str,
        words: str,
        level: int = logging.WARNING,
        error: Exception | None = None,
        **facts: object,
    ) -> None:
        """Log an event of this agent, every time; `facts` are further fields of its line."""
        extra = {"agent": self.name, "event": event, **facts}
        logger.log(level, "%s: %s", self.name, words, exc_info=error, extra=extra)


def quoted(words: object, limit: int = 200) -> str:
    """A peer's words on one line and not too long, whatever they are."""
    return repr(words)[:limit]
