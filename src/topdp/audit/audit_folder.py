"""What an audit leaves behind: one folder with its numbers, its scores and its picture.

audit.json   the bounds beside what was proved
scores.csv   one line a canary: its kind, whether it was there, its score
roc.png      how many are found at how many false alarms
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from topdp.audit.canaries import AuditError
from topdp.audit.findings import Findings
from topdp.audit.roc_picture import roc
from topdp.base.files import make_folder, remove_new_folders_on_error, write_atomically


def expect_room(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AuditError(f"Expected a new or empty folder, {out} exists: name another one with --out.")


@contextmanager
def room_for(out: Path) -> Iterator[None]:
    """A folder that cannot be made is said before the work, and is gone again if that fails."""
    expect_room(out)
    with remove_new_folders_on_error(out):
        make_folder(out)
        yield


def keep(found: Findings, out: Path, title: str) -> dict[str, Any]:
    """Writes all of it; returns what audit.json holds."""
    roc(found, out / "roc.png", title)
    write_atomically(out / "scores.csv", "\n".join(found.lines()) + "\n")
    details = {**found.to_json(), "out": str(out)}
    write_atomically(out / "audit.json", json.dumps(details, indent=2) + "\n")
    return details
