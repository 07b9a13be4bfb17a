"""Tests of report files: contents, escaping, overwriting, the choice of runs, and wrong input."""

import base64
import hashlib
import html
import json
import re
import shutil

import pytest

from topdp.runs.run_folder import RunFolder, RunFolderError
from topdp.views.pages.page_assets import PAGE_SCRIPTS, PAGE_STYLES, STATIC_FOLDER
from topdp.views.pages.page_runs import runs_in
from topdp.views.pages.report_page import report_html
from topdp.views.pages.run_facts import MAX_DRAWN_EVALUATIONS, run_facts
from views.conftest import NAMES


@pytest.fixture(scope="module")
def page(made):
    return report_html([run_facts(RunFolder(made / "top"))])


def test_a_report_fetches_nothing(page):
    head = page[: page.index("<style>")]
    assert not re.search(r"(src|href)=\"(?!#)", page)
    assert "default-src 'none'" in html.unescape(head)


def test_only_scripts_of_the_report_may_run(page):
    allowed = re.findall(r"'sha256-([^']+)'", html.unescape(page[:6000]))
    inside = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in inside]
    assert sorted(digests) == sorted(allowed)


def test_names_with_markup_cannot_end_the_facts(page, made):
    (facts,) = re.findall(r'<script type="application/json" id="facts">(.*?)</script>', page, re.DOTALL)
    assert json.loads(facts)[0]["graph"]["names"] == NAMES
    assert "<" not in facts
    assert "alert(1)" in facts
    assert "<script>alert" not in page


def test_a_folder_name_with_markup_is_escaped(made, tmp_path):
    shutil.copytree(made / "top", tmp_path / "<img src=x onerror=alert(2)>")
    page = report_html([run_facts(RunFolder(tmp_path / "<img src=x onerror=alert(2)>"))])
    assert "<img" not in page


def test_vendored_files_agree_with_their_listed_hashes():
    listed = (STATIC_FOLDER / "vendored.txt").read_text()
    for name in ("uplot.min.js", "uplot.min.css", "cytoscape.min.js"):
        assert hashlib.sha256((STATIC_FOLDER / name).read_bytes()).hexdigest() in listed
    for name in (*PAGE_SCRIPTS, *PAGE_STYLES, "uplot.LICENSE.txt", "cytoscape.LICENSE.txt"):
        assert (STATIC_FOLDER / name).exists()


def test_own_scripts_write_only_text():
    for name in PAGE_SCRIPTS:
        if "min" not in name:
            assert not re.search(
                r"innerHTML|insertAdjacent|document\.write|eval\(", (STATIC_FOLDER / name).read_text()
            )


def test_runs_of_a_comparison_are_found(made, tmp_path):
    for place in ("cmp/top", "cmp/plain", "seeds/top/seed-0", "seeds/top/seed-1"):
        shutil.copytree(made / "top", tmp_path / place)
    found = runs_in([tmp_path / "cmp", tmp_path / "cmp" / "top", tmp_path / "seeds"])
    assert [one.path.name for one in found] == ["plain", "top", "seed-0", "seed-1"]


@pytest.mark.parametrize("what", ["nowhere", "empty", "file", "foreign"])
def test_a_folder_without_a_run_gives_one_line_of_error(topdp, tmp_path, what):
    place = tmp_path / what
    if what == "empty":
        place.mkdir()
    if what == "file":
        place.write_text("x")
    if what == "foreign":
        place.mkdir()
        (place / "run.json").write_text('{"of": "somebody else"}')
    for command in ("report", "statement"):
        done = topdp(command, place)
        last = done.err.strip().splitlines()[-1]
        assert done.code == 2
        assert last.startswith("topdp: Expected")
        assert "Traceback" not in done.err


def test_the_command_writes_beside_the_run_and_replaces_its_own_file(topdp, copied):
    folder = copied("plain")
    assert json.loads(topdp("report", folder, "--json").out)["file"] == str(folder / "report.html")
    assert topdp("report", folder).code == 0
    assert (folder / "report.html").stat().st_size < 1e6


def test_files_that_topdp_did_not_write_are_not_replaced(topdp, made, tmp_path):
    for name, out in (("report", tmp_path / "mine.html"), ("statement", tmp_path)):
        (tmp_path / "mine.html").write_text("<p>mine</p>")
        (tmp_path / "privacy-statement.html").write_text("<p>mine</p>")
        done = topdp(name, made / "top", "--out", out)
        assert done.code == 2
        assert "not written by topdp" in done.err
    assert (tmp_path / "mine.html").read_text() == "<p>mine</p>"
    assert not (tmp_path / "privacy-statement.yaml").exists()


def test_too_many_runs_are_refused(made, monkeypatch):
    monkeypatch.setattr("topdp.views.pages.page_runs.MAX_REPORT_RUNS", 2)
    with pytest.raises(RunFolderError, match="Name fewer"):
        runs_in([made])


def test_a_long_run_of_thirty_agents_is_a_small_file(made):
    """Every pair of agents has an edge, evaluations are as many as are drawn, and no number is short."""
    facts, n = run_facts(RunFolder(made / "top")), 30
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    digits = [1 / (3 + k) for k in range(MAX_DRAWN_EVALUATIONS)]
    values = {name: dict.fromkeys(("mean", "min", "max"), digits) for name in facts["metrics"]["names"]}
    links = {"from": [a for a, _ in pairs], "to": [b for _, b in pairs]}
    numbers = {name: [1 / (3 + k) for k in range(len(pairs))] for name in ("mu", "epsilon")}
    seen = {"observers": [[k] for k in range(n)], "mu": [[1 / (3 + k) for k in range(n)]] * n}
    long = {
        **facts,
        "metrics": {**facts["metrics"], "rounds": list(range(MAX_DRAWN_EVALUATIONS)), "values": values},
        "graph": {
            **facts["graph"],
            "agents": n,
            "names": list(map(str, range(n))),
            "links": {**links, **numbers},
        },
        "privacy": {**facts["privacy"], "pairs": dict.fromkeys(("adaptive", "outsider", "view"), seen)},
    }
    assert len(report_html([long]).encode()) < 3e6
