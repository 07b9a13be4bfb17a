"""Progress on a terminal and without one: where the work is, in words."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from topdp.report.progress import run_progress, stage_progress

NOTE = "balancing noise, step 3: agent 7 at 1.20 of its budget"


def test_lines_say_what_an_account_is_for():
    console = Console(file=io.StringIO(), width=200)
    with stage_progress(console, "accounting") as progress:
        progress(1, 2)
        progress(1, 2, NOTE)
        progress(1, 2, NOTE)  # nothing new
    assert console.file.getvalue().splitlines() == [
        "topdp: accounting, observer 1 of 2",
        f"topdp: accounting: {NOTE}, observer 1 of 2",
    ]


@pytest.mark.parametrize("width", [80, 200])
def test_all_accounts_share_one_bar(width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    with run_progress(console, "top") as watch:
        for step in range(5):
            watch(f"accounting: balancing noise, step {step}", 1, 4, None)
        watch("training", 1, 150, None)
    last = console.file.getvalue().split("top: accounting")[-1]
    assert "step 4" in last and "step 3" not in last and "top: training" in last


@pytest.mark.parametrize("terminal", [True, False])
def test_a_metric_says_after_which_round_it_was_taken(terminal):
    console = Console(file=io.StringIO(), width=200, force_terminal=terminal)
    with run_progress(console, "top") as watch:
        watch("training", 7, 10, {"round": 4, "r2": {"mean": 0.51234}, "loss": {"mean": 2.0}})
    assert "r2 0.5123 after round 4" in console.file.getvalue()
