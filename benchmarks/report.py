"""Size of a report, and the time to write and to open it, for many rounds and for many agents.

    python benchmarks/report.py

The runs train a linear model on random records. Each report is opened in a new page of a browser; it is ready
when its curves or histograms are drawn. Needs playwright and Chromium (TOPDP_CHROMIUM names the program if it
is not on the path). Exit with 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from playwright.sync_api import Browser, sync_playwright

from topdp.runs import config
from topdp.runs.run import run
from topdp.runs.run_folder import RunFolder
from topdp.views.pages.report_page import report_html
from topdp.views.pages.run_facts import run_facts


class ReportCase(NamedTuple):
    """A run, and the limits for its report."""

    title: str
    changes: list[str]
    max_megabytes: float
    max_seconds: float = float("inf")  # until the page is ready


CASES = (
    ReportCase(
        "30 agents, 1,000 rounds",
        ["topology.agents=30", "rounds=1000", "train.evaluate_every=1", "method.name=plain"],
        max_megabytes=3.0,
        max_seconds=2.0,
    ),
    ReportCase(
        "1,000 agents",
        ["topology.agents=1000", "rounds=20", "topology.connection=0.01", "method.name=plain"],
        max_megabytes=10.0,
    ),
)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    exceeded = False
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        write_records(folder / "records.npz")
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("TOPDP_CHROMIUM") or shutil.which("chromium"),
            args=["--no-sandbox"],
        )
        for number, case in enumerate(CASES):
            run_folder, page_file = folder / str(number), folder / f"{number}.html"
            changes = [f'data.name="{folder / "records.npz"}"', "model.name=linear", *case.changes]
            run(config.read(changes=changes), run_folder, "cpu")
            start = time.perf_counter()
            html = report_html([run_facts(RunFolder.open(run_folder))])
            writing_seconds = time.perf_counter() - start
            page_file.write_text(html, encoding="utf-8")
            megabytes = page_file.stat().st_size / 1e6
            seconds = seconds_until_ready(browser, page_file)
            exceeded |= megabytes > case.max_megabytes or seconds > case.max_seconds
            print(
                f"{case.title}: written in {writing_seconds:.1f} s, {megabytes:.2f} MB, "
                f"ready after {seconds:.2f} s",
                flush=True,
            )
        browser.close()
    if exceeded:
        sys.exit("A report exceeds a limit.")


def write_records(path: Path) -> None:
    generator = np.random.default_rng(0)
    inputs, labels = generator.normal(size=(4000, 8)).astype(np.float32), generator.integers(0, 3, 4000)
    np.savez(
        path, train_inputs=inputs, train_labels=labels, test_inputs=inputs[:200], test_labels=labels[:200]
    )


def seconds_until_ready(browser: Browser, page_file: Path) -> float:
    page = browser.new_page()
    start = time.perf_counter()
    page.goto(page_file.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    page.wait_for_selector(".u-over, svg .bar")
    seconds = time.perf_counter() - start
    page.close()
    return seconds


if __name__ == "__main__":
    main()
