"""The estimates at the best evaluation so far, kept beside the last ones.

Best is by the first metric of which it is known whether more is better, else by the loss: its mean over
agents, on the records that the run is tested on. Choosing among rounds by the test set makes the metric of
what was chosen look better than it is; with `data.validation` the records held out decide, and the test set
stays untouched. Not a way to stop (`callbacks.py`).

**Guarantees.** Which round was best follows from estimates and test records alone: where those are public,
the choice tells nothing more than the estimates of all rounds, which `adaptive`, `outsider` and `worst_case`
count as seen. Records held out by `data.validation` are not in the account: if they are private, so is the
choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from topdp.errors import InputError
from topdp.learning.metrics import larger_is_better
from topdp.runs.config import did_you_mean
from topdp.runs.metric_labels import evaluated_names, metric_names
from topdp.runs.row_arrays import as_array, as_tensor
from topdp.runs.run_folder import RunFolder
from topdp.runs.tensor_files import mapped
from topdp.simulator.ranks.process_group import ProcessGroup

MAX_COPIED_NUMBERS = 1 << 28  # numbers: so many estimates are not kept in memory once more
PENDING_FILE = "best-next.safetensors"


class Best(NamedTuple):
    """The estimates [agents, d] after `round`, where `metric` was best."""

    round: int
    metric: str
    value: float
    estimates: Tensor


@final
class BestSoFar:
    """Keeps the estimates of the best evaluation; for a resumed run, from those in its folder on."""

    def __init__(
        self,
        folder: RunFolder | None,
        resumed: bool,
        notes: dict[str, str],
        larger: Mapping[str, bool | None] | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        """`larger`: whether more is better, for metrics of the user; `learning/metrics.py` knows the others.

        `group`: all ranks of the run. Only rank 0 has a folder; all start from its best evaluation, and so
        decide alike.
        """
        self._folder = folder
        self._larger = larger or {}
        self._notes = notes
        self._unsaved = self._waiting = False
        self.best = read(folder) if folder is not None and resumed else None
        if group is not None:
            best = group.led(None if self.best is None else self.best._replace(estimates=torch.empty(0)))
            self.best = best if folder is None else self.best

    def see(self, line: dict[str, Any], estimates: Callable[[], Tensor]) -> None:
        """Of equals the earlier stays; `estimates` is asked where this one is better."""
        name = first_metric(line, self._larger)
        value = metric_of(line, name, self._larger)
        if math.isnan(value):
            return
        sign = metric_sign(name, self._larger)
        if self.best is None or value > sign * self.best.value:
            shown = sign * value
            self.best = self._keep(line["round"], name, shown, estimates().detach().cpu())
            self._unsaved = True

    def save(self) -> None:
        """With every checkpoint, and at the end: what is on disk is then of one moment."""
        if self._folder is None or self.best is None or not self._unsaved:
            return
        if self._waiting:
            self._folder.rename(PENDING_FILE, "best.safetensors")
        else:
            write(self._folder, self.best, self._notes)
        self._unsaved = self._waiting = False

    def _keep(self, round: int, metric: str, value: float, estimates: Tensor) -> Best:
        """With a copy: in memory, or of many numbers in a file that waits for the next checkpoint."""
        self._waiting = self._folder is not None and estimates.numel() >= MAX_COPIED_NUMBERS
        if self._folder is None or not self._waiting:
            return Best(round, metric, value, estimates.clone())
        write(self._folder, Best(round, metric, value, estimates), self._notes, PENDING_FILE)
        return Best(round, metric, value, as_tensor(mapped(self._folder.path / PENDING_FILE, "estimates")))


def write(folder: RunFolder, best: Best, notes: dict[str, str], name: str = "best.safetensors") -> None:
    facts = {**notes, "round": str(best.round), "metric": best.metric, "value": repr(best.value)}
    folder.save_estimates(name, as_array(best.estimates), facts)


def read(folder: RunFolder) -> Best | None:
    """What was kept in a run's folder; None where there is nothing."""
    if not (folder.path / "best.safetensors").exists():
        return None
    estimates, facts = folder.kept_estimates("best.safetensors", ("round", "metric", "value"))
    return Best(int(facts["round"]), facts["metric"], float(facts["value"]), as_tensor(estimates))


def first_metric(line: dict[str, Any], larger: Mapping[str, bool | None]) -> str:
    """The metric of a line of metrics.jsonl that comes first and has a direction; else the loss."""
    return next(name for name in [*metric_names(line), "loss"] if _direction(name, larger) is not None)


def metric_of(line: dict[str, Any], name: str, larger: Mapping[str, bool | None]) -> float:
    """The mean over agents, with the sign that makes larger better; NaN where there is none."""
    known = evaluated_names(line)
    if name not in known:
        raise InputError(f"Expected a metric of this run, got {name!r}.{did_you_mean(name, known)}")
    value = line[name]["mean"]
    numbers = [one for one in (value if isinstance(value, list) else [value]) if one is not None]
    return metric_sign(name, larger) * sum(numbers) / len(numbers) if numbers else math.nan


def metric_sign(name: str, larger: Mapping[str, bool | None]) -> float:
    direction = _direction(name, larger)
    if direction is None:
        raise InputError(
            f"Expected a metric of which it is known whether more is better, got {name!r}. Use "
            f"topdp.Metric({name!r}, function, larger_is_better=True), or False."
        )
    return 1.0 if direction else -1.0


def _direction(name: str, larger: Mapping[str, bool | None]) -> bool | None:
    return larger[name] if name in larger else larger_is_better(name)
