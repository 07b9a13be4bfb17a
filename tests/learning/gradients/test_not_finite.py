"""Records that overflow, underflow, cancel or make the model fail: none adds more than the clip."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from builders import cyclic_pairs
from gradient_models import CLASSES, MODELS, problem, slow_model
from topdp.learning.gradients import ClippedGradients, DivergedError, ghost_norms
from topdp.learning.models import FlatModel, mlp

WITH_REAL_INPUTS = [name for name, (_, shape) in MODELS.items() if shape != "tokens"]
HUGE = (3e38, -3e38, 1e30, math.inf, -math.inf, math.nan)


class Refuses(nn.Module):
    """Depends on values, so that each example is run alone; some examples make it fail."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if not float(x.abs().max()) < 1e20:
            raise ArithmeticError("too large for me")
        return self.layer(x)


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])


def sums(gradients: ClippedGradients, rows: Tensor, x: Tensor, y: Tensor, weights: Tensor):
    result, statistics = gradients.clipped_sum_and_statistics(rows, x, y, weights)
    assert torch.isfinite(result).all() and torch.isfinite(statistics.loss).all()
    return result, statistics


@pytest.mark.slow
@devices
@pytest.mark.parametrize(("name", "value"), cyclic_pairs(WITH_REAL_INPUTS, HUGE, times=2))
def test_a_record_whose_gradient_is_not_finite_counts_as_zero(name, value, device):
    flat, *rest = problem(name, torch.float32)
    rows, x, y, weights = (tensor.to(device) for tensor in rest)
    gradients = ClippedGradients(flat, 0.5)
    weights[1, 2] = 0
    without = gradients.clipped_sum(rows, x, y, weights)
    x[1, 2], weights[1, 2] = value, 1.0
    result, statistics = sums(gradients, rows, x, y, weights)
    assert gradients.fast
    assert torch.equal(result[[0, 2]], without[[0, 2]])
    if int(statistics.ignored[1]):
        assert torch.equal(result, without)
    else:  # normalised or saturated, a huge record may have a gradient like any other
        assert math.isfinite(value) and name not in ("mlp", "linear alone", "cnn", "deep convolutions")
        assert float((result - without).norm()) <= 0.5 * (1 + 1e-5)
    assert statistics.ignored.tolist() == [0, int(statistics.ignored[1]), 0]


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("make", [slow_model, Refuses])
@pytest.mark.filterwarnings("ignore:Per-example gradients")
def test_a_record_whose_gradient_is_not_finite_counts_as_zero_on_the_slow_paths(make, value):
    torch.manual_seed(0)
    gradients = ClippedGradients(make(), 0.5)
    rows = gradients.flat.flatten().repeat(3, 1)
    x, y, weights = torch.randn(3, 4, 6), torch.randint(CLASSES, (3, 4)), torch.rand(3, 4)
    weights[1, 2] = 0
    without = gradients.clipped_sum(rows, x, y, weights)
    x[1, 2], weights[1, 2] = value, 1.0
    result, statistics = sums(gradients, rows, x, y, weights)
    assert not gradients.fast
    assert torch.equal(result, without)  # if the record is not left out, its gradient is zero
    assert statistics.ignored.tolist() in ([0, 1, 0], [0, int(not math.isfinite(value)), 0])


def test_one_non_finite_number_of_a_record_is_enough():
    flat, rows, x, y, weights = problem("mlp", torch.float32)
    gradients = ClippedGradients(flat, 0.5)
    weights[1, 2] = 0
    without = gradients.clipped_sum(rows, x, y, weights)
    x[1, 2, 0], weights[1, 2] = 3e38, 1.0
    result, _ = sums(gradients, rows, x, y, weights)
    assert torch.equal(result, without)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.filterwarnings("ignore:Per-example gradients")
