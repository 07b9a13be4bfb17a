"""Tests that products for all agents equal plain torch expressions, and do not depend on other agents."""

import math

import pytest
import torch
from torch import nn

from topdp.learning.gradients import ClippedGradients, agent_products
from topdp.learning.models import FlatModel


@pytest.fixture(autouse=True, params=["torch", "onednn"])
def library(request, monkeypatch):
    """Run each test with either library, whatever the processor and the size of the products."""
    if request.param == "onednn" and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("This torch has no oneDNN.")
    monkeypatch.setattr(agent_products, "_prefers_onednn", lambda: request.param == "onednn")
    monkeypatch.setattr(agent_products, "MIN_ONEDNN_MULTIPLICATIONS", 0)
    return request.param


def inside(*shape):
    """Numbers in the middle of other numbers, as weights are in rows; and all of them."""
    n, *rest = shape
    size = math.prod(rest)
    whole = torch.randn(n, size + 9)
    return whole[:, 5 : 5 + size].view(n, *rest), whole


@pytest.mark.parametrize("bias", [None, torch.randn(3, 7)])
def test_products_use_every_agents_own_matrix(bias):
    rows = torch.randn(3, 50)  # weights lie in rows, with something behind them
    a, weight = torch.randn(3, 4, 5, requires_grad=True), rows[:, :35].view(3, 7, 5)
    expected = a @ weight.mT + (0 if bias is None else bias.unsqueeze(1))
    got = agent_products.agent_linear(a, weight, bias)
    torch.testing.assert_close(got, expected)
    above = torch.randn_like(expected)
    torch.testing.assert_close(*(torch.autograd.grad(y, a, above)[0] for y in (got, expected)))


def test_a_shared_batch_is_not_copied_per_agent():
    x, weight = torch.randn(4, 5), torch.randn(3, 7, 5)
    torch.testing.assert_close(agent_products.agent_linear(x.expand(3, 4, 5), weight, None), x @ weight.mT)


@pytest.mark.parametrize("fresh", [False, True])
def test_sums_of_outer_products_are_added_or_overwrite(fresh):
    out, _ = inside(3, 7, 5)
    delta, a = torch.randn(3, 4, 7), torch.randn(3, 4, 5)
    expected = (0 if fresh else out) + delta.mT @ a
    if fresh:
        out.fill_(math.nan)
    agent_products.add_outer(out, delta, a, fresh)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("fresh", [False, True])
def test_weighted_sums_are_added_or_overwrite(fresh):
    out, whole = inside(3, 5)
    weights, a = torch.randn(3, 4), torch.randn(3, 4, 5)
    expected = (0 if fresh else out) + (weights.unsqueeze(2) * a).sum(1)
    if fresh:
        out.fill_(math.nan)
    before = whole.clone()
    agent_products.add_sum(out, weights, a, fresh)
    torch.testing.assert_close(out, expected)
    assert torch.equal(whole[:, :5], before[:, :5]) and torch.equal(whole[:, 10:], before[:, 10:])


WRONG = {
    "terms": lambda: agent_products.agent_linear(torch.rand(2, 3, 50), torch.rand(2, 4, 5), None),
    "turned": lambda: agent_products.agent_linear(torch.rand(2, 3, 50), torch.rand(2, 5, 4).mT, None),
    "agents": lambda: agent_products.agent_linear(torch.rand(5, 3, 5), torch.rand(2, 4, 5), None),
    "bias": lambda: agent_products.agent_linear(torch.rand(2, 3, 5), torch.rand(2, 4, 5), torch.rand(2, 3)),
    "examples": lambda: agent_products.add_outer(
        torch.zeros(2, 4, 5), torch.rand(2, 3, 4), torch.rand(2, 9, 5)
    ),
    "rows": lambda: agent_products.add_outer(torch.zeros(2, 2, 5), torch.rand(2, 3, 4), torch.rand(2, 3, 5)),
    "columns": lambda: agent_products.add_outer(
        torch.zeros(2, 4, 3), torch.rand(2, 3, 4), torch.rand(2, 3, 5)
    ),
    "sums": lambda: agent_products.add_sum(torch.zeros(2, 3), torch.rand(2, 4), torch.rand(2, 4, 5)),
}


@pytest.mark.parametrize("what", WRONG)
def test_matrices_of_different_sizes_are_refused(what):
    with pytest.raises((RuntimeError, ValueError)):
        WRONG[what]()


@pytest.mark.parametrize("examples", [17, 64])
@pytest.mark.parametrize("width", [33, 100])
def test_an_agents_sum_does_not_depend_on_the_other_agents(examples, width):
    generator = torch.Generator().manual_seed(0)
    flat = FlatModel(nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 10)))
    rows = torch.randn(9, flat.dimension, generator=generator)
    x = torch.randn(9, examples, 6, generator=generator)
    y = torch.randint(0, 3, (9, examples), generator=generator)
    gradients = ClippedGradients(flat, 0.7)
    everyone = gradients.clipped_sum(rows, x, y)
    for first, last in ((0, 2), (2, 5), (3, 9), (7, 9)):
        few = (part[first:last].clone() for part in (rows, x, y))
        assert torch.equal(gradients.clipped_sum(*few), everyone[first:last])


def test_onednn_computes_only_large_products_in_float32_on_a_cpu(library, monkeypatch):
    calls, real = [], agent_products._onednn_linear
    monkeypatch.setattr(agent_products, "_onednn_linear", lambda *given: calls.append(1) or real(*given))
    a, weight = torch.rand(3, 4, 5), torch.rand(3, 7, 5)
    agent_products.agent_linear(a, weight, None)
    agent_products.add_outer(torch.zeros(3, 7, 5), torch.rand(3, 4, 7), a)
    assert len(calls) == (6 if library == "onednn" else 0)
    calls.clear()
    agent_products.agent_linear(a.double(), weight.double(), None)
    monkeypatch.setattr(agent_products, "MIN_ONEDNN_MULTIPLICATIONS", 4 * 5 * 7 + 1)
    agent_products.agent_linear(a, weight, None)
    assert calls == []
