"""The folder that an audit writes: its numbers, its scores and its picture.

audit.json   lower bounds beside the proved ε
scores.csv   one line per canary: its kind, whether it was present, its score
roc.png      true positive rate against false positive rate
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from topdp.audit.canaries import AuditError
from topdp.audit.findings import Findings
from topdp.audit.roc_picture import draw_roc
from topdp.base.files import make_folder, remove_new_folders_on_error, write_atomically


def expect_new_folder(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AuditError(f"Expected a new or empty folder, got {out}. Choose another one with --out.")


@contextmanager
def new_audit_folder(out: Path) -> Iterator[None]:
    """Create the folder before the work, so that failures show early. Remove it if the work fails."""
    expect_new_folder(out)
    with remove_new_folders_on_error(out):
        make_folder(out)
        yield


def write_audit(findings: Findings, out: Path, title: str) -> dict[str, Any]:
    """Write all files; return the content of audit.json."""
    draw_roc(findings, out / "roc.png", title)
    write_atomically(out / "scores.csv", "\n".join(findings.csv_lines()) + "\n")
    details = {**findings.to_json(), "out": str(out)}
    write_atomically(out / "audit.json", json.dumps(details, indent=2) + "\n")
    return details
