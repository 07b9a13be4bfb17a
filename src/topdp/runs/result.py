"""The results of a run: the object that `topdp.train` returns, and the lines of metrics.jsonl."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from topdp.base.array_types import Floats
from topdp.errors import InputError
from topdp.learning.models import FlatModel
from topdp.plan import Plan
from topdp.privacy.accounting import Account
from topdp.privacy.answers import BY_RANK
from topdp.runs.best_estimates import Best
from topdp.runs.config import RunConfig
from topdp.runs.model_export import InputKind, chosen_row, write
from topdp.simulator.evaluation import Evaluation

# One evaluation, as in a line of metrics.jsonl.
Metrics = dict[str, Any]


class Stopped(NamedTuple):
    """The end of a run that a callback stopped after `round`."""

    round: int
    reason: str

    @property
    def statement(self) -> str:
        unproved = " and ".join(f"`{kind.name}`" for kind in BY_RANK if not kind.proved)
        return (
            f"Stopped after round {self.round}: {self.reason}. ε is that of the whole plan, an upper bound "
            f"if the test records are public; {unproved} do not cover a stop."
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """The results of a run. If the run has a folder, they are on disk as well.

    >>> import torch, topdp
    >>> x = torch.rand(4, 50, 3)  # three agents and a test set
    >>> y = (x.sum(2) > 1.5).long()
    >>> shards = topdp.Shards.from_arrays(list(zip(x[:3], y[:3])), test=(x[3], y[3]))
    >>> result = topdp.train(torch.nn.Linear(3, 2), shards, topdp.topology.ring(3), sigma=0.1, rounds=4)
    >>> sorted(result.accuracy), result.model(agent=0)
    (['max', 'mean', 'min'], Linear(in_features=3, out_features=2, bias=True))
    >>> round(result.privacy.epsilon["worst_case"], 3)  # largest over agents, at δ = 1e-5
    1.76
    """

    config: RunConfig
    plan: Plan
    privacy: Account  # the answers: who can learn how much about whom
    metrics: list[Metrics]
    estimates: Tensor  # [agents, d]; in bfloat16 if train.rows is bfloat16
    seconds: float
    flat: FlatModel = field(repr=False)
    folder: Path | None = None
    best: Best | None = field(default=None, repr=False)  # the best of all evaluations, by the first metric
    stopped: Stopped | None = None  # None: no callback stopped the run
    inputs: InputKind | None = field(default=None, repr=False)  # the input of the model

    @property
    def scores(self) -> dict[str, dict[str, Any]]:
        """For each metric and the loss, mean, min and max over agents at the end; empty without test set."""
        if not self.metrics:
            return {}
        return {name: dict(value) for name, value in self.metrics[-1].items() if isinstance(value, dict)}

    @property
    def accuracy(self) -> dict[str, float]:
        """The mean, min and max over agents at the end; empty if accuracy is not a metric of the run."""
        return self.scores.get("accuracy", {})

    def model(self, agent: int) -> nn.Module:
        """Return the trained network of one agent."""
        return self.flat.load(self.estimates[agent])

    def best_model(self, agent: int) -> nn.Module:
        """Return the network of one agent at the best evaluation of the run (`best`), instead of at the end.

        If the test set chose the round, the metric of this network is a little too good. If the records held
        out by `data.validation` chose it, the metric on the test set is not.
        """
        return self.flat.load(self._rows(best=True)[agent])

    def export(
        self, file: str | Path, format: str | None = None, *, agent: int | str = 0, best: bool = False
    ) -> Path:
        """Write the network of one agent, or the "mean" of all, to `file`. Return its path.

        `format`: safetensors, state-dict or onnx; None: as the suffix of `file` states, which is then
        .safetensors, .pt or .onnx. `best`: the network at the best evaluation instead of at the end.
        """
        module = self.flat.load(chosen_row(self._rows(best), agent))
        return write(module, Path(file), format, self.inputs)

    def _rows(self, best: bool) -> Tensor:
        if not best:
            return self.estimates
        if self.best is None:
            raise InputError("Expected a run with test records to choose its best round by, got none.")
        return self.best.estimates

    @property
    def redrawable_noise(self) -> str | None:
        """What the noise seed of the run means for its guarantees; None if its noise is secret."""
        return self.config.redrawable_noise

    def summary(self) -> dict[str, Any]:
        """Return the JSON object of `topdp run --json`."""
        return {
            "run": None if self.folder is None else str(self.folder),
            "rounds": self.config.rounds,
            "accuracy": self.accuracy or None,
            "metrics": self.scores or None,
            "privacy": self.privacy.summary(),
            "redrawable_noise": self.redrawable_noise,
            "seconds": round(self.seconds, 3),
            "stopped": None if self.stopped is None else self.stopped._asdict(),
        }


def metrics_of(round: int, evaluation: Evaluation) -> Metrics:
    """Return the line of metrics.jsonl for the evaluation after `round`."""
    per_agent = {**evaluation.metrics, "loss": evaluation.loss}
    return {
        "round": round,
        **{name: spread(values) for name, values in per_agent.items()},
        **{f"{name}_per_agent": _plain(values.round(6)) for name, values in per_agent.items()},
    }


def spread(values: Floats) -> dict[str, Any]:
    """Return the mean, min and max over agents; None instead of each if no agent has a finite value.

    >>> import numpy as np
    >>> spread(np.array([0.25, 0.75, np.nan]))
    {'mean': 0.5, 'min': 0.25, 'max': 0.75}
    """
    finite = np.ma.masked_invalid(values)
    return {
        name: _plain(np.ma.filled(np.ma.asarray(over(axis=0)).astype(float), np.nan))
        for name, over in (("mean", finite.mean), ("min", finite.min), ("max", finite.max))
    }


def _plain(values: Floats) -> Any:
    """Return `values` as numbers and lists for JSON, with None for numbers that are not finite."""
    if np.ndim(values):
        return [_plain(value) for value in values]
    return float(values) if np.isfinite(values) else None
