"""The folder of a run: written as the run goes, readable at any moment.

    config.toml        the whole configuration
    plan.npz           the plan that was executed
    metrics.jsonl      one line per evaluation
    privacy.json       how private the run is
    model.safetensors  the agents' final estimates, [agents, d]
    best.safetensors   their estimates at the best evaluation so far
    accuracy.png       the learning curve; likewise of every other metric
    checkpoint.safetensors  where an unfinished run stands, or one that was stopped; gone when it is done
                       (of several ranks: one file each, checkpoints.py)
    run.json           versions, state and times; the file that makes a folder a run

Nothing here needs torch, so reports can be made where it is not installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from topdp import __version__
from topdp.base import toml_text
from topdp.base.files import UNREADABLE_FILE_ERRORS, FileError, atomic_path, make_folder
from topdp.errors import InputError
from topdp.plan import Plan, plan_file
from topdp.runs.config import RunConfig, parse_stored
from topdp.runs.metric_labels import metric_names
from topdp.runs.tensor_files import read_tensor, widened, write_tensors

Content = TypeVar("Content")

RUN_FORMAT = 2
STARTING = "starting"  # nothing is computed yet: what is in the folder can be written again
GRAPH_FILE = "graph.txt"  # beside a run that was started from Python with its own graph


class RunFolderError(InputError):
    """A folder that is not a run, or not one that can be used as asked."""


@dataclass(frozen=True)
class RunFolder:
    """A run on disk. Every file is written whole or not at all."""

    path: Path

    @staticmethod
    def make_room(path: Path) -> None:
        """A new folder for a run; an existing one is refused unless it is empty."""
        if path.is_dir():
            _forget(path, "run.json", leftovers_only=True)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunFolderError(f"--out: expected a new or empty folder, {_in_the_way(path)}.")
        make_folder(path)

    @classmethod
    def create(cls, path: Path, config: str, plan: Plan) -> RunFolder:
        """The folder of a run that is about to start."""
        cls.make_room(path)
        folder = cls(path)
        # First, so that a folder that was left in the middle of this is known for what it is.
        folder.write_json("run.json", {"format": RUN_FORMAT, "topdp": __version__, "state": STARTING})
        folder.write_text("config.toml", config)
        folder._write("plan.npz", lambda file: plan_file.save(plan, file))
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run; anything else is refused by name."""
        folder = cls(path)
        info = folder.read_json("run.json")
        format = info.get("format") if isinstance(info, dict) else None
        if format != RUN_FORMAT:
            raise RunFolderError(
                f"Expected a run of format {RUN_FORMAT} in {path}, got {format!r:.80}: another version of "
                "topdp wrote it. Use that version, or run it again."
            )
        return folder

    def forget_start(self) -> None:
        """Empty a folder in which a run was prepared and never started."""
        for name in ("config.toml", "plan.npz", "privacy.json", GRAPH_FILE, "run.json"):
            _forget(self.path, name)

    @property
    def state(self) -> str:
        """The state of the run: starting, running, interrupted, stopped, diverged, wrong or done."""
        return str(self.fact("state"))

    @property
    def config(self) -> RunConfig:
        return self._read("config.toml", _read_config)

    def fact(self, name: str) -> Any:
        """The fact `name` in run.json."""
        return self._read("run.json", lambda file: _read_json(file)[name])

    @property
    def plan(self) -> Plan:
        return self._read("plan.npz", plan_file.load)

    @property
    def estimates(self) -> NDArray[Any]:
        """[agents, d] at the end of the run, or where it was stopped."""
        return self.read_estimates("model.safetensors")[0]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Return one dictionary per evaluation, in the order of rounds."""
        return self._read("metrics.jsonl", _read_lines) if (self.path / "metrics.jsonl").exists() else []

    def checkpoint_size(self) -> tuple[int, int]:
        """Return the number of releases and rows of the checkpoint, without reading the rows."""
        return self._read("checkpoint.safetensors", _read_size)

    def save_checkpoint(self, releases: int, rows: NDArray[Any]) -> None:
        """`rows` of the last release; bfloat16 as its bits (`tensor_files.DTYPE_NAMES`)."""
        tensors = {"releases": np.array([releases]), "rows": rows}
        self._write("checkpoint.safetensors", lambda file: write_tensors(file, tensors, None))

    def rename(self, name: str, other: str) -> None:
        """A file that is whole takes the place of another."""
        (self.path / name).replace(self.path / other)

    def save_metrics(self, metrics: list[dict[str, Any]]) -> None:
        self.write_text("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in metrics))

    def mark(self, state: str, **facts: Any) -> None:
        """Add the state and further facts to run.json."""
        self.write_json("run.json", {**self.read_json("run.json"), "state": state, **facts})

    def finish(self, estimates: NDArray[Any], notes: dict[str, str] | None = None, **facts: Any) -> None:
        """The end of a run; one that was stopped keeps its checkpoint, from which it can go on."""
        self.save_estimates("model.safetensors", estimates, notes)
        stopped = facts.get("stopped") is not None
        self.mark("stopped" if stopped else "done", **facts)
        if not stopped:
            self.write_json(
                "run.json", {k: v for k, v in self.read_json("run.json").items() if k != "checkpoint"}
            )
            for file in self.path.glob("checkpoint*.safetensors"):
                file.unlink(missing_ok=True)

    def save_estimates(self, name: str, estimates: NDArray[Any], notes: dict[str, str] | None) -> None:
        """[agents, d], with notes in words beside them."""
        self._write(name, lambda file: write_tensors(file, {"estimates": estimates}, notes))

    def read_estimates(self, name: str, notes: Sequence[str] = ()) -> tuple[NDArray[Any], dict[str, str]]:
        """Return the estimates and all notes of such a file, which must have the named `notes`."""
        stored, all_notes = self.stored_estimates(name, notes)
        return widened(stored), all_notes

    def stored_estimates(self, name: str, notes: Sequence[str] = ()) -> tuple[NDArray[Any], dict[str, str]]:
        """The same, but bfloat16 as its bits (`tensor_files.DTYPE_NAMES`), in half the memory."""
        return self._read(name, partial(_read_estimates, notes=notes))

    def read_json(self, name: str) -> Any:
        return self._read(name, _read_json)

    def write_json(self, name: str, value: Any) -> None:
        self.write_text(name, json.dumps(value, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        self._write(name, lambda file: file.write_text(text, encoding="utf-8"))

    def _read(self, name: str, read: Callable[[Path], Content]) -> Content:
        try:
            return read(self.path / name)
        except (*UNREADABLE_FILE_ERRORS, SafetensorError) as error:
            raise RunFolderError(
                f"Expected a run written by topdp in {self.path}, could not read {name}: {_words(error)}"
            ) from error

    def _write(self, name: str, write: Callable[[Path], Any]) -> None:
        try:
            with atomic_path(self.path / name) as beside:
                write(beside)
        except SafetensorError as error:  # its way to say that the disk is full
            raise FileError(f"Could not write {self.path / name}: {error}.") from error


def _in_the_way(path: Path) -> str:
    """The content of a folder that is not empty, and what to do, for an error message."""
    if not path.is_dir():
        return f"{path} is a file: name another place"
    try:
        state = RunFolder.open(path).state
    except RunFolderError:
        return f"{path} has other things in it: name another one"
    if state in ("running", "interrupted"):
        return f"{path} has an unfinished run: name another one, or continue that run with --resume {path}"
    return f"{path} has a run in it ({state}): name another one"


def _forget(folder: Path, name: str, leftovers_only: bool = False) -> None:
    """Remove a file, and the temporary files that a killed writer has left beside it (`atomic_path`)."""
    for leftover in folder.glob(f".{name}.*"):
        leftover.unlink(missing_ok=True)
    if not leftovers_only:
        (folder / name).unlink(missing_ok=True)


def _read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _read_config(file: Path) -> RunConfig:
    return parse_stored(toml_text.parse_toml(file.read_text(encoding="utf-8")), str(file))


def _read_estimates(file: Path, notes: Sequence[str]) -> tuple[NDArray[Any], dict[str, str]]:
    with safe_open(file, "numpy") as opened:
        metadata = opened.metadata() or {}
    return read_tensor(file, "estimates"), {**metadata, **{name: metadata[name] for name in notes}}


def _read_size(file: Path) -> tuple[int, int]:
    with safe_open(file, "numpy") as opened:
        return int(opened.get_tensor("releases")[0]), int(opened.get_slice("rows").get_shape()[0])


def _read_lines(file: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    if not all(isinstance(line["round"], int) and metric_names(line) for line in lines):
        raise ValueError("a line has no round or no metric")
    return lines


def _words(error: Exception) -> str:
    """Return an error in words: Python names only a missing key, and adds a number to a missing file."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}."
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
