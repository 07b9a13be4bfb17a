"""The results of a run: the object that `topdp.train` returns, and the lines of metrics.jsonl."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor, nn

from topdp.base.array_types import AnyArray, Floats
from topdp.errors import InputError
from topdp.learning.models import FlatModel
from topdp.plan import Plan
from topdp.privacy.accounting import Account
from topdp.privacy.answers import BY_RANK
from topdp.runs.best_estimates import Best
from topdp.runs.config import RunConfig, did_you_mean
from topdp.runs.metric_labels import evaluated_names, metric_names
from topdp.runs.model_export import MEAN_AGENT, InputKind, chosen_row, write
from topdp.runs.pictures.learning_curves import heading, learning_curve
from topdp.runs.portable_file import write_portable
from topdp.runs.prediction import Predictor
from topdp.runs.result_text import result_html, result_line
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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result:
    """The results of a run. If the run has a folder, they are on disk as well.

    `agent` in its methods is the number of an agent, the name of its site (`labels`), or "mean" for the
    average of all agents' models.

    >>> import torch, topdp
    >>> x = torch.rand(4, 50, 3)  # three agents and a test set
    >>> y = (x.sum(2) > 1.5).long()
    >>> shards = topdp.Shards.from_arrays(list(zip(x[:3], y[:3])), test=(x[3], y[3]))
    >>> result = topdp.train(torch.nn.Linear(3, 2), shards, topdp.topology.ring(3), sigma=0.1, rounds=4)
    >>> sorted(result.accuracy), result.model(agent=0)
    (['max', 'mean', 'min'], Linear(in_features=3, out_features=2, bias=True))
    >>> result.predict(x[3]).shape, result.predict_proba(x[3]).shape
    ((50,), (50, 2))
    >>> round(result.privacy.epsilon["worst_case"], 3)  # largest over agents, at δ = 1e-5
    1.76
    """

    config: RunConfig
    plan: Plan
    privacy: Account  # the answers: who can learn how much about whom
    metrics: list[Metrics]
    estimates: Tensor  # [agents, d]; in bfloat16 if train.rows is bfloat16
    seconds: float
    flat: FlatModel
    folder: Path | None = None
    best: Best | None = None  # the best of all evaluations, by the first metric
    stopped: Stopped | None = None  # None: no callback stopped the run
    inputs: InputKind | None = None  # the input of the model
    predictor: Predictor | None = None  # how new records become predictions
    labels: tuple[str, ...] | None = None  # the names of the agents' sites, if they have any
    facts: dict[str, Any] = field(default_factory=dict)  # entries of run.json, with which `save` writes one

    def __repr__(self) -> str:
        return result_line(self)

    def _repr_html_(self) -> str:
        return result_html(self)

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

    def model(self, agent: int | str = MEAN_AGENT) -> nn.Module:
        """Return the trained network of one agent, or the "mean" of all, in evaluation mode."""
        return self._network(agent, best=False)

    def best_model(self, agent: int | str = MEAN_AGENT) -> nn.Module:
        """Return the network of one agent at the best evaluation of the run (`best`), instead of at the end.

        If the test set chose the round, the metric of this network is a little too good. If the records held
        out by `data.validation` chose it, the metric on the test set is not.
        """
        return self._network(agent, best=True)

    def predict(self, records: Any, agent: int | str = MEAN_AGENT, *, best: bool = False) -> AnyArray:
        """Return the predicted target of each of the new `records`.

        `records` are an array or a tensor; or, if a schema prepared the records of the run, a frame, a
        dictionary of columns or the path of a table. They are prepared as in training. The target column, and
        others that the schema does not name, may be present or not.

        Targets are classes (by name, if they have names), labels of 0 and 1, or numbers in the units of the
        target. `best`: with the model at the best evaluation, instead of at the end.
        """
        return self._predictor.predictions(self._network(agent, best), records)

    def predict_proba(self, records: Any, agent: int | str = MEAN_AGENT, *, best: bool = False) -> Floats:
        """Return the probability of each class [records, classes] for new records; of each label, if a record
        has several.
        """
        return self._predictor.probabilities(self._network(agent, best), records)

    def outputs(self, records: Any, agent: int | str = MEAN_AGENT, *, best: bool = False) -> Tensor:
        """Return the outputs of a model [records, ...] for new records, as the loss receives them."""
        return self._predictor.outputs(self._network(agent, best), records)

    @property
    def classes(self) -> AnyArray | None:
        """The classes in the order of `predict_proba`; None if the targets are no classes."""
        predictor = self.predictor
        if predictor is None or predictor.classes is None:
            return None
        return predictor.preparation.labels(np.arange(predictor.classes))

    def save(self, file: str | Path) -> Path:
        """Write the result to one file, which `topdp.load` reads on any machine. Return its path.

        The file has the models, plan, account, metrics, and all settings, which may name paths of this
        machine. It has no record, and nothing in it is pickled. Its name ends in .safetensors.
        """
        return write_portable(self, Path(file).expanduser())

    def plot(self, metric: str | None = None) -> Figure:
        """Return a picture of the learning curve: the mean of a metric over agents, and its range.

        `metric`: None: the first metric. A notebook shows the picture; `plot().savefig(path)` writes it.
        """
        if not self.metrics:
            raise InputError("Expected a run with test records for a learning curve, got none.")
        names = metric_names(self.metrics[-1])
        if metric is not None and metric not in evaluated_names(self.metrics[-1]):
            raise InputError(f"Expected a metric of this run, got {metric!r}.{did_you_mean(metric, names)}")
        title = heading([self.config], [self.plan.agents])
        return learning_curve({self.config.method.name: self.metrics}, title, metric)

    def export(
        self, file: str | Path, format: str | None = None, *, agent: int | str = 0, best: bool = False
    ) -> Path:
        """Write the weights of one agent's network, or the "mean" of all, to `file`, for other programs.

        Return the path of `file`. `save` writes a file that `topdp.load` reads.

        `format`: safetensors, state-dict or onnx; None: as the suffix of `file` states, which is then
        .safetensors, .pt or .onnx. `best`: the network at the best evaluation instead of at the end.
        """
        return write(self._network(agent, best), Path(file), format, self.inputs)

    def _network(self, agent: int | str, best: bool) -> nn.Module:
        return self.flat.load(chosen_row(self._rows(best), agent, self.labels)).eval()

    @property
    def _predictor(self) -> Predictor:
        if self.predictor is None:
            raise InputError(
                "Expected a run that states how its records were prepared, got one of an earlier version of "
                "topdp. Call result.model(agent) with inputs that you prepared, or run it again."
            )
        return self.predictor

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
