"""Check before training that the outputs of a model fit the targets under the loss."""

from __future__ import annotations

import torch
from torch import Tensor

from topdp.errors import InputError
from topdp.learning.gradients.model_calls import call_model, disable_inference_kernels
from topdp.learning.models import FlatModel
from topdp.learning.tasks import Task
from topdp.runs.config import ConfigError


def expect_fitting(flat: FlatModel, task: Task, inputs: Tensor, targets: Tensor, classes: int | None) -> None:
    """Raise ConfigError if the model's outputs for one record do not fit its target under the loss.

    `inputs`, `targets` [1, ...]: the record. `classes`: how many outputs the labels need; None: unknown.
    """
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
