"""Execute the runs of figures in stacks, and store their results by name.

Figures share runs, and a run with the same noise is never repeated. `runs/run_stacks.py` combines runs into a
stack; run folders, checkpoints and accounts of single runs belong to `topdp run`.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from topdp import __version__
from topdp.base.files import make_folder, write_atomically
from topdp.base.progress import Progress
from topdp.errors import Interrupted
from topdp.experiments.noise_store import NoiseStore
from topdp.experiments.parallel_plans import shared_plans
from topdp.experiments.run_store import Curve, run_name
from topdp.runs import run_stacks
from topdp.runs.config import RunConfig
from topdp.runs.kept_keys import key_of
from topdp.runs.run_outline import RunOutline
from topdp.runs.run_stacks import MAX_STACK_BYTES, Dealer, Stack

REPORT_INTERVAL_SECONDS = 20.0  # interval of progress lines of a long stack


class OutOfTime(Interrupted):
    """The time limit has passed. Results so far are stored, and the same command continues."""


class FigureRuns:
    """The stored results of runs, one JSON file per run in a folder, and the noise of the runs.

    No stack starts after `until`, a time of the clock `time.monotonic`.
    """

    def __init__(
        self,
        folder: Path,
        device: str,
        *,
        test_records: Callable[[RunConfig], int],
        progress: Progress,
        until: float = math.inf,
    ) -> None:
        self.folder = folder
        self.until = until
        self.device = torch.device(device)
        self.test_records = test_records
        self.progress = progress
        make_folder(folder)
        self.noise = NoiseStore(folder / "sigma.json", progress)
        self._dealer = Dealer(self.device)

    def __contains__(self, config: RunConfig) -> bool:
        return bool(self._read(config))

    def __getitem__(self, config: RunConfig) -> Curve:
        curve: Curve = self._read(config)["curve"]
        return curve

    def provenance(self, configs: Iterable[RunConfig]) -> dict[str, Any]:
        """Return the number of distinct runs, their total seconds, and their devices and versions."""
        distinct = {run_name(c): c for c in configs}.values()
        notes = [self._read(c)["made"] for c in distinct]
        names = {key: ", ".join(sorted({note[key] for note in notes})) for key in _environment(self.device)}
        return {"runs": len(notes), "seconds": round(sum(note["seconds"] for note in notes), 3), **names}

    def execute(self, configs: Iterable[RunConfig]) -> None:
        """Execute the runs without a stored result, and store their results.

        Raise OutOfTime if the time limit passes before the last stack starts.
        """
        distinct = {run_name(c): c for c in configs}.values()
        self.noise.calibrate(distinct)
        missing = [RunOutline.of(c) for c in distinct if not self._read(c)]
        stacks = run_stacks.stackable(missing, MAX_STACK_BYTES[self.device.type], estimated_bytes)
        for number, stack in enumerate(stacks, 1):
            first = stack[0].config
            if time.monotonic() > self.until:
                raise OutOfTime(f"The time limit passed with {len(stacks) + 1 - number} stacks of runs left.")
            what = f"{len(stack)} runs of {first.rounds} rounds on {first.data.name}"
            self.progress(f"stack {number} of {len(stacks)}: {what}")
            started = time.perf_counter()
            sigmas = [self.noise.sigma(run.config) for run in stack]
            curves = self._run(stack, sigmas)
            # Each run counts for an equal share of its stack's time.
            share = round((time.perf_counter() - started) / len(stack), 4)
            note = {"seconds": share, **_environment(self.device)}
            for run, sigma, curve in zip(stack, sigmas, curves, strict=True):
                content = {"made": note, "sigma": sigma, "curve": curve}
                write_atomically(self._file(run.config), json.dumps(content))

    def _read(self, config: RunConfig) -> dict[str, Any]:
        """Return the stored result, or an empty dictionary if there is none with current format and noise."""
        try:
            result = json.loads(self._file(config).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(result, dict) or result.keys() != {"made", "sigma", "curve"}:
            return {}
        # A calibrated configuration does not contain its σ, and a later calibration may give another one.
        return result if math.isclose(result["sigma"], self.noise.sigma(config)) else {}

    def _file(self, config: RunConfig) -> Path:
        return self.folder / f"{run_name(config)}.json"

    def _run(self, runs: list[RunOutline], sigmas: list[float]) -> list[Curve]:
        """Execute the runs as one stack; return the curve of each."""
        first = runs[0].config
        assemblies = self._dealer.assemblies(runs)
        plans = shared_plans([parts.run for parts in assemblies], sigmas)
        stack = Stack.of(assemblies, plans, [key_of(run.config) for run in runs], self.test_records(first))
        curves: list[Curve] = [[] for _ in runs]
        started = reported = time.perf_counter()
        for t, state, due in stack.rounds():
            if due:
                for curve, own in zip(curves, stack.evaluations(state), strict=True):
                    accuracy = own.accuracy
                    point = {"mean": accuracy.mean(), "min": accuracy.min(), "max": accuracy.max()}
                    curve.append({"round": t, **{key: round(float(v), 5) for key, v in point.items()}})
            if time.perf_counter() - reported > REPORT_INTERVAL_SECONDS:
                reported = time.perf_counter()
                seconds = (reported - started) / (t + 1) * (first.rounds - t)
                self.progress(f"  round {t} of {first.rounds}, {seconds:.0f} s left in this stack")
        return curves


def estimated_bytes(run: RunOutline) -> tuple[float, float]:
    """Return estimates of the bytes of all agents' records, and of two buffers of rows with gradients."""
    config, agents = run.config, run.config.topology.agents
    image = 3072 if "cifar10" in config.data.name else 784
    if config.data.features == "scattering":
        image *= 5  # 81 numbers replace 16 pixels
    parameters = {"linear": 10 * image, "mlp": 100 * image}.get(config.model.name, 80_000)
    records = config.data.records or 60_000 // agents
    rows = agents * (4 if run.method.reuses_noise else 1)
    return 4.0 * agents * records * image, 4.0 * parameters * (2 * rows + 2 * agents)


def _environment(device: torch.device) -> dict[str, str]:
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    return {
        "device": card,
        "topdp": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
