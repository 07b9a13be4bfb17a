"""How large a report is, and how long it takes to open: 30 agents and 1,000 rounds, and a thousand agents.

    python benchmarks/report.py

Makes two runs on random records (a linear model: what is learnt does not matter) and their reports, and opens
each in a new page. Ready is when curves or histograms are drawn. Needs playwright and Chromium
(TOPDP_CHROMIUM names one that is not on the path). Limits: 3 MB and 2 s, and 10 MB.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, sync_playwright

from topdp.runs import config
from topdp.runs.run import run
from topdp.runs.run_folder import RunFolder
from topdp.views.pages.report_page import report_html
from topdp.views.pages.run_facts import run_facts

RUNS = {
    "30 agents, 1,000 rounds": [
        "topology.agents=30",
        "rounds=1000",
        "train.evaluate_every=1",
        "method.name=plain",
    ],
    "1,000 agents": ["topology.agents=1000", "rounds=20", "topology.connection=0.01", "method.name=plain"],
}


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        place = Path(folder)
        records(place / "records.npz")
        browser = started.chromium.launch(
            executable_path=os.environ.get("TOPDP_CHROMIUM") or shutil.which("chromium"),
            args=["--no-sandbox"],
        )
        for number, (title, changes) in enumerate(RUNS.items()):
            common = [f'data.name="{place / "records.npz"}"', "model.name=linear"]
            run(config.read(changes=[*common, *changes]), place / str(number), "cpu")
            begun = time.perf_counter()
            page = report_html([run_facts(RunFolder.open(place / str(number)))])
            made = time.perf_counter() - begun
            file = place / f"{number}.html"
            file.write_text(page, encoding="utf-8")
            size = file.stat().st_size / 1e6
            print(f"{title}: made in {made:.1f} s, {size:.2f} MB, ready after {opened(browser, file):.2f} s")
        browser.close()


def records(path: Path) -> None:
    chance = np.random.default_rng(0)
    inputs, labels = chance.normal(size=(4000, 8)).astype(np.float32), chance.integers(0, 3, 4000)
    np.savez(
        path, train_inputs=inputs, train_labels=labels, test_inputs=inputs[:200], test_labels=labels[:200]
    )


def opened(browser: Browser, file: Path) -> float:
    page = browser.new_page()
    begun = time.perf_counter()
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    page.wait_for_selector(".u-over, svg .bar")
    took = time.perf_counter() - begun
    page.close()
    return took


if __name__ == "__main__":
    main()
