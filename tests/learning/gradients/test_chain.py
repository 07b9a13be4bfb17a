"""Chains without autograd against the tape, which has it: the same numbers, bit by bit."""

import pytest
import torch
from torch import nn

from topdp.learning.gradients import ClippedGradients, products
from topdp.learning.gradients.chain import Chain
from topdp.learning.gradients.folded import FoldedGradients
from topdp.learning.losses import named_loss
from topdp.learning.models import FlatModel

CHAINS = {
    "linear": nn.Linear(6, 3),
    "no biases": nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False)),
    "without bias": nn.Sequential(nn.Flatten(), nn.Linear(6, 3, bias=False)),
    "mlp": nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
    "deep": nn.Sequential(
        nn.Linear(6, 17), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(17, 20, bias=False)),
        nn.Linear(20, 7), nn.Identity(), nn.ReLU(), nn.ReLU(), nn.Linear(7, 3), nn.ReLU(),
    ),
}  # fmt: skip

bend = nn.ReLU()
CHAINS["one ReLU for all"] = nn.Sequential(nn.Linear(6, 5), bend, nn.Linear(5, 4), bend, nn.Linear(4, 3))
# As the model is, the second bend does nothing: no example that is made up to compare paths shows it.
nn.init.constant_(CHAINS["one ReLU for all"][2].bias, 50.0)

twice, one, other = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
other.weight = one.weight
OTHERS = {
    "bent before": nn.Sequential(nn.ReLU(), nn.Linear(6, 3)),
    "another bend": nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
    "dropout": nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.1), nn.Linear(5, 3)),
    "flattened later": nn.Sequential(nn.Linear(6, 5), nn.Flatten(), nn.Linear(5, 3)),
    "flattened twice": nn.Sequential(nn.Flatten(), nn.Flatten(), nn.Linear(6, 3)),
    "one layer twice": nn.Sequential(twice, nn.ReLU(), twice),
    "tied": nn.Sequential(one, nn.ReLU(), other, nn.Linear(6, 3)),
    "normalised": nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3)),
}


def chain_of(model):
    folded = FoldedGradients(FlatModel(model), named_loss("cross-entropy"))
    return folded._chain


def problem(model, dtype=torch.float32, shape=(6,), agents=3, records=9):
    generator = torch.Generator().manual_seed(0)
    flat = FlatModel(model.to(dtype))
    rows = torch.randn(agents, flat.dimension, generator=generator, dtype=dtype)
    x = torch.randn(agents, records, *shape, generator=generator, dtype=dtype)
    return flat, rows, x, torch.randint(0, 3, (agents, records), generator=generator)


@pytest.mark.parametrize("name", CHAINS)
def test_chains_are_found(name):
    assert chain_of(CHAINS[name]) is not None


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_to_the_tape(name):
    assert chain_of(OTHERS[name]) is None


def test_code_that_is_not_known_is_no_chain():
    class Doubled(nn.Sequential):
        def forward(self, x):
            return 2 * super().forward(x)

    assert chain_of(Doubled(nn.Linear(6, 3))) is None
    hooked = nn.Sequential(nn.Linear(6, 3))
    hooked.register_forward_hook(lambda module, given, output: output)
    assert chain_of(hooked) is None


@pytest.mark.parametrize("clipping", ["flat", "per-layer", "normalised"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CHAINS)
def test_sums_are_those_of_the_tape(monkeypatch, name, dtype, clipping):
    flat, rows, x, y = problem(CHAINS[name], dtype, (2, 3) if name in ("mlp", "without bias") else (6,))
    x[1, 2] = float("nan")
    x[2, 3] = 1e30
    weights = torch.rand(len(rows), x.shape[1], dtype=dtype)
    weights[0, 4] = 0
    found = ClippedGradients(flat, 0.5, clipping=clipping)
    sums, about = found.clipped_sum_and_statistics(rows, x, y, weights)
    monkeypatch.setattr(Chain, "takes", lambda self, inputs: False)
    again = ClippedGradients(flat, 0.5, clipping=clipping)
    expected, about_it = again.clipped_sum_and_statistics(rows, x, y, weights)
    assert torch.equal(sums, expected)
    assert torch.equal(about.loss, about_it.loss) and about.ignored.tolist() == about_it.ignored.tolist()
    assert about.ignored.sum() > 0


def test_positions_before_the_first_layer_are_left_to_the_tape():
    """A linear layer of several positions an example: its gradient is a sum over them."""
    flat, rows, x, _ = problem(nn.Linear(6, 3), shape=(4, 6))
    chain = chain_of(nn.Linear(6, 3))
    assert not chain.takes(x) and chain.takes(x[:, :, 0])
    ClippedGradients(flat, 1.0, "mse").clipped_sum(rows, x, torch.randn(*x.shape[:3], 3))


def test_a_chain_is_taken_and_its_loss_may_be_any(monkeypatch):
    calls, real = [], Chain.contributions
    monkeypatch.setattr(Chain, "contributions", lambda *given: calls.append(1) or real(*given))
    flat, rows, x, y = problem(CHAINS["mlp"])
    for loss, targets in (("mse", torch.randn(*y.shape, 3)), ("bce", torch.rand(*y.shape, 3))):
        calls.clear()
        sums = ClippedGradients(flat, 0.5, loss).clipped_sum(rows, x, targets)
        assert calls
        with monkeypatch.context() as patch:
            patch.setattr(Chain, "takes", lambda self, inputs: False)
            assert torch.equal(sums, ClippedGradients(flat, 0.5, loss).clipped_sum(rows, x, targets))
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *given: None)
    try:
        calls.clear()
        ClippedGradients(flat, 0.5).clipped_sum(rows, x, y)
        assert not calls  # code of somebody's is in every layer
    finally:
        handle.remove()


@pytest.mark.skipif(not products.has_tiles(), reason="needs a processor with AVX-512")
@pytest.mark.parametrize("examples", [17, 64])
def test_an_agents_sum_has_the_same_bits_whoever_stands_beside_it(examples):
    flat, rows, x, y = problem(
        nn.Sequential(nn.Linear(6, 33), nn.ReLU(), nn.Linear(33, 10)), agents=9, records=examples
    )
    gradients = ClippedGradients(flat, 0.7)
    together = gradients.clipped_sum(rows, x, y)
    for first, last in ((0, 2), (2, 5), (3, 9), (7, 9)):
        few = (part[first:last].clone() for part in (rows, x, y))
        assert torch.equal(gradients.clipped_sum(*few), together[first:last])
