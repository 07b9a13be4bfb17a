"""How runs are named and kept: what is done is found again, and never done twice."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from topdp.settings.config import RunConfig

Say = Callable[[str], None]


def name(config: RunConfig) -> str:
    """A short digest of everything that decides a run."""
    return hashlib.sha256(config.to_toml().encode()).hexdigest()[:16]


def write(file: Path, text: str) -> None:
    """All of it or nothing."""
    beside = file.with_suffix(".part")
    beside.write_text(text)
    os.replace(beside, file)