def test_rows_that_are_not_finite_raise_whatever_the_records_are(slow):
    gradients = ClippedGradients(slow_model() if slow else mlp(6, 6, CLASSES), 1.0)
    rows = gradients.flat.flatten().repeat(4, 1)
    x, y = torch.randn(4, 3, 6), torch.zeros(4, 3, dtype=torch.long)
    gradients.clipped_sum(rows, x, y)
    rows[1, 3], rows[2, 0] = math.nan, -math.inf
    for records in (x, x * math.nan, torch.zeros_like(x)):
        with pytest.raises(DivergedError, match=r"agents \[1, 2\]"):
            gradients.clipped_sum(rows, records, y)
    rows = torch.full_like(rows, 1.6e18)  # of a finite norm, though that of all of them is not
    assert not torch.isfinite(rows.norm()) and torch.isfinite(rows.norm(dim=1)).all()
    assert torch.isfinite(gradients.clipped_sum(rows, x, y)).all()


def test_an_invalid_token_counts_as_zero():
    flat, rows, x, y, weights = problem("tokens", torch.float64)
    gradients = ClippedGradients(flat, 0.5)
    weights[1, 2] = 0
    without = gradients.clipped_sum(rows, x, y, weights)
    x[1, 2, 3], weights[1, 2] = 99, 1.0
    result, statistics = sums(gradients, rows, x, y, weights)
    torch.testing.assert_close(result, without)
    assert statistics.ignored.tolist() == [0, 1, 0]
    assert gradients.fast
    x[1, 2, 3], weights[1, 2] = 0, 0.0
    assert torch.equal(gradients.clipped_sum(rows, x, y, weights), without)


def test_an_invalid_token_counts_as_zero_in_the_first_call():
    flat, rows, x, y, weights = problem("tokens", torch.float64)
    x[0, 0, 0] = 99
    _, statistics = sums(ClippedGradients(flat, 0.5), rows, x, y, weights)
    assert statistics.ignored.tolist() == [1, 0, 0]


@devices
@pytest.mark.parametrize("clip", [1e-6, 1e-3, 1.0])
def test_numbers_whose_squares_underflow_are_clipped(clip, device):
    """|a|²|δ|² is zero in float32 where |a||δ| is above the clip: a large, δ small."""
    slot = ghost_norms.Outer(
        torch.full((1, 1, 1, 50), 1e18, device=device), torch.full((1, 1, 1, 40), 2e-23, device=device)
    )
    norm = slot.squared_norms().sqrt()
    out = torch.zeros(1, 2000, device=device)
    slot.add_to(out, clip / norm.clamp_min(clip))
    assert float(out.double().norm()) <= clip * (1 + 1e-5)
    assert float(torch.tensor(2e-23).square()) == 0


def nearly_cancelled(size_in: int, size_out: int, positions: int, rest: float) -> tuple[Tensor, Tensor]:
    """a nearly the same at all positions, δ summing to nearly nothing: Σ_l δ_l a_lᵀ is what is left."""
    same = torch.randn(1, 20, 1, size_in)
    delta = torch.randn(1, 20, positions, size_out)
    return same + rest * torch.randn(1, 20, positions, size_in), delta - delta.mean(2, keepdim=True)


