"""The scripts and styles that ship with topdp, in the order in which a page needs them; and the templates."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from topdp.views.pages.plain_words import at_most, small

STATIC = Path(__file__).parent / "static"
STYLES = ("uplot.min.css", "topdp.css")
SCRIPTS = (
    "uplot.min.js", "cytoscape.min.js", "tables.js", "curves.js", "graph.js", "run.js", "compare.js"
)  # fmt: skip


@cache
def text(name: str) -> str:
    """A file of `static/`."""
    return (STATIC / name).read_text(encoding="utf-8")


@cache
def templates() -> Environment:
    """Every value is escaped; one that is missing is a fault, not an empty place."""
    made = Environment(
        loader=PackageLoader("topdp.views.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    made.globals.update(at_most=at_most, small=small)
    return made
