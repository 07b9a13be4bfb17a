"""The paper's networks, a linear model, and any `nn.Module` as a row of flat parameters.

A row is one vector of d numbers: all trained parameters of the module in the order of `named_parameters`.
Tied parameters occur once. `gradients` computes gradients; the engine of the simulator handles agents.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from topdp.errors import InputError

# In half precision, rounding a sum of clipped gradients may change it by more than one record can.
TRAINABLE_DTYPES = {torch.float32, torch.float64}


@final
@dataclass(frozen=True)
class Slot:
    """The position of one parameter in a row: `row[start:stop].view(shape)`."""

    name: str
    start: int
    stop: int
    shape: torch.Size

    def part(self, first: int, last: int) -> Slot:
        """Return the slot of entries `first .. last-1` of the leading axis.

        For a parameter that stacks the weights of several layers.

        >>> Slot("in_proj_weight", 10, 34, torch.Size([6, 4])).part(2, 4)
        Slot(name='in_proj_weight[2:4]', start=18, stop=26, shape=torch.Size([2, 4]))
        """
        size = math.prod(self.shape[1:])
        return Slot(
            f"{self.name}[{first}:{last}]",
            self.start + first * size,
            self.start + last * size,
            torch.Size([last - first, *self.shape[1:]]),
        )


@final
class FlatModel:
    """A module whose parameters are read from rows.

    The given module is copied and never changed. A row contains only the parameters that require a gradient.
    The other parameters are a fixed part of the function and the same for all agents. They are neither
    noised, mixed nor sent.

    **Guarantees.** A module is refused if a normalisation layer lets the examples of a batch influence each
    other, because clipping an example's gradient would then not bound its influence. A module is also refused
    if its buffers gather statistics of the data, because these would leave the agent without noise. BatchNorm
    in evaluation mode does neither: it reads statistics that existed before, and neither this class nor the
    code that calls it switches a layer out of evaluation mode. Other ways of mixing examples have no effect
    in `gradients.ClippedGradients`, where each example is a batch of one.

    >>> flat = FlatModel(nn.Linear(3, 2))
    >>> flat.dimension, flat.flatten().shape, [slot.name for slot in flat.slots]
    (8, torch.Size([8]), ['weight', 'bias'])
    """

    def __init__(self, module: nn.Module) -> None:
        _expect_private_layers(module)
        slots, start, dtypes = [], 0, set()
        for name, parameter in module.named_parameters():
            if is_lazy(parameter):
                raise InputError(
                    f"Expected a module with known shapes, got the lazy parameter {name!r}. "
                    "Run one batch through the module first."
                )
            dtypes.add(parameter.dtype)
            if parameter.requires_grad:
                stop = start + parameter.numel()
                slots.append(Slot(name, start, stop, parameter.shape))
                start = stop
        if not slots:
            raise InputError(
                "Expected a module with parameters that require gradients, got none. Call requires_grad_() "
                "on the layers to train."
            )
        if len(dtypes) > 1 or not dtypes <= TRAINABLE_DTYPES:
            raise InputError(
                "Expected all parameters in one real floating-point type, float32 or float64, got "
                f"{sorted(map(str, dtypes))}. Convert the module, for example with module.float()."
            )
        try:
            self.module = copy.deepcopy(module)
        except RuntimeError as error:
            raise InputError(
                "Expected a module that can be copied, got computed tensors in it: "
                f"{str(error).splitlines()[0]} If they come from the old torch.nn.utils.weight_norm, use "
                "torch.nn.utils.parametrizations.weight_norm."
            ) from error
        self.slots = tuple(slots)
        self.dimension = start
        self.dtype = dtypes.pop()

    def flatten(self) -> Tensor:
        """Return the row [d] of the trained parameters of the module."""
        parameters = dict(self.module.named_parameters())
        return torch.cat([parameters[slot.name].detach().reshape(-1) for slot in self.slots])

    def named(self, row: Tensor) -> dict[str, Tensor]:
        """Return views into `row` by the names of the parameters; tied parameters occur once."""
        if row.shape != (self.dimension,):
            raise InputError(f"Expected a row of {self.dimension} numbers, got shape {tuple(row.shape)}.")
        return {slot.name: row[slot.start : slot.stop].view(slot.shape) for slot in self.slots}

    def load(self, row: Tensor) -> nn.Module:
        """Return a new module with the parameters in `row`, with the number type and on the device of `row`.

        A row stored in half precision is converted to the type of this model.
        """
        row = row if row.dtype in TRAINABLE_DTYPES else row.to(self.dtype)
        module = copy.deepcopy(self.module).to(device=row.device, dtype=row.dtype)
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, value in self.named(row).items():
                parameters[name].copy_(value)
        return module


def _expect_private_layers(module: nn.Module) -> None:
    """Raise InputError if a normalisation layer mixes examples or gathers statistics of the data."""
    for path, layer in module.named_modules():
        where = f"{path!r}" if path else "the module itself"
        if isinstance(layer, _BatchNorm) and (
            layer.training or layer.running_mean is None or layer.running_var is None
        ):
            features = layer.num_features
            groups = max(g for g in range(1, 33) if features % g == 0 and (g == 1 or 2 * g <= features))
            raise InputError(
                f"Expected a model that treats examples one by one, got {type(layer).__name__} at {where}. "
                "It mixes the examples of a batch, so clipping one example's gradient does not bound that "
                "example's influence, and its running statistics would leave without noise. "
                f"Replace it by nn.GroupNorm({groups}, {features}). In a pre-trained backbone you can keep "
                "its statistics instead: call .eval() on the layer or the backbone before you pass the model."
            )
        if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
            raise InputError(
                f"Expected a model without statistics of the data, got {type(layer).__name__} with "
                f"track_running_stats=True at {where}. Its running statistics would leave without noise. "
                f"Replace it by nn.{type(layer).__name__}({layer.num_features}, affine={layer.affine})."
            )


def replace_layers(model: nn.Module, new: Mapping[int, nn.Module]) -> nn.Module:
    """Replace each layer whose id is in `new` by `new[id]`, wherever it occurs, and return the model.

    `model` itself is changed; if its own id is in `new`, `new[id]` is returned.
    """
    if id(model) in new:
        return new[id(model)]
    for path, layer in list(model.named_modules(remove_duplicate=False)):
        if id(layer) in new:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, new[id(layer)])
    return model


def initial_row(factory: Callable[[], nn.Module], seed: int) -> Tensor:
    """Seed torch's CPU generator, and return the row of `factory()`. The generator is restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed the generators of all devices.
        torch.default_generator.manual_seed(seed)
        return FlatModel(factory()).flatten()


