"""Executes the runs of figures: noise calibrated once, runs stacked into one program, results kept by name.

A run's name is the digest of its configuration, so figures share runs, and what is done is never done again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from topdp import __version__, build
from topdp.config import RunConfig, parse
from topdp.data.shards import Shards
from topdp.engine import Engine
from topdp.gradients import ClippedGradients
from topdp.models import FlatModel
from topdp.plan import Plan, prune
from topdp.planning import plan_writer
from topdp.privacy.calibrate import calibrate
from topdp.privacy.gaussian import mu_of
from topdp.stacking import StackedBatches, stack_plans, stack_shards
from topdp.topology import Topology

Say = Callable[[str], None]
Curve = list[dict[str, float]]
"""One dictionary per evaluation: round, mean, min, max."""

UNIT_RECORDS = 100
LITTLE_WORK = 1e10  # views that take less are not worth starting processes for
LIMITS = {"cuda": 40e9, "cpu": 2e9}  # bytes of rows and records in one stack


class Runs:
    """The results of runs, in a folder of one JSON file each, and σ by calibration."""

    def __init__(self, folder: Path, device: str, test_records: Callable[[RunConfig], int], say: Say) -> None:
        self.folder = folder
        self.device = torch.device(device)
        self.test_records = test_records
        self.say = say
        folder.mkdir(parents=True, exist_ok=True)

    def __getitem__(self, config: RunConfig) -> Curve:
        curve: Curve = json.loads(self._file(config).read_text())["curve"]
        return curve

    def sigma(self, config: RunConfig) -> float:
        """The full-scale σ with which it ran."""
        sigma = _with_sigma(config, self._known()).privacy.sigma if build.method(config).noisy else 0.0
        assert isinstance(sigma, float)
        return sigma

    def made(self, configs: Iterable[RunConfig]) -> dict[str, Any]:
        """How many runs these are, on what they ran and how long: each has an equal share of its stack."""
        distinct = {name(c): c for c in configs}.values()
        notes = [json.loads(self._file(c).read_text())["made"] for c in distinct]
        others = {key: ", ".join(sorted({note[key] for note in notes})) for key in _here(self.device)}
        return {"runs": len(notes), "seconds": round(sum(note["seconds"] for note in notes), 3), **others}

    def make(self, wanted: Iterable[RunConfig]) -> None:
        """Runs whatever of `wanted` has no result yet."""
        missing = [c for c in {name(c): c for c in wanted}.values() if not self._file(c).exists()]
        stacks = _stacks(self._calibrated(missing), LIMITS[self.device.type])
        for number, stack in enumerate(stacks, 1):
            one = stack[0][1]
            what = f"{len(stack)} runs of {one.rounds} rounds on {one.data.name}"
            self.say(f"stack {number} of {len(stacks)}: {what}")
            started = time.perf_counter()
            curves = self._run([c for _, c in stack])
            share = round((time.perf_counter() - started) / len(stack), 4)
            made = {"seconds": share, **_here(self.device)}
            for (config, _), curve in zip(stack, curves, strict=True):
                _write(self._file(config), json.dumps({"made": made, "curve": curve}))

    def _file(self, config: RunConfig) -> Path:
        return self.folder / f"{name(config)}.json"

    def _calibrated(self, configs: list[RunConfig]) -> list[tuple[RunConfig, RunConfig]]:
        """(as asked, with σ): views in parallel, one per plan; other budgets follow by scaling."""
        file, known = self._calibrations, self._known()
        open_ = {
            name(unit): unit
            for unit in map(_at_unit_budget, configs)
            if unit is not None and name(unit) not in known
        }
        if open_ and sum(map(_work, open_.values())) < LITTLE_WORK:
            known |= {key: _sigma_of(unit) for key, unit in open_.items()}
            _write(file, json.dumps(known, indent=1, sort_keys=True))
        elif open_:
            workers = min(len(open_), os.cpu_count() or 1)
            self.say(f"calibrating {len(open_)} plans on {workers} cores")
            with _one_thread_each(), ProcessPoolExecutor(workers, get_context("spawn")) as pool:
                tasks = {pool.submit(_sigma_of, unit): key for key, unit in open_.items()}
                for done, task in enumerate(as_completed(tasks), 1):
                    known[tasks[task]] = task.result()
                    _write(file, json.dumps(known, indent=1, sort_keys=True))
                    self.say(f"calibrated {done} of {len(tasks)} plans")
        return [(config, _with_sigma(config, known)) for config in configs]

    @property
    def _calibrations(self) -> Path:
        return self.folder / "sigma.json"

    def _known(self) -> dict[str, float]:
        known: dict[str, float] = (
            json.loads(self._calibrations.read_text()) if self._calibrations.exists() else {}
        )
        return known

    def _run(self, configs: list[RunConfig]) -> list[Curve]:
        """All runs as one plan; the curve of each."""
        first = configs[0]
        graphs = [build.graph(c) for c in configs]
        dealt: dict[str, Shards] = {}
        shards = []
        for config, graph in zip(configs, graphs, strict=True):
            key = f"{config.seed} {graph.agents} {config.data}"
            if key not in dealt:  # many runs share their records: they go to the device once
                dealt[key] = build.shards(config, graph.agents).to(self.device)
            shards.append(dealt[key])
        plans = _plans(configs, graphs, [held.counts for held in shards])
        models = [build.model(c, tuple(shards[0].inputs.shape[2:]), shards[0].classes) for c in configs]
        gradients = ClippedGradients(FlatModel(models[0]), first.privacy.clip)
        joined = stack_shards(shards)
        few = self.test_records(first)
        assert joined.test_inputs is not None and joined.test_labels is not None
        joined = replace(joined, test_inputs=joined.test_inputs[:few], test_labels=joined.test_labels[:few])
        batches = StackedBatches(
            build.batches(first), tuple((s.counts, c.seed) for s, c in zip(shards, configs, strict=True))
        )
        engine = Engine(stack_plans(plans), gradients, joined, batches, first.seed, self.device)
        starts = [FlatModel(m).flatten().expand(g.agents, -1) for m, g in zip(models, graphs, strict=True)]
        state = engine.start(torch.cat(starts))
        curves: list[Curve] = [[] for _ in configs]
        told = time.perf_counter()
        while state.round < engine.plan.rounds:
            state = engine.advance(state)
            t = state.round - 1
            if t % first.train.evaluate_every == 0 or t == first.rounds:
                accuracy, at = engine.evaluate(state).accuracy, 0
                for curve, graph in zip(curves, graphs, strict=True):
                    own = accuracy[at : at + graph.agents]
                    at += graph.agents
                    point = {"mean": own.mean(), "min": own.min(), "max": own.max()}
                    curve.append({"round": t, **{key: round(float(v), 5) for key, v in point.items()}})
                if time.perf_counter() - told > 20:
                    told = time.perf_counter()
                    self.say(f"  round {t} of {first.rounds}")
        return curves


def _plans(configs: list[RunConfig], graphs: list[Topology], counts: list[tuple[int, ...]]) -> list[Plan]:
    """Pruned plans; runs that differ in nothing but their noise share one, scaled."""
    written: dict[Any, Plan] = {}
    plans = []
    for config, graph, held in zip(configs, graphs, counts, strict=True):
        sigma = build.sigma(config, graph.agents)
        assert sigma is not None and np.ptp(sigma) == 0
        schedule = build.schedule(config, min(held))
        protocol = build.protocol(config)
        key = (config.seed, str(config.topology), protocol, schedule.rate.tobytes(), schedule.noise.tobytes())
        if key not in written:
            written[key] = prune(plan_writer(config, graph, held)(np.ones(graph.agents)))
        plans.append(written[key].noise_scaled(float(sigma[0]) * config.privacy.clip))
    return plans


def name(config: RunConfig) -> str:
    """A short digest of everything that decides a run."""
    return hashlib.sha256(config.to_toml().encode()).hexdigest()[:16]


def _here(device: torch.device) -> dict[str, str]:
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    return {
        "device": card,
        "topdp": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _stacks(
    configs: list[tuple[RunConfig, RunConfig]], limit: float
) -> list[list[tuple[RunConfig, RunConfig]]]:
    """Groups runs that can go together, each group within the memory limit."""
    groups: dict[str, list[tuple[RunConfig, RunConfig]]] = defaultdict(list)
    for pair in configs:
        c = pair[1]
        # A stack is tested on the records of its first run: what one seed holds out, another trains on.
        held_out = c.data.validation and c.seed
        key = (c.rounds, c.data, c.model, c.privacy.clip, c.train.evaluate_every, held_out)
        groups[str(key)].append(pair)
    stacks = []
    for group in groups.values():
        stack: list[tuple[RunConfig, RunConfig]] = []
        used = 0.0
        for pair in group:
            size = _bytes(pair[1])
            if stack and used + size > limit:
                stacks.append(stack)
                stack, used = [], 0.0
            stack.append(pair)
            used += size
        stacks.append(stack)
    return stacks


def _bytes(config: RunConfig) -> float:
    """Roughly: the records of the agents, and two buffers of rows with gradients."""
    agents = config.topology.agents
    image = 3072 if config.model.name == "cnn" else 784
    records = config.data.records or 60_000 // agents
    rows = agents * (4 if config.method.name.startswith("top") else 1)
    return 4.0 * agents * records * image + 4.0 * 80_000 * (2 * rows + 2 * agents)


def _at_unit_budget(config: RunConfig) -> RunConfig | None:
    """The configuration at ε = 1, whose σ gives all others by scaling; None where σ is given or zero."""
    if config.privacy.sigma is not None or not build.method(config).noisy:
        return None
    if config.data.batch != "full" or config.data.partition != "iid" or config.method.noise_on != "gradient":
        raise ValueError("Expected full batches of equal shards with the noise inside the step.")
    if config.privacy.adjacency != "add-remove" or config.train.fading == "sqrt-epoch":
        raise ValueError("Expected add-remove adjacency, and steps that do not fall by epochs.")
    plain_sync = config.method.mode == "sync" and not build.method(config).reuses_noise
    # What all others see of a plain synchronous agent is what each neighbour sees: no view is needed.
    guarantee = "worst-case" if plain_sync else "view"
    tree = config.model_dump(exclude_none=True)
    # With the noise inside the step neither clip, step size, data nor model matters to σ; records scale it.
    tree["privacy"] = {"delta": config.privacy.delta, "clip": 1.0, "guarantee": guarantee, "patient": True}
    tree["data"] = {"name": "mnist", "records": UNIT_RECORDS}
    tree["train"] = {"learning_rate": 1.0, "fading": config.train.fading}
    tree["model"] = {"name": "mlp"}
    return parse(tree, "unit budget")


def _with_sigma(config: RunConfig, known: dict[str, float]) -> RunConfig:
    unit = _at_unit_budget(config)
    if unit is None:
        return config
    epsilon = config.privacy.epsilon
    assert isinstance(epsilon, float)
    # The loss scales as 1/noise: σ(ε) = σ(1) μ(1)/μ(ε); and the sensitivity as 1/records.
    delta, records = config.privacy.delta, build.counts(config, config.topology.agents)[0]
    sigma = known[name(unit)] * mu_of(1.0, delta) / mu_of(epsilon, delta) * UNIT_RECORDS / records
    tree = config.model_dump(exclude_none=True)
    tree["privacy"]["sigma"] = sigma
    return parse(tree, "calibrated")


def _sigma_of(config: RunConfig) -> float:
    graph = build.graph(config)
    counts = build.counts(config, graph.agents)
    write, privacy = plan_writer(config, graph, counts), config.privacy
    epsilon = build.per_agent("privacy.epsilon", privacy.epsilon, graph.agents)
    analysis = build.analysis(config, counts)
    found = calibrate(write, analysis, privacy.guarantee, epsilon, privacy.delta, patient=privacy.patient)
    return float(found.deviation[0] / privacy.clip)


def _work(config: RunConfig) -> float:
    """The operations of a view, more or less: rounds and agents are what counts."""
    return 6.0 * config.topology.agents**2 * config.rounds**3


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started inside use one core each: linear algebra reads these variables when it is loaded."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _write(file: Path, text: str) -> None:
    beside = file.with_suffix(".part")
    beside.write_text(text)
    os.replace(beside, file)
