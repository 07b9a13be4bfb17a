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
    """One line a combination."""
    metric = next(iter(metric_names(spreads)), None)
    met = {run["privacy"]["guarantee"] for one in spreads for run in one.runs} - {None}
    answers = [*sorted({answer_kind(name).key for name in met} - {WORST_CASE.key}), WORST_CASE.key]
    short = [short_key(key) for key in spreads[0].chosen]
    keys = short if len(set(short)) == len(short) else list(spreads[0].chosen)
    made = uncut(
        *keys, metric or "metric", "n", *(f"ε\n{answer_words(name)}" for name in answers), "time",
        caption="mean ± deviation over n seeds, of the mean over agents; ε of one run, largest over agents",
    )  # fmt: skip
    for one in spreads:
        broken = len(one.runs) - len(one.done)
        seconds = sum(run["seconds"] for run in one.done)
        said = f"{len(one.done)}" + (f" ({broken} diverged)" if broken else "")
        made.add_row(
            *one.chosen.values(),
            in_words(metric, one.of(metric)) if metric else "no test set",
            said,
            *(one.epsilon(name) for name in answers),
            f"{seconds:.0f} s",
        )
    return made


def in_words(metric: str, spread: Mapping[str, Any]) -> str:
    """
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
