"""Chains without autograd. Oracle: the same models on the tape, and agents by themselves."""

import pytest
import torch
from torch import nn

from topdp.learning.gradients import ClippedGradients, products
from topdp.learning.gradients.chain import Chain
from topdp.learning.gradients.folded import FoldedGradients
from topdp.learning.models import FlatModel


def with_one_relu_for_all():
    bend = nn.ReLU()
    model = nn.Sequential(nn.Linear(6, 5), bend, nn.Linear(5, 4), bend, nn.Linear(4, 3))
    # As the model is, the second bend does nothing: no example made up to compare paths shows it.
    nn.init.constant_(model[2].bias, 50.0)
    return model


def tied():
    one, other = nn.Linear(6, 6), nn.Linear(6, 6)
    other.weight = one.weight
    return nn.Sequential(one, nn.ReLU(), other, nn.Linear(6, 3))


CHAINS = {
    "one relu for all": with_one_relu_for_all,
    "no biases": lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False)),
    "in place, and last": lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(True), nn.Linear(5, 3), nn.ReLU()),
    "nested": lambda: nn.Sequential(
        nn.Identity(), nn.Flatten(), nn.Linear(6, 5), nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(5, 3)))
    ),
}
OTHERS = {
    "tied": tied,
    "bent before": lambda: nn.Sequential(nn.ReLU(), nn.Linear(6, 3)),
    "flat twice": lambda: nn.Sequential(nn.Flatten(), nn.Flatten(), nn.Linear(6, 3)),
}


@pytest.mark.parametrize("name", CHAINS | OTHERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_chain_finds_what_the_tape_finds(monkeypatch, name, dtype):
    torch.manual_seed(0)
    flat = FlatModel((CHAINS | OTHERS)[name]().to(dtype))
    assert (FoldedGradients(flat, ClippedGradients(flat, 1.0).loss)._chain is not None) == (name in CHAINS)
    rows = torch.randn(3, flat.dimension, dtype=dtype)
    inputs, targets = torch.randn(3, 7, 6, dtype=dtype), torch.randint(3, (3, 7))
    weights = torch.rand(3, 7, dtype=dtype)
    inputs[1, 2, 3], weights[0, 0] = torch.nan, 0
    found = ClippedGradients(flat, 0.7).clipped_sum(rows, inputs, targets, weights)
    monkeypatch.setattr(Chain, "takes", lambda self, inputs: False)
    torch.testing.assert_close(ClippedGradients(flat, 0.7).clipped_sum(rows, inputs, targets, weights), found)


@pytest.mark.skipif(not products.has_tiles(), reason="needs a processor with AVX-512")
@pytest.mark.parametrize("examples", [17, 64])
def test_an_agents_sum_has_the_same_bits_whoever_stands_beside_it(examples):
    torch.manual_seed(0)
    flat = FlatModel(nn.Sequential(nn.Linear(6, 33), nn.ReLU(), nn.Linear(33, 10)))
    gradients = ClippedGradients(flat, 0.7)
    rows, inputs = torch.randn(9, flat.dimension), torch.randn(9, examples, 6)
    targets = torch.randint(10, (9, examples))
    together = gradients.clipped_sum(rows, inputs, targets)
    for first, last in ((0, 2), (2, 5), (3, 9), (7, 9)):
        few = (part[first:last].clone() for part in (rows, inputs, targets))
        assert torch.equal(gradients.clipped_sum(*few), together[first:last])
