"""The front hall: from a configuration to a run folder. Read this file first.

    assemble   names                       -> graph, shards, model            assembly.py
    calibrate  protocol, guarantee, (ε, δ) -> the Plan with its noise, or a refusal, before any training
    account    plan                        -> claimed, view and worst-case ε  planning.py
    train      plan, model, shards         -> metrics, final estimates        loop.py
    save       runs/<id>/                                                     folder.py

`run` takes a configuration; `train` takes a user's own model, shards and graph. Both take the same walk.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import torch
from numpy.typing import NDArray
from torch import nn

from topdp import __version__
from topdp.base.files import gone_if_it_fails
from topdp.base.progress import Progress, silent
from topdp.data import Shards, featured_shards
from topdp.data.features.user_features import OwnFeatures
from topdp.learning.losses import OWN, Loss
from topdp.learning.metrics import METRICS
from topdp.learning.tasks import Metrics, Task
from topdp.plan import Plan
from topdp.privacy.account import Account
from topdp.runs import builders, metric_sinks
from topdp.runs.assembly import Assembly, choose_device
from topdp.runs.best_estimates import Best
from topdp.runs.best_estimates import read as read_best
from topdp.runs.callbacks import Callbacks, Running, expect_list
from topdp.runs.checkpoints import Checkpoints
from topdp.runs.config import (
    ConfigError,
    MethodConfig,
    PrivacyConfig,
    ReportConfig,
    RunConfig,
    Section,
    TrainConfig,
    did_you_mean,
    parse,
)
from topdp.runs.memory_check import expect_room, expect_room_for_records
from topdp.runs.methods import METHODS
from topdp.runs.metric_labels import metric_names, picture_name
from topdp.runs.model_export import InputKind, facts_of, notes_of
from topdp.runs.pictures.learning_curves import curves, heading
from topdp.runs.planning import expect_account_of, expect_plan_of, plan_and_account, sealed
from topdp.runs.resolve_auto import agrees
from topdp.runs.result import Result, Stopped
from topdp.runs.rounding_check import warn_of_lost_steps
from topdp.runs.row_arrays import as_array, as_tensor
from topdp.runs.run_folder import GIVEN, GRAPH_FILE, STARTING, RunFolder, RunFolderError
from topdp.runs.train_arguments import expect_path_and_progress, expect_shards, plain
from topdp.runs.training_loop import train_to_the_end
from topdp.simulator.ranks.ranked_engine import RankedEngine
from topdp.simulator.simulation import Simulation
from topdp.simulator.stepping import fastest
from topdp.topology import Topology, alone, as_topology


def run(
    config: RunConfig,
    out: Path,
    device: str = "auto",
    progress: Progress = silent,
    callbacks: Iterable[object] = (),
) -> Result:
    """Executes a configuration and leaves a run folder in `out`."""
    called = Callbacks([*metric_sinks.named(config.report.sinks), *expect_list(callbacks)])
    with room_for(out):
        job = planned(Assembly.of(config, choose_device(device), progress), progress)
    return execute(job, new_run_folder(out, job), progress, called)


def resume(
    path: Path,
    device: str = "auto",
    progress: Progress = silent,
    callbacks: Iterable[object] = (),
) -> Result:
    """Continues an unfinished run where its last checkpoint stands; ends as if it had not been broken off."""
    folder = unfinished(path)
    config = folder.config
    if config.data.name == GIVEN:
        raise RunFolderError(
            f"The run in {path} was started from Python with its own data and model: continue it there, with "
            f"topdp.train(..., out={str(path)!r}, resume=True)."
        )
    called = Callbacks([*metric_sinks.named(config.report.sinks), *expect_list(callbacks)])
    job = begun_job(Assembly.of(config, choose_device(device), progress), folder)
    return execute(job, folder, progress, called)


def run_or_continue(
    config: RunConfig,
    out: Path,
    device: str = "auto",
    progress: Progress = silent,
) -> Result:
    """The run of a configuration in `out`: read where it is done, continued where it was broken off.

    One that is read is checked as one that is continued: its plan and account hold for the data of today.
    """
    if not (out / "run.json").exists():
        return run(config, out, device, progress)
    folder = RunFolder.open(out)
    if folder.state == STARTING:
        folder.forget_start()
        return run(config, out, device, progress)
    if not agrees(config, folder.config):
        raise RunFolderError(f"Expected the settings with which the run in {out} was begun, got others.")
    if folder.state != "done":
        return resume(out, device, progress)
    job = begun_job(Assembly.of(folder.config, choose_device(device), progress), folder)
    seconds = float(folder.fact("seconds"))
    estimates = as_tensor(folder.kept_estimates("model.safetensors")[0])
    return job.result(folder.metrics, estimates, seconds, out, read_best(folder))


def train(
    model: nn.Module,
    shards: Shards,
    topology: Topology | nx.Graph | str | Path,
    *,
    loss: str | Loss = "cross-entropy",
    metrics: Metrics = None,
    rounds: int = 150,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    features: str | Callable[[torch.Tensor], Any] | None = None,
    progress: Progress = silent,
    callbacks: Iterable[object] = (),
    **settings: Any,
) -> Result:
    """Trains a user's own module on a user's own shards and graph.

    The graph is a `Topology`, a networkx graph (nodes sorted are the agents; `topology.from_networkx` takes
    another order), or the path of an edge list. Shards stand in the order of its agents.

    With `out` a run folder is written; `resume=True` continues an unfinished one, given the same arguments.

    `loss`: "cross-entropy" of labels, "bce" of one or several yes and no, "mse" and "huber" of numbers, or a
    function of outputs [b, ...] and targets [b, ...] with one value for each record. `metrics`: what is
    reported of the test records, by name or as functions of all outputs and targets; None: what is usual
    for the loss ("accuracy", or "mae" and "r2").

    `features`: what a record becomes before the model sees it. "scattering", or a function of one record (a
    torch module gets a batch of one), which must not be chosen by looking at private records.

    `progress`: a function that receives how far the run is (`topdp.base.progress.Progress`).

    `callbacks`: functions or objects that are called as the run goes, and may stop it (`runs/callbacks.py`).
    `sinks=["tensorboard"]` (or mlflow, wandb) sends metrics there as well.

    `settings` are the keys of the configuration's sections method, privacy, data (batch, feature_groups),
    train, robust and report by their plain names: `method="plain"`, `alpha=0.5`, `sigma=0.1`,
    `batch={"cycle": 20}`, `robust="trimmed"`; those of attack as `attack="drift"`, `attack_share=0.2`.

    >>> import torch, topdp
    >>> inputs = torch.rand(4, 50, 3)  # four agents with 50 records each
    >>> shards = topdp.Shards.from_arrays([(x, (x.sum(1) > 1.5).long()) for x in inputs])
    >>> model = torch.nn.Linear(3, 2)
    >>> result = topdp.train(model, shards, topdp.topology.ring(4), epsilon=2.0, clip=1.0, rounds=5)
    >>> result.estimates.shape, result.config.rounds
    (torch.Size([4, 8]), 5)
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"Expected model to be a torch module, got a {type(model).__name__}.")
    expect_shards(shards)
    expect_path_and_progress(out, progress)
    topology = as_topology(topology)
    own = None if features is None or isinstance(features, str) else OwnFeatures(features)
    named = "none" if features is None else features if own is None else "given"
    task = Task.of(loss, metrics)
    settings |= {"features": named, "loss": task.loss.name if task.loss.name != OWN else GIVEN}
    if metrics is not None:
        known = [METRICS.get(metric.name) is metric for metric in task.metrics]
        names = [metric.name for metric in task.metrics]
        settings["metrics"] = [n if k else f"{GIVEN}: {n}" for n, k in zip(names, known, strict=True)]
    config = _config_of(topology, rounds, seed, settings)
    called = Callbacks([*metric_sinks.named(config.report.sinks), *expect_list(callbacks)])
    if resume and out is None:
        raise RunFolderError("Expected out, the folder of the run to resume, got none.")
    begun = unfinished(Path(out)) if resume and out is not None else None
    if begun is not None and not agrees(config, begun.config):
        raise RunFolderError(f"Expected the arguments with which the run in {out} was started, got others.")
    if begun is not None:
        config = begun.config
    if METHODS[config.method.name].pools:
        topology, shards = alone(), shards.pooled()
    new = Path(out) if begun is None and out is not None else None
    with room_for(new):
        place = choose_device(device)
        mapped = own or builders.features(config)
        if mapped is not None:
            shards = featured_shards.of_shards(shards, mapped, place, progress)
        parts = Assembly.given(config, topology, model, shards, place, task)
        job = planned(parts, progress) if begun is None else begun_job(parts, begun)
    if new is not None:
        begun = new_run_folder(new, job)
        begun.write_text(GRAPH_FILE, "".join(f"{i} {j}\n" for i, j in topology.edges))
    return execute(job, begun, progress, called)


