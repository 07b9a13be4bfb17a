"""The estimates at the best evaluation so far, stored beside the estimates at the end.

Evaluations are compared by one metric, as its mean over agents on the test records of the run. It is the
first metric for which it is known whether more is better, or else the loss. Choosing a round by the test set
makes the metric of that round look better than it is. With `data.validation`, the records held out decide,
and the test set is not used. This module does not stop a run (`callbacks.py` does).

**Guarantees.** Which round was best depends only on estimates and test records. If the test records are
public, the choice reveals nothing beyond the estimates of all rounds, and the answers `adaptive`, `outsider`
and `worst_case` assume that observers read those. The account does not cover the records that
`data.validation` holds out: if they are private, the choice reveals something about them.
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
    """The estimates [agents, d] after `round`, when `metric` had its best value."""

    round: int
    metric: str
    value: float
    estimates: Tensor


@final
class BestSoFar:
    """The estimates of the best evaluation so far. A resumed run begins with those in its folder."""

    def __init__(
        self,
        folder: RunFolder | None,
        resumed: bool,
        *,
        notes: dict[str, str],
        larger: Mapping[str, bool | None] | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        """`larger`: for each metric of the user, whether more is better; None: unknown. `learning/metrics.py`
        states it for all other metrics. `notes`: metadata for the file.

        `group`: all ranks of the run. Only rank 0 has a folder. All ranks start from its best evaluation, so
        that they make the same decisions.
        """
        self._folder = folder
        self._larger = larger or {}
        self._notes = notes
        self._unsaved = self._pending = False
        self.best = read(folder) if folder is not None and resumed else None
        if group is not None:
            best = group.led(None if self.best is None else self.best._replace(estimates=torch.empty(0)))
            self.best = best if folder is None else self.best

    def see(self, line: dict[str, Any], estimates: Callable[[], Tensor]) -> None:
        """Store an evaluation if it is better than all before. `estimates` is called only in this case."""
        name = first_metric(line, self._larger)
        value = metric_of(line, name, self._larger)
        if math.isnan(value):
            return
        sign = metric_sign(name, self._larger)
        if self.best is None or value > sign * self.best.value:
            self.best = self._copy(line["round"], name, sign * value, estimates().detach().cpu())
            self._unsaved = True

    def save(self) -> None:
        """Write the best estimates. Called with every checkpoint, so that both agree, and at the end."""
        if self._folder is None or self.best is None or not self._unsaved:
            return
        if self._pending:
            self._folder.rename(PENDING_FILE, "best.safetensors")
        else:
            write(self._folder, self.best, self._notes)
        self._unsaved = self._pending = False

    def _copy(self, round: int, metric: str, value: float, estimates: Tensor) -> Best:
        """Return a copy of the estimates: in memory if they are small, and otherwise in the pending file,
        which replaces `best.safetensors` at the next checkpoint.
        """
        self._pending = self._folder is not None and estimates.numel() >= MAX_COPIED_NUMBERS
        if self._folder is None or not self._pending:
            return Best(round, metric, value, estimates.clone())
        write(self._folder, Best(round, metric, value, estimates), self._notes, PENDING_FILE)
        return Best(round, metric, value, as_tensor(mapped(self._folder.path / PENDING_FILE, "estimates")))


def write(folder: RunFolder, best: Best, notes: dict[str, str], name: str = "best.safetensors") -> None:
    folder.save_estimates(name, as_array(best.estimates), notes_of_best(best, notes))


def notes_of_best(best: Best, notes: dict[str, str]) -> dict[str, str]:
    """Return `notes`, the metadata of a file of estimates, with the facts about the best evaluation."""
    return {**notes, "round": str(best.round), "metric": best.metric, "value": repr(best.value)}


def read(folder: RunFolder) -> Best | None:
    """Return the best evaluation in a run folder; None if it has none."""
    if not (folder.path / "best.safetensors").exists():
        return None
    estimates, notes = folder.stored_estimates("best.safetensors", ("round", "metric", "value"))
    return Best(int(notes["round"]), notes["metric"], float(notes["value"]), as_tensor(estimates))


def first_metric(line: dict[str, Any], larger: Mapping[str, bool | None]) -> str:
    """Return the first metric in a line of metrics.jsonl of which it is known whether more is better, or else
    the loss. `larger`: for each metric of the user, whether more is better; None: unknown.
    """
    return next(name for name in [*metric_names(line), "loss"] if _direction(name, larger) is not None)


def metric_of(line: dict[str, Any], name: str, larger: Mapping[str, bool | None]) -> float:
    """Return the mean of a metric over agents, negated if less is better; NaN if it is undefined."""
    names = evaluated_names(line)
    if name not in names:
        raise InputError(f"Expected a metric of this run, got {name!r}.{did_you_mean(name, names)}")
    return metric_sign(name, larger) * mean_over_classes(line[name]["mean"])


def metric_sign(name: str, larger: Mapping[str, bool | None]) -> float:
    direction = _direction(name, larger)
    if direction is None:
        raise InputError(
            f"Expected a metric of which it is known whether more is better, got {name!r}. State it: "
            f"topdp.Metric({name!r}, function, larger_is_better=True), or False."
        )
    return 1.0 if direction else -1.0


def _direction(name: str, larger: Mapping[str, bool | None]) -> bool | None:
    return larger[name] if name in larger else larger_is_better(name)
