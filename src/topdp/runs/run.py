"""The front hall: from a configuration to a run folder. Read this file first.

    build      names                      -> graph, protocol, shards, model
    calibrate  protocol, guarantee, (ε, δ) -> the Plan with its noise, or a refusal, before any training
    account    plan                       -> claimed, view and worst-case ε
    simulate   plan, model, shards        -> metrics, final estimates
    save       runs/<id>/

`run` takes a configuration; `train` takes a user's own model, shards and graph. Both take the same walk.
"""

from __future__ import annotations

import platform
import signal
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from topdp import __version__
from topdp.data import Shards
from topdp.data.batches import Batches
from topdp.data.progress import Progress
from topdp.learning.gradients import ClippedGradients
from topdp.learning.models import FlatModel
from topdp.plan import Plan
from topdp.plan.arrays import Floats
from topdp.report.curves import curves
from topdp.runs.folder import Checkpoint, RunFolder, RunFolderError
from topdp.runs.planning import expect_account_of, expect_plan_of, plan_and_account
from topdp.settings import build
from topdp.settings.config import ConfigError, RunConfig, parse
from topdp.simulator.engine import Engine, Evaluation, State
from topdp.topology import Topology

Watcher = Callable[[str, int, int, "Metrics | None"], None]
"""Called with ("accounting" or "training", steps done, steps in all, the last metrics)."""

Metrics = dict[str, Any]


GIVEN = "given in Python"
GRAPH_FILE = "graph.txt"


class Interrupted(Exception):  # noqa: N818 - a state, not a fault
    """A run that was stopped by Ctrl-C; with a `folder` it can be resumed from there."""

    def __init__(self, folder: Path | None, how: str | None = None) -> None:
        how = how or f"topdp run --resume {folder}"
        super().__init__(f"Interrupted. Continue with: {how}" if folder else "Interrupted.")
        self.folder = folder


@dataclass(frozen=True)
class Result:
    """What a run found. With a folder, everything is on disk as well."""

    config: RunConfig
    plan: Plan
    privacy: dict[str, Any]  # what privacy.json holds: the three answers in full
    metrics: list[Metrics]
    estimates: Tensor  # [agents, d]
    seconds: float
    folder: Path | None = None
    _flat: FlatModel | None = field(default=None, repr=False)

    @property
    def accuracy(self) -> dict[str, float]:
        """mean, min and max over agents at the end; empty without a test set."""
        return dict(self.metrics[-1]["accuracy"]) if self.metrics else {}

    def model(self, agent: int) -> nn.Module:
        """The trained network of one agent."""
        assert self._flat is not None
        return self._flat.load(self.estimates[agent])


@dataclass(frozen=True)
class Job:
    """Everything a run needs, checked: what cannot be run fails here, before anything is written."""

    config: RunConfig
    plan: Plan
    privacy: dict[str, Any]
    gradients: ClippedGradients
    shards: Shards
    batches: Batches
    device: torch.device

    @classmethod
    def of(
        cls,
        config: RunConfig,
        graph: Topology,
        model: nn.Module,
        shards: Shards,
        device: torch.device,
        watch: Watcher | None = None,
        done: RunFolder | None = None,
    ) -> Job:
        """With `done`, the plan and account of a run that was begun are taken over after a check."""
        if shards.agents != graph.agents:
            raise ConfigError(
                f"Expected shards for the {graph.agents} agents of the graph, got {shards.agents}."
            )
        gradients = ClippedGradients(FlatModel(model), config.privacy.clip)
        _expect_an_output_for_each_class(gradients.flat, shards)
        if done is None:
            progress = partial(_show_accounting, watch) if watch else None
            plan, account = plan_and_account(config, graph, shards.counts, progress)
            privacy = {"guarantee": build.guarantee(config), **account.details()}
        else:
            plan = done.plan
            expect_plan_of(config, graph, shards.counts, plan, done.path)
            privacy = expect_account_of(config, shards.counts, done)
        return cls(config, plan, privacy, gradients, shards, build.batches(config), device)


