"""A trained network as a file for other programs: safetensors, a state dictionary, or ONNX.

Files contain numbers under the names that the module gives them, and no code. Only plain tensors are pickled,
which `torch.load(..., weights_only=True)` reads. A run cannot continue from these files (`checkpoints.py`).
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from topdp import __version__
from topdp.base.files import atomic_path, make_folder
from topdp.errors import InputError
from topdp.learning.models import FlatModel
from topdp.runs.assembly import Assembly
from topdp.runs.config import did_you_mean
from topdp.runs.frozen_state import frozen_digest
from topdp.runs.named_model import named_model
from topdp.runs.prediction import Predictor
from topdp.runs.run_folder import RunFolder
from topdp.runs.statistics.standardisation import kept_standardisation
from topdp.runs.tensor_files import widened

FORMATS_BY_SUFFIX = {".safetensors": "safetensors", ".pt": "state-dict", ".onnx": "onnx"}
MEAN_AGENT = "mean"
PARAMETERS_NOTE = "parameters"  # metadata of estimates: the name and shape of each parameter in a row


class InputKind(NamedTuple):
    """The shape of one record, and the name of its type in torch."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, records: Tensor) -> InputKind:
        """Return the kind of `records` [agents, records, ...]."""
        return cls(tuple(records.shape[2:]), str(records.dtype).removeprefix("torch."))

    def blank(self, count: int) -> Tensor:
        """Return `count` records of zeros, because an export must not contain a private record."""
        return torch.zeros(count, *self.shape, dtype=getattr(torch, self.dtype))


def facts_of(parts: Assembly) -> dict[str, Any]:
    """Return the entries of run.json with which predictions need no records, and a named model can be made
    again.
    """
    shards, kind = parts.shards, InputKind.of(parts.shards.inputs)
    outputs = parts.task.outputs(shards.targets.flatten(0, 1), shards.classes)
    predictor, labels = Predictor.of(shards, parts.task), labels_of(parts)
    return {
        "inputs": list(kind.shape),
        "input_type": kind.dtype,
        "outputs": outputs,
        "prediction": None if predictor is None else predictor.tree(),
        "labels": None if labels is None else list(labels),
        "frozen": frozen_digest(parts.flat),
    }


def labels_of(parts: Assembly) -> tuple[str, ...] | None:
    """Return the names of the agents' sites; None if they have none, or if one agent has all records."""
    return parts.shards.labels or parts.run.graph.labels


def notes_of(flat: FlatModel) -> dict[str, str]:
    """Return metadata for a file of estimates: the names and shapes of the parameters, in the order of a row.

    With it, estimates can be read without the module.
    """
    return {PARAMETERS_NOTE: json.dumps([[slot.name, list(slot.shape)] for slot in flat.slots])}


def chosen_row(estimates: Tensor, agent: int | str, labels: tuple[str, ...] | None = None) -> Tensor:
    """Return the estimate [d] of one agent, or the mean of all. Raise InputError if the agent is unknown.

    `labels`: the names of the agents, if they have any; a text that is a name is not read as a number.
    """
    if isinstance(agent, str) and labels is not None and agent in labels:
        return estimates[labels.index(agent)]
    if agent == MEAN_AGENT:
        return estimates.mean(dim=0, dtype=torch.promote_types(estimates.dtype, torch.float32))
    agents = len(estimates)
    try:
        number = int(agent)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < agents:
        names = "" if labels is None else f"one of the names {', '.join(labels)}, "
        raise InputError(
            f"Expected an agent from 0 to {agents - 1}, {names}or {MEAN_AGENT!r}, got {agent!r}."
        )
    return estimates[number]


def format_of(file: Path, format: str | None) -> str:
    """Return `format`, or the format that the suffix of `file` states. Raise InputError if it is unknown."""
    known = list(FORMATS_BY_SUFFIX.values())
    if format is None and file.suffix.lower() not in FORMATS_BY_SUFFIX:
        raise InputError(
            f"Expected a file that ends in {', '.join(FORMATS_BY_SUFFIX)}, or --format, got {file.name!r}."
        )
    named = format or FORMATS_BY_SUFFIX[file.suffix.lower()]
    if named not in known:
        raise InputError(f"Expected a format, got {named!r}.{did_you_mean(named, known)}")
    return named


