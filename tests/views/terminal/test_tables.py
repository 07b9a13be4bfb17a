"""Tests of tables on terminals: whatever the width, no number is cut."""

import io

import pytest
from rich.console import Console

from topdp.views.terminal import tables

ANSWERS = ("claimed", "view", "adaptive", "outsider", "worst_case")
ASKED = ("claimed", "adaptive", "worst_case")


def summary(epsilon):
    reasons = {} if epsilon else dict.fromkeys(ASKED, "Infinite: nothing is hidden.")
    privacy = {"delta": 1e-5, "guarantee": "adaptive", "reasons": reasons}
    status = dict.fromkeys(ASKED, "finite" if epsilon else "infinite")
    return {
        "rounds": 6000,
        "metrics": {"accuracy": {"mean": 0.88904, "min": 0.1, "max": 1.0}, "loss": {"mean": 0.3}},
        "privacy": {
            **privacy,
            "epsilon": {name: epsilon if name in ASKED else None for name in ANSWERS},
            "status": dict.fromkeys(ANSWERS, "not asked") | status,
        },
        "seconds": 1240.4,
        "redrawable_noise": None,
    }


def printed(parts, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(*(parts if isinstance(parts, list) else [parts]), sep="\n")
    return console.file.getvalue()


def test_a_run_takes_one_line_of_eighty_columns():
    text = printed(tables.runs({"top-dp": summary(4.6083), "no-noise": summary(None)}), 80)
    for words in ("top-dp", "no-noise", "88.90%", "10.0-100.0", "4.609", "infinite", "1240 s", "6000 rounds"):
        assert words in text, words
    assert "view" not in text and "outsider" not in text
    assert text.count("nothing is hidden") == 1
    assert "no-noise, ε claimed, adaptive, worst case: Infinite" in text


def test_a_run_whose_noise_can_be_drawn_again_is_said_to_be_one():
    text = printed(tables.runs({"top": {**summary(1.0), "redrawable_noise": "Drawn again."}}), 80)
    assert "top: Drawn again." in text
    assert "Drawn again." not in printed(tables.runs({"top": summary(1.0)}), 80)


@pytest.mark.parametrize("width", [30, 60])
def test_cells_that_do_not_fit_continue_on_the_next_line(width):
    assert "…" not in printed(tables.runs({"no-noise": summary(None)}), width)
    assert "…" not in printed(tables.facts("agent1", {"federation": 64 * "a"}), width)


def test_facts_are_shown_in_words():
    found = {
        "stopped": None,
        "seen": {"ada": 5, "bob": 4},
        "quarantined": {},
        "alone": [0, 2],
        "gap": 0.21974,
    }
    text = printed(tables.facts("agent1", found), 80)
    for words in ("no ", "ada 5, bob 4", "none", "0 2", "0.2197 "):
        assert words in text, words


def test_metrics_that_are_no_shares_are_not_in_percent():
    metrics = {name: {"mean": 1.23456, "min": 0.5, "max": 2.0} for name in ("mae", "r2", "loss")}
    text = printed(tables.runs({"top": summary(1.0) | {"metrics": metrics}}), 100)
    assert "mae" in text and "r2" in text and "loss" not in text and "%" not in text
    assert "1.235" in text and "0.5 to 2" in text and "least to largest" in text


def test_a_run_without_test_records_is_shown_as_such():
    text = printed(tables.runs({"top": summary(1.0) | {"metrics": None}}), 100)
    assert "no test set" in text and "no test records: nothing is evaluated" in text


def test_values_per_class_and_undefined_values_are_shown_in_words():
    several = {"mean": [0.5, None, 0.75], "min": [0, None, 0.5], "max": [1, None, 1]}
    nothing = {"mean": None, "min": None, "max": None}
    metrics = {"auroc": nothing, "per-class-accuracy": several}
    text = printed(tables.runs({"top": summary(1.0) | {"metrics": metrics}}), 120)
    assert "undefined" in text and "50.00% to 75.00%" in text
