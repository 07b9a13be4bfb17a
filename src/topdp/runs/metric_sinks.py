"""Sinks: services that receive the metrics of a run, namely TensorBoard, MLflow and Weights & Biases.

Each sink is a callback. Its package is imported when a configuration names the sink, so that a missing
package is reported before the run is planned. A sink writes the configuration, the ε of the account, and the
metrics of every evaluation (mean, worst and best agent). It never writes estimates, gradients, records or
losses on training records.

Nothing leaves the machine unless its user has arranged it. TensorBoard writes to the run folder. MLflow
writes to MLFLOW_TRACKING_URI, or to the run folder without it. Weights & Biases writes to the run folder
unless WANDB_MODE=online.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, final

from topdp.runs.callbacks import Callbacks, Running, expect_list
from topdp.runs.config import ConfigError, RunConfig, dotted
from topdp.runs.metric_labels import evaluated_names
from topdp.runs.result import Metrics, Result

PROJECT = "topdp"

# With these settings, Weights & Biases records no program, host, commit, packages or output of the machine.
WANDB_PRIVATE_SETTINGS = ("disable_git", "x_disable_meta", "x_disable_stats")
WANDB_DISABLED: dict[str, Any] = {"console": "off", "save_code": False, "x_save_requirements": False}


def callbacks_of(config: RunConfig, given: Iterable[object] = ()) -> Callbacks:
    """Return the sinks that a configuration names, each once, followed by the callbacks of the user.

    Raise ConfigError if the package of a sink is missing.
    """
    sinks = [SINKS[name]() for name in dict.fromkeys(config.report.sinks)]
    return Callbacks([*sinks, *expect_list(given)])


class Sink(ABC):
    """A callback that records configuration and ε at the start, and metrics at every evaluation."""

    def on_start(self, run: Running) -> None:
        self.open(run, dotted(run.config.model_dump(exclude_none=True)), _epsilons(run))

    def on_evaluation(self, run: Running) -> None:
        assert run.metrics is not None
        self.log(_values(run.metrics), run.metrics["round"])

    def on_end(self, result: Result) -> None:
        self.close("stopped" if result.stopped else "done")

    def on_break(self, error: BaseException) -> None:
        self.close("broken off")

    @abstractmethod
    def open(self, run: Running, settings: dict[str, Any], epsilons: dict[str, float]) -> None:
        """Begin the record of a run, before its first round."""

    @abstractmethod
    def log(self, values: dict[str, float], round: int) -> None:
        """Record one evaluation."""

    @abstractmethod
    def close(self, state: str) -> None:
        """End the record of a run in `state` (done, stopped or broken off), even if `open` was not called."""


@final
class TensorBoard(Sink):
    """Event files in the folder `tensorboard` of the run; `tensorboard --logdir RUN` shows them."""

    def __init__(self) -> None:
        _package("tensorboard", "tensorboard")
        self._torch = _package("torch.utils.tensorboard", "tensorboard")
        self._writer: Any = None

    def open(self, run: Running, settings: dict[str, Any], epsilons: dict[str, float]) -> None:
        # A resumed run drops the log entries after the checkpoint from which it continues.
        purge = {} if run.metrics is None else {"purge_step": run.metrics["round"] + 1}
        self._writer = self._torch.SummaryWriter(log_dir=str(_folder(run) / "tensorboard"), **purge)
        lines = "\n".join(f"    {key} = {value}" for key, value in settings.items())
        self._writer.add_text("configuration", lines, 0)
        for name, value in epsilons.items():
            self._writer.add_scalar(name, value, 0)

    def log(self, values: dict[str, float], round: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()  # for readers during the run, and in case it is killed

    def close(self, state: str) -> None:
        if self._writer is not None:
            self._writer.close()


@final
class MLflow(Sink):
    """A run in the experiment `topdp`. MLflow's client adds no tags with the user, program or commit."""

    def __init__(self) -> None:
        self._tracking = _package("mlflow.tracking", "mlflow")
        self._client: Any = None
        self._run = ""

    def open(self, run: Running, settings: dict[str, Any], epsilons: dict[str, float]) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{_folder(run).resolve() / 'mlflow.db'}"
        self._client = self._tracking.MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(PROJECT)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
        self._run = self._client.create_run(experiment_id, run_name=_title(run)).info.run_id
        for key, value in settings.items():
            self._client.log_param(self._run, key, str(value))
        for name, value in epsilons.items():
            self._client.log_metric(self._run, name, value, step=0)

    def log(self, values: dict[str, float], round: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=round)

    def close(self, state: str) -> None:
        if self._run:
            self._client.set_terminated(self._run, "KILLED" if state == "broken off" else "FINISHED")


@final
class WeightsAndBiases(Sink):
    """A run of the project `topdp`, stored in the run folder until `wandb sync`, unless WANDB_MODE=online."""

    def __init__(self) -> None:
        self._wandb = _package("wandb", "wandb")
        self._run: Any = None

    def open(self, run: Running, settings: dict[str, Any], epsilons: dict[str, float]) -> None:
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=_title(run),
            config={**settings, **epsilons},
            dir=str(_folder(run)),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=self._wandb.Settings(
                silent=True, **dict.fromkeys(WANDB_PRIVATE_SETTINGS, True), **WANDB_DISABLED
            ),
        )

    def log(self, values: dict[str, float], round: int) -> None:
        self._run.log(values, step=round)

    def close(self, state: str) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1 if state == "broken off" else 0)


SINKS: dict[str, type[Sink]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}


def _package(module: str, package: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"report.sinks: expected the package {package!r}, could not import it: {error}. Install it with "
            f"pip install -c constraints.txt '.[{package}]', or remove the sink."
        ) from error


def _folder(run: Running) -> Path:
    """Return the run folder, or the current folder if the run has no folder."""
    return run.folder if run.folder is not None else Path(".")


def _title(run: Running) -> str:
    return run.folder.name if run.folder is not None else f"{run.config.method.name}-{run.config.seed}"


def _epsilons(run: Running) -> dict[str, float]:
    """Return each finite ε of the whole plan, by its answer."""
    return {
        f"epsilon/{name}": float(value) for name, value in run.privacy.epsilon.items() if value is not None
    }


def _values(line: Metrics) -> dict[str, float]:
    """Return all defined values of an evaluation by name. If a metric has one value per class, the names end
    with the number of the class.
    """
    values: dict[str, float | None] = {}
    for name in evaluated_names(line):
        for key, value in line[name].items():
            if isinstance(value, list):
                values |= {f"{name}/{key}/{k}": number for k, number in enumerate(value)}
            else:
                values[f"{name}/{key}"] = value
    return {key: float(value) for key, value in values.items() if value is not None}
