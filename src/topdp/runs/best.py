"""The estimates at the best evaluation so far, kept beside the last ones.

Best is by the first metric, its mean over agents, on the records that the run is tested on. Choosing among
rounds by the test set makes the metric of what was chosen look better than it is; with `data.validation` the
records held out decide, and the test set stays untouched. Not a way to stop (`callbacks.py`).

**Guarantees.** Which round was best follows from estimates and test records alone: where those are public,
the choice tells nothing more than the estimates of all rounds, which `adaptive`, `outsider` and `worst_case`
count as seen. Records held out by `data.validation` are not in the account: if they are private, so is the
choice.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from topdp.errors import InputError
from topdp.runs.folder import RunFolder
from topdp.settings.config import did_you_mean


class Best(NamedTuple):
    """The estimates [agents, d] after `round`, where `metric` was best."""

    round: int
    metric: str
    value: float
    estimates: Tensor


@final
class BestSoFar:
    """Looks at every evaluation and keeps the best; of a folder, takes up what was kept there."""

    def __init__(self, folder: RunFolder | None, resumed: bool, notes: dict[str, str]) -> None:
        self._folder = folder
        self._notes = notes
        self._unsaved = False
        self.best = read(folder) if folder is not None and resumed else None

    def see(self, line: dict[str, Any], estimates: Tensor) -> None:
        """Of equals the earlier stays."""
        name = first_metric(line)
        value = metric_of(line, name)
        if math.isnan(value):
            return
        if self.best is None or value > metric_sign(name) * self.best.value:
            shown = metric_sign(name) * value
            self.best = Best(line["round"], name, shown, estimates.detach().cpu().clone())
            self._unsaved = True

    def save(self) -> None:
        """With every checkpoint, and at the end: what is on disk is then of one moment."""
        if self._folder is None or self.best is None or not self._unsaved:
            return
        best = self.best
        facts = {**self._notes, "round": str(best.round), "metric": best.metric, "value": repr(best.value)}
        self._folder.save_estimates("best.safetensors", best.estimates.numpy(), facts)
        self._unsaved = False


def read(folder: RunFolder) -> Best | None:
    """What was kept in a run's folder; None where there is nothing."""
    if not (folder.path / "best.safetensors").exists():
        return None
    estimates, facts = folder.read_estimates("best.safetensors", ("round", "metric", "value"))
    return Best(int(facts["round"]), facts["metric"], float(facts["value"]), torch.from_numpy(estimates))


def first_metric(line: dict[str, Any]) -> str:
    """The metric that comes first in a line of metrics.jsonl."""
    return names(line)[0]


def names(line: dict[str, Any]) -> list[str]:
    """The metrics of a line: those that have a mean over agents."""
    return [key for key, value in line.items() if isinstance(value, dict) and "mean" in value]


def metric_of(line: dict[str, Any], name: str) -> float:
    """The mean over agents, with the sign that makes larger better."""
    known = names(line)
    if name not in known:
        raise InputError(f"Expected a metric of this run, got {name!r}.{did_you_mean(name, known)}")
    return metric_sign(name) * float(line[name]["mean"])


def metric_sign(name: str) -> float:
    return -1.0 if name == "loss" else 1.0
