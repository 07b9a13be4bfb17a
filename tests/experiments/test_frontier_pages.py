"""Tests that the tables in docs/methods.md agree with the results; docs/pictures/frontier.py writes them."""

import importlib.util
from pathlib import Path

from topdp.experiments.frontier import FULL_SPACES
from topdp.experiments.frontier_report import read_rows

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_numbers_in_results():
    place = ROOT / "docs" / "pictures" / "frontier.py"
    spec = importlib.util.spec_from_file_location("frontier_pages", place)
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    frontiers = {data: read_rows(ROOT / "results" / f"frontier-{data}.csv") for data in FULL_SPACES}
    text = pages.PAGE.read_text(encoding="utf-8")
    assert pages.page(text, frontiers) == text
