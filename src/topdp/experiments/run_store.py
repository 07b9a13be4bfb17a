"""Names of stored runs, so that no finished run is repeated, and the JSON and CSV files of results.

A name is a digest of the settings that *differ* from their defaults. A key that is added to configurations
later therefore changes no name while it keeps its default. If the default of an existing key changes, change
`NAMING_VERSION` too, because stored runs with the old default would otherwise be used for the new one.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator
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

    A noise seed that equals the seed is left out, because it once followed from the seed.

    >>> run_name(RunConfig()) == run_name(RunConfig(seed=0)) != run_name(RunConfig(seed=1))
    True
    """
    left_out = {"noise_seed"} if config.noise_seed == config.seed else set()
    different = with_former_keys(config.model_dump(mode="json", exclude_defaults=True, exclude=left_out))
    # Names of version 0.1 have no such key, and pairs were then drawn by the rule `next-round`.
    different.get("method", {}).pop("rematch", None)
    if config.method.mode == "async" and config.method.rematch != "next-round":
        different["method"]["rematch"] = config.method.rematch
    # Earlier, every agent had the same weight.
    if config.data.partition != "iid" and config.train.weighting == "records":
        different.setdefault("train", {})["weighting"] = "records"
    canonical = json.dumps([NAMING_VERSION, different], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in `file`, or an empty one if the file does not exist."""
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"got {type(content).__name__}")
    except (OSError, ValueError) as error:
        raise InputError(
            f"Expected a JSON object in {file}, but: {error}. Remove the file, or choose another --out."
        ) from error
    return content


def write_json(file: Path, content: dict[str, Any]) -> None:
    write_atomically(file, json.dumps(content, indent=1, sort_keys=True) + "\n")


@contextmanager
def csv_rows(path: Path, what: str) -> Iterator[csv.DictReader[str]]:
    """Yield the rows of the CSV file `path`. `what`: the content of the file, in words for messages.

    Raise InputError if the file cannot be read, or if the body of the `with` statement cannot use a row.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            yield csv.DictReader(file)
    except FileNotFoundError:
        raise InputError(f"Expected {what} in {path}, but it does not exist.{REDRAW_REMEDY}") from None
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise InputError(f"Expected {what} in {path}, cannot read it: {error!r}.{REDRAW_REMEDY}") from error
