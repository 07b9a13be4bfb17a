"""Tests of the planner in a real browser: it updates, shows errors at their fields, and needs no mouse."""

from browser import contrast, reachable, shows
from builders import plan_answers
from topdp.runs import config
from topdp.views.terminal.planned_table import lines


def cells(page, column):
    return page.locator(f"#answers tbody td:nth-child({column})").all_text_contents()


def planned(*changes):
    made = plan_answers(config.read(changes=["topology.agents=6", "rounds=5", *changes]))
    return [cell for _, (cell,) in lines([made])]


def test_the_planner_updates_answers_and_works_by_keyboard(serve, open_page, tmp_path):
    page = open_page(f"{serve([tmp_path]).url}/plan")
    page.fill("#topology-agents", "6")
    page.fill("#rounds", "5")
    page.select_option("#method-name", "dsgd")
    shows(page, "#answers tbody td", "dsgd")
    shows(page, "#status", "all computed")
    assert cells(page, 2) == planned("method.name=dsgd")
    assert page.locator("#method-alpha").is_hidden()  # dsgd has no alpha
    page.click("#pin")

    page.select_option("#method-name", "top")
    page.fill("#privacy-epsilon", "2")
    shows(page, "#answers tbody tr:first-child td:nth-child(2)", "top")
    shows(page, "#status", "all computed")
    assert cells(page, 2) == planned("method.name=top", "privacy.epsilon=2")
    assert cells(page, 3) == planned("method.name=dsgd")
    assert 'name = "top"' in page.locator("#toml").text_content()
    assert "privacy.epsilon=2" in page.locator("#command").text_content()

    page.fill("#privacy-epsilon", "-2")
    shows(page, "#privacy-epsilon-fault", "expected a number > 0 and at most 1e30")
    assert page.locator("#privacy-epsilon").get_attribute("aria-invalid") == "true"
    assert cells(page, 2) == planned("method.name=top", "privacy.epsilon=2")  # still the last valid ones
    assert "plan-stale" in page.locator("#answers").get_attribute("class")
    contrast(page)
    page.fill("#privacy-epsilon", "1")
    shows(page, "#status", "all computed")
    assert page.locator("#privacy-epsilon-fault").text_content() == ""
    assert page.locator("#answers").get_attribute("class") == ""

    shows(page, "#advice", "correlated leaves")
    contrast(page)
    reachable(page)
    page.click("#take")
    shows(page, "#also", "data.features = scattering")
    shows(page, "#answers tbody tr:first-child td:nth-child(2)", "correlated")
    page.get_by_role("button", name="Take dsgd").press("Enter")
    shows(page, "#answers tbody tr:first-child td:nth-child(2)", "dsgd")
    page.get_by_role("button", name="Remove dsgd").press("Enter")
    assert page.locator("#answers thead th").count() == 1


def test_after_fast_changes_the_newest_setting_is_shown(serve, open_page, tmp_path):
    """Answers to older requests arrive after newer requests; none of them stays on the page."""
    page = open_page(f"{serve([tmp_path]).url}/plan", dark=True, phone=True)
    page.fill("#rounds", "5")
    for agents in ("30", "25", "20", "12", "7"):
        page.fill("#topology-agents", agents)
        page.wait_for_timeout(330)  # long enough that each value is sent
    shows(page, "#status", "all computed")
    page.wait_for_timeout(300)
    assert cells(page, 2)[1].startswith("7, ")
    contrast(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
