"""A privacy statement of one run, for people who are not statisticians: a dictionary, YAML, a page to print.

`evaluation` answers, topic by topic, what NIST SP 800-226 (March 2025) asks of whoever states a guarantee.
Not for judging whether an ε is small enough.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from topdp import __version__
from topdp.base.files import make_folder, write_atomically
from topdp.errors import InputError
from topdp.views.pages.page_assets import static_text, templates
from topdp.views.pages.page_policy import MARK, expect_ours, policy
from topdp.views.statement import statement_limits, statement_promises
from topdp.views.statement.deployment_registry import deployment

YAML_MARK = "# A privacy statement made by topdp"


def statement(facts: dict[str, Any]) -> dict[str, Any]:
    """Everything a statement says of a run whose account is known."""
    if facts["privacy"] is None:
        raise InputError(
            f"Expected a run whose privacy is accounted, got {facts['name']}: {facts['notes'][0]}"
        )
    made_by = {"statement": f"topdp {__version__}", "plan": facts["privacy"]["plan"]}
    return {
        "summary": statement_promises.summary(facts),
        "simulated": True,
        "scope": "One record of one agent, the largest over agents",
        "made_from": "a run folder",
        "deployment": deployment(facts),
        "guarantee": statement_promises.answers(facts),
        "evaluation": statement_limits.evaluation(facts),
        "not_protected": statement_limits.not_protected(facts),
        "versions": {**facts["versions"], **made_by},
    }


def statement_yaml(said: dict[str, Any]) -> str:
    """The statement as YAML, in the order of the page."""
    body = yaml.safe_dump(said, sort_keys=False, allow_unicode=True, width=100)
    return f"{YAML_MARK} {__version__}. Fields of `deployment` are those of registry.opendp.org.\n{body}"


def statement_html(said: dict[str, Any]) -> str:
    """One page to print; no scripts."""
    style = static_text("topdp.css")
    page = templates().get_template("statement.html")
    return page.render(said=said, version=__version__, style=Markup(style), policy=policy([], [style]))


def write_statement(said: dict[str, Any], folder: Path) -> list[Path]:
    """`privacy-statement.yaml` and `.html`; files there that are no statements of ours stay."""
    make_folder(folder)
    files = {
        folder / "privacy-statement.yaml": (statement_yaml(said), YAML_MARK),
        folder / "privacy-statement.html": (statement_html(said), MARK),
    }
    for path, (_, mark) in files.items():
        expect_ours(path, mark)
    for path, (content, _) in files.items():
        write_atomically(path, content)
    return list(files)
