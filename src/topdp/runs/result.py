"""What a run found: the object that `topdp.train` returns, and the lines of metrics.jsonl."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from topdp.learning.models import FlatModel
from topdp.plan import Plan
from topdp.plan.arrays import Floats
from topdp.privacy.account import Account
from topdp.settings.config import RunConfig
from topdp.simulator.engine import Evaluation

Metrics = dict[str, Any]
"""One evaluation, as a line of metrics.jsonl holds it."""


@dataclass(frozen=True)
class Result:
    """What a run found. With a folder, everything is on disk as well.

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
    privacy: Account  # the answers, and who learns what of whom
    metrics: list[Metrics]
    estimates: Tensor  # [agents, d]
    seconds: float
    flat: FlatModel = field(repr=False)
    folder: Path | None = None

    @property
    def accuracy(self) -> dict[str, float]:
        """mean, min and max over agents at the end; empty without a test set."""
        return dict(self.metrics[-1]["accuracy"]) if self.metrics else {}

    def model(self, agent: int) -> nn.Module:
        """The trained network of one agent."""
        return self.flat.load(self.estimates[agent])

    def summary(self) -> dict[str, Any]:
        """The JSON object of `topdp run --json`."""
        return {
            "run": None if self.folder is None else str(self.folder),
            "rounds": self.config.rounds,
            "accuracy": self.accuracy or None,
            "privacy": self.privacy.summary(),
            "seconds": round(self.seconds, 3),
        }


def metrics_of(round: int, evaluation: Evaluation) -> Metrics:
    """The line of metrics.jsonl after `round`."""
    return {
        "round": round,
        "accuracy": spread(evaluation.accuracy),
        "loss": spread(evaluation.loss),
        "accuracy_per_agent": [_short(value) for value in evaluation.accuracy],
        "loss_per_agent": [_short(value) for value in evaluation.loss],
    }


def spread(values: Floats) -> dict[str, float]:
    """mean, min and max over agents."""
    return {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max())}


def _short(value: float) -> float:
    return round(float(value), 6)
