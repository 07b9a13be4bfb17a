"""The scripts, styles and templates of pages. Scripts are listed in the order in which a page loads them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from topdp.views.pages.plain_words import at_most, small

STATIC_FOLDER = Path(__file__).parent / "static"
PAGE_STYLES = ("uplot.min.css", "topdp.css")
PAGE_SCRIPTS = (
    "uplot.min.js", "cytoscape.min.js", "tables.js", "curves.js", "graph.js", "run.js", "compare.js"
)  # fmt: skip


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
    environment.globals.update(at_most=at_most, small=small)
    return environment
