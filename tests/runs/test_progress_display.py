"""Tests of progress reports on terminals and in logs, including those after a long silence. No test waits."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from topdp.base.progress import silent, titled
from topdp.runs import progress_display
from topdp.runs.progress_display import (
    FIRST_LINE_SECONDS,
    MAX_SILENCE_SECONDS,
    ProgressBars,
    ProgressDisplay,
    ProgressLines,
    automatic_progress,
    show_progress,
)

NOTE = "balancing noise, step 3: agent 7 at 1.20 of its budget"


def lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def progress(console: Console) -> ProgressLines:
    return ProgressLines(console, "top")


def test_lines_state_the_step_that_an_account_is_for(progress, console):
    progress("accounting", 1, 2, unit="observer")
    progress(f"accounting: {NOTE}", 1, 2, unit="observer")
    progress(f"accounting: {NOTE}", 1, 2, unit="observer")  # no change, so no line
    assert lines(console) == [
        "top: accounting, observer 1 of 2",
        f"top: accounting: {NOTE}, observer 1 of 2",
    ]


def test_every_stage_gets_one_line_and_training_one_per_tenth(progress, console):
    progress("loading torch")
    progress("reading mnist", 5, 10, unit="byte")
    progress("reading mnist", 6, 10, unit="byte")
    progress("planning")
    for done in range(41):
        progress("training", done, 40, unit="round")
    assert [line.split(",")[0] for line in lines(console)] == [
        "top: loading torch", "top: reading mnist", "top: planning", *["top: training"] * 11
    ]  # fmt: skip
    assert lines(console)[-1] == "top: training, round 40 of 40"


def test_an_accuracy_is_shown_with_the_round_of_its_measurement(progress, console):
    measured = {"round": 0, "accuracy": {"mean": 0.7312}, "loss": {"mean": 2.5}, "accuracy_per_agent": [0.7]}
    for done in range(2):
        progress("training", done, 3, unit="round", metrics=measured)
    assert lines(console) == [
        "top: training, round 0 of 3, accuracy 73.12% after round 0",
        "top: training, round 1 of 3, accuracy 73.12% after round 0",
    ]


def test_each_of_several_runs_has_its_title(progress, console):
    titled(progress, "run 2 of 3")("planning")
    progress("drawing")
    assert lines(console) == ["top: run 2 of 3: planning", "top: drawing"]


def test_long_silences_end_with_a_line_about_the_current_stage(progress, console):
    begun = progress.spoke
    progress.beat(begun + 0.9 * FIRST_LINE_SECONDS)
    assert lines(console) == []
    progress.beat(begun + 1.01 * FIRST_LINE_SECONDS)
    assert lines(console) == ["top: starting (0 s)"]
    progress("training", 1, 1000, unit="round")
    progress("training", 37, 1000, unit="round")  # less than a tenth, so no line
    progress.beat(progress.spoke + 0.9 * MAX_SILENCE_SECONDS)
    assert len(lines(console)) == 2
    progress.beat(progress.spoke + 1.01 * MAX_SILENCE_SECONDS)
    assert lines(console)[2:] == ["top: training, round 37 of 1000 (4 s)"]


def test_long_commands_report_less_often(progress):
    progress.began -= 3600
    progress("training")
    assert 200 < progress.limit < 300
    assert ProgressLines(progress.console, "new").limit == FIRST_LINE_SECONDS < MAX_SILENCE_SECONDS <= 5


@pytest.mark.parametrize("width", [80, 200])
def test_all_accounts_share_one_bar(width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    with show_progress(console, "top") as display:
        for step in range(5):
            display(f"accounting: balancing noise, step {step}", 1, 4, unit="observer")
        display("training", 1, 150, unit="round", metrics={"round": 1, "accuracy": {"mean": 0.5}})
        assert isinstance(display, ProgressBars)
        first, second = display.bars.tasks
        assert "step 4" in first.description and first.total == 4
        assert (
            second.fields["note"] == "accuracy 50.00% after round 1"
            and second.fields["counted"] == "round 1 of 150"
        )


def test_a_bar_shows_a_download_until_the_next_stage_begins():
    console = Console(file=io.StringIO(), force_terminal=True)
    with show_progress(console, "data") as display:
        assert isinstance(display, ProgressBars)
        assert [task.description for task in display.bars.tasks] == ["data: starting"]
        display("downloading a", 5, 10, unit="byte")
        display("downloading b", 7_000_000, unit="byte")
        (task,) = display.bars.tasks
        assert (task.description, task.completed) == ("data: downloading b", 7_000_000)
        assert task.fields["counted"] == "7.0 MB"
        display("training", 1, 2, unit="round")
        assert [task.description for task in display.bars.tasks] == ["data: training"]


def test_announcements_stay_on_a_terminal():
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with show_progress(console, "reproduce") as display:
        display.announce("1: 3.0 s of runs")
    assert "\n1: 3.0 s of runs\n" in console.file.getvalue().replace("\r", "\n") or "1: 3.0 s of runs\n" in (
        console.file.getvalue()
    )


def test_nothing_is_written_to_stdout_and_nothing_after_the_end(capsys):
    with show_progress(Console(stderr=True), "topdp") as display:
        assert isinstance(display, ProgressDisplay)
        display("planning")
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "topdp: planning\n"
    import threading

    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_metric_is_shown_with_the_round_of_its_measurement(terminal):
    console = Console(file=io.StringIO(), width=200, force_terminal=terminal)
    with show_progress(console, "top") as display:
        measured = {"round": 4, "r2": {"mean": 0.51234}, "loss": {"mean": 2.0}}
        display("training", 7, 10, unit="round", metrics=measured)
    assert "r2 0.5123 after round 4" in console.file.getvalue()


class FakeNotebook:
    """What an IPython kernel offers to a program, with the contents that were displayed."""

    def __init__(self):
        self.shown, self.kernel = [], object()

    def get_ipython(self):
        return self

    def display(self, content, raw, display_id):
        assert raw and display_id
        self.update(content, raw)
        return self

    def update(self, content, raw):
        self.shown.append(content["text/plain"])


def test_a_notebook_shows_one_line_which_disappears(monkeypatch):
    notebook = FakeNotebook()
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    monkeypatch.setattr(progress_display, "FIRST_LINE_SECONDS", -1.0)
    monkeypatch.setattr(progress_display, "NOTEBOOK_LINE_SECONDS", -1.0)
    with pytest.raises(KeyboardInterrupt), automatic_progress("top") as progress:
        progress("training", 3, 10, unit="round", metrics={"round": 3, "accuracy": {"mean": 0.5}})
        progress("drawing")
        raise KeyboardInterrupt
    assert notebook.shown == [
        "top: training, round 3 of 10, accuracy 50.00% after round 3",
        "top: drawing",
        "",
    ]


def test_a_short_operation_in_a_notebook_shows_nothing(monkeypatch):
    notebook = FakeNotebook()
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    monkeypatch.setattr(progress_display, "FIRST_LINE_SECONDS", 1e9)
    with automatic_progress("top") as progress:
        progress("training", 3, 10, unit="round")
    assert notebook.shown == []


def test_a_python_function_shows_bars_on_a_terminal_and_nothing_elsewhere(monkeypatch, capsys):
    monkeypatch.setattr(progress_display, "_notebook_display", lambda: None)
    with automatic_progress("top") as progress:
        progress("training", 3, 10, unit="round")
    assert progress is silent and capsys.readouterr() == ("", "")
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(progress_display, "Console", lambda stderr: terminal)
    with automatic_progress("top") as progress:
        assert isinstance(progress, ProgressBars)


def test_lines_of_a_long_stage_estimate_the_time_left(monkeypatch, console):
    clock = [0.0]
    monkeypatch.setattr(progress_display.time, "monotonic", lambda: clock[0])
    progress = ProgressLines(console, "top")
    # After 12 seconds, another pass begins.
    for seconds, done in ((0, 0), (3, 10), (10, 50), (11, 90), (12, 20), (22, 30)):
        clock[0] = float(seconds)
        progress("accounting", done, 100, unit="observer")
    assert lines(console) == [
        "top: accounting, observer 0 of 100",
        "top: accounting, observer 10 of 100",
        "top: accounting, observer 50 of 100, about 10 s left",
        "top: accounting, observer 90 of 100",  # short enough not to be estimated
        "top: accounting, observer 20 of 100",
        "top: accounting, observer 30 of 100, about 70 s left",
    ]
