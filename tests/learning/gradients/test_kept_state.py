"""State that a model keeps in unusual places is found; constants and caches of torch are not rejected."""

from __future__ import annotations

import contextvars
import os
import random
import sys
import types
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients

LAST = contextvars.ContextVar("LAST", default=0.0)
package = types.ModuleType("package_of_a_user")
package.state = types.ModuleType("package_of_a_user.state")
package.state.last = 0.0


@dataclass(slots=True)
class Slots:
    value: float = 0.0


class Model(nn.Module):
    def __init__(self, kept=None):
        super().__init__()
        self.layer, self.kept = nn.Linear(3, 2), kept


class RunningMean(Model):
    def forward(self, x):
        self.kept += 0.1 * (x.detach().mean(0).numpy() - self.kept)
        return self.layer(x - torch.from_numpy(self.kept).float())


class InSlots(Model):
    def forward(self, x):
        self.kept.value += float(x.detach().sum())
        return self.layer(x) + self.kept.value


class InContext(Model):
    def forward(self, x):
        out = self.layer(x) + LAST.get()
        LAST.set(float(x.detach().sum()))
        return out


class InEnvironment(Model):
    def forward(self, x):
        out = self.layer(x) + float(os.environ.get("TOPDP_TEST_LAST", "0"))
        os.environ["TOPDP_TEST_LAST"] = str(float(x.detach().sum()))
        return out


class InPackage(Model):
    def forward(self, x):
        out = self.layer(x) + package.state.last
        package.state.last = float(x.detach().sum())
        return out


class InBytes(Model):
    def forward(self, x):
        self.kept[0] = (self.kept[0] + 1) % 200
        return self.layer(x) * (1 + self.kept[0])


class Next(Model):
    def forward(self, x):
        return self.layer(x) * (1 + next(self.kept))


class Drawn(Model):
    def forward(self, x):
        return self.layer(x) * self.kept.random()


class DrawnByTorch(Model):
    def forward(self, x):
        return self.layer(x) * torch.rand(1, generator=self.kept)


STATE = {
    "array": lambda: RunningMean(np.zeros(3)),
    "slots": lambda: InSlots(Slots()),
    "context": InContext,
    "environment": InEnvironment,
    "package": InPackage,
    "bytes": lambda: InBytes(bytearray(4)),
    "iterator": lambda: Next(iter(range(10**6))),
    "random": lambda: Drawn(random.Random(0)),
    "numpy random": lambda: Drawn(np.random.default_rng(0)),
    "torch random": lambda: DrawnByTorch(torch.Generator().manual_seed(0)),
}


