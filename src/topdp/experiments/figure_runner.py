"""Executes the runs of figures in stacks, and keeps what they found by their names.

Figures share runs, and what is done with the same noise is never done again. How runs are put together is
`stacks`; run folders, checkpoints and accounts of single runs are `topdp run`'s.
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
from topdp.errors import Interrupted
from topdp.experiments.figure_stacks import assembled, stackable
from topdp.experiments.noise_store import KeptNoise
from topdp.experiments.run_store import Curve, Say, run_name
from topdp.runs.config import RunConfig
from topdp.runs.run_stacks import LIMITS, Dealer

TELL = 20.0  # seconds between two words on a long stack


class OutOfTime(Interrupted):
    """The time that was given is over; what was done is kept, and the same command goes on."""


class KeptRuns:
    """The results of runs, in a folder of one JSON file each, and their noise.

    No stack is begun after `until`, on the clock of `time.monotonic`.
    """

    def __init__(
        self,
        folder: Path,
        device: str,
        test_records: Callable[[RunConfig], int],
        say: Say,
        until: float = math.inf,
    ) -> None:
        self.folder = folder
        self.until = until
        self.device = torch.device(device)
        self.test_records = test_records
        self.say = say
        make_folder(folder)
        self.noise = KeptNoise(folder / "sigma.json", say)
        self._dealer = Dealer(self.device)

    def __contains__(self, config: RunConfig) -> bool:
        return bool(self._read(config))

    def __getitem__(self, config: RunConfig) -> Curve:
        curve: Curve = self._read(config)["curve"]
        return curve

    def made(self, configs: Iterable[RunConfig]) -> dict[str, Any]:
        """How many runs these are, on what they ran and how long: each has an equal share of its stack."""
        distinct = {run_name(c): c for c in configs}.values()
        notes = [self._read(c)["made"] for c in distinct]
        others = {key: ", ".join(sorted({note[key] for note in notes})) for key in _here(self.device)}
        return {"runs": len(notes), "seconds": round(sum(note["seconds"] for note in notes), 3), **others}

    def make(self, wanted: Iterable[RunConfig]) -> None:
        """Runs whatever of `wanted` has no result yet; raises OutOfTime, and keeps what there is by then."""
        distinct = {run_name(c): c for c in wanted}.values()
        self.noise.calibrate(distinct)
        missing = [c for c in distinct if not self._read(c)]
        stacks = stackable(missing, LIMITS[self.device.type])
        for number, configs in enumerate(stacks, 1):
            one = configs[0]
            if time.monotonic() > self.until:
                raise OutOfTime(f"Time is up with {len(stacks) + 1 - number} stacks of runs to go.")
            what = f"{len(configs)} runs of {one.rounds} rounds on {one.data.name}"
            self.say(f"stack {number} of {len(stacks)}: {what}")
            started = time.perf_counter()
            sigmas = [self.noise.sigma(c) for c in configs]
            curves = self._run(configs, sigmas)
            share = round((time.perf_counter() - started) / len(configs), 4)
            made = {"seconds": share, **_here(self.device)}
            for config, sigma, curve in zip(configs, sigmas, curves, strict=True):
                write_atomically(
                    self._file(config), json.dumps({"made": made, "sigma": sigma, "curve": curve})
                )

    def _read(self, config: RunConfig) -> dict[str, Any]:
        """Empty where there is no result, or one of another version or with other noise."""
        try:
            found = json.loads(self._file(config).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(found, dict) or found.keys() != {"made", "sigma", "curve"}:
            return {}
        # A configuration does not name its noise where that is calibrated, which may be done anew.
        return found if math.isclose(found["sigma"], self.noise.sigma(config)) else {}

    def _file(self, config: RunConfig) -> Path:
        return self.folder / f"{run_name(config)}.json"

    def _run(self, configs: list[RunConfig], sigmas: list[float]) -> list[Curve]:
        """All runs as one; the curve of each."""
        first = configs[0]
        stack = assembled(self._dealer, configs, sigmas, self.test_records(first))
        curves: list[Curve] = [[] for _ in configs]
        began = told = time.perf_counter()
        for t, state, due in stack.rounds():
            if due:
                for curve, own in zip(curves, stack.evaluations(state), strict=True):
                    accuracy = own.accuracy
                    point = {"mean": accuracy.mean(), "min": accuracy.min(), "max": accuracy.max()}
                    curve.append({"round": t, **{key: round(float(v), 5) for key, v in point.items()}})
            if time.perf_counter() - told > TELL:
                told = time.perf_counter()
                left = (told - began) / (t + 1) * (first.rounds - t)
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
