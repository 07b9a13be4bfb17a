"""Tests of the report in a real browser: pictures, numbers as in privacy.json, keyboard and contrast."""

import json
from itertools import pairwise

import pytest

from browser import contrast, reachable
from topdp.runs.run_folder import RunFolder
from topdp.views.pages.report_page import report_html
from topdp.views.pages.run_facts import run_facts
from topdp.views.statement.run_statement import statement, statement_html
from views.conftest import NAMES

PAINTED = """(selector) => [...document.querySelectorAll(selector)].map((canvas) => {
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  for (let k = 0; k < data.length; k += 4)
    if (data[k + 3]) colours.add(data[k] << 16 | data[k + 1] << 8 | data[k + 2]);
  return colours.size;
})"""


@pytest.fixture(scope="module")
def pages(made, tmp_path_factory):
    """Reports of one run and of three runs, and a statement, as files."""
    place = tmp_path_factory.mktemp("browser")
    top, plain = (run_facts(RunFolder(made / name)) for name in ("top", "plain"))
    other = {**plain, "data": {**plain["data"], "key": "other", "name": "Other data"}, "name": "other"}
    (place / "one.html").write_text(report_html([top]))
    (place / "three.html").write_text(report_html([top, {**top, "name": "twin"}, other]))
    (place / "statement.html").write_text(statement_html(statement(top)))
    return place


def opened(open_page, path, **how):
    page = open_page(path, **how)
    page.wait_for_selector("html[data-ready]", state="attached")
    page.wait_for_selector(".network canvas", state="attached")
    page.wait_for_selector(".u-over")
    return page


def filled(page, fold, rows):
    """The rows of a table that is filled when it is opened; browsers report this a moment later."""
    found = page.locator("section.fold").nth(fold).locator("tbody tr")
    found.nth(rows - 1).wait_for()
    assert found.count() == rows
    return found


def test_pictures_are_drawn_and_numbers_are_those_of_privacy_json(open_page, pages, made):
    page = opened(open_page, pages / "one.html")
    assert min(page.evaluate(PAINTED, ".plot canvas")) > 3
    assert max(page.evaluate(PAINTED, ".network canvas")) > 3
    privacy = json.loads((made / "top" / "privacy.json").read_text())
    asked = [name for name, status in privacy["status"].items() if status != "not asked"]
    rows = page.locator("section", has_text="How private").locator("tbody tr")
    shown = {
        row.locator("th").inner_text().replace(" (budget)", "").replace(" ", "_"): [
            float(cell.get_attribute("data-value")) for cell in row.locator("[data-value]").all()[:2]
        ]
        for row in rows.all()
    }
    assert shown == {name: [privacy["epsilon"][name], privacy["mu"][name]] for name in asked}
    for row in rows.all():
        for cell in row.locator("[data-value]").all()[:2]:
            assert float(cell.inner_text()) == pytest.approx(
                float(cell.get_attribute("data-value")), rel=5e-4
            )
    page.get_by_text("Every agent", exact=True).click()
    assert filled(page, 0, 6).locator("th").all_inner_texts() == NAMES
    page.get_by_text("Every edge", exact=True).click()
    filled(page, 1, 12)


def test_an_agent_can_be_selected_by_its_name(open_page, pages):
    page = opened(open_page, pages / "one.html")
    page.get_by_label("Agent", exact=True).fill(NAMES[0])
    page.keyboard.press("Enter")
    told = page.locator(".told").inner_text()
    assert NAMES[0] in told
    assert "which learn of its records" in told


