"""Errors and warnings for models that fail or run slowly: clear, given once, with the name of the layer."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections import namedtuple

import pytest
import torch
from torch import Tensor, nn

from gradient_models import CLASSES
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients

Answer = namedtuple("Answer", "logits loss")


class Returns(nn.Module):
    def __init__(self, make) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(6, CLASSES), make

    def forward(self, x: Tensor) -> Tensor:
        return self.make(self.layer(x))


class Numbers(nn.Module):
    def forward(self, x: Tensor) -> list[float]:
        return x.tolist()


def first_call(model: nn.Module, x: Tensor, y: Tensor | None = None) -> ClippedGradients:
    gradients = ClippedGradients(model, 1.0)
    y = torch.zeros(x.shape[:2], dtype=torch.long) if y is None else y
    gradients.clipped_sum(gradients.flat.flatten().repeat(len(x), 1), x, y)
    return gradients


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda scores: {"logits": scores, "loss": 0}, r"a dict with the keys 'logits', 'loss'"),
        (lambda scores: (scores, scores), r"a tuple of 2 \(Tensor, Tensor\)"),
        (lambda scores: Answer(scores, 0), r"a Answer of 2 \(Tensor, int\)"),
        (lambda scores: None, "a NoneType"),
    ],
)
def test_a_model_that_returns_no_tensor_is_refused_everywhere(make, what):
    gradients = ClippedGradients(Returns(make), 1.0)
    rows, x = gradients.flat.flatten().repeat(2, 1), torch.ones(2, 3, 6)
    with pytest.raises(InputError, match=f"returns one tensor.*got {what}.*Wrap the model"):
        gradients.clipped_sum(rows, x, torch.zeros(2, 3).long())
    with pytest.raises(InputError, match=f"returns one tensor.*got {what}.*Wrap the model"):
        gradients.outputs(rows, x[0])


def net(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Identity(), nn.Sequential(*layers))


@pytest.mark.parametrize(
    ("model", "x", "message"),
    [
        (
            net(nn.Linear(6, 4), nn.ReLU(), nn.Linear(5, CLASSES)),
            torch.ones(2, 3, 6),
            r"layer '1\.2' \(Linear\) 5 numbers in the last axis, got an input of shape \(3, 4\) float32",
        ),
        (net(nn.Linear(6, CLASSES)), torch.ones(2, 3, 7), r"layer '1\.0' \(Linear\) 6 numbers.*\(3, 7\)"),
        (nn.Linear(6, CLASSES), torch.ones(2, 3, 7), r"the model \(Linear\) 6 numbers"),
        (net(nn.Linear(6, CLASSES)), torch.ones(2, 3, 6).long(), r"numbers of type torch\.float32.*int64"),
        (
            net(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, CLASSES)),
            torch.ones(2, 3, 3),
            r"layer '1\.0' \(Embedding\) whole numbers from 0 to 8 .*float32.*inputs\.long\(\)",
        ),
        (
            net(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, CLASSES)),
            torch.ones(2, 3, 1, 4, 4),
            r"\(Conv2d\) 3 channels in the second axis, got .*\(3, 1, 4, 4\)",
        ),
        (
            net(nn.Conv1d(3, 4, 3)),
            torch.ones(2, 3, 3, 6, 6),
            r"\(Conv1d\) an input \[batch, 3, \.\.\.\] of 3 axes",
        ),
        (
            net(nn.Linear(6, CLASSES)),
            torch.ones(2, 3, 6).double(),
            r"numbers of type torch\.float32.*float64",
        ),
        (net(nn.LayerNorm(5), nn.Linear(6, CLASSES)), torch.ones(2, 3, 6), r"\(LayerNorm\) 5 numbers"),
        (net(nn.GRU(5, 4)), torch.ones(2, 3, 7, 6), r"\(GRU\) 5 numbers in the last axis"),
        (net(nn.GroupNorm(1, 5), nn.Linear(6, CLASSES)), torch.ones(2, 3, 6), r"\(GroupNorm\) 5 channels"),
    ],
)
def test_a_layer_with_an_unsuitable_input_is_named(model, x, message):
    with pytest.raises(InputError, match=message):
        first_call(model, x)


def test_evaluations_name_the_layer_too():
    gradients = ClippedGradients(net(nn.Linear(6, CLASSES)), 1.0)
    with pytest.raises(InputError, match=r"layer '1\.0' \(Linear\) 6 numbers"):
        gradients.outputs(gradients.flat.flatten().repeat(2, 1), torch.ones(3, 7))


class Squeezes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze()


def test_a_model_that_cannot_run_on_one_example_is_refused():
    """Otherwise every record would silently count as zero."""
    with pytest.raises(InputError, match=r"batch of one example.*squeeze"):
        first_call(Squeezes(), torch.randn(2, 3, 6))


def test_a_layer_without_a_rule_among_known_layers_is_not_known():
    model = nn.Sequential(nn.Embedding(9, 2, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(8, CLASSES))
    gradients = ClippedGradients(model, 1.0)
    assert gradients._folded is not None and not gradients._folded.known


class Soft(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).softmax(-1)


@pytest.mark.parametrize("make", [Soft, lambda: nn.Sequential(nn.Linear(6, CLASSES), nn.Softmax(1))])
def test_softmax_before_cross_entropy_gives_one_warning(make):
    gradients = ClippedGradients(make(), 1.0)
    rows = gradients.flat.flatten().repeat(2, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for examples in (3, 4):
            gradients.clipped_sum(rows, torch.randn(2, examples, 6), torch.zeros(2, examples).long())
        gradients.clipped_sum(rows.double(), torch.randn(2, 3, 6).double(), torch.zeros(2, 3).long())
    assert [str(w.message) for w in caught if "softmax" in str(w.message)] == [str(caught[0].message)]
    assert "Remove the softmax" in str(caught[0].message)


@pytest.mark.parametrize("last", [nn.LogSoftmax(1), nn.Sigmoid(), nn.ReLU()])
def test_other_last_layers_give_no_warning(last):
    torch.manual_seed(0)  # units that are never above 0 have no gradient, which gives another warning
    first_call(nn.Sequential(nn.Linear(6, CLASSES), last), torch.randn(2, 3, 6))


def test_probabilities_are_accepted_by_other_losses():
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - 0.5).square().sum(1)

    gradients = ClippedGradients(Soft(), 1.0, loss)
    rows = gradients.flat.flatten().repeat(2, 1)
    gradients.clipped_sum(rows, torch.randn(2, 3, 6), torch.zeros(2, 3).long())


def test_a_single_class_takes_the_slow_path_without_failing():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first_call(nn.Linear(6, 1), torch.randn(2, 3, 6))
    (said,) = (str(w.message) for w in caught)
    assert "a single class, cannot learn" in said
    assert "influence each other" not in said and "vmap" not in said


class NotFinite(nn.Module):
    """Gives NaN for the synthetic records of the check."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + (x.sum(1, keepdim=True) - 1e9).log()


