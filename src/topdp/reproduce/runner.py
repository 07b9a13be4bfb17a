"""Executes the runs of figures: stacked into one program, results kept by name.

A run's name is the digest of its configuration, so figures share runs, and what is done with the same noise
is never done again.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from topdp import __version__
from topdp.data.shards import Shards
from topdp.files import new_folder
from topdp.learning.gradients import ClippedGradients
from topdp.learning.models import FlatModel
from topdp.reproduce.kept_noise import Calibrations
from topdp.reproduce.shared_plans import shared_plans
from topdp.reproduce.store import Say, name, write
from topdp.settings import build
from topdp.settings.config import RunConfig
from topdp.simulator.engine import Engine
from topdp.simulator.stacking import StackedBatches, StackedNoise, stack_plans, stack_shards

Curve = list[dict[str, float]]
"""One dictionary per evaluation: round, mean, min, max."""

LIMITS = {"cuda": 40e9, "cpu": 2e9}  # bytes of rows and records in one stack
DEALT = 6  # partitions of a data set that stay on the device between stacks
TELL = 20.0  # seconds between two words on a long stack


class Runs:
    """The results of runs, in a folder of one JSON file each, and σ by calibration."""

    def __init__(self, folder: Path, device: str, test_records: Callable[[RunConfig], int], say: Say) -> None:
        self.folder = folder
        self.device = torch.device(device)
        self.test_records = test_records
        self.say = say
        new_folder(folder)
        self.calibrations = Calibrations(folder / "sigma.json", say)
        self._dealt: dict[str, Shards] = {}

    def __getitem__(self, config: RunConfig) -> Curve:
        curve: Curve = self._read(config)["curve"]
        return curve

    def made(self, configs: Iterable[RunConfig]) -> dict[str, Any]:
        """How many runs these are, on what they ran and how long: each has an equal share of its stack."""
        distinct = {name(c): c for c in configs}.values()
        notes = [self._read(c)["made"] for c in distinct]
        others = {key: ", ".join(sorted({note[key] for note in notes})) for key in _here(self.device)}
        return {"runs": len(notes), "seconds": round(sum(note["seconds"] for note in notes), 3), **others}

    def make(self, wanted: Iterable[RunConfig]) -> None:
        """Runs whatever of `wanted` has no result yet."""
        distinct = {name(c): c for c in wanted}.values()
        self.calibrations.make(distinct)
        missing = [c for c in distinct if not self._read(c)]
        stacks = _stacks(missing, LIMITS[self.device.type])
        for number, stack in enumerate(stacks, 1):
            one = stack[0]
            what = f"{len(stack)} runs of {one.rounds} rounds on {one.data.name}"
            self.say(f"stack {number} of {len(stacks)}: {what}")
            started = time.perf_counter()
            curves = self._run(stack)
            share = round((time.perf_counter() - started) / len(stack), 4)
            made = {"seconds": share, **_here(self.device)}
            for config, curve in zip(stack, curves, strict=True):
                sigma = self.calibrations.sigma(config)
                write(self._file(config), json.dumps({"made": made, "sigma": sigma, "curve": curve}))

    def _read(self, config: RunConfig) -> dict[str, Any]:
        """Empty where there is no result, or one of another version or with other noise."""
        try:
            found = json.loads(self._file(config).read_text())
        except (OSError, ValueError):
            return {}
        if not isinstance(found, dict) or found.keys() != {"made", "sigma", "curve"}:
            return {}
        # A configuration does not name its noise where that is calibrated, which may be done anew.
        return found if math.isclose(found["sigma"], self.calibrations.sigma(config)) else {}

    def _file(self, config: RunConfig) -> Path:
        return self.folder / f"{name(config)}.json"

    def _shards(self, config: RunConfig, agents: int) -> Shards:
        """Many runs share their records: they are dealt out, and go to the device, once."""
        key = f"{config.seed} {agents} {config.data}"
        if key not in self._dealt:
            if len(self._dealt) == DEALT:
                del self._dealt[next(iter(self._dealt))]
            self._dealt[key] = build.shards(config, agents).to(self.device)
        return self._dealt[key]

    def _run(self, configs: list[RunConfig]) -> list[Curve]:
        """All runs as one plan; the curve of each."""
        first = configs[0]
        graphs = [build.graph(c) for c in configs]
        shards = [self._shards(c, g.agents) for c, g in zip(configs, graphs, strict=True)]
        sigmas = [self.calibrations.sigma(c) for c in configs]
        plans = shared_plans(configs, graphs, [held.counts for held in shards], sigmas)
        models = [build.model(c, tuple(shards[0].inputs.shape[2:]), shards[0].classes) for c in configs]
        gradients = ClippedGradients(FlatModel(models[0]), first.privacy.clip)
        joined = stack_shards(shards)
        few = self.test_records(first)
        assert joined.test_inputs is not None and joined.test_labels is not None
        joined = replace(joined, test_inputs=joined.test_inputs[:few], test_labels=joined.test_labels[:few])
        each = tuple((build.batches(c, s.counts), c.seed) for s, c in zip(shards, configs, strict=True))
        stacked = StackedBatches(each)
        noise = StackedNoise(plans, [c.seed for c in configs])
        engine = Engine(
            stack_plans(plans),
            gradients,
            joined,
            stacked.batches,
            first.seed,
            self.device,
            noise,
            stacked.select,
        )
        starts = [FlatModel(m).flatten().expand(g.agents, -1) for m, g in zip(models, graphs, strict=True)]
        state = engine.start(torch.cat(starts))
        curves: list[Curve] = [[] for _ in configs]
        began = told = time.perf_counter()
        while state.releases < engine.plan.releases:
            state = engine.advance(state)
            t = state.releases - 1
            if t % first.train.evaluate_every == 0 or t == first.rounds:
                accuracy, at = engine.evaluate(state).accuracy, 0
                for curve, graph in zip(curves, graphs, strict=True):
                    own = accuracy[at : at + graph.agents]
                    at += graph.agents
                    point = {"mean": own.mean(), "min": own.min(), "max": own.max()}
                    curve.append({"round": t, **{key: round(float(v), 5) for key, v in point.items()}})
            if time.perf_counter() - told > TELL:
                told = time.perf_counter()
                left = (told - began) / state.releases * (engine.plan.releases - state.releases)
                self.say(f"  round {t} of {first.rounds}, {left:.0f} s left in this stack")
        return curves


def _here(device: torch.device) -> dict[str, str]:
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    return {
        "device": card,
        "topdp": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _stacks(configs: list[RunConfig], limit: float) -> list[list[RunConfig]]:
    """Groups runs that can go together, each group within the memory limit."""
    groups: dict[str, list[RunConfig]] = defaultdict(list)
    for c in configs:
        # A stack is tested on the records of its first run: what one seed holds out, another trains on.
        held_out = c.data.validation and c.seed
        key = (c.rounds, c.data, c.model, c.privacy.clip, c.train.evaluate_every, held_out)
        groups[str(key)].append(c)
    stacks = []
    for group in groups.values():
        stack: list[RunConfig] = []
        used = 0.0
        for config in group:
            size = _bytes(config)
            if stack and used + size > limit:
                stacks.append(stack)
                stack, used = [], 0.0
            stack.append(config)
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
