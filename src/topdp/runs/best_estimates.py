"""The estimates at the best evaluation so far, stored beside the last ones.

The best evaluation is that with the best mean over agents of the first metric for which it is known whether
more is better, else of the loss, on the test records of the run. Choosing among rounds by the test set makes
the metric of the chosen round look better than it is; with `data.validation` the records held out decide, and
the test set stays untouched. Does not stop a run (`callbacks.py`).

**Guarantees.** Which round was best follows from estimates and test records alone: where those are public,
the choice reveals nothing beyond the estimates of all rounds, which `adaptive`, `outsider` and `worst_case`
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
from topdp.runs.metric_labels import evaluated_names, mean_over_classes, metric_names
from topdp.runs.row_arrays import as_array, as_tensor
from topdp.runs.run_folder import RunFolder
from topdp.runs.tensor_files import mapped
from topdp.simulator.ranks.process_group import ProcessGroup

MAX_COPIED_NUMBERS = 1 << 28  # larger estimates are copied to a file instead of memory
PENDING_FILE = "best-next.safetensors"


class Best(NamedTuple):
    """The estimates [agents, d] after `round`, where `metric` was best."""

    round: int
    metric: str
    value: float
    estimates: Tensor


@final
class BestSoFar:
    """The estimates of the best evaluation so far; a resumed run begins with those in its folder."""

    def __init__(
        self,
        folder: RunFolder | None,
        resumed: bool,
        *,
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
        """Keep this evaluation if it is better than all before; only then is `estimates` called."""
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
        """Write the best estimates: with every checkpoint, so that both are of one moment, and at the end."""
        if self._folder is None or self.best is None or not self._unsaved:
            return
        if self._waiting:
            self._folder.rename(PENDING_FILE, "best.safetensors")
        else:
            write(self._folder, self.best, self._notes)
        self._unsaved = self._waiting = False

    def _keep(self, round: int, metric: str, value: float, estimates: Tensor) -> Best:
        """Copy estimates in memory, or many numbers to a file that becomes valid with the next checkpoint."""
        self._waiting = self._folder is not None and estimates.numel() >= MAX_COPIED_NUMBERS
        if self._folder is None or not self._waiting:
            return Best(round, metric, value, estimates.clone())
        write(self._folder, Best(round, metric, value, estimates), self._notes, PENDING_FILE)
        return Best(round, metric, value, as_tensor(mapped(self._folder.path / PENDING_FILE, "estimates")))


def write(folder: RunFolder, best: Best, notes: dict[str, str], name: str = "best.safetensors") -> None:
    facts = {**notes, "round": str(best.round), "metric": best.metric, "value": repr(best.value)}
    folder.save_estimates(name, as_array(best.estimates), facts)


def read(folder: RunFolder) -> Best | None:
    """The best evaluation in a run's folder; None where there is none."""
    if not (folder.path / "best.safetensors").exists():
        return None
    estimates, facts = folder.kept_estimates("best.safetensors", ("round", "metric", "value"))
    return Best(int(facts["round"]), facts["metric"], float(facts["value"]), as_tensor(estimates))


def first_metric(line: dict[str, Any], larger: Mapping[str, bool | None]) -> str:
    """The first metric in a line of metrics.jsonl with a known direction, else the loss."""
    return next(name for name in [*metric_names(line), "loss"] if _direction(name, larger) is not None)


def metric_of(line: dict[str, Any], name: str, larger: Mapping[str, bool | None]) -> float:
    """The mean over agents, negated where less is better; NaN where it is undefined."""
    names = evaluated_names(line)
    if name not in names:
        raise InputError(f"Expected a metric of this run, got {name!r}.{did_you_mean(name, names)}")
    return metric_sign(name, larger) * mean_over_classes(line[name]["mean"])


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
