"""Whether a model's outputs go with the targets under the loss; checked before training."""

from __future__ import annotations

import torch
from torch import Tensor

from topdp.errors import InputError
from topdp.learning.gradients.model_calls import call_model, disable_inference_kernels
from topdp.learning.models import FlatModel
from topdp.learning.tasks import Task
from topdp.runs.config import ConfigError


def expect_fitting(flat: FlatModel, task: Task, inputs: Tensor, targets: Tensor, classes: int | None) -> None:
    """Refuse a model whose outputs for one record, [1, ...], do not go with its target under the loss."""
    inputs, targets = (
        part.to("cpu", flat.dtype) if part.is_floating_point() else part.cpu() for part in (inputs, targets)
    )
    module = flat.load(flat.flatten().cpu()).eval()
    with torch.no_grad():
        try:
            outputs = call_model(disable_inference_kernels(module), {}, inputs)
            task.expect_outputs(outputs, targets, classes)
        except InputError as error:
            raise ConfigError(str(error)) from error