@pytest.mark.filterwarnings("ignore:Per-example gradients of this model take the slow path")
def test_losses_that_are_not_finite_do_not_show_that_examples_mix():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first_call(NotFinite(), torch.full((2, 3, 6), 1e10))
    assert not [w for w in caught if "influence each other" in str(w.message)]


class NoRule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + torch.renorm(x, 2, 0, 1.0))


def test_an_operator_without_a_batching_rule_gives_only_our_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gradients = first_call(NoRule(), torch.randn(2, 3, 6))
        gradients.clipped_sum(
            gradients.flat.flatten().repeat(2, 1), torch.randn(2, 4, 6), torch.zeros(2, 4).long()
        )
    (said,) = {str(w.message) for w in caught}
    assert "aten::renorm" in said and "one example after the other" in said and "performance drop" not in said
    assert gradients.fast


class Projects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read, self.last = nn.LSTM(6, 4, proj_size=3, batch_first=True), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.read(x)[0][:, -1])


class Pads(nn.Module):
    """In evaluation mode torch would make nested tensors of this model, and warn."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        self.encode, self.last = nn.TransformerEncoder(layer, 1), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        padding = x[:, :, 0] > 1
        return self.last(self.encode(x, src_key_padding_mask=padding).mean(1))


@pytest.mark.parametrize("make", [Projects, Pads])
def test_harmless_warnings_of_torch_are_ignored(make):
    gradients = first_call(make(), torch.rand(2, 3, 4, 6))
    x = torch.rand(3, 4, 6)
    x[1, 2:, 0] = 2
    gradients.outputs(gradients.flat.flatten().repeat(2, 1), x)
    assert gradients.fast


TINY = """
import sys, torch
from torch import nn
from topdp.learning.gradients import ClippedGradients

known = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
# Unflatten is not on the list of layers known to treat examples one by one: this one runs in vmap.
other = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Unflatten(1, (2, 1)), nn.Flatten(), nn.Linear(72, 2))
for model in (known, other):
    gradients = ClippedGradients(model, 1.0)
    rows = gradients.flat.flatten().repeat(2, 1)
    gradients.clipped_sum(rows, torch.rand(2, 3, 1, 8, 8), torch.zeros(2, 3, dtype=torch.long))
    gradients.outputs(rows, torch.rand(3, 1, 8, 8))
    assert gradients.fast and gradients._folded.known == (model is known)
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


def test_the_path_check_does_not_import_the_compiler_of_torch():
    """It takes seconds to import."""
    found = subprocess.run([sys.executable, "-c", TINY], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]", found.stderr
