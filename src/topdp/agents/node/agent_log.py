"""The log of agents on stderr: one line per event, for people or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable

LOG_FIELDS = ("agent", "peer", "event", "round")


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, message, agent, event, round; peer and facts if any."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in LOG_FIELDS if hasattr(record, name)}
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


class AgentLogFilter(logging.Filter):
    """Adds the agent and its round to lines without them. Removes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.agent: str | None = None
        self.round: Callable[[], int | None] = lambda: None

    def filter(self, record: logging.LogRecord) -> bool:
        defaults = {"agent": self.agent, "round": self.round(), "event": "note"}
        for name, value in defaults.items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


def log_to_stderr(as_json: bool, level: int = logging.INFO) -> AgentLogFilter:
    """Send the log of agents to stderr. Called once by a command, never by the library."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonLines() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    log_filter = AgentLogFilter()
    handler.addFilter(log_filter)
    logger = logging.getLogger("topdp.agents")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)
    return log_filter
