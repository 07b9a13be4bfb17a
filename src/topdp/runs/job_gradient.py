"""The gradient of a run's model at its start, from which clip and learning rate follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topdp.runs.config import RunConfig
from topdp.runs.named_model import named_model, named_task
from topdp.runs.named_records import named_features
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

    from topdp.learning.models import FlatModel
    from topdp.runs.job_records import RecordKind

    config = outline.config
    task, kind = named_task(config), RecordKind.of(outline)
    shape, dtype, length = kind.shape, kind.dtype, kind.length
    if (features := named_features(config)) is not None:
        shape, dtype, length = features.shape(torch.zeros(shape, dtype=dtype)), torch.float32, None
    outputs = (kind.classes or 2) if task.loss.name == "cross-entropy" else kind.values
    model = named_model(config, shape, outputs)
    return gradient_of(config, FlatModel(model), task, shape, dtype, length)