class Ranked(NamedTuple):
    """What a run over several ranks has in the place of an engine and one checkpoint file."""

    engine: RankedEngine
    checkpoints: Checkpoints


@dataclass(frozen=True)
class Job:
    """Everything a run needs, checked: what cannot be run fails before this is made."""

    parts: Assembly
    plan: Plan
    privacy: Account

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
            self.parts.config,
            self.plan,
            self.privacy,
            metrics,
            estimates,
            seconds,
            self.parts.flat,
            folder,
            best,
            stopped,
            InputKind.of(self.parts.shards.inputs),
        )


def planned(parts: Assembly, progress: Progress) -> Job:
    progress("planning")
    found = plan_and_account(parts.config, parts.graph, parts.counts, progress)
    return Job(parts, *found)


def begun_job(parts: Assembly, folder: RunFolder) -> Job:
    """The plan and account of a run that was begun are taken over after a check."""
    plan, counts = folder.plan, parts.counts
    expect_plan_of(parts.config, parts.graph, counts, plan, folder.path)
    found = expect_account_of(parts.config, counts, folder)
    if folder.fact("data") != parts.digest():
        raise RunFolderError(
            f"Expected the records with which the run in {folder.path} was begun, in their order; got others."
            " A record in another place of its cycle would be used more often than the account says."
        )
    return Job(parts, plan, found)


