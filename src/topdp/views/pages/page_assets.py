"""The parts of a page: scripts, styles, templates, security policy, embedded facts.

Scripts are listed in the order in which a page loads them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from topdp.base.files import FileError
from topdp.base.number_text import percent_rounded_up, rounded_up
from topdp.runs.epsilon_text import answer_words
from topdp.views.pages.plain_words import small

STATIC_FOLDER = Path(__file__).parent / "static"
PAGE_STYLES = ("uplot.min.css", "topdp.css")
PAGE_SCRIPTS = (
    "uplot.min.js", "cytoscape.min.js", "tables.js", "curves.js", "graph.js", "run.js", "compare.js"
)  # fmt: skip
PAGE_MARK = '<meta name="generator" content="topdp'
"""The text that identifies pages written by topdp, which may be overwritten."""


@cache
def static_text(name: str) -> str:
    """Return the text of a file in `static/`."""
    return (STATIC_FOLDER / name).read_text(encoding="utf-8")


@cache
def templates(package: str = "topdp.views.pages", folder: str = "templates") -> Environment:
    """Return the templates of a package. They escape every value; a missing value is an error."""
    environment = Environment(
        loader=PackageLoader(package, folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        answer_words=answer_words, percent_rounded_up=percent_rounded_up, rounded_up=rounded_up, small=small
    )
    return environment


def live_page(template: str, **facts: object) -> str:
    """Return the HTML of a live page: `template`, filled in with `facts`.

    `id`, `ids`: the runs or agents of the page. `kind`: the kind of the page, for its script.
    """
    scripts = (*PAGE_SCRIPTS, "live.js", "dash.js", "dash-runs.js", "dash-agents.js")
    defaults: dict[str, object] = {"styles": (*PAGE_STYLES, "dash.css"), "scripts": scripts}
    defaults |= {"id": "", "ids": [], "planner": False}
    return templates("topdp.views.live", "html").get_template(template).render(**{**defaults, **facts})


def policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """Return a content security policy that allows only these inline scripts and styles."""
    kinds = [" ".join(f"'sha256-{_digest(text)}'" for text in kind) or "'none'" for kind in (scripts, styles)]
    return (
        f"default-src 'none'; script-src {kinds[0]}; style-src {kinds[1]}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _digest(content: str) -> str:
    return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def as_json(value: Any) -> str:
    """Return `value` as JSON for a script element. The text cannot contain `</script>` or `<!--`.

    >>> as_json({"name": "</script><b>"})
    '{"name":"\\\\u003c/script>\\\\u003cb>"}'
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def expect_ours(path: Path, mark: str = PAGE_MARK) -> None:
    """Raise FileError if `path` is a folder, or a file without `mark`, which topdp did not write.

    Called before `path` is overwritten.
    """
    if path.is_dir():
        raise FileError(f"--out: expected a file, but {path} is a folder. Name a file in it.")
    try:
        ours = not path.exists() or mark in path.read_text(encoding="utf-8", errors="replace")[:4000]
    except OSError as error:
        raise FileError(f"--out: could not read {path}: {error.strerror}. Name another file.") from error
    if not ours:
        raise FileError(f"--out: {path} exists and was not written by topdp. Name another file.")
