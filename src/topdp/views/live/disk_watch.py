"""Looks once a second at what is on disk, and tells what has changed. Reads only what did.

A look at runs that are still costs a few system calls for each. What takes long to read is read less often,
so that looking never takes more than a small share of a processor.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topdp.views.live.list_summaries import summary
from topdp.views.live.live_sources import Source, find
from topdp.views.live.page_events import Events

logger = logging.getLogger("topdp.views.live")

EVERY = 1.0  # seconds between two looks
SHARE = 20  # of the time: what took a second to read rests for so many
LONGEST = 60.0  # seconds that anything rests
AT_ONCE = 2  # sources that are read at the same time
KEPT = 32  # answers kept, each until its source changes

Read = Callable[[Source], dict[str, Any]]


@dataclass(frozen=True)
class _Seen:
    source: Source
    mark: object
    summary: dict[str, Any]
    rests_until: float


class Watch:
    """The sources below some paths, as they were at the last look. One thread looks; any may ask."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._seen: dict[str, _Seen] = {}
        self.cut = False

    def source(self, id: str, kind: str) -> Source | None:
        seen = self._seen.get(id)
        return seen.source if seen is not None and seen.source.kind == kind else None

    def sources(self, kind: str) -> list[Source]:
        return [seen.source for seen in self._seen.values() if seen.source.kind == kind]

    def summaries(self) -> list[dict[str, Any]]:
        return [seen.summary for seen in self._seen.values()]

    def look(self) -> list[tuple[str, dict[str, Any]]]:
        """What has changed since the last look: ("run" or "agent", its summary), or ("gone", its id)."""
        found = find(self._paths)
        self.cut = found.cut
        new = dict(self._looked_at(found.sources))
        told = [
            (seen.source.kind, seen.summary)
            for id, seen in new.items()
            if id not in self._seen or seen is not self._seen[id]
        ]
        gone = [("gone", {"id": id}) for id in self._seen if id not in new]
        self._seen = new
        return [*told, *gone]

    def _looked_at(self, sources: Iterable[Source]) -> Iterable[tuple[str, _Seen]]:
        for source in sources:
            before = self._seen.get(source.id)
            begun = time.monotonic()
            if before is not None and (before.rests_until > begun or before.mark == mark_of(source)):
                yield source.id, before
                continue
            mark = mark_of(source)  # before reading: what is written meanwhile is seen at the next look
            told = summary(source)
            rest = min(LONGEST, SHARE * (time.monotonic() - begun))
            yield source.id, _Seen(source, mark, told, begun + rest)

    async def run(self, events: Events) -> None:
        """Until cancelled."""
        while True:
            begun = time.monotonic()
            try:
                for kind, facts in await asyncio.to_thread(self.look):
                    events.tell(kind, facts)
            except Exception:  # a look that fails is not the last one
                logger.exception("could not look at %s", ", ".join(map(str, self._paths)))
            cost = time.monotonic() - begun
            await asyncio.sleep(min(LONGEST, max(EVERY, SHARE * cost)))


def mark_of(source: Source) -> object:
    """Another one once there is something new to say. That an agent died is written nowhere."""
    if source.kind == "run":
        return source.signature()
    from topdp.agents.node.status_file import ProcessStatus, StatusFileError

    try:
        standing = ProcessStatus.read(source.path)
        alive = standing and standing.liveness
    except StatusFileError:  # another program's file by that name
        alive = None
    return source.signature(), alive


def _as_json(facts: dict[str, Any], name: str) -> bytes:
    """JSON knows no number that is not finite and no half of a character, and topdp writes none."""
    try:
        return json.dumps(facts, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        problem = (
            f"Expected finite numbers and whole text in {name}, got others: its files were changed, or are "
            "damaged."
        )
        return json.dumps({"problem": problem, "name": name}).encode()


class Answers:
    """What takes a while to read, as JSON, kept until its source changes.

    `read` is called once at a time for a source, and for `AT_ONCE` of them: one that takes minutes keeps
    nobody from looking at another.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._kept: OrderedDict[str, tuple[object, bytes]] = OrderedDict()
        self._reading: dict[str, threading.Lock] = {}
        self._lock, self._few = threading.Lock(), threading.BoundedSemaphore(AT_ONCE)

    def of(self, source: Source) -> bytes:
        with self._lock:
            mine = self._reading.setdefault(source.id, threading.Lock())
        with mine:
            mark, kept = mark_of(source), self._kept.get(source.id)
            if kept is None or kept[0] != mark:
                with self._few:
                    kept = (mark, self._answer(source))
            with self._lock:
                self._kept[source.id] = kept
                self._kept.move_to_end(source.id)
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            return kept[1]

    def _answer(self, source: Source) -> bytes:
        try:
            return _as_json(self._read(source), source.name)
        except Exception as error:  # a page in words, also where nobody foresaw what is wrong
            logger.exception("could not read %s", source.path)
            problem = f"Expected what topdp writes in {source.name}, could not read it: {error!r:.200}."
            return _as_json({"problem": source.in_words(problem), "name": source.name}, source.name)