def mlp(inputs: int = 784, hidden: int = 100, classes: int = 10) -> nn.Sequential:
    """Return the paper's MNIST network: 784-100-10 with ReLU, for images [b, 1, 28, 28] or rows [b, 784]."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )  # fmt: skip


def linear(inputs: int = 784, classes: int = 10) -> nn.Sequential:
    """Return one linear layer whose weights are zero: all classes are equally likely at the start, and the
    model does not depend on random numbers.

    The layer has no bias. For records of norm 1, a bias would double the square of every gradient's norm,
    which the noise has to hide. It would change the accuracy by -0.4 points on MNIST at ε = 1, by -1.0 on
    Fashion-MNIST, and by -1.0 on CIFAR-10 at ε = 3.
    """
    layer = nn.Linear(inputs, classes, bias=False)
    nn.init.zeros_(layer.weight)
    return nn.Sequential(nn.Flatten(), layer)


def affine(inputs: int, outputs: int) -> nn.Sequential:
    """Return one linear layer with a bias, all zero at the start: the model of tables.

    >>> affine(3, 2)(torch.ones(1, 3)).tolist()
    [[0.0, 0.0]]
    """
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


class WordCounts(nn.Module):
    """A linear model of texts, zero at the start. It sees how often each word occurs, as a vector of length
    1, without padding (id 0).

    >>> WordCounts(10, 2)(torch.tensor([[3, 3, 5, 0]])).tolist()
    [[0.0, 0.0]]
    """

    def __init__(self, vocabulary: int, outputs: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.scores = nn.Linear(vocabulary, outputs, bias=False)
        nn.init.zeros_(self.scores.weight)
        self.zero: Tensor
        # It has the type and the device of the model.
        self.register_buffer("zero", torch.zeros(()), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        counts = self.zero.new_zeros(len(ids), self.vocabulary)
        counts = counts.scatter_add(1, ids, (ids > 0).to(counts.dtype))
        scores: Tensor = self.scores(counts / counts.norm(dim=1, keepdim=True).clamp(min=1))
        return scores


def cnn(channels: int = 3, size: int = 32, classes: int = 10) -> nn.Sequential:
    """Return the paper's CIFAR-10 network: two convolutions with max-pooling, then three linear layers."""
    side = ((size - 4) // 2 - 4) // 2
    if side < 1:
        raise InputError(f"Expected images of at least 16x16 for the cnn, got {size}x{size}. Use the mlp.")
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * side * side, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def _cnn_for(shape: tuple[int, ...], classes: int) -> nn.Module:
    if len(shape) != 3 or shape[1] != shape[2]:
        raise InputError(
            f"Expected square images (channels, size, size) for the cnn, got {shape}. Use the mlp."
        )
    return cnn(shape[0], shape[1], classes)


MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "mlp": lambda shape, classes: mlp(math.prod(shape), classes=classes),
    "cnn": _cnn_for,
    "linear": lambda shape, classes: linear(math.prod(shape), classes),
    "affine": lambda shape, classes: affine(math.prod(shape), classes),
}
