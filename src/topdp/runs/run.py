"""Run a configuration: from its names to a finished run folder. Read this file first.

    resolve    names and record counts     -> ResolvedRun                    resolve.py
    assemble   records, model              -> Assembly                       assembly.py
    calibrate  protocol, guarantee, (ε, δ) -> the Plan with its noise, or an error, before any training
    account    plan                        -> claimed, view and worst-case ε  planning.py
    train      plan, model, shards         -> metrics, final estimates        training_loop.py
    save       runs/<id>/                                                     run_folder.py

`run` takes a configuration; `train` (user_training.py) takes a user's own model, shards and graph. Both
follow these steps.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from topdp import __version__
from topdp.base.files import exclusive_lock, remove_new_folders_on_error
from topdp.base.progress import Progress, silent
from topdp.plan import Plan
from topdp.plan.noise_key import NoiseKey
from topdp.privacy.accounting import Account
from topdp.runs import metric_sinks
from topdp.runs.assembly import Assembly, choose_device
from topdp.runs.auto_values import differing_keys
from topdp.runs.best_estimates import Best
from topdp.runs.best_estimates import read as read_best
from topdp.runs.callbacks import Callbacks, Running
from topdp.runs.checkpoints import Checkpoints
from topdp.runs.config import RunConfig
from topdp.runs.kept_keys import KEY_FILE, key_of, keyed_digest, read_key, write_key
from topdp.runs.memory_check import expect_room, expect_room_for_records
from topdp.runs.metric_labels import metric_names, picture_name
from topdp.runs.model_export import InputKind, facts_of, labels_of, notes_of
from topdp.runs.pictures.learning_curves import curves, heading
from topdp.runs.planning import expect_account_of, expect_plan_of, plan_and_account, sealed
from topdp.runs.prediction import Predictor
from topdp.runs.result import Result, Stopped
from topdp.runs.rounding_check import warn_of_lost_steps
from topdp.runs.row_arrays import as_array, as_tensor
from topdp.runs.run_folder import STARTING, RunFolder, RunFolderError
from topdp.runs.run_outline import RunOutline
from topdp.runs.statistics.standardisation import (
    STANDARDISATION,
    Standardisation,
    kept_standardisation,
    release_standardisation,
)
from topdp.runs.statistics.standardisation_cost import standardises
from topdp.runs.training_loop import train_to_the_end
from topdp.simulator.ranks.ranked_engine import RankedEngine
from topdp.simulator.simulation import Simulation
from topdp.simulator.stepping import fastest


def run(
    config: RunConfig,
    out: Path,
    device: str = "auto",
    progress: Progress = silent,
    callbacks: Iterable[object] = (),
) -> Result:
    """Run a configuration, write its run folder to `out`, and return the result."""
    return _begin(RunOutline.of(config), out, device, progress, callbacks)


def _begin(
    outline: RunOutline, out: Path, device: str, progress: Progress, callbacks: Iterable[object] = ()
) -> Result:
    called = metric_sinks.callbacks_of(outline.config, callbacks)
    with prepared_folder(out):
        job = plan_run(Assembly.of(outline, choose_device(device), progress), progress)
    folder = new_run_folder(out, job)
    with locked(out):
        return execute(job, folder, progress, called)


def resume(
    path: Path,
    device: str = "auto",
    progress: Progress = silent,
    callbacks: Iterable[object] = (),
) -> Result:
    """Continue the unfinished run in `path` from its last checkpoint, and return the result.

    The result is the same as without the interruption.
    """
    with locked(path):
        return _resumed(unfinished(path), device, progress, callbacks)


def abandon(path: Path) -> None:
    """End the unfinished run in `path`, which then cannot continue: erase its noise key and checkpoints."""
    with locked(path):
        unfinished(path).end("abandoned")


def _resumed(folder: RunFolder, device: str, progress: Progress, callbacks: Iterable[object]) -> Result:
    path, config = folder.path, folder.config
    if config.started_from_python:
        raise RunFolderError(
            f"Expected a run whose data and model the configuration names, got the run in {path}, which was "
            f"started from Python. Continue it with topdp.train(..., out={str(path)!r}, resume=True)."
        )
    return _continue(RunOutline.of(config), folder, device, progress, callbacks)


def _continue(
    outline: RunOutline, folder: RunFolder, device: str, progress: Progress, callbacks: Iterable[object] = ()
) -> Result:
    done = folder.state == "done"
    called = None if done else metric_sinks.callbacks_of(outline.config, callbacks)
    job = reopen_run(Assembly.of(outline, choose_device(device), progress), folder)
    return job.read(folder) if done else execute(job, folder, progress, called)


def run_or_continue(
    outline: RunOutline,
    out: Path,
    device: str = "auto",
    progress: Progress = silent,
) -> Result:
    """Return the result of a run in `out`: run it, continue it, or read it if it is finished.

    A finished run is checked like a run that continues: its plan and account must hold for the present
    records.
    """
    if (out / "run.json").exists():
        with locked(out):
            folder = RunFolder.open(out)
            if folder.state != STARTING:
                expect_settings(folder, outline.config)
                if folder.state != "done":
                    unfinished(out)
                # The configuration in the folder has a number for every `auto`.
                return _continue(replace(outline, config=folder.config), folder, device, progress)
            folder.forget_start()
    return _begin(outline, out, device, progress)


def expect_settings(folder: RunFolder, config: RunConfig) -> None:
    """Raise RunFolderError if the run in `folder` was begun with other settings than `config`."""
    if differing := differing_keys(config, folder.config):
        raise RunFolderError(
            f"Expected the settings of the run in {folder.path}, got other values of {', '.join(differing)}. "
            "Use the same settings, or another folder."
        )


@dataclass(frozen=True)
class PlannedRun:
    """Everything that a run needs, checked before the first round."""

    parts: Assembly
    plan: Plan
    privacy: Account
    key: NoiseKey = field(default_factory=NoiseKey.fresh)
    _: KW_ONLY
    standardisation: Standardisation | None = None  # if so, the first layer of the model in `parts`

    def result(
        self,
        metrics: list[dict[str, Any]],
        estimates: torch.Tensor,
        seconds: float,
        folder: Path | None,
        best: Best | None,
        stopped: Stopped | None = None,
    ) -> Result:
        return Result(
            config=self.parts.run.config,
            plan=self.plan,
            privacy=self.privacy,
            metrics=metrics,
            estimates=estimates,
            seconds=seconds,
            flat=self.parts.flat,
            folder=folder,
            best=best,
            stopped=stopped,
            inputs=InputKind.of(self.parts.shards.inputs),
            predictor=Predictor.of(self.parts.shards, self.parts.task),
            labels=labels_of(self.parts),
            facts=self.stored_facts(),
        )

    def stored_facts(self) -> dict[str, Any]:
        """Return the entries of run.json from which `topdp.load` makes the result."""
        counts = {f"{self.parts.run.config.privacy.unit}s": list(self.parts.run.counts)}
        prepared = {} if self.standardisation is None else {STANDARDISATION: self.standardisation.facts()}
        return {**counts, **facts_of(self.parts), **prepared}

    def read(self, folder: RunFolder) -> Result:
        """Return the result of a finished run from its folder."""
        estimates = as_tensor(folder.stored_estimates("model.safetensors")[0])
        seconds = float(folder.fact("seconds"))
        return self.result(folder.metrics, estimates, seconds, folder.path, read_best(folder))


def plan_run(parts: Assembly, progress: Progress, key: NoiseKey | None = None) -> PlannedRun:
    """Return the planned run. `key`: its noise key; None: that of a new run."""
    progress("planning")
    plan, account = plan_and_account(parts.run, progress)
    key, standardisation = key or key_of(parts.run.config), None
    if standardises(parts.run.config):
        standardisation = release_standardisation(parts, key, progress)
        parts = standardisation.prepared(parts)
    return PlannedRun(parts, plan, account, key, standardisation=standardisation)


def reopen_run(parts: Assembly, folder: RunFolder) -> PlannedRun:
    """Return the planned run with the plan, account and noise key in `folder`.

    Raise RunFolderError unless they are those of the configuration and of the records in `parts`. A finished
    run has no key and no digest of its records.
    """
    plan = folder.plan
    expect_plan_of(parts.run, plan, folder.path)
    account = expect_account_of(parts.run.config, parts.run.analysis, folder)
    standardisation = kept_standardisation(folder)
    if standardisation is not None:  # a second release would cost as much again
        parts = standardisation.prepared(parts)
    if folder.state == "done":
        return PlannedRun(parts, plan, account, standardisation=standardisation)
    key = _kept_key(folder, parts.run.config)
    if folder.fact("data") != keyed_digest(key, parts.digest()):
        raise RunFolderError(
            f"Expected the same records, in the same order, as at the start of the run in {folder.path}, got "
            "other records or another order. With cyclic batches, a moved record could be used more often "
            "than the account states. Use the original records, or another folder."
        )
    return PlannedRun(parts, plan, account, key, standardisation=standardisation)


def _kept_key(folder: RunFolder, config: RunConfig) -> NoiseKey:
    """Return the noise key of an unfinished run. Raise RunFolderError if it is lost."""
    key = read_key(folder.path) if config.noise_seed is None else key_of(config)
    if key is None:
        raise RunFolderError(
            f"Expected the noise key of the unfinished run in {folder.path / KEY_FILE}, found none. Without "
            "it the run cannot continue: other noise in rounds that were seen would reveal more than the "
            "account states. Start it again in another folder."
        )
    return key


def execute(
    job: PlannedRun,
    folder: RunFolder | None,
    progress: Progress,
    callbacks: Callbacks | None = None,
    ranked: tuple[RankedEngine, Checkpoints] | None = None,
) -> Result:
    """Train until the run ends or a callback stops it, write the results to `folder`, and return them.

    `folder`: None: nothing is written. `ranked`: the engine and checkpoints of one of several ranks
    (ranked_run.py); None: the run has a single process.
    """
    callbacks = callbacks or Callbacks()
    started = time.perf_counter()
    parts, path = job.parts, folder.path if folder else None
    progress("preparing")
    if folder is not None or ranked is None:  # of several ranks, only the one with the folder warns
        warn_of_lost_steps(job.plan, parts.start)
    simulation: Simulation
    checkpoints: Checkpoints | None
    if ranked is None:
        expect_room_for_records(parts.shards, parts.device)
        engine = parts.engine(job.plan, job.key)
        expect_room(engine)
        simulation = fastest(engine)
        checkpoints = None if path is None else Checkpoints(path, engine.layout)
    else:
        simulation, checkpoints = ranked
    before = folder.read_json("run.json").get("stopped") if folder is not None else None
    history: list[dict[str, Any]] = []
    running = Running(
        config=parts.run.config,
        plan=job.plan,
        privacy=job.privacy,
        flat=parts.flat,
        folder=path,
        lines=history,
        stopped_at=None if before is None else int(before["round"]),
        larger_is_better={metric.name: metric.larger_is_better for metric in parts.task.metrics},
    )
    try:
        state, best, stopped = train_to_the_end(
            simulation, parts.start, history, running, folder, progress, callbacks, checkpoints
        )
        seconds = time.perf_counter() - started
        simulation.release_buffers()
        estimates = simulation.reported(state).detach().cpu().clone()
        result = job.result(history, estimates, seconds, path, best, stopped)
        if folder is not None:
            facts = ended_facts(result, parts.device)
            numbers, notes = as_array(result.estimates), notes_of(result.flat)
            end_folder(folder, result.config, result.plan, result.metrics, numbers, notes, facts)
    except BaseException as error:
        callbacks.broke(error)
        raise
    callbacks.end(result)
    return result


def end_folder(
    folder: RunFolder,
    config: RunConfig,
    plan: Plan,
    metrics: list[dict[str, Any]],
    estimates: NDArray[Any],
    notes: dict[str, str],
    facts: dict[str, Any],
) -> None:
    """Write the results of a run to its folder."""
    folder.save_metrics(metrics)
    if metrics:
        title = heading([config], [plan.agents])
        for metric in metric_names(metrics[-1]):
            curves({config.method.name: metrics}, folder.path / picture_name(metric), title, metric)
    folder.finish(estimates, notes, **facts)


def ended_facts(result: Result, device: torch.device) -> dict[str, Any]:
    """Return the entries that run.json gets when a run has ended, besides the state."""
    return {
        "stopped": None if result.stopped is None else result.stopped._asdict(),
        "seconds": round(result.seconds, 3),
        "device": str(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "plan": result.plan.digest(),
        "topdp": __version__,
    }


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock on the run folder `path`, so that no other process continues or abandons the run."""
    RunFolder.open(path)  # otherwise the lock would create a file
    with exclusive_lock(path):
        yield


