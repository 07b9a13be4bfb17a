"""How an epsilon and the name of a privacy answer are written for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topdp.privacy.answers import ANSWERS


def answer_words(answer: str) -> str:
    """The name of an answer in tables and on pages, by its JSON key."""
    return ANSWERS[answer].label


def epsilon_text(privacy: Mapping[str, Any], key: str) -> str:
    """A number, `infinite` or `refused`; never anything in between."""
    value = privacy["epsilon"][key]
    return str(privacy["status"][key]) if value is None else f"{value:.4g}"
