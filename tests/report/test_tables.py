"""Tables on terminals: whatever their width, no number is cut."""

import io

import pytest
from rich.console import Console

from topdp.report import tables


def summary(epsilon):
    reasons = {} if epsilon else dict.fromkeys(tables.ANSWERS, "Infinite: nothing is hidden.")
    privacy = {"delta": 1e-5, "guarantee": "view", "reasons": reasons}
    return {
        "rounds": 6000,
        "accuracy": {"mean": 0.88904, "min": 0.1, "max": 1.0},
        "privacy": {
            **privacy,
            "epsilon": dict.fromkeys(tables.ANSWERS, epsilon),
            "status": dict.fromkeys(tables.ANSWERS, "finite" if epsilon else "infinite"),
        },
        "seconds": 1240.4,
    }


def printed(table, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def test_a_run_has_one_line_on_eighty_columns():
    text = printed(tables.runs({"top-dp": summary(4.6083), "no-noise": summary(None)}), 80)
    for words in ("top-dp", "no-noise", "88.90%", "10.0-100.0", "4.608", "infinite", "1240 s", "6000 rounds"):
        assert words in text, words


@pytest.mark.parametrize("width", [30, 60])
def test_what_does_not_fit_goes_on_in_the_next_line(width):
    assert "…" not in printed(tables.runs({"no-noise": summary(None)}), width)
    assert "…" not in printed(tables.facts("agent1", {"federation": 64 * "a"}), width)


def test_facts_are_in_words():
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
