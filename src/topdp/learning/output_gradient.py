"""The norm of the gradient of one output of a model at its start, for records drawn at random. No data.

Clip and learning rate follow from it (`runs/job_settings.py`).

**Guarantees.** The norm depends on the model, the shape, type and usual length of a record, and a fixed seed.
It does not depend on any record, so it is public.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from topdp.errors import InputError
from topdp.learning.gradients.model_calls import call_model, disable_inference_kernels
from topdp.learning.models import FlatModel
from topdp.learning.tasks import Task

PROBES = 16  # random records
PROBE_SEED = 35


class OutputGradient(NamedTuple):
    """The gradient of one output: its root mean square `norm`.

    `values`: the number of values of a record over which the loss is a mean.
    """

    norm: float
    values: int

    @property
    def of_loss(self) -> float:
        """The norm of a gradient of the loss if every output is wrong by about one."""
        return self.norm / math.sqrt(self.values)


def output_gradient(
    flat: FlatModel, task: Task, shape: tuple[int, ...], dtype: torch.dtype, length: float | None = None
) -> OutputGradient:
    """Return the gradient of the outputs of a model at its start.

    `shape`, `dtype`: of one record. `length`: of a usual record; None: unknown, its numbers have mean 0 and
    variance 1.
    Raise InputError if the norm is zero or not finite.

    >>> linear = FlatModel(nn.Linear(3, 2, bias=False))
    >>> gradient = output_gradient(linear, Task.of("cross-entropy"), (3,), torch.float32, length=2.0)
    >>> round(gradient.norm, 6), gradient.values
    (2.0, 1)
    """
    module = disable_inference_kernels(flat.load(flat.flatten().cpu()).eval())
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    generator = torch.Generator().manual_seed(PROBE_SEED)
    squares = []
    for _ in range(PROBES):
        record = _random_record(module, shape, dtype, flat.dtype, generator)
        if length is not None and dtype.is_floating_point:
            record *= length / record.norm()
        with torch.enable_grad():
            outputs = call_model(module, {}, record[None])
            # The mean over random signs is the sum of the squares over all outputs.
            signs = torch.randint(0, 2, outputs.shape, generator=generator) * 2 - 1
            partial_gradients = torch.autograd.grad((outputs * signs).sum(), trained, allow_unused=True)
        gradients = [gradient.double() for gradient in partial_gradients if gradient is not None]
        square = sum(float(gradient.square().sum()) for gradient in gradients)
        averaged = outputs[0].shape[1:] if task.loss.name == "cross-entropy" else outputs[0].shape
        squares.append(square / outputs.numel())
        values = math.prod(averaged)
    norm = math.sqrt(sum(squares) / PROBES)
    if not (math.isfinite(norm) and norm > 0):
        raise InputError(
            f"Expected a model whose outputs have a gradient at the start, got one of norm {norm:g}. State "
            "clip and learning_rate, or start the model from other parameters."
        )
    return OutputGradient(norm, values)


def _random_record(
    module: nn.Module,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    model_dtype: torch.dtype,
    generator: torch.Generator,
) -> Tensor:
    """Return a random record: normal numbers, or indices that every embedding of the model has."""
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(model_dtype)
    sizes = [layer.num_embeddings for layer in module.modules() if isinstance(layer, nn.Embedding)]
    return torch.randint(0, min(sizes, default=2), shape, generator=generator).to(dtype)
