"""The sources of the live page: run folders and agents' state folders below the paths that a user names.

Each source has an id that does not reveal its path; requests contain ids, never paths. Symbolic links inside
folders are not followed, neither to folders nor to files. Therefore nothing outside is found or read.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from topdp.base.files import UNREADABLE_FILE_ERRORS
from topdp.errors import InputError
from topdp.views.pages.page_runs import file_stamp
from topdp.views.pages.plain_words import in_utf8

RUN_INFO_FILE, LEDGER_FILE = "run.json", "ledger.sqlite"
WATCHED_FILES = {
    "run": (RUN_INFO_FILE, "config.toml", "metrics.jsonl", "privacy.json"),
    "agent": (LEDGER_FILE, f"{LEDGER_FILE}-wal", "status.json", "pause"),
}
"""A page depends on these files; it changes when one of them does."""
OTHER_READ_FILES = {"run": ("plan.npz", "graph.txt"), "agent": (f"{LEDGER_FILE}-shm",)}
"""Pages read these files too. They never change unless a watched file changes."""
MAX_BYTES_BY_FILE = {"run.json": 10**7, "config.toml": 10**6, "status.json": 10**7, "pause": 10**4}
MAX_OTHER_FILE_BYTES = 5 * 10**8
"""Pages do not read larger files; commands do."""
MAX_UNPACKED_PLAN_BYTES = 2 * 10**9  # a small archive can unpack to more than the machine's memory
MAX_FOLDER_DEPTH = 5  # below a named path; sweeps and demonstrations have three
MAX_SOURCES = 1000
MAX_SCANNED_FOLDERS = 20_000

SourceKind = Literal["run", "agent"]
Signature = tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True)
class LiveSource:
    """A run folder or an agent's state folder. `name`: its path relative to the path that the user named."""

    kind: SourceKind
    path: Path
    name: str

    @property
    def id(self) -> str:
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]

    def without_path(self, problem: str) -> str:
        """Return a message for a page, as valid text without the path of the folder.

        >>> LiveSource("run", Path("/home/ada/a"), "a").without_path("Expected a run in /home/ada/a.")
        'Expected a run in a.'
        """
        return problem.replace(str(self.path), self.name).encode(errors="replace").decode()

    def signature(self) -> Signature:
        """Return a value that changes when a watched file changes."""
        return tuple(file_stamp(self.path / name) for name in WATCHED_FILES[self.kind])

    def changed_at(self) -> float:
        """Return the time of the last change in seconds since 1970; 0 if the folder is gone."""
        return max((stamp[0] for stamp in self.signature() if stamp is not None), default=0) / 1e9


def expect_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the resolved `paths`. Raise InputError if one of them is not a folder."""
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: expected a folder of runs or of an agent, but it does not exist.")
        if not path.is_dir():
            raise InputError(f"{path}: expected a folder of a run or an agent, got a file. Name its folder.")
    return [path.resolve() for path in paths]


def find_sources(paths: Iterable[Path]) -> tuple[list[LiveSource], bool]:
    """Return the runs and agents in and below `paths`, each once, and whether there may be more of them."""
    sources: dict[Path, LiveSource] = {}
    folders = ((top, path) for top in paths for path in _folders(top))
    for top, path in islice(folders, MAX_SCANNED_FOLDERS):
        kind = _kind(path)
        if kind is not None and path not in sources:
            name = path.name if path == top else path.relative_to(top).as_posix()
            sources[path] = LiveSource(kind, path, in_utf8(name))
    cut = next(folders, None) is not None or len(sources) > MAX_SOURCES
    return _newest(list(sources.values())), cut


def _newest(sources: list[LiveSource]) -> list[LiveSource]:
    """Return the `MAX_SOURCES` sources that started last, because they are the most interesting ones."""
    if len(sources) <= MAX_SOURCES:
        return sources

    def started(source: LiveSource) -> int:
        return (file_stamp(source.path / WATCHED_FILES[source.kind][0]) or (0, 0))[0]

    newest = set(sorted(sources, key=started)[-MAX_SOURCES:])
    return [source for source in sources if source in newest]


def expect_plain(source: LiveSource) -> None:
    """Raise InputError if a file is a link, a pipe or a device, or if it is too large for a page.

    A link may lead to a file that nobody meant to show. Reading a pipe may never end.
    """
    for name in (*WATCHED_FILES[source.kind], *OTHER_READ_FILES[source.kind]):
        try:
            status = (source.path / name).lstat()
        except OSError:
            continue
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"Expected plain files in {source.name}, got a link or a pipe: {name}.")
        if status.st_size > MAX_BYTES_BY_FILE.get(name, MAX_OTHER_FILE_BYTES):
            raise InputError(
                f"{name} in {source.name} has {status.st_size / 1e6:.0f} MB, which is too large for a live "
                "page. Use topdp report."
            )
    plan = source.path / "plan.npz"
    if source.kind == "run" and _unpacked_bytes(plan) > MAX_UNPACKED_PLAN_BYTES:
        raise InputError(
            f"Expected a plan that a page can read in {source.name}, got a plan.npz that is too large once "
            "unpacked. Use topdp report."
        )


def _unpacked_bytes(path: Path) -> int:
    """Return the size of the unpacked archive; 0 if it is no archive, which its reader refuses."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(member.file_size for member in archive.infolist())
    except UNREADABLE_FILE_ERRORS:
        return 0


def _kind(path: Path) -> SourceKind | None:
    if (path / LEDGER_FILE).is_file():
        return "agent"
    return "run" if (path / RUN_INFO_FILE).is_file() else None


def _folders(top: Path) -> Iterator[Path]:
    """Yield `top` and the folders in it, down to `MAX_FOLDER_DEPTH`, except hidden and unreadable folders."""
    for folder, names, _ in os.walk(top):
        path = Path(folder)
        yield path
        deep = len(path.relative_to(top).parts) >= MAX_FOLDER_DEPTH
        names[:] = [] if deep else sorted(name for name in names if not name.startswith("."))
