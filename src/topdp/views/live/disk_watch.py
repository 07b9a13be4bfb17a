"""Watch run and agent folders, at most once a second, and report changes. Only changed files are read.

Checking an unchanged run costs a few system calls. Folders that take long to read are read less often, so
that watching takes only a small share of a processor. The summary of a run, for the list of all runs and
agents, needs only the last line of its metrics.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from topdp.errors import TopdpError
from topdp.runs.metric_labels import metric_names, metric_text
from topdp.runs.pictures.chart_style import data_title
from topdp.runs.run_folder import RunFolder
from topdp.views.live.live_sources import LiveSource, expect_plain, find_sources
from topdp.views.live.page_events import Events

logger = logging.getLogger("topdp.views.live")

SCAN_INTERVAL_SECONDS = 1.0
REST_FACTOR = 20  # a source that took a second to read is not read again for this many seconds
MAX_REST_SECONDS = 60.0
MAX_PARALLEL_READS = 2  # of different sources
MAX_CACHED_ANSWERS = 32  # each is valid until its source changes

ReadSource = Callable[[LiveSource], dict[str, Any]]


@dataclass(frozen=True)
class _WatchedSource:
    source: LiveSource
    version: Hashable
    summary: dict[str, Any]
    rests_until: float


class DiskWatch:
    """The sources below some paths as of the last scan. One thread scans; any thread may read."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._watched: dict[str, _WatchedSource] = {}
        self.cut = False  # whether there may be more sources than the scan returned

    def source(self, id: str, kind: str) -> LiveSource | None:
        watched = self._watched.get(id)
        return watched.source if watched is not None and watched.source.kind == kind else None

    def sources(self, kind: str) -> list[LiveSource]:
        return [watched.source for watched in self._watched.values() if watched.source.kind == kind]

    def summaries(self) -> list[dict[str, Any]]:
        return [watched.summary for watched in self._watched.values()]

    def scan(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the changes since the last scan: ("run" or "agent", summary), or ("gone", id)."""
        sources, self.cut = find_sources(self._paths)
        new = {source.id: self._scan(source) for source in sources}
        changed = [
            (watched.source.kind, watched.summary)
            for id, watched in new.items()
            if watched is not self._watched.get(id)
        ]
        gone = [("gone", {"id": id}) for id in self._watched if id not in new]
        self._watched = new
        return [*changed, *gone]

    def _scan(self, source: LiveSource) -> _WatchedSource:
        before, started = self._watched.get(source.id), time.monotonic()
        if before is not None and before.rests_until > started:
            return before
        version = version_of(source)  # before reading, so that the next scan notices writes meanwhile
        if before is not None and before.version == version:
            return before
        line = summary(source)
        rest_seconds = min(MAX_REST_SECONDS, REST_FACTOR * (time.monotonic() - started))
        return _WatchedSource(source, version, line, started + rest_seconds)

    async def run(self, events: Events) -> None:
        """Scan until cancelled, and publish the changes."""
        while True:
            started = time.monotonic()
            try:
                for kind, facts in await asyncio.to_thread(self.scan):
                    events.publish(kind, facts)
            except Exception:  # continue after a failed scan
                logger.exception("could not scan %s", ", ".join(map(str, self._paths)))
            cost = time.monotonic() - started
            await asyncio.sleep(min(MAX_REST_SECONDS, max(SCAN_INTERVAL_SECONDS, REST_FACTOR * cost)))


def version_of(source: LiveSource) -> Hashable:
    """Return a value that changes when a file of the source changes, or when an agent starts or ends.

    An agent that is killed changes no file.
    """
    if source.kind == "run":
        return source.signature()
    from topdp.agents.node.agent_status import ProcessStatus, StatusFileError

    try:
        standing = ProcessStatus.read(source.path)
        alive = standing and standing.liveness
    except StatusFileError:  # another program's file by that name
        alive = None
    return source.signature(), alive


def facts_or_problem(source: LiveSource, read: ReadSource) -> bytes:
    """Return as JSON what `read` returns for the source.

    If the source cannot be read, or if it contains infinite numbers or invalid characters, which JSON cannot
    represent, return instead a JSON object whose `problem` is the reason.
    """
    try:
        expect_plain(source)
        return json.dumps(read(source), allow_nan=False, ensure_ascii=False).encode()
    except TopdpError as error:
        problem = str(error)
    except Exception as error:  # a source with unexpected damage must not hide the others
        trace = logger.isEnabledFor(logging.DEBUG)
        logger.warning("could not read %s: %r", source.path, error, exc_info=trace)
        problem = (
            f"Expected files written by topdp in {source.name}, but cannot show them: {error!r:.200}. They "
            "were changed or are damaged."
        )
    return json.dumps({"problem": source.without_path(problem), "name": source.name}).encode()


class AnswerCache:
    """Facts that take long to read, as JSON, cached until their source changes.

    `read` runs once at a time for each source, and for at most `MAX_PARALLEL_READS` sources in parallel, so
    that a source that takes minutes does not block the others.
    """

    def __init__(self, read: ReadSource) -> None:
        self._read = read
        self._reading: dict[str, threading.Lock] = {}
        self._slots = threading.BoundedSemaphore(MAX_PARALLEL_READS)
        self._cached = lru_cache(MAX_CACHED_ANSWERS)(self._answer)

    def get(self, source: LiveSource) -> bytes:
        with self._reading.setdefault(source.id, threading.Lock()):
            return self._cached(source, version_of(source))

    def _answer(self, source: LiveSource, version: Hashable) -> bytes:
        with self._slots:
            return facts_or_problem(source, self._read)


def summary(source: LiveSource) -> dict[str, Any]:
    """Return the summary of a source as JSON. `problem`: why the source cannot be read, or None."""
    identity = {"id": source.id, "kind": source.kind, "name": source.name, "changed": source.changed_at()}
    facts = json.loads(facts_or_problem(source, _listed_run if source.kind == "run" else _listed_agent))
    if "problem" in facts:
        return {**identity, "state": "cannot be read", "problem": facts["problem"]}
    return {**identity, **facts, "problem": None}


def _listed_run(source: LiveSource) -> dict[str, Any]:
    folder = RunFolder.open(source.path)
    config, line = folder.config, last_line(source.path / "metrics.jsonl")
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


def _listed_agent(source: LiveSource) -> dict[str, Any]:
    from topdp.agents.node.agent_status import read_status

    facts = read_status(source.path)
    return {
        "agent": str(facts["agent"]),
        "state": facts["process"] if facts["doing"] is None else f"{facts['process']}, {facts['doing']}",
        "round": facts["round"],
        "rounds": facts["rounds"],
        "epsilon": facts["epsilon"],
        "budget": facts["budget"],
    }


def last_line(path: Path) -> dict[str, Any] | None:
    """Return the last line of metrics.jsonl, or None if there is none. Only this line is parsed."""
    try:
        text = path.read_bytes().rstrip(b"\n")
        line = json.loads(text.rpartition(b"\n")[2]) if text else None
    except (OSError, ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and isinstance(line.get("round"), int) else None
