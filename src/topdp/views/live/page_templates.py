"""Pages from templates: what is put into them is escaped, always."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

STYLES = ("uplot.min.css", "topdp.css", "dash.css")
SCRIPTS = (
    "uplot.min.js", "cytoscape.min.js", "tables.js", "curves.js", "graph.js", "run.js", "compare.js",
    "live.js", "dash.js", "dash-runs.js", "dash-agents.js",
)  # fmt: skip


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
    """A whole page. `id`, `ids`: which run or agent it is of; `kind`: which page, for its script."""
    given: dict[str, object] = {"id": "", "ids": [], "planner": False, "styles": STYLES, "scripts": SCRIPTS}
    return _environment().get_template(template).render(**{**given, **facts})