@pytest.mark.filterwarnings("ignore:Per-example gradients of this model take the slow path")
@pytest.mark.parametrize("where", STATE)
def test_state_is_rejected_wherever_it_is_kept(where, monkeypatch):
    monkeypatch.setenv("TOPDP_TEST_LAST", "0")
    monkeypatch.setitem(sys.modules, "package_of_a_user", package)
    gradients = ClippedGradients(STATE[where](), 1.0)
    rows = gradients.flat.flatten().repeat(2, 1)
    with pytest.raises(InputError, match="keep nothing between calls"):
        for _ in range(3):
            gradients.clipped_sum(rows, torch.rand(2, 5, 3), torch.zeros(2, 5, dtype=torch.long))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rounds, self.layer = kind(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(self.rounds(x)[0][:, -1])


class WithTables(Model):
    def forward(self, x):
        return self.layer(x * torch.from_numpy(self.kept["table"]).float()) * self.kept["slots"].value


@pytest.mark.filterwarnings("ignore:Per-example gradients of this model take the slow path")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_parameter_lists_of_recurrent_layers_are_not_state(kind):
    """Every agent's own parameters are used although the layers keep lists of them."""
    torch.manual_seed(0)
    gradients = ClippedGradients(Recurrent(kind), 1e6)
    rows = gradients.flat.flatten() + 0.3 * torch.randn(2, gradients.flat.dimension)
    x, y = torch.rand(2, 3, 5, 3), torch.zeros(2, 3, dtype=torch.long)
    found = gradients.clipped_sum(rows, x, y)
    for agent in range(2):
        module = gradients.flat.load(rows[agent])
        cross_entropy(module(x[agent]), y[agent], reduction="sum").backward()
        expected = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
        torch.testing.assert_close(found[agent], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Per-example gradients of this model take the slow path")
def test_constants_are_not_state():
    model = WithTables({"table": np.arange(3.0), "slots": Slots(2.0)})
    gradients = ClippedGradients(model, 1.0)
    rows = gradients.flat.flatten().repeat(2, 1)
    for _ in range(3):
        gradients.clipped_sum(rows, torch.rand(2, 5, 3), torch.zeros(2, 5, dtype=torch.long))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_module_that_cannot_be_copied_is_refused_by_name():
    with pytest.raises(InputError, match=r"parametrizations\.weight_norm"):
        ClippedGradients(nn.utils.weight_norm(nn.Linear(3, 2)), 1.0)


class OnTheLayer(nn.Module):
    """State is kept on a recurrent layer: one record changes the gradients of all later ones."""

    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.recurrent, self.head = kind(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        sign = getattr(self.recurrent, "sign", 1.0)
        if float(x.detach().max()) > 100:
            self.recurrent.sign = -1.0
        return sign * self.head(self.recurrent(x)[0][:, -1])


class OwnKind(nn.GRU):
    def forward(self, x):
        self.last = float(x.detach().sum())
        return super().forward(x)


class Flips(OnTheLayer):
    def forward(self, x):
        self.recurrent.training = float(x.detach().max()) < 100
        return self.head(self.recurrent(x)[0][:, -1])


@pytest.mark.parametrize("make", [OnTheLayer, lambda: OnTheLayer(nn.RNN), lambda: OnTheLayer(OwnKind), Flips])
def test_state_on_recurrent_layers_is_refused(make):
    gradients = ClippedGradients(make(), 1.0)
    x, y = torch.rand(1, 5, 6, 3), torch.zeros(1, 5, dtype=torch.long)
    with pytest.raises(InputError, match="recurrent"):
        gradients.clipped_sum(gradients.flat.flatten()[None], x, y)


class OnATensor(nn.Module):
    """State is kept in an attribute of a tensor."""

    def __init__(self, name):
        super().__init__()
        self.layer, self.name = nn.Linear(3, 2), name
        self.register_buffer("ones", torch.ones(2))

    def forward(self, x):
        tensor = self.ones if self.name == "ones" else self.layer.weight
        last, tensor.last = getattr(tensor, "last", 0.0), float(x.detach().sum())
        return self.layer(x) * self.ones * last


class Freezes(Model):
    """One record makes the gradients of all later ones vanish."""

    def forward(self, x):
        if float(x.detach().max()) > 10:
            self.layer.bias.requires_grad_(False)
        return self.layer(x)


class LearnsInside(Model):
    def forward(self, x):
        before = self.layer.bias.grad
        size = float(x.detach().sum())
        if torch.is_grad_enabled():
            (self.layer(x) * size).sum().backward(inputs=[self.layer.bias])
        return self.layer(x) + (0 if before is None else before)


@pytest.mark.filterwarnings("ignore:Per-example gradients")
@pytest.mark.parametrize("kind", [Freezes, LearnsInside])
def test_models_that_change_their_parameters_are_refused(kind):
    gradients = ClippedGradients(kind(), 1.0)
    x, y = torch.rand(1, 5, 3), torch.zeros(1, 5, dtype=torch.long)
    x[0, 0] = 20.0
    with pytest.raises(InputError, match=r"does not change its parameters"):
        gradients.clipped_sum(gradients.flat.flatten()[None], x, y)


@pytest.mark.filterwarnings("ignore:Examples of a batch", "ignore:Per-example gradients")
@pytest.mark.parametrize("name", ["ones", "weight"])
def test_attributes_of_tensors_are_state(name):
    gradients = ClippedGradients(OnATensor(name), 1.0)
    x, y = torch.rand(1, 5, 3), torch.zeros(1, 5, dtype=torch.long)
    with pytest.raises(InputError, match=r"keep nothing between calls|does not change its parameters"):
        gradients.clipped_sum(gradients.flat.flatten()[None], x, y)


@pytest.mark.filterwarnings("ignore:.*slow path", "ignore:Full backward hook is firing")
def test_a_backward_hook_is_not_state():
    """torch marks its kind by a bool next to the hooks."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    model[0].register_full_backward_hook(lambda *given: None)
    gradients = ClippedGradients(model, 1.0)
    rows, targets = gradients.flat.flatten().repeat(2, 1), torch.zeros(2, 5, dtype=torch.long)
    assert torch.isfinite(gradients.clipped_sum(rows, torch.rand(2, 5, 4), targets)).all()
