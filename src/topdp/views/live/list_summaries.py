"""Summary of one run or agent for the list of all. Reads little: only the last line of the metrics."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from topdp.errors import TopdpError
from topdp.runs.metric_labels import metric_names, metric_text
from topdp.runs.pictures.chart_style import data_title
from topdp.runs.run_folder import RunFolder
from topdp.views.live.live_sources import LiveSource, expect_plain

logger = logging.getLogger("topdp.views.live")

TAIL_BYTES = 65_536  # read first in search of the last line
MAX_LINE_BYTES = 50_000_000  # a line for a thousand agents has less than a tenth of that


def summary(source: LiveSource) -> dict[str, Any]:
    """Return the summary as JSON. `problem`: why the source cannot be read, or None."""
    identity = {"id": source.id, "kind": source.kind, "name": source.name, "changed": source.changed_at()}
    try:
        expect_plain(source)
        facts = _run(source.path) if source.kind == "run" else _agent(source.path)
        json.dumps(facts, allow_nan=False, ensure_ascii=False).encode()
        return {**identity, **facts, "problem": None}
    except TopdpError as error:
        problem = str(error)
    except Exception as error:  # a source with unexpected damage must not hide the others
        logger.debug("could not read %s", source.path, exc_info=True)
        problem = (
            f"Expected files written by topdp, got others: {error!r:.200}. They were changed or are damaged."
        )
    return {**identity, "state": "cannot be read", "problem": source.without_path(problem)}


def _run(path: Path) -> dict[str, Any]:
    folder = RunFolder.open(path)
    config, line = folder.config, last_line(path / "metrics.jsonl")
    names = metric_names(line) if line else []
    score = f"{names[0]} {metric_text(names[0], line[names[0]]['mean'])}" if line and names else None
    return {
        "state": folder.state,
        "method": f"{config.method.name}, {config.method.mode}",
        "data": data_title(config.data.name),
        "agents": config.topology.agents,
        "round": line["round"] if line else None,
        "rounds": config.rounds,
        "score": score,
    }


def _agent(path: Path) -> dict[str, Any]:
    from topdp.agents.node.agent_status import read_status

    facts = read_status(path)
    return {
        "agent": str(facts["agent"]),
        "state": facts["process"] if facts["doing"] is None else f"{facts['process']}, {facts['doing']}",
        "round": facts["round"],
        "rounds": facts["rounds"],
        "epsilon": facts["epsilon"],
        "budget": facts["budget"],
    }


def last_line(path: Path) -> dict[str, Any] | None:
    """Return the last complete line of a file of JSON lines, or None. Reads only the end of the file."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            size = TAIL_BYTES
            while True:
                start = max(0, end - size)
                file.seek(start)
                text = file.read(end - start).rstrip(b"\n")
                if b"\n" in text or start == 0:
                    break
                if size > MAX_LINE_BYTES:
                    return None
                size *= 4
        line = json.loads(text.rpartition(b"\n")[2]) if text else None
    except (OSError, ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and isinstance(line.get("round"), int) else None
