"""Oracle: the products of one library against those of the other, and of whole models."""

import pytest
import torch
from torch import nn

from gradient_models import MODELS, problem
from topdp.learning.gradients import ClippedGradients, products
from topdp.learning.models import FlatModel

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),
    reason="needs a torch with oneDNN",
)


@pytest.fixture
def wide(monkeypatch):
    """Every product in float32 is taken by oneDNN, in small parts; how many there were."""
    calls = []
    real = products._wide
    monkeypatch.setattr(products, "has_wide_products", lambda: True)
    monkeypatch.setattr(products, "LARGE", 0)
    monkeypatch.setattr(products, "AT_ONCE", 8)
    monkeypatch.setattr(products, "_wide", lambda *given: calls.append(1) or real(*given))
    return calls


@pytest.mark.parametrize("bias", [None, torch.randn(3, 7)])
def test_products_with_every_agents_own_matrix(wide, bias):
    rows = torch.randn(3, 50)  # weights lie in rows, with something behind them
    a, weight = torch.randn(3, 4, 5, requires_grad=True), rows[:, :35].view(3, 7, 5)
    expected = a @ weight.mT + (0 if bias is None else bias.unsqueeze(1))
    got = products.linear(a, weight, bias)
    assert wide
    torch.testing.assert_close(got, expected)
    above = torch.randn_like(expected)
    torch.testing.assert_close(*(torch.autograd.grad(y, a, above)[0] for y in (got, expected)))


def test_a_batch_that_agents_share_is_not_copied_for_them(wide):
    x, weight = torch.randn(4, 5), torch.randn(3, 7, 5)
    torch.testing.assert_close(products.linear(x.expand(3, 4, 5), weight, None), x @ weight.mT)


def test_sums_of_outer_products_are_added(wide):
    rows = torch.randn(3, 50)
    out = rows[:, 10:45].view(3, 7, 5)
    delta, a = torch.randn(3, 4, 7), torch.randn(3, 4, 5)
    expected = out + delta.mT @ a
    products.add_outer(out, delta, a)
    assert len(wide) == 3 * 7  # of one row of the matrix each
    torch.testing.assert_close(out, expected)


@pytest.mark.filterwarnings("ignore:.*slow path")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_same_clipped_sums(name, wide, monkeypatch):
    flat, rows, x, y, weights = problem(name, torch.float32)
    found = ClippedGradients(flat, 0.5).clipped_sum(rows, x, y, weights)
    monkeypatch.setattr(products, "has_wide_products", lambda: False)
    expected = ClippedGradients(flat, 0.5).clipped_sum(rows, x, y, weights)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_small_products_and_other_types_stay_where_they_are(monkeypatch):
    monkeypatch.setattr(products, "has_wide_products", lambda: True)
    monkeypatch.setattr(products, "_wide", lambda *given: pytest.fail("not here"))
    flat = FlatModel(nn.Linear(6, 3))
    x, y = torch.rand(2, 4, 6), torch.zeros(2, 4, dtype=torch.long)
    ClippedGradients(flat, 1.0).clipped_sum(flat.flatten().repeat(2, 1), x, y)
    products.linear(torch.rand(1, 200, 200).double(), torch.rand(1, 200, 200).double(), None)
