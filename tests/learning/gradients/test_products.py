"""Oracle: products in float64 by torch; and whole models with and without our own tiles."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from gradient_models import MODELS, problem
from topdp.learning.gradients import ClippedGradients, products
from topdp.learning.models import FlatModel

tiles_only = pytest.mark.skipif(not products.has_tiles(), reason="needs a processor with AVX-512")
SIZES = (1, 2, 3, 4, 5, 6, 7, 12, 15, 16, 17, 31, 32, 33, 63, 64, 65, 80, 100, 127, 128, 129, 257)


@pytest.fixture(params=[pytest.param(True, marks=tiles_only), False], ids=["tiles", "torch"])
def which(request, monkeypatch):
    monkeypatch.setattr(products, "has_tiles", lambda: request.param)


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr(products, "SHARED", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def inside(*shape):
    """Numbers in the middle of other numbers, as weights are in rows; and all of them."""
    n, *rest = shape
    size = math.prod(rest)
    whole = torch.randn(n, size + 9)
    return whole[:, 5 : 5 + size].view(n, *rest), whole


def close(found, expected, terms):
    """Up to rounding: `terms` were added up."""
    bound = 1e-6 * math.sqrt(max(1, terms)) * max(1.0, float(expected.abs().max()))
    assert float((found.double() - expected).abs().max()) < bound


@pytest.mark.parametrize("bias", [None, torch.randn(3, 7)])
def test_products_with_every_agents_own_matrix(which, bias):
    rows = torch.randn(3, 50)  # weights lie in rows, with something behind them
    a, weight = torch.randn(3, 4, 5, requires_grad=True), rows[:, :35].view(3, 7, 5)
    expected = a @ weight.mT + (0 if bias is None else bias.unsqueeze(1))
    got = products.linear(a, weight, bias)
    torch.testing.assert_close(got, expected)
    above = torch.randn_like(expected)
    torch.testing.assert_close(*(torch.autograd.grad(y, a, above)[0] for y in (got, expected)))


def test_a_batch_that_agents_share_is_not_copied_for_them(which):
    x, weight = torch.randn(4, 5), torch.randn(3, 7, 5)
    torch.testing.assert_close(products.linear(x.expand(3, 4, 5), weight, None), x @ weight.mT)


@pytest.mark.parametrize("fresh", [False, True])
def test_sums_of_outer_products_are_added_or_put(which, fresh):
    out, _ = inside(3, 7, 5)
    delta, a = torch.randn(3, 4, 7), torch.randn(3, 4, 5)
    expected = (0 if fresh else out) + delta.mT @ a
    if fresh:
        out.fill_(math.nan)
    products.add_outer(out, delta, a, fresh)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("fresh", [False, True])
def test_weighted_sums_are_added_or_put(which, fresh):
    out, whole = inside(3, 5)
    weights, a = torch.randn(3, 4), torch.randn(3, 4, 5)
    expected = (0 if fresh else out) + (weights.unsqueeze(2) * a).sum(1)
    if fresh:
        out.fill_(math.nan)
    before = whole.clone()
    products.add_sum(out, weights, a, fresh)
    torch.testing.assert_close(out, expected)
    assert torch.equal(whole[:, :5], before[:, :5]) and torch.equal(whole[:, 10:], before[:, 10:])


WRONG = {
    "terms": lambda: products.linear(torch.rand(2, 3, 50), torch.rand(2, 4, 5), None),
    "turned": lambda: products.linear(torch.rand(2, 3, 50), torch.rand(2, 5, 4).mT, None),
    "agents": lambda: products.linear(torch.rand(5, 3, 5), torch.rand(2, 4, 5), None),
    "bias": lambda: products.linear(torch.rand(2, 3, 5), torch.rand(2, 4, 5), torch.rand(2, 3)),
    "examples": lambda: products.add_outer(torch.zeros(2, 4, 5), torch.rand(2, 3, 4), torch.rand(2, 9, 5)),
    "rows": lambda: products.add_outer(torch.zeros(2, 2, 5), torch.rand(2, 3, 4), torch.rand(2, 3, 5)),
    "columns": lambda: products.add_outer(torch.zeros(2, 4, 3), torch.rand(2, 3, 4), torch.rand(2, 3, 5)),
    "sums": lambda: products.add_sum(torch.zeros(2, 3), torch.rand(2, 4), torch.rand(2, 4, 5)),
}


@pytest.mark.parametrize("what", WRONG)
def test_matrices_that_do_not_fit_each_other_are_refused(which, what):
    """Tiles would read, and write, what lies beyond them."""
    with pytest.raises(RuntimeError):
        WRONG[what]()


@tiles_only
@pytest.mark.parametrize("seed", range(6))
def test_tiles_of_every_shape_write_what_they_should_and_nothing_else(seed):
    random = np.random.default_rng(seed)
    for _ in range(60):
        n, (m, k, o) = int(random.integers(1, 4)), random.choice(SIZES, 3).tolist()
        k = int(random.choice([k, k, 1024, 1025, 2300]))
        (x, _), (weight, _), (bias, _) = inside(n, m, k), inside(n, o, k), inside(n, o)
        exact = x.double() @ weight.double().mT
        close(products.linear(x, weight, None), exact, k)
        close(products.linear(x, weight, bias), exact + bias.double().unsqueeze(1), k)
        delta, _ = inside(n, m, o)
        close(products.linear(delta, weight.mT, None), delta.double() @ weight.double(), o)  # back
        out, whole = inside(n, o, k)
        before = whole.clone()
        products.add_outer(out, delta, x)
        size = o * k
        edges = torch.cat([whole[:, :5], whole[:, 5 + size :]], 1)
        assert torch.equal(edges, torch.cat([before[:, :5], before[:, 5 + size :]], 1))
        held = before[:, 5 : 5 + size].view(n, o, k).double()
        close(out, held + delta.double().mT @ x.double(), m)


@tiles_only
def test_tiles_have_the_same_bits_whatever_stands_beside_them(two_threads):
    x, weight, bias = torch.randn(5, 70, 130), torch.randn(5, 33, 130), torch.randn(5, 33)
    delta = torch.randn(5, 70, 33)
    product, sums = products.linear(x, weight, bias), torch.empty(5, 33, 130)
    products.add_outer(sums, delta, x, fresh=True)
    torch.set_num_threads(1)
    for agent in range(5):
        own = slice(agent, agent + 1)
        for row in (0, 1, 37, 69):
            alone = products.linear(x[own, row : row + 1], weight[own], bias[own])
            assert torch.equal(alone, product[own, row : row + 1])
        for column in (0, 5, 17, 32):
            one = slice(column, column + 1)
            alone = products.linear(x[own], weight[own, one], bias[own, one].contiguous())
            assert torch.equal(alone, product[own, :, one])
            total = torch.empty(1, 1, 130)
            products.add_outer(total, delta[own, :, one], x[own], fresh=True)
            assert torch.equal(total, sums[own, one])
    for first in (1, 16, 63, 100):
        part = torch.empty(5, 33, 130 - first)
        products.add_outer(part, delta, x[:, :, first:], fresh=True)
        assert torch.equal(part, sums[:, :, first:])


@tiles_only
def test_one_agent_is_shared_by_threads_and_has_the_same_bits(two_threads):
    x, weight, delta = torch.randn(1, 70, 130), torch.randn(1, 33, 130), torch.randn(1, 70, 33)
    found = [
        products.linear(x, weight, None),
        products.linear(delta, weight.mT, None),
        torch.ones(1, 33, 130),
    ]
    products.add_outer(found[2], delta, x)
    torch.set_num_threads(1)
    alone = [
        products.linear(x, weight, None),
        products.linear(delta, weight.mT, None),
        torch.ones(1, 33, 130),
    ]
    products.add_outer(alone[2], delta, x)
    assert all(torch.equal(*pair) for pair in zip(found, alone, strict=True))


@tiles_only
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number_stays_with_its_example_and_its_agent(wrong):
    x, weight = torch.randn(3, 9, 40), torch.randn(3, 13, 40)
    expected = products.linear(x, weight, None)
    x[1, 4, 7] = wrong
    found = products.linear(x, weight, None)
    assert not torch.isfinite(found[1, 4]).any()
    expected[1, 4] = found[1, 4] = 0
    assert torch.equal(found, expected)
    delta, sums = torch.randn(3, 9, 13), torch.empty(3, 13, 40)
    products.add_outer(sums, delta, x, fresh=True)
    assert torch.isfinite(sums[[0, 2]]).all() and not torch.isfinite(sums[1, :, 7]).any()
    assert torch.isfinite(sums[1, :, :7]).all() and torch.isfinite(sums[1, :, 8:]).all()


@tiles_only
def test_no_terms_are_a_sum_of_nothing():
    bias = torch.randn(2, 3)
    found = products.linear(torch.empty(2, 4, 0), torch.empty(2, 3, 0), bias)
    assert torch.equal(found, bias.unsqueeze(1).expand(2, 4, 3))
    out = torch.full((2, 3, 5), math.nan)
    products.add_outer(out, torch.empty(2, 0, 3), torch.empty(2, 0, 5), fresh=True)
    assert torch.equal(out, torch.zeros(2, 3, 5))


@pytest.mark.filterwarnings("ignore:.*slow path")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_same_clipped_sums(name, monkeypatch):
    flat, rows, x, y, weights = problem(name, torch.float32)
    found = ClippedGradients(flat, 0.5).clipped_sum(rows, x, y, weights)
    monkeypatch.setattr(products, "has_tiles", lambda: False)
    expected = ClippedGradients(flat, 0.5).clipped_sum(rows, x, y, weights)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_other_types_stay_where_they_are(monkeypatch):
    monkeypatch.setattr(products, "has_tiles", lambda: True)
    monkeypatch.setattr(products, "_tiled", lambda *given: pytest.fail("not here"))
    monkeypatch.setattr(products, "_outers", lambda *given: pytest.fail("not here"))
    flat = FlatModel(nn.Linear(6, 3).double())
    x, y = torch.rand(2, 4, 6).double(), torch.zeros(2, 4, dtype=torch.long)
    ClippedGradients(flat, 1.0).clipped_sum(flat.flatten().repeat(2, 1), x, y)


@tiles_only
@pytest.mark.parametrize("name", ["_tiled", "_outers"])
def test_tiles_that_are_wrong_are_found_before_they_are_used(monkeypatch, name):
    real = getattr(products, name)

    def wrong(first, *given, **how):
        found = real(first, *given, **how)
        (first if found is None else found).mul_(1.01)
        return found

    monkeypatch.setattr(products, name, wrong)
    flat = FlatModel(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))
    gradients = ClippedGradients(flat, 1.0)
    with pytest.warns(UserWarning, match="slow path"):
        gradients.clipped_sum(
            flat.flatten().repeat(2, 1), torch.rand(2, 4, 6), torch.zeros(2, 4, dtype=torch.long)
        )
    assert not gradients.fast
