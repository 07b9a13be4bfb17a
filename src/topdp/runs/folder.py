"""What a run leaves behind: one folder, written as the run goes, readable at any moment.

    config.toml        the whole configuration
    plan.npz           the plan that was executed
    metrics.jsonl      one line per evaluation
    privacy.json       how private the run is
    model.safetensors  the agents' final estimates, [agents, d]
    accuracy.png       the learning curve
    checkpoint.safetensors  where an unfinished run stands; gone when it ends
    run.json           versions, state and times; the file that makes a folder a run

Nothing here needs torch, so reports can be made where it is not installed.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from topdp import __version__
from topdp.plan import Plan, PlanError
from topdp.plan import plan as plans

FORMAT = 1


class RunFolderError(ValueError):
    """A folder that is not a run, or not one that can be used as asked."""


@dataclass(frozen=True)
class Checkpoint:
    """Rounds done, and the rows made in the last of them."""

    round: int
    rows: NDArray[Any]


@dataclass(frozen=True)
class RunFolder:
    """A run on disk. Every file is written whole or not at all."""

    path: Path

    @staticmethod
    def make_room(path: Path) -> None:
        """A new folder for a run; an existing one is refused unless it is empty."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunFolderError(
                f"Expected a new or empty folder, {path} exists: name another one with --out, "
                f"or continue that run with --resume {path}."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"Could not make the run folder {path}: {error.strerror}.") from error

    @classmethod
    def create(cls, path: Path, config: str, plan: Plan) -> RunFolder:
        """The folder of a run that is about to start."""
        cls.make_room(path)
        folder = cls(path)
        folder._write("config.toml", lambda file: file.write_text(config, encoding="utf-8"))
        folder._write("plan.npz", lambda file: plans.save(plan, file))
        folder.write_json("run.json", {"format": FORMAT, "topdp": __version__, "state": "running"})
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run; anything else is refused by name."""
        folder = cls(path)
        info = folder.read_json("run.json")
        if not isinstance(info, dict) or info.get("format") != FORMAT:
            raise RunFolderError(f"Expected a run of format {FORMAT} in {path}, got {info!r:.80}.")
        return folder

    @property
    def state(self) -> str:
        """running, interrupted, diverged or done"""
        return str(self.read_json("run.json")["state"])

    @property
    def config(self) -> str:
        return str(self._read("config.toml", lambda file: file.read_text(encoding="utf-8")))

    @property
    def plan(self) -> Plan:
        plan: Plan = self._read("plan.npz", plans.load)
        return plan

    @property
    def estimates(self) -> NDArray[Any]:
        """[agents, d] at the end of the run."""
        estimates: NDArray[Any] = self._read("model.safetensors", load_file)["estimates"]
        return estimates

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One dictionary per evaluation, in the order of rounds."""
        return self._read("metrics.jsonl", _read_lines) if (self.path / "metrics.jsonl").exists() else []

    @property
    def checkpoint(self) -> Checkpoint | None:
        if not (self.path / "checkpoint.safetensors").exists():
            return None
        tensors = self._read("checkpoint.safetensors", load_file)
        return Checkpoint(int(tensors["round"][0]), tensors["rows"])

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        tensors = {"round": np.array([checkpoint.round]), "rows": np.ascontiguousarray(checkpoint.rows)}
        self._write("checkpoint.safetensors", lambda file: save_file(tensors, file))

    def save_metrics(self, metrics: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(line) + "\n" for line in metrics)
        self._write("metrics.jsonl", lambda file: file.write_text(lines, encoding="utf-8"))

    def mark(self, state: str, **facts: Any) -> None:
        """Adds to run.json: the state and what else is to be remembered."""
        self.write_json("run.json", {**self.read_json("run.json"), "state": state, **facts})

    def finish(self, estimates: NDArray[Any], **facts: Any) -> None:
        tensors = {"estimates": np.ascontiguousarray(estimates)}
        self._write("model.safetensors", lambda file: save_file(tensors, file))
        self.mark("done", **facts)
        (self.path / "checkpoint.safetensors").unlink(missing_ok=True)

    def read_json(self, name: str) -> Any:
        return self._read(name, lambda file: json.loads(file.read_text(encoding="utf-8")))

    def write_json(self, name: str, value: Any) -> None:
        text = json.dumps(value, indent=2) + "\n"
        self._write(name, lambda file: file.write_text(text, encoding="utf-8"))

    def _read(self, name: str, read: Callable[[Path], Any]) -> Any:
        try:
            return read(self.path / name)
        except (OSError, ValueError, KeyError, SafetensorError, PlanError) as error:
            raise RunFolderError(
                f"Expected a run written by topdp in {self.path}, could not read {name}: {error}"
            ) from error

    def _write(self, name: str, write: Callable[[Path], Any]) -> None:
        """Writes beside and renames: a full disk or a kill leaves the old file or the new one, never half."""
        try:
            handle, beside = tempfile.mkstemp(prefix=f".{name}.", dir=self.path)
            os.close(handle)
            try:
                write(Path(beside))
                os.replace(beside, self.path / name)
            finally:
                Path(beside).unlink(missing_ok=True)
        except (OSError, SafetensorError) as error:
            raise RunFolderError(
                f"Could not write {name} in {self.path}: {error}. What was written before is intact."
            ) from error


def _read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
