"""What is looked at: run folders and agents' state folders, found below the paths that a user named.

Each has an id that says nothing of where it is; whoever asks names an id, never a path. Links inside folders
are not followed, be it to folders or to files, so nothing outside is ever found or read.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from topdp.base.files import UNREADABLE_FILE_ERRORS
from topdp.errors import InputError
from topdp.views.pages.plain_words import in_utf8

RUN_FILE, BOOKS_FILE = "run.json", "ledger.sqlite"
FILES = {
    "run": (RUN_FILE, "config.toml", "metrics.jsonl", "privacy.json"),
    "agent": (BOOKS_FILE, f"{BOOKS_FILE}-wal", "status.json", "pause"),
}
"""What a page shows of each is in these files; it changes when one of them does."""
READ = {"run": ("plan.npz", "graph.txt"), "agent": (f"{BOOKS_FILE}-shm",)}
"""Read too, and never changed without one of those above."""
LARGEST = {"run.json": 10**7, "config.toml": 10**6, "status.json": 10**7, "pause": 10**4}
USUAL = 5 * 10**8
"""Bytes of a file, by name and for all others, above which a page does not read it; commands do."""
UNPACKED = 2 * 10**9  # bytes of a plan: a small file can unpack to more than a machine has
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

    def in_words(self, problem: str) -> str:
        """What is wrong with it, for a page: says nothing of where the folder is, and is text in any case.

        >>> Source("run", Path("/home/ada/runs/a"), "a").in_words("Expected a run in /home/ada/runs/a.")
        'Expected a run in a.'
        """
        return problem.replace(str(self.path), self.name).encode(errors="replace").decode()

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
            if looked > FOLDERS:
                return replace(_newest(list(sources.values()), most), cut=True)
            kind = _kind(path)
            if kind is not None and path not in sources:
                name = path.relative_to(top).as_posix() if depth else path.name
                sources[path] = Source(kind, path, in_utf8(name))
    return _newest(list(sources.values()), most)


def _newest(sources: list[Source], most: int) -> Found:
    """Of too many the ones that were begun last: those are being looked at."""
    if len(sources) <= most:
        return Found(tuple(sources), cut=False)
    begun = {one.path: (_stamp(one.path / FILES[one.kind][0]) or (0, 0))[0] for one in sources}
    kept = set(sorted(begun, key=begun.__getitem__)[-most:])
    return Found(tuple(one for one in sources if one.path in kept), cut=True)


def expect_plain(source: Source) -> None:
    """Refuses files that are links, pipes or devices, and those that are too large for a page.

    A link may lead to what nobody meant to show; a pipe is waited for without end.
    """
    for name in (*FILES[source.kind], *READ[source.kind]):
        try:
            found = (source.path / name).lstat()
        except OSError:
            continue
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"Expected plain files in {source.name}, {name} is a link, a pipe or the like.")
        if found.st_size > LARGEST.get(name, USUAL):
            raise InputError(
                f"Expected files that a page can show in {source.name}, {name} has "
                f"{found.st_size / 1e6:.0f} MB: use topdp report."
            )
    plan = source.path / "plan.npz"
    if source.kind == "run" and is_plain(plan) and _unpacked(plan) > UNPACKED:
        raise InputError(
            f"Expected a plan that a page can read in {source.name}, plan.npz is too large unpacked."
        )


def _unpacked(path: Path) -> int:
    """Bytes that reading it takes at most; 0 of what is no archive, which its reader refuses."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(member.file_size for member in archive.infolist())
    except UNREADABLE_FILE_ERRORS:
        return 0


def is_plain(path: Path) -> bool:
    """Whether it is a file, and no link, pipe or device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


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
