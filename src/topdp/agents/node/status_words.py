"""Where an agent is, as a sentence; and since when, in words. Needs neither torch nor gRPC."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from topdp.agents.node.status_file import ProcessStatus
from topdp.runs.metric_labels import in_words


def epsilon_in_words(epsilon: float | None) -> str:
    return "infinite" if epsilon is None else f"{epsilon:.4g}"


def age_in_words(since: float, now: float | None = None) -> str:
    """
    >>> since_in_words(100, 142), since_in_words(100, 100 + 3 * 3600 + 120), since_in_words(100, 90)
    ('42 s', '3 h 2 min', '0 s')
    """
    seconds = max(0, round((time.time() if now is None else now) - since))
    if seconds < 120:
        return f"{seconds} s"
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def progress_in_words(standing: ProcessStatus, spent: float | None, charged_by: str) -> str:
    """Round, budget, and who is waited for."""
    words = (
        f"round {max(standing.round, 0)} of {standing.rounds}" if standing.round >= 0 else "no release yet"
    )
    words += f", epsilon {epsilon_in_words(spent)} of {standing.budget:.4g} spent ({charged_by})"
    if standing.state == "paused":
        words += ", paused"
    if standing.state == "ends":
        words += ", all rounds done"
    waits = [f"{peer} since {age_in_words(since)}" for peer, since in standing.waits_for.items()]
    return words + (f", waits for {', '.join(waits)}" if waits else "")


def scores_in_words(scores: Mapping[str, Any]) -> str:
    """
    >>> scores_in_words({"round": 3, "on": "test", "records": 40, "loss": 0.2, "metrics": {"accuracy": 0.9}})
    'accuracy 90.00% on 40 test records of its own (round 3)'
    """
    said = [f"{name} {in_words(name, value)}" for name, value in scores["metrics"].items()]
    said = said or [f"loss {scores['loss']:.4g}"]
    where = f"{scores['records']} {scores['on']} records of its own (round {scores['round']})"
    return f"{', '.join(said)} on {where}"