def write(module: nn.Module, file: Path, format: str | None, inputs: InputKind | None) -> Path:
    """Write `module` in evaluation mode, in which dropout and the like are off, to `file`. Return its path.

    `format`: None: as the suffix of `file` states. `inputs`: the input of the module, which ONNX needs.
    """
    module = module.eval()
    if format_of(file, format) == "onnx":
        return _write_onnx(module, file, inputs)
    # Tied parameters share memory under several names, but a file needs a copy for each name.
    return write_tensors(
        {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}, file, format
    )


def write_tensors(tensors: dict[str, Tensor], file: Path, format: str | None) -> Path:
    """Write named tensors to `file` as safetensors or as a state dictionary of torch. Return its path."""
    kind = format_of(file, format)
    if kind == "onnx":
        raise InputError(
            "Expected the format safetensors or state-dict, got onnx, which needs the module of this run. "
            "Call result.export(...) in the Python program that started the run."
        )
    plain = {name: value.contiguous() for name, value in tensors.items()}
    make_folder(file.parent)
    with atomic_path(file) as beside:
        if kind == "safetensors":
            save_file(plain, beside, {"format": "pt", "topdp": __version__})
        else:
            torch.save(plain, beside)
    return file


def export_run(
    path: Path, file: Path, format: str | None = None, agent: int | str = 0, best: bool = False
) -> Path:
    """Write the network of a run folder to `file`, without reading records. Return the path of the file.

    If the run was started from Python, the folder contains only the trained parameters, and the file has
    them by their names.
    """
    format_of(file, format)  # raises an error before anything is read
    folder = RunFolder.open(path)
    name = "best.safetensors" if best else "model.safetensors"
    if not (path / name).exists():
        raise InputError(
            f"Expected {name} in {path}, a run in state {folder.state!r}, got no such file."
            + ("" if best else f" Finish the run first: topdp run --resume {path}")
        )
    stored, notes = folder.stored_estimates(name, (PARAMETERS_NOTE,))
    labels = folder.read_json("run.json").get("labels")
    row = chosen_row(torch.from_numpy(widened(stored)), agent, None if labels is None else tuple(labels))
    config = folder.config
    standardisation = kept_standardisation(folder)
    inputs = InputKind(tuple(folder.fact("inputs")), str(folder.fact("input_type")))
    if config.started_from_python:
        constants = {} if standardisation is None else standardisation.tensors(inputs.shape, row.dtype)
        return write_tensors(constants | _by_name(row, notes[PARAMETERS_NOTE]), file, format)
    model = named_model(config, inputs.shape, int(folder.fact("outputs")))
    if standardisation is not None:
        model = standardisation.before(model, inputs.shape, FlatModel(model).dtype)
    return write(FlatModel(model).load(row), file, format, inputs)


def _by_name(row: Tensor, parameters: str) -> dict[str, Tensor]:
    tensors, start = {}, 0
    for name, shape in json.loads(parameters):
        size = torch.Size(shape).numel()
        tensors[name] = row[start : start + size].view(shape).clone()
        start += size
    return tensors


def _write_onnx(module: nn.Module, file: Path, inputs: InputKind | None) -> Path:
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"Expected the packages onnx and onnxscript for ONNX, could not find {' and '.join(missing)}. "
            "Install them with pip install -c constraints.txt '.[onnx]'."
        )
    if inputs is None:
        raise InputError(
            "Expected a result that states the input of its model, for ONNX, got none. Export as safetensors."
        )
    device = next(module.parameters()).device
    # Two records, because torch would treat a dimension of size one as a constant.
    blank, records = inputs.blank(2).to(device), torch.export.Dim("records")
    make_folder(file.parent)
    with atomic_path(file) as beside:
        try:
            with _in_silence():
                program = torch.onnx.export(
                    module, (blank,), dynamo=True, dynamic_shapes=({0: records},),
                    input_names=["inputs"], output_names=["outputs"],
                )  # fmt: skip
                assert program is not None
                program.save(str(beside), external_data=False)
        except torch.onnx.errors.OnnxExporterError as error:
            raise InputError(
                f"torch could not write this model as ONNX: {str(error).splitlines()[0]} "
                "Export it as safetensors instead."
            ) from error
    return file


@contextlib.contextmanager
def _in_silence() -> Iterator[None]:
    """Suppress all output, logs and warnings of torch during an export."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
