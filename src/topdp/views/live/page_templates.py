"""Render the live pages from templates, which escape every value."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from topdp.views.pages.page_assets import PAGE_SCRIPTS, PAGE_STYLES

LIVE_STYLES = (*PAGE_STYLES, "dash.css")
LIVE_SCRIPTS = (*PAGE_SCRIPTS, "live.js", "dash.js", "dash-runs.js", "dash-agents.js")


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("topdp.views.live", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def page(template: str, **facts: object) -> str:
    """Return a whole page. `id`, `ids`: of its runs or agents; `kind`: the kind of page, for its script."""
    defaults: dict[str, object] = {"id": "", "ids": [], "planner": False}
    defaults |= {"styles": LIVE_STYLES, "scripts": LIVE_SCRIPTS}
    return _environment().get_template(template).render(**{**defaults, **facts})
