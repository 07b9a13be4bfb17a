"""The run folders that a report covers: those named, and those inside a comparison or a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from topdp.runs.run_folder import RunFolder, RunFolderError

MAX_REPORT_RUNS = 100


def runs_in(paths: Sequence[Path]) -> list[RunFolder]:
    """Return every run once, in the given order. Raise RunFolderError for a folder without runs."""
    folders: dict[Path, RunFolder] = {}
    for path in paths:
        inside = [path] if (path / "run.json").exists() else _runs_below(path)
        if not inside:
            raise RunFolderError(
                f"Expected the folder of a run, a comparison or a sweep, got {path}, "
                + ("which contains no run." if path.is_dir() else "which is not a folder.")
            )
        for run in inside:
            folders.setdefault(run.resolve(), RunFolder.open(run))
    if len(folders) > MAX_REPORT_RUNS:
        raise RunFolderError(
            f"Expected at most {MAX_REPORT_RUNS} runs in one report, got {len(folders)}. Name fewer runs."
        )
    return list(folders.values())


def file_stamp(path: Path) -> tuple[int, int] | None:
    """Return (time of change in ns, size in bytes) of a file, or None if the file does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _runs_below(path: Path) -> list[Path]:
    """Return the run folders below `path`, in natural order; none if `path` is not a folder.

    They have names such as METHOD in a comparison, METHOD/seed-0 in one with seeds, and 001 in a sweep.
    """
    if not path.is_dir():
        return []
    runs = {file.parent for depth in ("*", "*/*") for file in path.glob(f"{depth}/run.json")}
    return sorted(runs, key=_natural_order)


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers by their value.

    >>> sorted([Path("a/10"), Path("a/2")], key=_natural_order)
    [PosixPath('a/2'), PosixPath('a/10')]
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in path.parts]