def run(
    config: RunConfig,
    out: Path,
    device: str = "auto",
    watch: Watcher | None = None,
    progress: Progress | None = None,
) -> Result:
    """Executes a configuration and leaves a run folder in `out`."""
    with _room_for(out):
        job = _job(config, device, watch, progress)
    return _execute(job, _new_folder(out, job), watch)


def resume(
    path: Path, device: str = "auto", watch: Watcher | None = None, progress: Progress | None = None
) -> Result:
    """Continues an unfinished run where its last checkpoint stands; ends as if it had not been broken off."""
    folder = _unfinished(path)
    config = parse(tomllib.loads(folder.config), f"{path / 'config.toml'}")
    if config.data.name == GIVEN:
        raise RunFolderError(
            f"The run in {path} was started from Python with its own data and model: continue it there, with "
            f"topdp.train(..., out={str(path)!r}, resume=True)."
        )
    return _execute(_job(config, device, watch, progress, folder), folder, watch)


def run_or_continue(
    config: RunConfig,
    out: Path,
    device: str = "auto",
    watch: Watcher | None = None,
    progress: Progress | None = None,
) -> Result:
    """The run of a configuration in `out`: read where it is done, continued where it was broken off.

    One that is read is checked as one that is continued: its plan and account hold for the data of today.
    """
    if not (out / "run.json").exists():
        return run(config, out, device, watch, progress)
    folder = RunFolder.open(out)
    if parse(tomllib.loads(folder.config)) != config:
        raise RunFolderError(f"Expected the settings with which the run in {out} was begun, got others.")
    if folder.state != "done":
        return resume(out, device, watch, progress)
    job = _job(config, device, watch, progress, folder)
    estimates, seconds = torch.from_numpy(folder.estimates), folder.read_json("run.json")["seconds"]
    flat = job.gradients.flat
    return Result(config, job.plan, job.privacy, folder.metrics, estimates, seconds, out, flat)


def _unfinished(path: Path) -> RunFolder:
    folder = RunFolder.open(path)
    if folder.state == "done":
        raise RunFolderError(f"Expected an unfinished run in {path}, but it is done: nothing to resume.")
    if folder.state == "diverged":
        raise RunFolderError(
            f"The run in {path} diverged, and would again: start another with smaller steps."
        )
    return folder


def train(
    model: nn.Module,
    shards: Shards,
    topology: Topology,
    *,
    rounds: int = 150,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    watch: Watcher | None = None,
    **settings: Any,
) -> Result:
    """Trains a user's own module on a user's own shards and graph.

    With `out` a run folder is written; `resume=True` continues an unfinished one, given the same arguments.

    `settings` are the keys of the configuration's sections method, privacy, data (batch only) and train by
    their plain names: `method="plain"`, `alpha=0.5`, `sigma=0.1`, `learning_rate=0.2`, `batch={"cycle": 20}`.
    """
    for what, value, wanted in (
        ("model", model, nn.Module), ("shards", shards, Shards), ("topology", topology, Topology)
    ):  # fmt: skip
        if not isinstance(value, wanted):
            raise ConfigError(f"Expected {what} to be a {wanted.__name__}, got a {type(value).__name__}.")
    config = _config_of(topology, rounds, seed, settings)
    if resume and out is None:
        raise RunFolderError("Expected out, the folder of the run to resume, got none.")
    begun = _unfinished(Path(out)) if resume and out is not None else None
    if begun is not None and parse(tomllib.loads(begun.config)) != config:
        raise RunFolderError(f"Expected the arguments with which the run in {out} was started, got others.")
    new = Path(out) if begun is None and out is not None else None
    with _room_for(new):
        job = Job.of(config, topology, model, shards, choose_device(device), watch, begun)
    folder = begun
    if new is not None:
        folder = _new_folder(new, job)
        edges = "".join(f"{i} {j}\n" for i, j in topology.edges)
        (folder.path / GRAPH_FILE).write_text(edges, encoding="utf-8")
    return _execute(job, folder, watch)


