"""A sweep as a table for the terminal: one line per combination of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from topdp.privacy.answers import WORST_CASE, answer_kind
from topdp.runs.epsilon_text import answer_words
from topdp.runs.metric_labels import is_share
from topdp.runs.sweep_summary import Spread, metric_names, short_key
from topdp.views.terminal.tables import uncut


def table(spreads: Sequence[Spread]) -> Table:
    """Return a table with one line per combination of settings."""
    metric = next(iter(metric_names(spreads)), None)
    met = {run["privacy"]["guarantee"] for spread in spreads for run in spread.runs} - {None}
    answers = [*sorted({answer_kind(name).key for name in met} - {WORST_CASE.key}), WORST_CASE.key]
    short = [short_key(key) for key in spreads[0].chosen]
    keys = short if len(set(short)) == len(short) else list(spreads[0].chosen)
    result = uncut(
        *keys, metric or "metric", "n", *(f"ε\n{answer_words(name)}" for name in answers), "time",
        caption="mean ± standard deviation over n seeds, of the mean over agents; ε of one run, largest over "
        "agents",
    )  # fmt: skip
    for spread in spreads:
        diverged = len(spread.runs) - len(spread.done)
        seconds = sum(run["seconds"] for run in spread.done)
        count = f"{len(spread.done)}" + (f" ({diverged} diverged)" if diverged else "")
        result.add_row(
            *spread.chosen.values(),
            in_words(metric, spread.of(metric)) if metric else "no test set",
            count,
            *(spread.epsilon(name) for name in answers),
            f"{seconds:.0f} s",
        )
    return result


def in_words(metric: str, spread: Mapping[str, Any]) -> str:
    """Return the mean of a metric, with its standard deviation if it has one, as text.

    >>> in_words("accuracy", {"mean": 0.9714, "deviation": 0.0021, "n": 3})
    '97.14% ± 0.21'
    >>> in_words("mae", {"mean": 1.23456, "deviation": None, "n": 1})
    '1.235'
    """
    if spread["mean"] is None:
        return "none"
    share = is_share(metric)
    mean = f"{spread['mean']:.2%}" if share else f"{spread['mean']:.4g}"
    if spread["deviation"] is None:
        return mean
    return f"{mean} ± " + (f"{100 * spread['deviation']:.2f}" if share else f"{spread['deviation']:.2g}")
