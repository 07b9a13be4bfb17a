"""The gradient of a model's outputs at its start: known values, and the same every time."""

import pytest
import torch
from torch import nn

from topdp.errors import InputError
from topdp.learning.models import FlatModel, WordCounts, affine
from topdp.learning.output_gradient import output_gradient
from topdp.learning.tasks import Task

CLASSES, NUMBERS = Task.of("cross-entropy"), Task.of("mse")


def test_a_linear_model_has_the_length_of_its_input():
    found = output_gradient(FlatModel(affine(5, 3)), CLASSES, (5,), torch.float32, length=2.0)
    assert found.norm == pytest.approx((1 + 2.0**2) ** 0.5) and found.values == 1


def test_inputs_of_unknown_length_have_variance_one():
    found = output_gradient(FlatModel(nn.Linear(4000, 2, bias=False)), CLASSES, (4000,), torch.float32)
    assert found.norm == pytest.approx(4000**0.5, rel=0.02)


def test_a_mean_over_values_makes_the_gradient_of_the_loss_shorter():
    found = output_gradient(FlatModel(nn.Linear(5, 4, bias=False)), NUMBERS, (5,), torch.float32, length=2.0)
    assert (found.norm, found.values) == (pytest.approx(2.0), 4) and found.of_loss == pytest.approx(1.0)


def test_it_agrees_with_gradients_of_each_output():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    squares = []
    for x in torch.randn(300, 6):
        for k in range(3):
            gradients = torch.autograd.grad(network(x)[k], list(network.parameters()))
            squares.append(sum(float(g.square().sum()) for g in gradients))
    found = output_gradient(FlatModel(network), CLASSES, (6,), torch.float32)
    assert found.norm == pytest.approx((sum(squares) / len(squares)) ** 0.5, rel=0.15)


def test_texts_and_embeddings():
    words = output_gradient(FlatModel(WordCounts(50, 2)), CLASSES, (8,), torch.int64)
    assert words.norm == pytest.approx(1.0)
    embedded = nn.Sequential(nn.Embedding(3, 4), nn.Flatten(), nn.Linear(32, 2))
    assert output_gradient(FlatModel(embedded), CLASSES, (8,), torch.int64).norm > 0


def test_it_is_the_same_every_time_and_leaves_the_random_state():
    flat = FlatModel(nn.Sequential(nn.Linear(6, 4), nn.Dropout(), nn.Linear(4, 2)))
    before = torch.get_rng_state()
    first, second = (output_gradient(flat, CLASSES, (6,), torch.float32) for _ in range(2))
    assert first == second and torch.equal(before, torch.get_rng_state())


class Nothing(nn.Linear):
    def forward(self, x):
        return 0 * super().forward(x)


def test_a_model_without_a_gradient_is_refused():
    with pytest.raises(InputError, match="clip and learning_rate"):
        output_gradient(FlatModel(Nothing(3, 2)), CLASSES, (3,), torch.float32)