def _expect_an_output_for_each_class(flat: FlatModel, shards: Shards) -> None:
    one = shards.inputs[:1, 0].cpu()
    module = flat.load(flat.flatten().cpu()).eval()
    with torch.no_grad():
        outputs = module(one.to(flat.dtype) if one.is_floating_point() else one)
    if outputs.dim() < 2 or outputs.shape[1] < shards.classes:
        raise ConfigError(
            f"Expected a model with an output for each of the {shards.classes} classes, got outputs of shape "
            f"{tuple(outputs.shape)} for one record."
        )


def _show_accounting(watch: Watcher, done: int, total: int) -> None:
    watch("accounting", done, total, None)


@contextmanager
def _room_for(out: Path | None) -> Iterator[None]:
    """A folder that cannot be made is said now, not after the account, which may take minutes."""
    if out is None:
        yield
        return
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    RunFolder.make_room(out)
    try:
        yield
    except BaseException:
        for folder in new:
            with suppress(OSError):  # where something has come to lie in it
                folder.rmdir()
        raise


def _new_folder(path: Path, job: Job) -> RunFolder:
    folder = RunFolder.create(path, job.config.to_toml(), job.plan)
    folder.mark("running", records=list(job.shards.counts))
    folder.write_json("privacy.json", job.privacy)
    return folder


def _job(
    config: RunConfig,
    device: str,
    watch: Watcher | None,
    progress: Progress | None,
    done: RunFolder | None = None,
) -> Job:
    """Cheap checks first: a wrong name is said before a data set is fetched."""
    chosen = choose_device(device)
    build.method(config)
    graph = build.graph(config)
    build.sigma(config, graph.agents)
    shards = build.shards(config, graph.agents, progress)
    model = build.model(config, tuple(shards.inputs.shape[2:]), shards.classes)
    return Job.of(config, graph, model, shards, chosen, watch, done)


_SUMMARY = ("delta", "guarantee", "adjacency", "epsilon", "reasons", "warnings")


def summary(result: Result) -> dict[str, Any]:
    """The JSON object of `topdp run --json`."""
    return {
        "run": None if result.folder is None else str(result.folder),
        "rounds": result.config.rounds,
        "accuracy": result.accuracy or None,
        "privacy": {key: result.privacy[key] for key in _SUMMARY if key in result.privacy},
        "seconds": round(result.seconds, 3),
    }


