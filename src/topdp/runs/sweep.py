"""Run every point of a grid of settings and seeds: stacked if possible, and otherwise one after another.

    sweeps/<id>/sweep.json     the settings of the sweep
                001/ 002/ ...  a run folder for each point, as `topdp run` writes it

A sweep that continues after an interruption does not repeat finished runs; the state in each run folder
decides. The folders of stacked runs, and of runs on a cluster (`ray_cluster.py`), appear only when these runs
are finished. A run that diverges does not end the sweep; the table names it. `sweep_grid.py` makes the
points, and `sweep_summary.py` the tables.

**Guarantees.** Every run is calibrated and accounted for by itself, as if it were the only one, and its ε is
that of one run. Every run has its own noise key. `sweep_summary.py` states the ε of all runs together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from topdp.base import toml_text
from topdp.base.files import exclusive_lock, make_folder, write_atomically
from topdp.base.progress import Progress, titled
from topdp.errors import Interrupted
from topdp.learning.gradients import DivergedError
from topdp.learning.gradients.path_check import draws_dropout
from topdp.plan.noise_key import NoiseKey
from topdp.runs.assembly import Assembly, choose_device
from topdp.runs.config import changed, parse_stored
from topdp.runs.finished_run import run_stacked
from topdp.runs.kept_keys import RECORDS_KEY_FILE, erase_key, key_of, keyed_digest, read_key, write_key
from topdp.runs.ray_cluster import RayCluster
from topdp.runs.run import expect_settings, run_or_continue
from topdp.runs.run_folder import RunFolder, RunFolderError
from topdp.runs.run_outline import RunOutline
from topdp.runs.run_stacks import MAX_STACK_BYTES, Dealer, name_of_shards, stackable
from topdp.runs.sweep_grid import Axis, GridPoint, SweepPoint, points
from topdp.runs.sweep_summary import Spread
from topdp.runs.training_loop import InterruptedRun

SWEEP_FORMAT = 1
# The limit on the bytes of records and estimates of a stacked run on a CPU. A smaller run does not fill a
# processor. Stacks of larger runs were not faster, and have no checkpoints. GPUs stack runs of any size.
MAX_STACKED_RUN_BYTES = 4e6


@dataclass(frozen=True)
class SweepRequest:
    """The settings of a sweep, stored in its folder.

    The same command continues the sweep; a command with other settings raises an error.
    """

    base: str  # the configuration as TOML
    axes: tuple[Axis, ...]
    seeds: int

    def keep(self, place: Path) -> None:
        """Write the settings to a new folder. Raise RunFolderError if the folder has other settings."""
        file = place / "sweep.json"
        if file.exists():
            if self != SweepRequest.read(place):
                raise RunFolderError(
                    f"Expected the settings of the sweep in {place}, got other settings. Name another --out, "
                    f"or continue that sweep with: topdp sweep --resume {place}"
                )
            return
        RunFolder.make_room(place)
        over = {axis.key: list(axis.values) for axis in self.axes}
        content = {"format": SWEEP_FORMAT, "seeds": self.seeds, "over": over, "base": self.base}
        write_atomically(file, json.dumps(content, indent=2) + "\n")

    @classmethod
    def read(cls, place: Path) -> SweepRequest:
        try:
            content = json.loads((place / "sweep.json").read_text(encoding="utf-8"))
            if content["format"] != SWEEP_FORMAT:
                raise ValueError(f"it has format {content['format']}, of another version of topdp")
            axes = tuple(Axis(str(key), tuple(map(str, values))) for key, values in content["over"].items())
            base = parse_stored(toml_text.parse_toml(content["base"]), "sweep.json").to_toml()
            return cls(base, axes, int(content["seeds"]))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise RunFolderError(
                f"Expected a sweep in {place}, but sweep.json cannot be read: {error!r}. Name the folder "
                "that `topdp sweep` wrote, or start the sweep again with another --out."
            ) from error

    def points(self) -> list[GridPoint]:
        """Return one point for each run."""
        return points(lambda changes: changed(self.base, changes), self.axes, self.seeds)


def run_all(
    points: Sequence[SweepPoint],
    place: Path,
    device: str,
    progress: Progress,
    how_to_continue: str,
    cluster: RayCluster | None = None,
) -> None:
    """Compute the points that have no result in `place` yet, on this machine or on `cluster`.

    After an interruption, the error names `how_to_continue`.
    """
    make_folder(place)
    with exclusive_lock(place):
        chosen = choose_device(device) if cluster is None else torch.device(cluster.device)
        missing = [point for point in points if not is_over(place, point)]
        by_run = {id(point.run): point for point in missing}
        begun = [point for point in missing if (place / point.folder / "run.json").exists()]
        if cluster is not None:
            begun = []  # a cluster cannot read their checkpoints; it begins again, with the same keys
        dealer = Dealer(chosen if cluster is None else torch.device("cpu"), progress)
        records = SweepRecords(place, dealer)
        fresh = [point.run for point in missing if point not in begun]
        stacks = [[by_run[id(run)] for run in stack] for stack in _stacks(fresh, dealer, chosen)]
        done, total = len(points) - len(missing), len(points)
        try:
            if cluster is not None:
                records.expect_same(missing)
                cluster.run(stacks, dealer, place, progress, done)
                records.forget()
                return
            for stack in [*([point] for point in begun), *stacks]:
                numbers = f"{done + 1}" if len(stack) == 1 else f"{done + 1} to {done + len(stack)}"
                title = f"run{'s' * (len(stack) > 1)} {numbers} of {total}"
                records.expect_same(stack)
                _run_stack(stack, place, dealer, device, titled(progress, title))
                done += len(stack)
            records.forget()
        except (Interrupted, KeyboardInterrupt):
            raise InterruptedRun(place, how_to_continue) from None


def is_over(place: Path, point: SweepPoint) -> bool:
    """Return whether the run of a point is done or diverged. Raise RunFolderError if its folder has another
    run.
    """
    path = place / point.folder
    if not (path / "run.json").exists():
        return False
    folder = RunFolder.open(path)
    if (path / "config.toml").exists() and folder.state != "starting":
        expect_settings(folder, point.config)
        return folder.state in ("done", "diverged")
    return False


@final
class SweepRecords:
    """The digests of the records of an unfinished sweep, so that all of its runs use the same records.

    They are digests under a key that is erased when all runs are over (`kept_keys`).
    """

    def __init__(self, place: Path, dealer: Dealer) -> None:
        self._place, self._dealer, self._file = place, dealer, place / "records.json"

    def expect_same(self, points: Sequence[SweepPoint]) -> None:
        """Note the records of these runs. Raise RunFolderError if earlier runs used other records."""
        key = read_key(self._place, RECORDS_KEY_FILE)
        before: dict[str, str] = json.loads(self._file.read_text("utf-8")) if self._file.exists() else {}
        if key is None:
            key, before = NoiseKey.fresh(), {}
            write_key(self._place, key, RECORDS_KEY_FILE)
        now = dict(before)
        for name, run in {name_of_shards(point.run): point.run for point in points}.items():
            digest = keyed_digest(key, self._dealer.shards(run).digest())
            if now.setdefault(name, digest) != digest:
                raise RunFolderError(
                    f"Expected the records of the finished runs in {self._place}, got other records. Name "
                    "another --out for a sweep on these records."
                )
        if now != before:
            write_atomically(self._file, json.dumps(now, indent=2) + "\n")

    def forget(self) -> None:
        """Erase the key and the digests: all runs are over."""
        erase_key(self._place, RECORDS_KEY_FILE)
        self._file.unlink(missing_ok=True)


def spreads_of(place: Path, points: Sequence[SweepPoint]) -> list[Spread]:
    """Return the results of each combination of settings, with all its seeds."""
    groups: dict[str, Spread] = {}
    for point in points:
        spread = groups.setdefault(str(point.chosen), Spread(point.chosen, []))
        spread.runs.append({"seed": point.seed, **results_of(place, point)})
    return list(groups.values())


def results_of(place: Path, point: SweepPoint) -> dict[str, Any]:
    """Return the results in a run folder. `metrics` is the last evaluation; None if the run is not done."""
    folder = RunFolder.open(place / point.folder)
    lines = folder.metrics
    return {
        "run": str(folder.path),
        "noise_seed": folder.config.noise_seed,
        "state": folder.state,
        "metrics": lines[-1] if lines and folder.state == "done" else None,
        "history": lines,
        "privacy": folder.read_json("privacy.json"),
        "seconds": folder.fact("seconds") if folder.state == "done" else None,
    }


def _stacks(runs: Sequence[RunOutline], dealer: Dealer, device: torch.device) -> list[list[RunOutline]]:
    if len(runs) < 2:
        return [[run] for run in runs]
    sizes: dict[str, tuple[float, float]] = {}

    def size(run: RunOutline) -> tuple[float, float]:
        """Return the bytes of records and of rows; infinite for a run that is not stacked."""
        key = str((run.config.data, run.config.topology, run.config.model))
        if key not in sizes:
            (parts,) = dealer.assemblies([run])
            records = parts.shards.inputs.nbytes
            estimates = 4.0 * parts.flat.dimension * parts.run.graph.agents
            large = device.type == "cpu" and records + estimates > MAX_STACKED_RUN_BYTES
            separate = large or parts.shards.test_inputs is None or _random(parts)
            sizes[key] = (math.inf, 0.0) if separate else (records, 10 * estimates)
        return sizes[key]

    limit = MAX_STACK_BYTES[device.type]
    small = [run for run in runs if sum(size(run)) <= limit]
    stacks = [[run] for run in runs if sum(size(run)) > limit]
    for stack in stackable(small, limit, size):
        fitting = int(limit // sum(size(stack[0])))  # a turn has all seeds, which may be too many
        stacks += [stack[first : first + fitting] for first in range(0, len(stack), fitting)]
    return stacks


def _random(parts: Assembly) -> bool:
    """Return whether layers draw random numbers. In a stack, these numbers would differ from a single run."""
    return any(map(draws_dropout, parts.flat.module.modules()))


def _run_stack(stack: list[SweepPoint], place: Path, dealer: Dealer, device: str, progress: Progress) -> None:
    keys = [key_of(point.config) for point in stack]
    if len(stack) > 1 and (runs := run_stacked([point.run for point in stack], keys, dealer, progress)):
        for point, finished in zip(stack, runs, strict=True):
            finished.write(place / point.folder)
        return
    for point in stack:
        with suppress(DivergedError):  # its folder states that it diverged
            run_or_continue(point.run, place / point.folder, device, progress)
