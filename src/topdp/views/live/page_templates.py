"""Render the live pages from templates, which escape every value."""

from __future__ import annotations

from topdp.views.pages.page_assets import PAGE_SCRIPTS, PAGE_STYLES, templates

LIVE_STYLES = (*PAGE_STYLES, "dash.css")
LIVE_SCRIPTS = (*PAGE_SCRIPTS, "live.js", "dash.js", "dash-runs.js", "dash-agents.js")


def page(template: str, **facts: object) -> str:
    """Return the HTML of a page: `template`, filled in with `facts`.

    `id`, `ids`: the runs or agents of the page. `kind`: the kind of the page, for its script.
    """
    defaults: dict[str, object] = {"id": "", "ids": [], "planner": False}
    defaults |= {"styles": LIVE_STYLES, "scripts": LIVE_SCRIPTS}
    return templates("topdp.views.live", "html").get_template(template).render(**{**defaults, **facts})