def choose_device(name: str) -> torch.device:
    """`auto` takes a GPU when there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"--device: expected auto, cpu, cuda or cuda:N, got {name!r}.") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device: expected auto, cpu, cuda or cuda:N, got {name!r}.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"--device: {name} was asked for, and this machine shows {torch.cuda.device_count()} CUDA "
            "devices. Use --device cpu, or --device auto."
        )
    return device


def _execute(job: Job, folder: RunFolder | None, watch: Watcher | None) -> Result:
    started = time.perf_counter()
    config, flat = job.config, job.gradients.flat
    engine = Engine(job.plan, job.gradients, job.shards, job.batches, config.seed, job.device)
    state, metrics = _begin(engine, flat, folder)
    with _leaving_it_loadable(folder, metrics) as keep, _stop_signals() as asked_to_stop:
        while state.round < job.plan.releases:
            state = engine.advance(state)
            t = state.round - 1  # iterations done; round 0 is the release before the loop
            due = t % config.train.evaluate_every == 0 or t == config.rounds
            if due and job.shards.test_inputs is not None:
                metrics.append(_metrics(t, engine.evaluate(state)))
            keep(state, t % config.train.checkpoint_every == 0)
            if watch is not None:
                watch("training", t, config.rounds, metrics[-1] if metrics else None)
            if asked_to_stop():
                raise KeyboardInterrupt
    seconds = time.perf_counter() - started
    estimates = engine.estimates(state).detach().cpu().clone()
    place = folder.path if folder else None
    result = Result(config, job.plan, job.privacy, metrics, estimates, seconds, place, flat)
    if folder is not None:
        _save(folder, result, job.device)
    return result


def _begin(engine: Engine, flat: FlatModel, folder: RunFolder | None) -> tuple[State, list[Metrics]]:
    checkpoint = folder.checkpoint if folder is not None else None
    if folder is None or checkpoint is None:
        return engine.start(flat.flatten()), []
    metrics = [line for line in folder.metrics if line["round"] < checkpoint.round]
    return engine.resume(checkpoint.round, torch.from_numpy(checkpoint.rows)), metrics


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM are heard between rounds, where nothing is half done; a second one at once."""
    asked = False

    def ask(signum: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _leaving_it_loadable(
    folder: RunFolder | None, metrics: list[Metrics]
) -> Iterator[Callable[[State, bool], None]]:
    """Saves checkpoints as the run goes, and once more when it is interrupted."""
    last: list[State] = []

    def save(state: State) -> None:
        if folder is not None:
            folder.save_metrics(metrics)
            folder.save_checkpoint(Checkpoint(state.round, state.rows.cpu().numpy()))

    def keep(state: State, due: bool) -> None:
        last[:] = [state]
        if due:
            save(state)

    try:
        yield keep
    except KeyboardInterrupt:
        if folder is not None:
            if last:
                save(last[0])
            folder.mark("interrupted")
        raise Interrupted(folder.path if folder else None) from None
    except FloatingPointError:
        if folder is not None:
            folder.mark("diverged")
        raise


def _metrics(iteration: int, evaluation: Evaluation) -> Metrics:
    def spread(values: Floats) -> dict[str, float]:
        return {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max())}

    return {
        "round": iteration,
        "accuracy": spread(evaluation.accuracy),
        "loss": spread(evaluation.loss),
        "accuracy_per_agent": [round(float(a), 6) for a in evaluation.accuracy],
        "loss_per_agent": [round(float(a), 6) for a in evaluation.loss],
    }


def _save(folder: RunFolder, result: Result, device: torch.device) -> None:
    folder.save_metrics(result.metrics)
    if result.metrics:
        name = result.config.method.name
        title = f"{result.config.data.name}, {result.plan.agents} agents"
        curves({name: result.metrics}, folder.path / "accuracy.png", title)
    folder.finish(
        result.estimates.numpy(),
        seconds=round(result.seconds, 3),
        device=str(device),
        python=platform.python_version(),
        torch=torch.__version__,
        plan=result.plan.digest(),
        topdp=__version__,
    )


def _config_of(topology: Topology, rounds: int, seed: int, settings: dict[str, Any]) -> RunConfig:
    from topdp.settings.config import MethodConfig, PrivacyConfig, TrainConfig, did_you_mean

    tree: dict[str, Any] = {
        "seed": seed,
        "rounds": rounds,
        "topology": {"agents": topology.agents, "kind": "file", "path": GRAPH_FILE},
        "method": {},
        "privacy": {},
        "data": {"name": GIVEN},
        "model": {"name": GIVEN},
        "train": {},
    }
    places = {"method": ("method", "name"), "batch": ("data", "batch")}
    for section, model in (("method", MethodConfig), ("privacy", PrivacyConfig), ("train", TrainConfig)):
        places.update({key: (section, key) for key in model.model_fields if key != "name"})
    for key, value in settings.items():
        if key not in places:
            raise ConfigError(f"train(): no such setting {key!r}.{did_you_mean(key, list(places))}")
        section, name = places[key]
        tree[section][name] = value
    return parse(tree, "train()")