def unfinished(path: Path) -> RunFolder:
    """Return the folder of the unfinished run in `path`. Raise RunFolderError if it cannot be resumed."""
    folder = RunFolder.open(path)
    if reason := WHY_NOT_RESUMED.get(folder.state):
        raise RunFolderError(f"Expected an unfinished run in {path}, got one that {reason}.")
    return folder


WHY_NOT_RESUMED = {
    "done": "is done. There is nothing to resume",
    STARTING: "was stopped before its first round. Start it again in another folder",
    "diverged": "diverged, and would diverge again. Start a run with smaller steps",
    "wrong": "ended because a recorded round was wrong. Start it again in another folder",
    "abandoned": "was abandoned, and its noise key erased. Start it again in another folder",
}


@contextmanager
def prepared_folder(out: Path | None) -> Iterator[None]:
    """Create the folder `out` before the body, whose accounting may take minutes. Raise RunFolderError if it
    is not empty. Remove it if the body fails. `out` None: do nothing.
    """
    if out is None:
        yield
        return
    with remove_new_folders_on_error(out):
        RunFolder.make_room(out)
        yield


def new_run_folder(path: Path, job: PlannedRun) -> RunFolder:
    """Create the folder of a run before its first round, with configuration, plan and account."""
    account, config = sealed(job.plan, job.privacy), job.parts.run.config
    key = job.key if config.noise_seed is None else None
    return begun_folder(path, config, job.plan, account, begun_facts(job), key)


def begun_folder(
    path: Path,
    config: RunConfig,
    plan: Plan,
    privacy: dict[str, Any],
    facts: dict[str, Any],
    key: NoiseKey | None = None,
) -> RunFolder:
    """Create the folder `path` of a run. `privacy`: the content of privacy.json. `facts`: of run.json.

    `key`: the noise key to keep; None: the run does not need to continue, or has a noise seed.
    """
    folder = RunFolder.create(path, config.to_toml(), plan)
    folder.write_json("privacy.json", privacy)
    if key is not None:
        write_key(path, key)
    folder.mark("running", **facts)
    return folder


def begun_facts(job: PlannedRun) -> dict[str, Any]:
    """Return the entries that run.json has from the start on, besides the state."""
    return {**job.stored_facts(), "data": keyed_digest(job.key, job.parts.digest())}
