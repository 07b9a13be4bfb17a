"""How kept runs are named and read: what is done is found again, and never done twice.

A name is a digest of what *differs* from the defaults of a configuration, so that a key that is added to
configurations later changes no name as long as it keeps its default. So a default of a key that is there
already must not change without `NAMING`: runs with the old value would be taken for runs with the new one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from topdp.errors import InputError
from topdp.runs.config import RunConfig, with_former_keys

Say = Callable[[str], None]
"""Told, in a line of words, how far the work is."""

Curve = list[dict[str, float]]
"""One dictionary per evaluation: round, mean, min, max."""

NAMING = "2"  # another number where a default of RunConfig changes: then nothing that was kept is found


def run_name(config: RunConfig) -> str:
    """A short digest of everything that decides a run and is not as by default.

    >>> run_name(RunConfig()) == run_name(RunConfig(seed=0)) != run_name(RunConfig(seed=1))
    True
    """
    different = with_former_keys(config.model_dump(mode="json", exclude_defaults=True))
    canonical = json.dumps([NAMING, different], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def read_json(file: Path) -> dict[str, Any]:
    """The object in a file of ours; empty where there is no file."""
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"Expected JSON in {file}: {error}. Remove it, or name another --out.") from error
    if not isinstance(found, dict):
        raise InputError(f"Expected a JSON object in {file}. Remove it, or name another --out.")
    return found
