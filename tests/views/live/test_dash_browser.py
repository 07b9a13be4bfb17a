"""Tests of the live page in a browser: updates, restarts of the server, tokens and accessibility."""

import json
import re
import threading

import pytest
from serving import Held, books, living_federation, run_in, served, small, standing, until

from browser import contrast, reachable, shows
from topdp.runs.run import run
from topdp.views.live.federation_page import FederationFeed, PublishingPlace

MARKUP = 'a<img src=x onerror="alert(1)"><b>b'
LOST = ("Failed to load resource", "net::ERR_")  # what the console reports when the server is gone
TOKEN = "t" * 32


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two finished runs, one with markup in its name, an unreadable run, and an agent: every kind of page."""
    folder = tmp_path_factory.mktemp("runs")
    run_in(folder / MARKUP)
    run_in(folder / "plain", **{"method.name": "plain"})
    (folder / "foreign").mkdir()
    (folder / "foreign" / "run.json").write_text("{}")
    books(folder / "ada", MARKUP, peers=(MARKUP + "peer", "bob"), releases=12)
    return folder


def ids(page):
    return {one["name"]: one["id"] for one in page.client.get("/api/runs").json()["sources"]}


def test_the_page_follows_a_running_simulation(serve, open_page, tmp_path):
    held = Held(3)
    config = small(tmp_path, rounds=5)
    folder = tmp_path / "runs"
    folder.mkdir()
    server = serve([folder])
    page = open_page(server.url)
    shows(page, "#empty")
    training = threading.Thread(
        target=run, args=(config, folder / "mine"), kwargs={"callbacks": [held]}, daemon=True
    )
    training.start()
    try:
        shows(page, "#runs tr", "running")  # appears without a reload
        shows(page, "#runs tr", "3 of 5")
        page.click("text=mine")
        shows(page, ".state", "running")
        shows(page, ".card", re.compile(r"Rounds\s*3\s*of 5"))
        assert page.locator(".plot canvas").count() >= 1 and page.locator(".network canvas").count() >= 1
        page.evaluate("window.same = document.querySelector('.plot canvas')")
    finally:
        held.go.set()
    shows(page, ".state", "done")
    shows(page, ".card", re.compile(r"Rounds\s*5\s*of 5"))
    assert page.evaluate("window.same.isConnected"), "the curve was drawn again, and lost its zoom"
    training.join(60)
    account = json.loads((folder / "mine" / "privacy.json").read_text())
    wanted = account["epsilon"][account["guarantee"].replace("-", "_")]
    assert page.locator(f'.card [data-value="{wanted}"]').count() == 1


def test_the_page_follows_a_running_federation(serve, open_page, tmp_path):
    server = serve([tmp_path / "agents"])
    with living_federation(tmp_path / "agents") as agents:
        page = open_page(f"{server.url}/federation")
        until(lambda: page.locator("#agents .state", has_text="paused").count() == 3, "three paused agents")
        agents.resume()
        until(lambda: page.locator("#agents td", has_text="6 of 6").count() == 3, "the last round of all")
        assert page.locator("#links tbody tr").count() == 3
        assert page.locator("#graph line.dash-link").count() == 3
        own = open_page(f"{server.url}/agents/{ids(server)[agents.names[0]]}")
        shows(own, "#facts", "6 of 6")
        shows(own, "#ledger-curve canvas")
        assert own.locator("#links tbody tr").count() == 2


def test_the_page_reconnects_to_a_restarted_server(serve, open_page, tmp_path):
    state = books(tmp_path / "ada")
    standing(state)
    with served([tmp_path]) as first:
        page = open_page(first.url, expects=LOST)
        shows(page, "#live", "live")
        shows(page, "#agents td", "2 of 8")
    shows(page, "#live", "connection lost, trying again")
    standing(state, round=2, rounds=9)  # the page misses this change
    with served([tmp_path], port=first.port):
        shows(page, "#live", "live")
        shows(page, "#agents td", "2 of 9")
        standing(state, rounds=10)
        shows(page, "#agents td", "2 of 10")


def test_without_the_token_a_page_explains_what_is_missing(serve, open_page, runs):
    server = serve([runs], token=TOKEN)
    page = open_page(server.url, expects=LOST)
    shows(page, "h1", "A token is needed")
    assert page.locator("table").count() == 0
    contrast(page)
    page.goto(f"{server.url}/?token={TOKEN}")
    shows(page, "#runs td", "plain")
    assert "token" not in page.url
    shows(page, "#live", "live")
    assert TOKEN not in page.evaluate("document.cookie + document.documentElement.outerHTML")


def test_markup_in_names_stays_text(serve, open_page, runs):
    server = serve([runs])
    known = ids(server)
    page = open_page(server.url)
    shows(page, "#runs a", MARKUP)
    shows(page, "#agents a", MARKUP)
    for path in ("/federation", f"/agents/{known['ada']}", f"/runs/{known[MARKUP]}"):
        page.goto(server.url + path)
        shows(page, "main", MARKUP[:20])
        assert page.locator("main img, main b").count() == 0
    page.goto(f"{server.url}/runs/{known['foreign']}")
    shows(page, "#problem", "Expected a run of format")


def test_publishing_places_with_hostile_answers_do_not_break_the_page(serve, open_page, runs, monkeypatch):
    """Duplicate and reserved names, many links, and a different answer to every request."""
    monkeypatch.setattr("topdp.views.live.federation_page.POLL_INTERVAL_SECONDS", 0.05)
    requests = []

    def hostile_agents(place):
        requests.append(place)
        links = {f"n{k}": {"state": "heard", "received": len(requests)} for k in range(2500)}
        strange = {
            name: {"state": "silent", "received": None} for name in ("__proto__", "constructor", MARKUP)
        }
        agent = {
            "federation": "f", "process": "running", "doing": None, "round": len(requests), "rounds": None,
            "epsilon": 1e308, "budget": None, "charged_by": MARKUP, "paused": False, "stopped": None,
        }  # fmt: skip
        first = {**agent, "name": "__proto__", "links": {**strange, **links}}
        return [first, {**agent, "name": "twice", "links": {}}, {**agent, "name": "twice", "links": {}}]

    monkeypatch.setattr("topdp.views.live.federation_page.fetch_agents", hostile_agents)
    server = serve([runs], federation=FederationFeed([PublishingPlace("http://127.0.0.1:1", None)]))
    page = open_page(f"{server.url}/federation")
    shows(page, "#notes", "More than one place speaks for twice")
    shows(page, "#links-cut", "2000 of")
    seen = len(requests)
    until(lambda: page.wait_for_timeout(50) or len(requests) > seen + 5, "more answers")
    page.wait_for_function(
        "n => Number(document.querySelector('#agents tr:nth-child(2) td:nth-child(3)').textContent) > n",
        arg=seen,
    )
    assert page.locator("#agents tbody tr").count() == 4  # three from elsewhere, and one of this machine
    text = page.locator("#links tbody").inner_text()
    assert "[object" not in text and "native code" not in text
    assert page.locator("main img, main b").count() == 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_have_enough_contrast_and_work_by_keyboard(serve, open_page, runs, dark):
    server = serve([runs])
    known = ids(server)
    page = open_page(server.url, dark=dark, phone=dark)
    compared = "&".join(f"run={known[name]}" for name in known if name not in ("foreign", "ada"))
    run_page = f"/runs/{known['plain']}"
    for path in ("/", "/federation", f"/agents/{known['ada']}", run_page, f"/compare?{compared}"):
        page.goto(server.url + path)
        page.wait_for_selector("html[data-ready]", state="attached")
        shows(page, "#live", "live")
        contrast(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        if path != run_page:
            reachable(page)


def test_runs_can_be_selected_and_compared_by_keyboard(serve, open_page, runs):
    server = serve([runs])
    page = open_page(server.url)
    shows(page, "#runs input")
    boxes = page.locator("#runs input")
    assert boxes.count() == 2  # not the unreadable run
    for number in range(2):
        boxes.nth(number).press("Space")
    page.locator("#runs button").press("Enter")
    shows(page, "h2", "Compared")


def test_many_agents_are_shown_as_histograms_and_one_neighbourhood(serve, open_page, tmp_path):
    """Above 500 agents a picture of all links would be unreadable."""
    agent = {
        "federation": "f", "process": "running", "doing": "waits", "round": 3, "rounds": 8, "epsilon": 0.5,
        "budget": 1.0, "charged_by": "adaptive", "paused": False, "stopped": None, "place": None, "age": 0,
    }  # fmt: skip
    around = [(number + step) % 501 for number in range(501) for step in (-1, 1)]
    heard = {"state": "heard", "received": 3}
    agents = [
        {**agent, "name": f"a{n}", "links": {f"a{p}": heard for p in around[2 * n : 2 * n + 2]}}
        for n in range(501)
    ]
    server = serve([tmp_path])
    page = open_page(server.url)
    page.route("**/api/federation", lambda route: route.fulfill(json={"agents": agents, "places": []}))
    page.goto(f"{server.url}/federation")
    shows(page, "#histograms svg")
    assert page.locator("#histograms figure").count() == 2
    assert page.locator("#links tbody tr").count() == 2 == page.locator("#graph line.dash-link").count()
    page.select_option("#ego select", "a100")
    shows(page, "#links td", "a100 – a101")
    assert page.locator("#links tbody tr").count() == 2
