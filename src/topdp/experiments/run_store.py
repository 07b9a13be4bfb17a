"""Names of stored runs, and their JSON and CSV files: finished runs are found again and never repeated.

A name is a digest of the settings that *differ* from their defaults. A key added to configurations later
therefore changes no name while it keeps its default. If the default of an existing key changes, change
`NAMING_VERSION` too: otherwise runs with the old value are taken for runs with the new one.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from topdp.base.files import write_atomically
from topdp.errors import InputError
from topdp.runs.config import RunConfig, with_former_keys

Curve = list[dict[str, float]]
"""One dictionary per evaluation: round, and mean, min and max accuracy over agents."""

REDRAW_REMEDY = " Create it with topdp reproduce without --redraw."

NAMING_VERSION = "2"  # change it when a default of RunConfig changes; stored runs are then no longer found


def run_name(config: RunConfig) -> str:
    """Return a short digest of all settings that differ from their defaults.

    >>> run_name(RunConfig()) == run_name(RunConfig(seed=0)) != run_name(RunConfig(seed=1))
    True
    """
    different = with_former_keys(config.model_dump(mode="json", exclude_defaults=True))
    canonical = json.dumps([NAMING_VERSION, different], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in `file`; empty if the file does not exist."""
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}")
    except (OSError, ValueError) as error:
        raise InputError(
            f"Expected a JSON object in {file}: {error}. Remove the file, or choose another --out."
        ) from error
    return content


def write_json(file: Path, content: dict[str, Any]) -> None:
    write_atomically(file, json.dumps(content, indent=1, sort_keys=True) + "\n")


def write_csv(path: Path, lines: Iterable[Iterable[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    write_atomically(path, text.getvalue())


@contextmanager
def csv_rows(path: Path, what: str) -> Iterator[csv.DictReader[str]]:
    """Open the results `what` in a CSV file. Raise InputError if they cannot be read, also by the caller."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            yield csv.DictReader(file)
    except FileNotFoundError:
        raise InputError(f"Expected {what} in {path}, but it does not exist.{REDRAW_REMEDY}") from None
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise InputError(f"Expected {what} in {path}: {error!r}.{REDRAW_REMEDY}") from error