@devices
@pytest.mark.parametrize("rest", [0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("sizes", [(64, 64, 7), (512, 512, 4), (1000, 1000, 2)])
def test_no_more_than_the_clip_where_a_sum_over_positions_cancels(sizes, rest, device):
    torch.manual_seed(0)
    slot = ghost_norms.Outer(*(part.to(device) for part in nearly_cancelled(*sizes, rest)))
    _at_most_one(slot, sizes[0] * sizes[1])


@devices
@pytest.mark.parametrize("rest", [0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
def test_no_more_than_the_clip_where_a_token_s_gradients_cancel(rest, device):
    torch.manual_seed(0)
    delta = torch.randn(1, 20, 8, 32)
    delta = delta - delta.mean(2, keepdim=True) + rest * torch.randn(1, 20, 1, 32)
    tokens = torch.zeros(1, 20, 8, dtype=torch.long, device=device)
    _at_most_one(ghost_norms.Lookup(tokens, delta.to(device)), 5 * 32)


@devices
@pytest.mark.parametrize("rest", [0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("loud", [0, 1, 1e3])
@pytest.mark.parametrize("width", [8, 64])
def test_no_more_than_the_clip_where_the_uses_of_a_tied_table_cancel(width, loud, rest, device):
    """The linear layer subtracts what the embedding adds to a row of the table, up to a rest."""
    torch.manual_seed(0)
    tokens = torch.randint(5, (1, 20, 6))
    delta = torch.randn(1, 20, 6, width)
    once = nn.functional.one_hot(tokens, 5).float()
    same = loud * torch.randn_like(delta)
    a = torch.cat([same - delta + rest * torch.randn_like(delta), same], 2)
    above = torch.cat([once, -once], 2)
    lookup = ghost_norms.Lookup(tokens.to(device), delta.to(device))
    _at_most_one(
        ghost_norms.TiedEmbedding(lookup, ghost_norms.Outer(a.to(device), above.to(device))), 5 * width
    )


@devices
@pytest.mark.parametrize("rest", [0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("channels", [8, 64])
def test_no_more_than_the_clip_where_a_convolution_cancels(channels, rest, device):
    torch.manual_seed(0)
    x = torch.randn(1, 20, channels, 1, 1) + rest * torch.randn(1, 20, channels, 2, 2)
    delta = torch.randn(1, 20, 3 * channels, 2, 2)
    delta = delta - delta.mean((3, 4), keepdim=True)
    uses = [(x.to(device), delta.to(device))]
    slot = ghost_norms.Convolution(uses, ghost_norms.ConvolutionGeometry((1, 1), (1, 1), (1, 1), 1))
    _at_most_one(slot, 3 * channels * channels)


def _at_most_one(slot: ghost_norms.Contribution, size: int) -> None:
    norms = ghost_norms.total_norms([slot])
    for k in range(norms.shape[1]):
        out, alone = norms.new_zeros(1, size), torch.zeros_like(norms)
        alone[0, k] = 1 / norms[0, k]
        slot.add_to(out, alone)
        assert float(out.double().norm()) <= 1 + 1e-5


def test_the_models_own_error_is_raised_if_no_record_causes_it():
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("mine")

    gradients = ClippedGradients(FlatModel(Broken()), 1.0)
    with pytest.raises(KeyError, match="mine"):
        gradients.clipped_sum(gradients.flat.flatten()[None], torch.ones(1, 2, 6), torch.zeros(1, 2).long())


@pytest.mark.parametrize("clipping", ["flat", "per-layer", "normalised"])
@pytest.mark.parametrize("tokens", [[-1, 4, -1, 4], [4, 4, 4, -1], [-5, 0, 0, 0], [4, 4, 5, 4]])
def test_negative_indices_do_not_name_embedding_rows_twice(tokens, clipping):
    """Python counts -1 from the end. Norms that identify rows by their index were too small by half."""
    table = nn.Embedding(5, 3)
    gradients = ClippedGradients(nn.Sequential(table, nn.Flatten(), nn.Linear(12, 2)), 1.0, clipping=clipping)
    nn.init.ones_(gradients.flat.module[2].weight)
    with torch.no_grad():
        gradients.flat.module[2].weight[1] *= -1  # every position changes its row in the same direction
    good = torch.tensor([[[0, 1, 2, 3]]])
    rows, y = gradients.flat.flatten()[None] * 100, torch.zeros(1, 2, dtype=torch.long)
    bad = torch.cat([good, torch.tensor([[tokens]])], 1)
    result, statistics = gradients.clipped_sum_and_statistics(rows, bad, y)
    assert gradients.fast and statistics.ignored.tolist() == [1]
    assert torch.allclose(result, gradients.clipped_sum(rows, good, y[:, :1]))


def test_an_invalid_token_is_named_during_evaluation():
    gradients = ClippedGradients(nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 2)), 1.0)
    with pytest.raises(Exception, match=r"from 0 to 4|out of range"):
        gradients.outputs(gradients.flat.flatten()[None], torch.tensor([[0, 1, 2, -1]] * 5))
