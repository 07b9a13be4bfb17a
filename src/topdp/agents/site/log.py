"""What agents write to stderr: one line an event, for people or as JSON."""

from __future__ import annotations

import json
import logging
import sys

FIELDS = ("agent", "peer", "event", "round")


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, message, and who, whom, what and when where they are known."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def to_stderr(as_json: bool, level: int = logging.INFO) -> None:
    """Sends the log of agents to stderr; called once by a command, never by the library."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonLines() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    logger = logging.getLogger("topdp.agents")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)
