"""The pictures of docs/report.md and docs/dash.md: reports and live pages in light, dark and on a phone.

    python docs/pictures/screenshots.py RUN OTHER [--live FOLDER] [--out docs/pictures]

RUN and OTHER are folders of runs on the same data. FOLDER has runs and a `topdp federation demo` that is
running; with it the pictures are those of the live page, else of report, comparison and statement. Needs
playwright and Chromium (TOPDP_CHROMIUM names one that is not on the path). Look at what comes out: nothing
else does.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import requests
from PIL import Image
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from topdp.runs.run_folder import RunFolder
from topdp.views.pages.report_page import report_html
from topdp.views.pages.run_facts import run_facts
from topdp.views.statement.run_statement import statement, statement_html

COLOURS = 96  # text, lines and one picture need no more
LARGEST = 250_000  # bytes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--live", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    asked = parser.parse_args()
    if asked.live is not None:
        live(asked.live, asked.run, asked.out)
        return
    facts = [run_facts(RunFolder.open(path)) for path in (asked.run, asked.other)]
    pages = {
        "report": report_html(facts[:1]),
        "compared": report_html(facts),
        "statement": statement_html(statement(facts[0])),
    }
    wanted = [
        ("report", "light", 1100, 1560),
        ("report", "dark", 1100, 1560),
        ("report", "phone", 390, 1700),
        ("compared", "light", 1100, 760),
        ("statement", "light", 900, 1150),
    ]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        browser = _launched(started)
        for name, how, width, height in wanted:
            file = Path(folder) / f"{name}.html"
            file.write_text(pages[name], encoding="utf-8")
            page = browser.new_page(
                viewport={"width": width, "height": 900}, color_scheme="dark" if how == "dark" else "light"
            )
            page.goto(file.as_uri())
            _keep(page, asked.out / f"{name}-{how}.png", width, height)
        browser.close()


def live(folder: Path, run: Path, out: Path) -> None:
    """Pages of `topdp dash`: a run, an agent, a federation."""
    command = [sys.executable, "-m", "topdp", "dash", str(folder), str(run), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as started:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        browser = _launched(started)
        known = requests.get(f"{url}api/runs", timeout=60).json()["sources"]
        ids = {one["kind"]: one["id"] for one in known if one["kind"] == "agent" or one["name"] == run.name}
        wanted = [
            ("run", f"runs/{ids['run']}", "light", 1100, 1250),
            ("federation", "federation", "light", 1100, 1080),
            ("agent", f"agents/{ids['agent']}", "dark", 1100, 880),
            ("federation", "federation", "phone", 390, 1000),
        ]
        for name, path, how, width, height in wanted:
            page = browser.new_page(
                viewport={"width": width, "height": 900}, color_scheme="dark" if how == "dark" else "light"
            )
            page.goto(url + path)
            page.wait_for_selector("html[data-ready]", state="attached")
            _keep(page, out / f"dash-{name}-{how}.png", width, height)
        browser.close()
        server.send_signal(signal.SIGINT)


def _launched(started: Playwright) -> Browser:
    return started.chromium.launch(
        executable_path=os.environ.get("TOPDP_CHROMIUM") or shutil.which("chromium"), args=["--no-sandbox"]
    )


def _keep(page: Page, path: Path, width: int, height: int) -> None:
    page.wait_for_timeout(800)  # pictures draw themselves after the page has its size
    whole = page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
    image = Image.open(io.BytesIO(whole)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    image.save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path}: {size / 1000:.0f} kB")
    assert size < LARGEST, f"{path} is {size} bytes: show less."


if __name__ == "__main__":
    main()
