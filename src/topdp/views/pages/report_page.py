"""Runs as one self-contained HTML file: everything inside, nothing fetched. Not for reading run folders.

**Guarantees.** Facts lie in the page as JSON in which no markup can begin or end, and enter it as text. The
page forbids itself every script, style and address but those that it holds, by their digests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from topdp import __version__
from topdp.base.files import write_atomically
from topdp.views.pages.page_assets import PAGE_SCRIPTS, PAGE_STYLES, static_text, templates
from topdp.views.pages.page_policy import as_json, expect_ours, policy
from topdp.views.statement.run_statement import statement


def report_html(runs: Sequence[dict[str, Any]]) -> str:
    """One page about these runs, as `run_facts` says them; several are also compared."""
    style = "\n".join(static_text(name) for name in PAGE_STYLES)
    scripts = [static_text(name) for name in (*PAGE_SCRIPTS, "report.js")]
    title = runs[0]["name"] if len(runs) == 1 else f"{len(runs)} runs"
    return templates().get_template("report.html").render(
        title=title,
        version=__version__,
        policy=policy(scripts, [style]),
        style=Markup(style),
        scripts=[Markup(script) for script in scripts],
        facts=Markup(as_json(list(runs))),
        runs=[(one["name"], statement(one) if one["privacy"] else None) for one in runs],
    )  # fmt: skip


def write_report(path: Path, runs: Sequence[dict[str, Any]]) -> None:
    """Writes the page; what is there and is no page of ours stays, and is said."""
    expect_ours(path)
    write_atomically(path, report_html(runs))
