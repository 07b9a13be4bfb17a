"""Write the facts of runs as one self-contained HTML file, which fetches nothing.

**Guarantees.** The page contains the facts as JSON in which no markup can begin or end, and displays them as
text. Its content security policy forbids all addresses, and all scripts and styles except those that it
contains, which the policy names by their digests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from topdp import __version__
from topdp.base.files import write_atomically
from topdp.views.pages import page_assets
from topdp.views.pages.page_assets import expect_ours, static_text
from topdp.views.statement.run_statement import statement


def report_html(runs: Sequence[dict[str, Any]]) -> str:
    """Return the page about runs, given their `run_facts`; it also compares several runs."""
    style = "\n".join(static_text(name) for name in page_assets.PAGE_STYLES)
    scripts = [static_text(name) for name in (*page_assets.PAGE_SCRIPTS, "report.js")]
    title = runs[0]["name"] if len(runs) == 1 else f"{len(runs)} runs"
    return page_assets.templates().get_template("report.html").render(
        title=title,
        version=__version__,
        policy=page_assets.policy(scripts, [style]),
        style=Markup(style),
        scripts=[Markup(script) for script in scripts],
        facts=Markup(page_assets.as_json(list(runs))),
        runs=[(run["name"], statement(run) if run["privacy"] else None) for run in runs],
    )  # fmt: skip


def write_report(path: Path, runs: Sequence[dict[str, Any]]) -> None:
    """Write the page to `path`. Raise FileError if a file that topdp did not write exists there."""
    expect_ours(path)
    write_atomically(path, report_html(runs))
