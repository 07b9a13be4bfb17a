"""How an epsilon and the name of a privacy answer are written for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def answer_words(answer: str) -> str:
    return answer.replace("_", " ")


def epsilon_text(privacy: Mapping[str, Any], key: str) -> str:
    """A number, `infinite` or `refused`; never anything in between."""
    value = privacy["epsilon"][key]
    return str(privacy["status"][key]) if value is None else f"{value:.4g}"
