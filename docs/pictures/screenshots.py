"""Take the pictures of docs/report.md and docs/dash.md: pages in light and dark style, and on a phone.

    python docs/pictures/screenshots.py RUN OTHER [--live FOLDER] [--out docs/pictures]

RUN and OTHER are folders of runs on the same data. Without --live, the pictures show report, comparison and
statement. With --live, they show the live pages; FOLDER then has runs and a `topdp federation demo` that is
running. Needs playwright and Chromium (TOPDP_CHROMIUM names the program if it is not on the path). No test
checks the pictures, so look at them.
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
from typing import NamedTuple

import requests
from PIL import Image
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from topdp.runs.run_folder import RunFolder
from topdp.views.pages.report_page import report_html
from topdp.views.pages.run_facts import run_facts
from topdp.views.statement.run_statement import statement, statement_html

MAX_COLOURS = 96  # enough for text, lines and one picture
MAX_PICTURE_BYTES = 250_000
LAYOUT_MILLISECONDS = 800  # pictures in a page are drawn after the page has its size


class Screenshot(NamedTuple):
    """A part of a page, from its top left corner, in pixels."""

    page: str
    path: str  # in the live pages
    style: str  # light, dark or phone
    width: int
    height: int


REPORT_SCREENSHOTS = (
    Screenshot("report", "", "light", 1100, 1560),
    Screenshot("report", "", "dark", 1100, 1560),
    Screenshot("report", "", "phone", 390, 1700),
    Screenshot("compared", "", "light", 1100, 760),
    Screenshot("statement", "", "light", 900, 1150),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--live", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args()
    if options.live is not None:
        take_live(options.live, options.run, options.out)
    else:
        take_reports(options.run, options.other, options.out)


def take_reports(run: Path, other: Path, out: Path) -> None:
    """Take pictures of report, comparison and statement."""
    facts = [run_facts(RunFolder.open(path)) for path in (run, other)]
    pages = {
        "report": report_html(facts[:1]),
        "compared": report_html(facts),
        "statement": statement_html(statement(facts[0])),
    }
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = _launch(playwright)
        for screenshot in REPORT_SCREENSHOTS:
            file = Path(folder) / f"{screenshot.page}.html"
            file.write_text(pages[screenshot.page], encoding="utf-8")
            page = _open_page(browser, screenshot)
            page.goto(file.as_uri())
            _save(page, out / f"{screenshot.page}-{screenshot.style}.png", screenshot)
        browser.close()


def take_live(folder: Path, run: Path, out: Path) -> None:
    """Take pictures of pages of `topdp dash`: a run, an agent, a federation."""
    command = [sys.executable, "-m", "topdp", "dash", str(folder), str(run), "--port", "0", "--json"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
    ):
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        browser = _launch(playwright)
        sources = requests.get(f"{url}api/runs", timeout=60).json()["sources"]
        ids = {
            source["kind"]: source["id"]
            for source in sources
            if source["kind"] == "agent" or source["name"] == run.name
        }
        screenshots = (
            Screenshot("run", f"runs/{ids['run']}", "light", 1100, 1250),
            Screenshot("federation", "federation", "light", 1100, 1080),
            Screenshot("agent", f"agents/{ids['agent']}", "dark", 1100, 880),
            Screenshot("federation", "federation", "phone", 390, 1000),
        )
        for screenshot in screenshots:
            page = _open_page(browser, screenshot)
            page.goto(url + screenshot.path)
            page.wait_for_selector("html[data-ready]", state="attached")
            _save(page, out / f"dash-{screenshot.page}-{screenshot.style}.png", screenshot)
        browser.close()
        server.send_signal(signal.SIGINT)


def _launch(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(
        executable_path=os.environ.get("TOPDP_CHROMIUM") or shutil.which("chromium"), args=["--no-sandbox"]
    )


def _open_page(browser: Browser, screenshot: Screenshot) -> Page:
    return browser.new_page(
        viewport={"width": screenshot.width, "height": 900},
        color_scheme="dark" if screenshot.style == "dark" else "light",
    )


def _save(page: Page, path: Path, screenshot: Screenshot) -> None:
    page.wait_for_timeout(LAYOUT_MILLISECONDS)
    clip = {"x": 0, "y": 0, "width": screenshot.width, "height": screenshot.height}
    picture = page.screenshot(full_page=True, clip=clip)
    image = Image.open(io.BytesIO(picture)).convert("RGB").quantize(MAX_COLOURS, dither=Image.Dither.NONE)
    image.save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path}: {size / 1000:.0f} kB")
    assert size < MAX_PICTURE_BYTES, f"{path} is {size} bytes: show less."


if __name__ == "__main__":
    main()
