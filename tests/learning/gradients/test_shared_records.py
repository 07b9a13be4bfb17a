"""Rows with shared records give the same result as rows with copies, for all models."""

import pytest
import torch
from torch import nn

from builders import cyclic_pairs
from gradient_models import MODELS, problem
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients, agent_products
from topdp.learning.gradients.ghost_norms import Outer
from topdp.learning.models import FlatModel, mlp

COPIES = 3


def rows_of_copies(rows, copies=COPIES):
    generator = torch.Generator().manual_seed(1)
    return torch.cat(
        [rows + 0.1 * torch.randn(rows.shape, generator=generator).to(rows) for _ in range(copies)]
    )


def repeated(values, copies=COPIES):
    return torch.cat([values] * copies)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*slow path")
@pytest.mark.parametrize(("name", "microbatch"), cyclic_pairs(MODELS, [None, 7, 1], times=1))
def test_shared_records_give_the_same_result_as_copies(name, microbatch):
    flat, rows, x, y, weights = problem(name, torch.float64)
    gradients = ClippedGradients(flat, clip=0.5)
    rows, weights = rows_of_copies(rows), torch.rand(COPIES * len(x), x.shape[1]).double()
    out = torch.ones_like(rows)
    gradients.clipped_sum(rows, x, y, weights, out=out, copies=COPIES, microbatch=microbatch)
    expected = gradients.clipped_sum(rows, repeated(x), repeated(y), weights)
    torch.testing.assert_close(out, 1 + expected, rtol=1e-10, atol=1e-10)


def test_models_that_start_with_a_linear_layer_read_shared_records_once(monkeypatch):
    """A separate first layer per copy would need an `Outer` with as many activations as rows."""
    seen = []
    monkeypatch.setattr(Outer, "__init__", lambda self, a, delta: pytest.fail("copied"))
    real = agent_products.add_outer
    monkeypatch.setattr(
        agent_products, "add_outer", lambda *given, **how: seen.append(given[0].shape) or real(*given, **how)
    )
    layer = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    gradients = ClippedGradients(layer, 1.0)
    gradients._elements[torch.Size([2, 3]), torch.float32, torch.float32, torch.device("cpu")] = 20
    rows = rows_of_copies(gradients.flat.flatten().expand(2, -1))
    gradients.clipped_sum(rows, torch.rand(2, 4, 2, 3), torch.zeros(2, 4, dtype=torch.long), copies=COPIES)
    assert seen == [(2, COPIES * 3, 6)]  # the sums: all copies of an agent side by side


@pytest.mark.parametrize(
    ("model", "shares"),
    [
        (mlp(6, 5, 3), True),
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), True),
        (nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)), False),  # each copy would get the same mask
        (nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3)), True),
        (nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)), False),
        (nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(6, 3)), False),
    ],
)
def test_which_models_can_share_records(model, shares):
    folded = ClippedGradients(FlatModel(model), 1.0)._folded
    assert folded is not None and folded.shares == shares


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e30])
def test_a_record_that_is_not_finite_adds_nothing_to_any_copy(value):
    gradients = ClippedGradients(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), 1.0)
    rows = rows_of_copies(gradients.flat.flatten().expand(2, -1))
    x, y = torch.rand(2, 4, 6), torch.zeros(2, 4, dtype=torch.long)
    without = gradients.clipped_sum(
        rows, x, y, repeated(torch.tensor([[1.0, 0, 1, 1], [1, 1, 1, 1]])), copies=3
    )
    x[0, 1, 2] = value
    torch.testing.assert_close(gradients.clipped_sum(rows, x, y, copies=3), without)


def test_a_copy_whose_gradient_overflows_does_not_affect_the_others():
    """The record is finite: only the rows of one copy make its gradient overflow."""
    gradients = ClippedGradients(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)), 1.0)
    rows = rows_of_copies(gradients.flat.flatten().expand(2, -1))
    x, y = torch.rand(2, 4, 6), torch.ones(2, 4, dtype=torch.long)
    fine = gradients.clipped_sum(rows, x, y, copies=3)
    rows[2] *= 1e18  # the second copy of the first agent
    found = gradients.clipped_sum(rows, x, y, copies=3)
    others = torch.arange(6) != 2
    torch.testing.assert_close(found[others], fine[others])
    alone = gradients.clipped_sum(rows, repeated(x), repeated(y))
    torch.testing.assert_close(found, alone)


def test_copies_must_divide_the_rows():
    gradients = ClippedGradients(nn.Linear(6, 3), 1.0)
    rows = gradients.flat.flatten().expand(4, -1)
    x, y = torch.rand(2, 4, 6), torch.zeros(2, 4, dtype=torch.long)
    with pytest.raises(InputError, match="divide 4 rows, got 3"):
        gradients.clipped_sum(rows, x, y, copies=3)
    with pytest.raises(InputError, match=r"Expected inputs \[1, 4"):
        gradients.clipped_sum(rows, x, y, copies=4)
