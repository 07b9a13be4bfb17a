"""The gradient of a run's model at its start, from which clip and learning rate follow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from topdp.runs.auto_values import with_keys
from topdp.runs.config import RunConfig
from topdp.runs.named_model import named_model, named_task
from topdp.runs.named_records import load_shards, named_features
from topdp.runs.run_outline import RunOutline

if TYPE_CHECKING:
    import torch

    from topdp.learning.models import FlatModel
    from topdp.learning.output_gradient import OutputGradient
    from topdp.learning.tasks import Task


def gradient_of(
    config: RunConfig,
    flat: FlatModel,
    task: Task,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    length: float | None,
) -> OutputGradient:
    """Return the gradient of a model. `shape`, `dtype`, `length`: of one input of the model."""
    from topdp.learning.output_gradient import output_gradient

    if config.data.features == "scattering":
        length = 1.0  # each record's features have this length
    return output_gradient(flat, task, shape, dtype, length)


def named_gradient(outline: RunOutline) -> OutputGradient:
    """Return the gradient of the model that a configuration names.

    Records are read only if they are a user's own files, for the shape of one record.
    """
    import torch

    from topdp.data.catalogue import CATALOGUE
    from topdp.learning.models import FlatModel

    config = outline.config
    task, entry, length = named_task(config), CATALOGUE.get(config.data.name), None
    if entry is None:
        raw = replace(outline, config=with_keys(config, data={"features": "none"}))
        shards = load_shards(raw)
        shape, dtype = tuple(shards.inputs.shape[2:]), shards.inputs.dtype
        length = shards.input_length
        outputs = task.outputs(shards.targets.flatten(0, 1), shards.classes)
    else:
        shape, dtype = entry.shapes["train_inputs"][1:], torch.int64 if entry.tokens else torch.float32
        outputs = entry.classes or 1
    if (features := named_features(config)) is not None:
        shape, dtype = features.shape(torch.zeros(shape, dtype=dtype)), torch.float32
        length = None
    model = named_model(config, shape, outputs)
    return gradient_of(config, FlatModel(model), task, shape, dtype, length)
