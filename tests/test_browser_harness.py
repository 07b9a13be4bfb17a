"""The harness of browser tests: it detects the faults that it must detect."""

import asyncio

import pytest

from browser import contrast, reachable, shows


def page_of(tmp_path, body, head=""):
    file = tmp_path / "page.html"
    file.write_text(
        f"<!doctype html><meta charset=utf-8><title>t</title>{head}<body>{body}", encoding="utf-8"
    )
    return file


def test_a_good_page_passes(open_page, tmp_path):
    page = open_page(page_of(tmp_path, "<p>words</p><a href='#'>link</a> <input> <button>press</button>"))
    shows(page, "p", "words")
    contrast(page)
    reachable(page)


def test_faults_of_a_page_are_reported(open_page, tmp_path):
    body = "<p style='color:#aaa'>faint</p><button tabindex=1 style='outline:none'>press</button>"
    page = open_page(
        page_of(tmp_path, body, "<script>console.error('said'); throw Error('thrown')</script>"),
        expects=("said", "thrown"),
    )
    with pytest.raises(AssertionError, match="faint"):
        contrast(page)
    with pytest.raises(AssertionError, match="focus cannot be seen"):
        reachable(page)


@pytest.mark.parametrize("time", [1, 2])
def test_other_tests_can_have_an_event_loop(time):
    """The browser stays open between tests, but its event loop does not run."""
    assert asyncio.run(asyncio.sleep(0, time)) == time


def test_a_page_can_be_opened_after_that(open_page, tmp_path):
    shows(open_page(page_of(tmp_path, "<p>words</p>")), "p", "words")
