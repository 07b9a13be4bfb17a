"""What is looked at: run folders and agents' state folders, found below the paths that a user named.

Each has an id that says nothing of where it is; whoever asks names an id, never a path. Links inside folders
are not followed, so nothing outside is ever found.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from topdp.errors import InputError

RUN_FILE, BOOKS_FILE = "run.json", "ledger.sqlite"
FILES = {
    "run": (RUN_FILE, "config.toml", "metrics.jsonl", "privacy.json"),
    "agent": (BOOKS_FILE, f"{BOOKS_FILE}-wal", "status.json", "pause"),
}
"""What a page shows of each is in these files; it changes when one of them does."""
DEEPEST = 5  # folders below a named one: sweeps and demonstrations have three
MOST = 1000
FOLDERS = 20_000  # looked into at most

Kind = Literal["run", "agent"]
Signature = tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True)
class Source:
    """`name`: the way from the named path to it, for people."""

    kind: Kind
    path: Path
    name: str

    @property
    def id(self) -> str:
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]

    def signature(self) -> Signature:
        """Another one once something on disk has changed."""
        return tuple(_stamp(self.path / name) for name in FILES[self.kind])

    def changed_at(self) -> float:
        """When something was last written, in seconds of the calendar; 0: it is gone."""
        return max((stamp[0] for stamp in self.signature() if stamp is not None), default=0) / 1e9


@dataclass(frozen=True)
class Found:
    sources: tuple[Source, ...]
    cut: bool  # there may be more


def expect_folders(paths: Iterable[Path]) -> list[Path]:
    """The folders that a user named, or what is wrong with them."""
    found = []
    for path in paths:
        if not path.exists():
            raise InputError(
                f"{path}: expected the folder of a run, of several runs, or of an agent's state, got nothing."
            )
        if not path.is_dir():
            raise InputError(f"{path}: expected a folder of a run or an agent, got a file: name its folder.")
        found.append(path.resolve())
    return found


def find(paths: Iterable[Path], most: int = MOST) -> Found:
    """Runs and agents in and below `paths`; each once, in the order of names."""
    sources: dict[Path, Source] = {}
    looked = 0
    for top in paths:
        for path, depth in _below(top):
            looked += 1
            if looked > FOLDERS or len(sources) >= most:
                return Found(tuple(sources.values()), cut=True)
            kind = _kind(path)
            if kind is not None and path not in sources:
                name = path.relative_to(top).as_posix() if depth else path.name
                sources[path] = Source(kind, path, name)
    return Found(tuple(sources.values()), cut=False)


def _kind(path: Path) -> Kind | None:
    if (path / BOOKS_FILE).is_file():
        return "agent"
    return "run" if (path / RUN_FILE).is_file() else None


def _below(top: Path, depth: int = 0) -> Iterator[tuple[Path, int]]:
    """Every folder from `top` down, but for hidden ones; what is gone or closed has nothing in it."""
    yield top, depth
    if depth >= DEEPEST:
        return
    try:
        with os.scandir(top) as entries:
            names = [one.name for one in entries if one.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for name in sorted(names):
        if not name.startswith("."):
            yield from _below(top / name, depth + 1)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
