"""The folder of a run, which is written during the run and can be read at any moment.

    config.toml        the whole configuration
    plan.npz           the plan that was executed
    metrics.jsonl      one line per evaluation
    privacy.json       the account of the plan
    model.safetensors  the agents' final estimates, [agents, d]
    best.safetensors   the agents' estimates at the best evaluation so far
    accuracy.png       the learning curve; every other metric has its own picture
    checkpoint.safetensors  the state from which an unfinished or stopped run continues; removed when the run
                       is done (several ranks write one file each: checkpoints.py)
    noise.key          the secret of an unfinished or stopped run (kept_keys.py); never copy it
    run.json           versions, state and times; a folder without this file is not a run

This module does not need torch, so that reports can be made without it.
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
from topdp.runs.kept_keys import erase_key
from topdp.runs.metric_labels import metric_names
from topdp.runs.tensor_files import read_tensor, widened, write_tensors

Content = TypeVar("Content")

RUN_FORMAT = 3  # up to format 2, noise followed from the seed, so that pages about it would be wrong
STARTING = "starting"  # the state before the first round, in which the folder can be written again
# Entries of run.json without a use after the end. `data` is a digest of records under the noise key.
UNFINISHED_FACTS = ("checkpoint", "data")
GRAPH_FILE = "graph.txt"  # the graph of a run that was started from Python


class RunFolderError(InputError):
    """A folder that is not a run folder, or whose run cannot be used for the requested purpose."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run. Every file in it is written completely or not at all."""

    path: Path

    @staticmethod
    def make_room(path: Path) -> None:
        """Create the folder `path` for a run. Raise RunFolderError if it exists and is not empty."""
        if path.is_dir():
            _remove(path, "run.json", leftovers_only=True)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunFolderError(f"--out: expected a new or empty folder, got {_content_words(path)}.")
        make_folder(path)

    @classmethod
    def create(cls, path: Path, config: str, plan: Plan) -> RunFolder:
        """Create and return the folder of a run that is about to start. `config`: its TOML text."""
        cls.make_room(path)
        folder = cls(path)
        # run.json is written first, so that an incomplete folder can be recognised.
        folder.write_json("run.json", {"format": RUN_FORMAT, "topdp": __version__, "state": STARTING})
        folder.write_text("config.toml", config)
        folder._write("plan.npz", lambda file: plan_file.save(plan, file))
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return the folder of an existing run. Raise RunFolderError for any other folder."""
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
        """Remove the files of a run that never computed its first round."""
        erase_key(self.path)
        for name in ("config.toml", "plan.npz", "privacy.json", GRAPH_FILE, "run.json"):
            _remove(self.path, name)

    @property
    def state(self) -> str:
        """The state of the run: starting, running, interrupted, stopped, diverged, wrong,
        abandoned or done."""
        return str(self.fact("state"))

    @property
    def config(self) -> RunConfig:
        return self._read("config.toml", _read_config)

    def fact(self, name: str) -> Any:
        """Return the entry `name` of run.json."""
        return self._read("run.json", lambda file: _read_json(file)[name])

    @property
    def plan(self) -> Plan:
        return self._read("plan.npz", plan_file.load)

    @property
    def estimates(self) -> NDArray[Any]:
        """The estimates [agents, d] at the end of the run, or when it was stopped."""
        return widened(self.stored_estimates("model.safetensors")[0])

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All evaluations, as one dictionary per line of metrics.jsonl, in the order of rounds."""
        return self._read("metrics.jsonl", _read_lines) if (self.path / "metrics.jsonl").exists() else []

    def checkpoint_size(self) -> tuple[int, int]:
        """Return the numbers of releases and of rows in the checkpoint, without reading the rows."""
        return self._read("checkpoint.safetensors", _read_size)

    def save_checkpoint(self, releases: int, rows: NDArray[Any]) -> None:
        """Write the `rows` of the last of `releases` releases; bfloat16 as its bits (`tensor_files`)."""
        tensors = {"releases": np.array([releases]), "rows": rows}
        self._write("checkpoint.safetensors", lambda file: write_tensors(file, tensors, None))

    def rename(self, name: str, other: str) -> None:
        """Rename the complete file `name` to `other`, which it replaces."""
        (self.path / name).replace(self.path / other)

    def save_metrics(self, metrics: list[dict[str, Any]]) -> None:
        self.write_text("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in metrics))

    def mark(self, state: str, **facts: Any) -> None:
        """Set the state and further entries in run.json."""
        self.write_json("run.json", {**self.read_json("run.json"), "state": state, **facts})

    def end(self, state: str, **facts: Any) -> None:
        """Mark a run that cannot continue. Erase its noise key first, and what only a continued run needs."""
        erase_key(self.path)
        info = {
            key: value for key, value in self.read_json("run.json").items() if key not in UNFINISHED_FACTS
        }
        self.write_json("run.json", {**info, "state": state, **facts})
        for file in self.path.glob("checkpoint*.safetensors"):
            file.unlink(missing_ok=True)

    def finish(self, estimates: NDArray[Any], notes: dict[str, str] | None = None, **facts: Any) -> None:
        """Write the final estimates, and the state and entries of run.json at the end of a run.

        Remove key and checkpoints, unless a callback stopped the run, which can then continue with them.
        """
        self.save_estimates("model.safetensors", estimates, notes)
        if facts.get("stopped") is not None:
            self.mark("stopped", **facts)
        else:
            self.end("done", **facts)

    def save_estimates(self, name: str, estimates: NDArray[Any], notes: dict[str, str] | None) -> None:
        """Write the estimates [agents, d] to the file `name`, with `notes` as its metadata."""
        self._write(name, lambda file: write_tensors(file, {"estimates": estimates}, notes))

    def stored_estimates(self, name: str, notes: Sequence[str] = ()) -> tuple[NDArray[Any], dict[str, str]]:
        """Return the estimates in the file `name`, bfloat16 as its bits (`tensor_files`), and its metadata.

        Raise RunFolderError if the metadata lacks one of `notes`.
        """
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
        except SafetensorError as error:  # for example because the disk is full
            raise FileError(f"Could not write {self.path / name}: {error}.") from error


def _content_words(path: Path) -> str:
    """Return text for an error message: what a path contains, and what to do."""
    if not path.is_dir():
        return f"the file {path}. Name another folder"
    try:
        state = RunFolder.open(path).state
    except RunFolderError:
        return f"{path}, which contains other files. Name another folder"
    if state in ("running", "interrupted"):
        return f"{path}, which has an unfinished run. Name another folder, or continue with --resume {path}"
    return f"{path}, which contains a run in state {state!r}. Name another folder"


def _remove(folder: Path, name: str, leftovers_only: bool = False) -> None:
    """Remove a file, and the temporary files that a killed writer has left beside it (`atomic_path`).

    `leftovers_only`: remove only the temporary files.
    """
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
    """Return the message of an error, with added words for a missing key, and without the number that Python
    adds for a missing file.
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}."
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
