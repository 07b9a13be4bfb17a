"""Text for people: the name of a privacy answer, and its epsilon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topdp.privacy.answers import ANSWERS


def answer_words(answer: str) -> str:
    """Return the name that tables and pages show for an answer; `answer` is its JSON key."""
    return ANSWERS[answer].label


def epsilon_text(privacy: Mapping[str, Any], key: str) -> str:
    """Return the ε of the answer `key` as a number, or its status if it has none: `infinite` or `refused`."""
    value = privacy["epsilon"][key]
    return str(privacy["status"][key]) if value is None else f"{value:.4g}"
