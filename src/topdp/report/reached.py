"""What the recommended method reached in runs of ours, in one line after a run of another; nothing computed.

`reached.csv` holds the accuracies: it is written from results/ by docs/pictures/frontier.py, of 30 agents on
random graphs with their share of a data set. A run that is not like those gets no line.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

from topdp.report.style import data_title
from topdp.settings.config import RunConfig, presets

RECOMMENDED = "correlated"
AGENTS = 30  # of the runs that are kept
NOT_SAID_AFTER = ("no-noise", "correlated", "central")


class Reached(NamedTuple):
    """The mean test accuracy of the recommended method at one budget."""

    data: str
    epsilon: float
    accuracy: float


def kept() -> list[Reached]:
    """Of every data set and budget that we ran."""
    text = resources.files("topdp.report").joinpath("reached.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return [Reached(row["data"], float(row["epsilon"]), float(row["accuracy"])) for row in rows]


def hint(config: RunConfig, summary: Mapping[str, Any], known: list[Reached] | None = None) -> str | None:
    """The line after `topdp run`; None where there is nothing to compare it with, or nothing to gain."""
    accuracy, epsilon = summary["accuracy"], config.privacy.epsilon
    if accuracy is None or not _like_ours(config) or not isinstance(epsilon, float):
        return None
    at_most = [
        one
        for one in (kept() if known is None else known)
        if one.data == config.data.name and one.epsilon <= epsilon * (1 + 1e-9)
    ]
    if not at_most:
        return None
    best = max(at_most, key=lambda one: one.epsilon)
    if best.accuracy <= accuracy["mean"]:
        return None
    same = best.epsilon == epsilon
    budget = f"at the same ε = {epsilon:g}" if same else f"at the smaller ε = {best.epsilon:g}"
    preset = f"best-{best.data}"
    how = f"topdp run --preset {preset} (fewer rounds); " if preset in presets() else ""
    return (
        f"In runs of ours, {AGENTS} agents on {data_title(best.data)}, method {RECOMMENDED} on public "
        f"features reached {best.accuracy:.1%} {budget}: {how}docs/methods.md."
    )


def _like_ours(config: RunConfig) -> bool:
    """As many agents, all with an equal share of the records, under the same guarantee and budget on it."""
    return (
        config.method.name not in NOT_SAID_AFTER
        and (config.topology.kind, config.topology.agents) == ("random", AGENTS)
        and (config.data.partition, config.data.records, config.data.validation) == ("iid", None, None)
        and (config.privacy.guarantee, config.privacy.sigma) == ("adaptive", None)
        and (config.privacy.adjacency, config.privacy.delta) == ("add-remove", 1e-5)
        and config.privacy.colluders <= 1
    )
