"""The result of a run as one safetensors file, which `topdp.load` reads: `Result.save`.

The file contains what the run folder contains, but no pictures. Estimates, the plan and the untrained state
of the model are tensors; all texts are in the header. Nothing is pickled, and no record is in the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from topdp import __version__
from topdp.base.files import UNREADABLE_FILE_ERRORS, FileError, atomic_path, make_folder
from topdp.errors import InputError
from topdp.runs import best_estimates
from topdp.runs.frozen_state import frozen_tensors
from topdp.runs.model_export import notes_of
from topdp.runs.planning import sealed
from topdp.runs.row_arrays import as_array
from topdp.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from topdp.runs.result import Result

PORTABLE_FORMAT = 1
PORTABLE_SUFFIX = ".safetensors"
HEADER_NOTE = "topdp-result"
PLAN_FILE = "plan.npz"
ESTIMATE_FILES = ("model.safetensors", "best.safetensors")
TEXT_FILES = ("config.toml", "privacy.json", "metrics.jsonl", "run.json")
FROZEN_PREFIX = "frozen."


def write_portable(result: Result, file: Path) -> Path:
    """Write the result of a run to `file`, and return its path."""
    if file.suffix.lower() != PORTABLE_SUFFIX:
        raise InputError(f"Expected a file that ends in {PORTABLE_SUFFIX}, got {file.name!r}.")
    with TemporaryDirectory() as place:
        folder = _write_folder(result, Path(place) / "run")
        texts = {
            name: (folder.path / name).read_text(encoding="utf-8")
            for name in TEXT_FILES
            if (folder.path / name).exists()
        }
        plan = np.frombuffer((folder.path / PLAN_FILE).read_bytes(), np.uint8)
    tensors = {PLAN_FILE: torch.from_numpy(plan.copy()), ESTIMATE_FILES[0]: result.estimates.contiguous()}
    notes = {ESTIMATE_FILES[0]: notes_of(result.flat)}
    if result.best is not None:
        tensors[ESTIMATE_FILES[1]] = result.best.estimates.contiguous()
        notes[ESTIMATE_FILES[1]] = best_estimates.notes_of_best(result.best, notes_of(result.flat))
    for name, value in frozen_tensors(result.flat).items():
        tensors[FROZEN_PREFIX + name] = value.clone().contiguous()
    header = {"format": PORTABLE_FORMAT, "topdp": __version__, "texts": texts, "notes": notes}
    make_folder(file.parent)
    try:
        with atomic_path(file) as beside:
            save_file(tensors, beside, {HEADER_NOTE: json.dumps(header)})
    except SafetensorError as error:
        raise FileError(f"Could not write {file}: {error}.") from error
    return file


def _write_folder(result: Result, path: Path) -> RunFolder:
    """Write the files of the run folder that `topdp.load` reads, but no estimates."""
    folder = RunFolder.create(path, result.config.to_toml(), result.plan)
    folder.write_json("privacy.json", sealed(result.plan, result.privacy))
    folder.save_metrics(result.metrics)
    stopped = None if result.stopped is None else result.stopped._asdict()
    state = "done" if stopped is None else "stopped"
    folder.mark(state, **result.facts, seconds=result.seconds, stopped=stopped)
    return folder


def unpack(file: Path, path: Path) -> dict[str, Tensor]:
    """Write the run folder in `file` to `path`. Return the untrained state of its model, by name."""
    try:
        with safe_open(file, "pt") as opened:
            header: Any = json.loads((opened.metadata() or {}).get(HEADER_NOTE, "null"))
            if not isinstance(header, dict):
                raise InputError(
                    f"Expected a file written by result.save in {file}, got other tensors. A file of "
                    "result.export has weights only; load it with your own network."
                )
            if header.get("format") != PORTABLE_FORMAT:
                raise InputError(
                    f"Expected a result of format {PORTABLE_FORMAT} in {file}, got "
                    f"{header.get('format')!r:.80}. Use the version of topdp that wrote it: "
                    f"{header.get('topdp')!r:.80}."
                )
            folder = RunFolder(path)
            path.mkdir()
            for name in TEXT_FILES:
                if name in header["texts"]:
                    folder.write_text(name, header["texts"][name])
            (path / PLAN_FILE).write_bytes(opened.get_tensor(PLAN_FILE).numpy().tobytes())
            for name in ESTIMATE_FILES:
                if name in header["notes"]:
                    folder.save_estimates(name, as_array(opened.get_tensor(name)), header["notes"][name])
            return {
                name.removeprefix(FROZEN_PREFIX): opened.get_tensor(name)
                for name in opened.keys()  # noqa: SIM118 - no mapping
                if name.startswith(FROZEN_PREFIX)
            }
    except InputError:
        raise
    except (SafetensorError, *UNREADABLE_FILE_ERRORS) as error:
        raise FileError(
            f"Expected a file written by result.save in {file}, could not read it: {error}"
        ) from error
