"""Which runs a page is about: run folders as named, and those inside a comparison or a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from topdp.runs.run_folder import RunFolder, RunFolderError

MOST = 100
"""Runs in one report: more make a page that nobody reads."""


def runs_in(paths: Sequence[Path]) -> list[RunFolder]:
    """Every run once, in the order of names; a folder without any is refused by name."""
    found: dict[Path, RunFolder] = {}
    for path in paths:
        inside = [path] if (path / "run.json").exists() else _inside(path)
        if not inside:
            raise RunFolderError(
                f"Expected the folder of a run, a comparison or a sweep, got {path}, "
                + ("which has no run in it." if path.is_dir() else "which is no folder.")
            )
        for one in inside:
            found.setdefault(one.resolve(), RunFolder.open(one))
    if len(found) > MOST:
        raise RunFolderError(f"Expected at most {MOST} runs in one report, got {len(found)}: name fewer.")
    return list(found.values())


def _inside(path: Path) -> list[Path]:
    """Runs of a comparison (method), of one with seeds (method/seed-0) or of a sweep (001)."""
    if not path.is_dir():
        return []
    found = {file.parent for depth in ("*", "*/*") for file in path.glob(f"{depth}/run.json")}
    return sorted(found, key=_in_order)


def _in_order(path: Path) -> list[tuple[int, str]]:
    """
    >>> sorted([Path("a/10"), Path("a/2")], key=_in_order)
    [PosixPath('a/2'), PosixPath('a/10')]
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in path.parts]