@pytest.mark.parametrize("how", [{}, {"dark": True}, {"phone": True}], ids=["light", "dark", "phone"])
def test_the_report_has_enough_contrast_fits_the_screen_and_works_by_keyboard(open_page, pages, how):
    page = opened(open_page, pages / "one.html", **how)
    for fold in page.locator("summary").all():
        fold.click()
    contrast(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map((one) => +one.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    if not how:
        reachable(page)


def test_only_runs_on_the_same_data_share_a_comparison(open_page, pages):
    page = opened_comparison(open_page, pages / "three.html")
    assert page.locator("#comparison h3").count() == 2
    assert "different data" in page.locator("#comparison .warning").first.inner_text()
    keys = page.locator("#comparison figure").first.locator(".keys li")
    assert keys.count() == 1  # the twin has the same curve, and both are drawn as one
    assert "twin" in keys.inner_text()
    page.get_by_text("The run top by itself").click()
    page.wait_for_selector("#run-0 .network canvas", state="attached")


def opened_comparison(open_page, path):
    page = open_page(path)
    page.wait_for_selector("html[data-ready]", state="attached")
    return page


def reading_at_left(page):
    """The round under the pointer at the left end of the first curve; zooming changes it."""
    page.locator(".u-over").first.scroll_into_view_if_needed()
    box = page.locator(".u-over").first.bounding_box()
    page.mouse.move(box["x"] + 8, box["y"] + 30)
    page.mouse.move(box["x"] + 2, box["y"] + 30)
    page.wait_for_function("document.querySelector('.reading').textContent !== ''")
    return page.locator(".reading").first.inner_text().split(" ·")[0]


def test_newer_facts_keep_the_selected_agent_and_the_zoom(open_page, pages):
    page = opened(open_page, pages / "one.html")
    page.get_by_label("Agent", exact=True).fill(NAMES[5])
    page.keyboard.press("Enter")
    page.get_by_text("Every agent", exact=True).click()
    page.locator(".u-over").first.scroll_into_view_if_needed()
    box = page.locator(".u-over").first.bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 40, steps=4)
    page.mouse.up()
    page.get_by_role("button", name="Whole curve").first.wait_for()
    zoomed = reading_at_left(page)
    page.evaluate("""() => {
        const facts = JSON.parse(document.getElementById("facts").textContent)[0];
        facts.state = "running";
        facts.metrics.rounds.push(15);
        Object.values(facts.metrics.values.accuracy).forEach((part) => part.push(0.5));
        Object.values(facts.metrics.values.loss).forEach((part) => part.push(0.5));
        window.before = document.querySelector(".plot");
        topdp.updateRun(document.getElementById("run-0"), facts);
    }""")
    assert "Agent plain" in page.locator(".told").inner_text()
    assert reading_at_left(page) == zoomed != "round 0"
    page.get_by_role("button", name="Whole curve").first.click()
    assert reading_at_left(page) == "round 0"
    assert page.evaluate("window.before === document.querySelector('.plot')")
    assert page.locator(".state").inner_text() == "running"
    assert "50.00%" in page.locator(".card").first.inner_text()
    filled(page, 0, 6)


def of_a_thousand(facts):
    """The facts of the same run, as if it had a thousand agents."""
    n = 1000
    privacy = {**facts["privacy"], "pairs": {}, "sees_most": {"adaptive": [[(k + 1) % n] for k in range(n)]}}
    for name in ("epsilon_per_agent", "mu_per_agent"):
        privacy[name] = {answer: (values * n)[:n] for answer, values in privacy[name].items()}
    links = [(k, (k + step) % n) for k in range(n) for step in range(1, 11)]
    return {
        **facts,
        "privacy": privacy,
        "metrics": {
            **facts["metrics"],
            "agents": {name: (values * n)[:n] for name, values in facts["metrics"]["agents"].items()},
        },
        "graph": {
            "agents": n,
            "names": [str(k) for k in range(n)],
            "positions": None,
            "links": {
                "from": [a for a, _ in links],
                "to": [b for _, b in links],
                "mu": None,
                "epsilon": None,
            },
        },
    }


def test_a_thousand_agents_are_shown_as_histograms_and_one_neighbourhood(open_page, made, tmp_path):
    page = report_html([of_a_thousand(run_facts(RunFolder(made / "top")))])
    (tmp_path / "many.html").write_text(page)
    assert len(page.encode()) < 10e6
    shown = opened(open_page, tmp_path / "many.html")
    assert shown.locator("svg .bar").count() > 10
    shown.get_by_label("Agent", exact=True).fill("777")
    shown.keyboard.press("Enter")
    assert "Agent 777" in shown.locator(".told").inner_text()
    assert "20 neighbours" in shown.locator(".told").inner_text()
    shown.get_by_label("Agent", exact=True).fill("nobody")
    shown.keyboard.press("Enter")
    assert "There is no agent nobody" in shown.locator(".told").inner_text()


def test_the_statement_has_enough_contrast_and_a_title(open_page, pages):
    page = open_page(pages / "statement.html", dark=True)
    contrast(page)
    assert page.locator("h1").inner_text() == "Privacy statement: top"
