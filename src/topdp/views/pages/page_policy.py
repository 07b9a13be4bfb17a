"""Pages as files: their content security policy, embedded facts, and protection of other files."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from topdp.base.files import FileError

PAGE_MARK = '<meta name="generator" content="topdp'
"""The text that identifies pages written by topdp, which may be overwritten."""


def policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """Return a content security policy that allows only these inline scripts and styles."""
    kinds = [" ".join(f"'sha256-{_digest(one)}'" for one in kind) or "'none'" for kind in (scripts, styles)]
    return (
        f"default-src 'none'; script-src {kinds[0]}; style-src {kinds[1]}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _digest(content: str) -> str:
    return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def as_json(value: Any) -> str:
    """Return `value` as JSON for a script element: the text cannot contain `</script>` or `<!--`.

    >>> as_json({"name": "</script><b>"})
    '{"name":"\\\\u003c/script>\\\\u003cb>"}'
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def expect_ours(path: Path, mark: str = PAGE_MARK) -> None:
    """Raise FileError instead of overwriting a file that topdp did not write."""
    if path.is_dir():
        raise FileError(f"--out: expected a file, but {path} is a folder. Name a file in it.")
    try:
        known = not path.exists() or mark in path.read_text(encoding="utf-8", errors="replace")[:4000]
    except OSError as error:
        raise FileError(f"--out: could not read {path}: {error.strerror}. Name another file.") from error
    if not known:
        raise FileError(f"--out: {path} exists and was not written by topdp. Name another file.")