def execute(
    job: Job,
    folder: RunFolder | None,
    progress: Progress,
    callbacks: Callbacks | None = None,
    ranked: Ranked | None = None,
) -> Result:
    """Trains to the end, in `folder` where there is one; `ranked`: with the other ranks (ranked.py)."""
    callbacks = callbacks or Callbacks()
    started = time.perf_counter()
    parts, path = job.parts, folder.path if folder else None
    progress("preparing")
    if folder is not None or ranked is None:  # of several ranks, the one that has it says so
        warn_of_lost_steps(job.plan, parts.start)
    simulation: Simulation
    checkpoints: Checkpoints | None
    if ranked is None:
        expect_room_for_records(parts.shards, parts.device)
        engine = parts.engine(job.plan)
        expect_room(engine)
        simulation = fastest(engine)
        checkpoints = None if path is None else Checkpoints(path, engine.layout)
    else:
        simulation, checkpoints = ranked
    before = folder.read_json("run.json").get("stopped") if folder is not None else None
    stopped_at = None if before is None else int(before["round"])

    def seen_as(history: list[dict[str, Any]]) -> Running:
        larger = {metric.name: metric.larger_is_better for metric in parts.task.metrics}
        return Running(parts.config, job.plan, job.privacy, parts.flat, path, history, stopped_at, larger)

    try:
        found = train_to_the_end(
            simulation, parts.start, parts.config, folder, progress, callbacks, seen_as, checkpoints
        )
        seconds = time.perf_counter() - started
        simulation.release_buffers()
        estimates = simulation.reported(found.state).detach().cpu().clone()
        result = job.result(found.metrics, estimates, seconds, path, found.best, found.stopped)
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
    """What a run found, beside what was planned."""
    folder.save_metrics(metrics)
    if metrics:
        title = heading([config], plan.agents)
        for metric in metric_names(metrics[-1]):
            curves({config.method.name: metrics}, folder.path / picture_name(metric), title, metric)
    folder.finish(estimates, notes, **facts)


