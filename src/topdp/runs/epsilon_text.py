"""Text for people: the name of a privacy answer, its epsilon and its delta."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from topdp.base.number_text import rounded_up
from topdp.privacy.answers import ANSWERS


def answer_words(answer: str) -> str:
    """Return the name that tables and pages show for an answer; `answer` is its JSON key."""
    return ANSWERS[answer].label


def epsilon_text(privacy: Mapping[str, Any], key: str) -> str:
    """Return the ε of the answer `key` as a number, or its status if it has none: `infinite` or `refused`."""
    value = privacy["epsilon"][key]
    return str(privacy["status"][key]) if value is None else rounded_up(value)


def unit_text(unit: str, sites: int = 1) -> str:
    """Return what an ε protects. `sites`: the most agents that may hold records of one person.

    >>> unit_text("record"), unit_text("person"), unit_text("person", 2)
    ('one record of one agent', 'one person of one agent', 'one person of up to 2 agents')
    """
    return f"one {unit} of {'one agent' if sites == 1 else f'up to {sites} agents'}"


def delta_text(delta: float | list[float]) -> str:
    """Return δ as one number, or the least and the largest if agents have different δ.

    >>> delta_text(1e-5), delta_text([1e-5, 1e-6, 1e-5])
    ('1e-05', '1e-06 to 1e-05')
    """
    return " to ".join(dict.fromkeys(f"{end:g}" for end in (np.min(delta), np.max(delta))))
