"""One line about a run or an agent, for the list of them. Reads little: of metrics the last line alone."""

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
from topdp.views.live.live_sources import Source, expect_plain

logger = logging.getLogger("topdp.views.live")

TAIL = 65_536  # bytes that are read for the last line at first
LONGEST = 50_000_000  # bytes of a line: one of a thousand agents has less than a tenth of that


def summary(source: Source) -> dict[str, Any]:
    """Ready for JSON; `problem`: why there is nothing else to say, in words."""
    told = {"id": source.id, "kind": source.kind, "name": source.name, "changed": source.changed_at()}
    try:
        expect_plain(source)
        found = _run(source.path) if source.kind == "run" else _agent(source.path)
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
        return {**told, **found, "problem": None}
    except TopdpError as error:
        problem = str(error)
    except Exception as error:  # one that is damaged in a way nobody foresaw keeps no other from being seen
        logger.debug("could not read %s", source.path, exc_info=True)
        problem = (
            f"Expected what topdp writes, got something else: {error!r:.200}. It was changed, or is damaged."
        )
    return {**told, "state": "cannot be read", "problem": source.in_words(problem)}


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
    """The last whole line of a file of JSON lines, without reading what is before it; None: there is none."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            size = TAIL
            while True:
                start = max(0, end - size)
                file.seek(start)
                text = file.read(end - start).rstrip(b"\n")
                if b"\n" in text or start == 0:
                    break
                if size > LONGEST:
                    return None
                size *= 4
        found = json.loads(text.rpartition(b"\n")[2]) if text else None
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("round"), int) else None