def ended_facts(result: Result, device: torch.device) -> dict[str, Any]:
    """What run.json says of a run that has ended, beside its state."""
    return {
        "stopped": None if result.stopped is None else result.stopped._asdict(),
        "seconds": round(result.seconds, 3),
        "device": str(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "plan": result.plan.digest(),
        "topdp": __version__,
    }


def unfinished(path: Path) -> RunFolder:
    folder = RunFolder.open(path)
    if folder.state == "done":
        raise RunFolderError(f"Expected an unfinished run in {path}, but it is done: nothing to resume.")
    if folder.state == STARTING:
        raise RunFolderError(
            f"The run in {path} was stopped before its first round: start it again in another folder."
        )
    if folder.state == "diverged":
        raise RunFolderError(
            f"The run in {path} diverged, and would again: start another with smaller steps."
        )
    if folder.state == "wrong":
        raise RunFolderError(
            f"The run in {path} was ended because a recorded round was wrong, and what it kept may be: start "
            "it again in another folder."
        )
    return folder


@contextmanager
def room_for(out: Path | None) -> Iterator[None]:
    """A folder that cannot be made is said now, not after the account, which may take minutes."""
    if out is None:
        yield
        return
    with gone_if_it_fails(out):
        RunFolder.make_room(out)
        yield


def new_run_folder(path: Path, job: Job) -> RunFolder:
    """A folder for a run that is about to begin: configuration, plan and account, before the first round."""
    folder = RunFolder.create(path, job.parts.config.to_toml(), job.plan)
    folder.write_json("privacy.json", sealed(job.plan, job.privacy))
    folder.mark("running", **begun_facts(job))
    return folder


def begun_folder(
    path: Path, config: RunConfig, plan: Plan, privacy: dict[str, Any], facts: dict[str, Any]
) -> RunFolder:
    """The same for a run that was made elsewhere, from what its folder will hold."""
    folder = RunFolder.create(path, config.to_toml(), plan)
    folder.write_json("privacy.json", privacy)
    folder.mark("running", **facts)
    return folder


def begun_facts(job: Job) -> dict[str, Any]:
    """What run.json says from the start on, beside the state."""
    parts = job.parts
    return {"records": list(parts.counts), "data": parts.digest(), **facts_of(parts)}


def _config_of(topology: Topology, rounds: int, seed: int, settings: dict[str, Any]) -> RunConfig:
    tree: dict[str, Any] = {
        "seed": plain(seed),
        "rounds": plain(rounds),
        "topology": {"agents": topology.agents, "kind": "file", "path": GRAPH_FILE},
        "method": {},
        "privacy": {},
        "data": {"name": GIVEN},
        "model": {"name": GIVEN},
        "train": {},
        "robust": {},
        "attack": {},
        "report": {},
    }
    places = {"method": ("method", "name"), "robust": ("robust", "rule"), "attack": ("attack", "name")}
    places |= {key: ("robust", key) for key in ("hostile", "radius")}
    places |= {f"attack_{key}": ("attack", key) for key in ("share", "strength", "agents")}
    places.update({key: ("data", key) for key in ("batch", "features", "feature_groups")})
    sections: dict[str, type[Section]] = {
        "method": MethodConfig, "privacy": PrivacyConfig, "train": TrainConfig, "report": ReportConfig
    }  # fmt: skip
    for section, model in sections.items():
        places.update({key: (section, key) for key in model.model_fields if key != "name"})
    for key, value in settings.items():
        if key not in places:
            raise ConfigError(f"train(): no such setting {key!r}.{did_you_mean(key, list(places))}")
        section, name = places[key]
        tree[section][name] = plain(value)
    return parse(tree, "train()")
